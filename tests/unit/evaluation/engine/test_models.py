"""Modes and modules of any model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch import nn

from evaluation.engine.backends.fused import fused_workers
from evaluation.engine.models import each_module, evaluation_mode, keep_freed_memory


def nested() -> tuple[nn.Module, nn.Module]:
    """A model in which one module is there twice and one child is None, and that module."""
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.Sequential(nn.Dropout(), nn.ModuleList([shared, nn.ReLU()])))
    model.register_module("absent", None)
    return model, shared


def test_each_module_is_visited() -> None:
    model, shared = nested()
    found = list(each_module(model))
    assert set(found) == set(model.modules())
    assert found.count(shared) == 2 and len(found) == len(list(model.modules())) + 1


@pytest.mark.parametrize("start", ["training", "evaluation", "mixed"])
def test_every_module_has_its_own_mode_again(start: str) -> None:
    """Also one that was changed meanwhile, and after an error."""
    model, shared = nested()
    model.train(start == "training")
    if start == "mixed":
        shared.train()
        model[1][0].train()
    before = {module: module.training for module in model.modules()}
    with pytest.raises(KeyError), evaluation_mode(model):
        assert not any(module.training for module in model.modules())
        model[1].train()
        raise KeyError
    assert {module: module.training for module in model.modules()} == before


def test_freed_memory_is_kept_by_glibcs_two_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """malloc.h: M_MMAP_THRESHOLD is -3, at most 32 MiB, and M_TRIM_THRESHOLD -1; elsewhere there is no such switch."""
    told: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *option: told.append(option) or 1)
    monkeypatch.setattr("ctypes.CDLL", lambda _: library)
    assert keep_freed_memory.__wrapped__() and sorted(told) == [(-3, 32 * 2**20), (-1, 2**28)]
    assert keep_freed_memory.__wrapped__(5) and told[-1] == (-1, 5)
    library.mallopt = lambda *_: 0
    assert not keep_freed_memory.__wrapped__()
    del library.mallopt
    assert not keep_freed_memory.__wrapped__()


@pytest.mark.parametrize(("vocabulary", "workers"), [(1000, 131), (32_000, 4), (128_256, 1), (500_000, 1)])
def test_as_many_batches_are_scored_at_once_as_have_logits_in_a_quarter_of_a_gibibyte(
    vocabulary: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """512 rows of four bytes for each token of the vocabulary; one batch at least."""
    monkeypatch.setattr("evaluation.engine.backends.fused.vocabulary_size", lambda model: vocabulary)
    assert fused_workers(nn.Linear(1, 1)) == workers
