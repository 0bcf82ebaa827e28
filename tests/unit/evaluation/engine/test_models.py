"""Modes and modules of any model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from evaluation.engine.backends.fused import fused_workers
from evaluation.engine.models import (
    decoder_layers,
    each_module,
    evaluation_mode,
    is_quantized,
    keep_freed_memory,
    layer_index,
    model_device,
    side_by_side,
    vocabulary_size,
)


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


def test_a_language_model_within_a_larger_one_says_how_many_words_and_layers_it_has() -> None:
    model = nn.Module()
    model.experts = nn.ModuleList(nn.Linear(1, 1) for _ in range(2))
    model.text = nn.Module()
    model.text.layers = nn.ModuleList(nn.Linear(1, 1) for _ in range(3))
    text = SimpleNamespace(vocab_size=70, num_hidden_layers=3)
    model.config = SimpleNamespace(vocab_size=9, num_hidden_layers=2, get_text_config=lambda: text)
    assert vocabulary_size(model) == 70
    name, layers = decoder_layers(model)
    assert name == "text.layers" and layers is model.text.layers
    assert [layer_index(model, layer) for layer in range(-3, 3)] == [0, 1, 2, 0, 1, 2]
    for layer in (-4, 3):
        with pytest.raises(ValueError, match=f"has decoder layers 0 to 2, also -3 to -1, not {layer}"):
            layer_index(model, layer)
    text.num_hidden_layers = 5
    with pytest.raises(ValueError, match="Module has no list of 5 decoder layers"):
        decoder_layers(model)


def test_weights_of_whole_numbers_are_quantised_ones() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    assert not is_quantized(model) and model_device(model) == torch.device("cpu")
    model[1].weight = nn.Parameter(torch.zeros(1, 1, dtype=torch.int8), requires_grad=False)
    assert is_quantized(model)


@pytest.mark.parametrize(("threads", "workers", "each"), [(4, 2, 2), (4, 9, 1), (3, 2, 1), (4, 1, 4), (1, 5, 1)])
def test_workers_share_the_threads_there_are(threads: int, workers: int, each: int) -> None:
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(threads)
    try:
        side_by_side(lambda item: seen.append((item, torch.get_num_threads())), range(6), workers)
        assert sorted(seen) == [(item, each) for item in range(6)] and torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
