"""What every loss has in common: its file, its hyperparameters, what it asks for."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from clients import losses
from clients.own_code import NotPermitted, code_hash, permit


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_names_and_unknown_name() -> None:
    assert {"grad_ascent", "grad_diff", "npo", "simnpo"} <= set(losses.names())
    with pytest.raises(ValueError, match=r"'simnop'.*simnpo"):
        losses.get("simnop")


@pytest.mark.parametrize("name", losses.names())
def test_every_method_file_defines_a_usable_method(name: str) -> None:
    method = losses.get(name)
    assert method.name == name and method.names
    assert losses.hyperparameters(name) == dict(method.defaults)
    assert method.function.__doc__


def test_signature_tells_what_a_method_needs() -> None:
    method = losses.get("npo")
    assert method.required == ("forget_log_p", "forget_reference_log_p")
    assert method.optional == ("retain_loss",)
    assert losses.hyperparameters("npo") == {"beta": 0.1, "alpha": 1.0}


DEFAULTS: dict[str, dict[str, Any]] = {
    "altpo": {"beta": 0.1, "alpha": 1.0},
    "bad_teacher": {"gamma": 1.0, "alpha": 1.0, "temperature": 1.0, "teacher_seed": 0},
    "calibrated": {"gamma": 3.0, "kappa": 2.0, "rho": 2.0, "alpha": 1.0},
    "ce_u": {"gamma": 1.0, "alpha": 0.0},
    "fedosd": {"epochs": 1, "recovery": None},
    "fine_tune": {},
    "grad_ascent": {"gamma": 1.0},
    "grad_diff": {"gamma": 1.0, "alpha": 1.0},
    "idk_dpo": {"beta": 0.1, "alpha": 1.0},
    "idk_nll": {"gamma": 1.0, "alpha": 1.0},
    "ihl": {"gamma": 1.0, "alpha": 1.0},
    "neg_grad": {"alpha": 0.5},
    "npo": {"beta": 0.1, "alpha": 1.0},
    "pdu": {"dual": 100.0, "dual_step_size": 5.0, "dual_warmup_epochs": 2, "tolerance": 0.1, "epsilon": None},
    "pga": {"radius": None},
    "rmu": {"steering_coefficient": 6.5, "alpha": 1200.0, "layer": -1, "moved_layers": 3, "direction_seed": 0},
    "satimp": {"beta_1": 5.0, "beta_2": 1.0, "gamma": 0.1, "alpha": 1.0},
    "scrub": {"alpha": 0.5, "gamma": 1.0, "temperature": 2.0, "msteps": 3},
    "simnpo": {"beta": 4.5, "delta": 0.0, "alpha": 1.0},
    "task_vector": {"alpha": 3.0},
    "undial": {"strength": 10.0, "alpha": 0.0},
    "wga": {"beta": 1.0, "gamma": 1.0, "alpha": 1.0},
}
OTHER_BOUNDS = {
    ("fedosd", "epochs", "at_least"): 1,
    ("neg_grad", "alpha", "at_most"): 1,
    ("rmu", "layer", "at_least"): -1,
    ("rmu", "moved_layers", "at_least"): 1,
    ("task_vector", "alpha", "at_most"): 100,
}
"""Beside these every bound is 0, which a weight or a count may reach and what is divided by may not."""
DIVIDED_BY = {"beta", "temperature", "radius", "epsilon"}


def test_defaults_are_those_of_the_papers() -> None:
    assert {name: losses.hyperparameters(name) for name in losses.names()} == DEFAULTS


def test_hyperparameters_are_bounded_by_zero_but_for_a_few() -> None:
    for name in losses.names():
        for key, about in getattr(importlib.import_module(f"clients.losses.{name}"), "LIMITS", {}).items():
            bounds = {k: v for k, v in about.items() if k in ("above", "at_least", "at_most")}
            assert all(v == OTHER_BOUNDS.get((name, key, k), 0) for k, v in bounds.items()), (name, key)
            if key in DIVIDED_BY and name != "wga":
                assert "above" in bounds, (name, key)


def test_which_methods_need_what() -> None:
    methods = [losses.get(name) for name in losses.names()]
    assert {m.name for m in methods if m.needs_retain} == {"fine_tune", "neg_grad", "pdu", "scrub"}
    assert {m.name for m in methods if m.needs_alternatives} == {"altpo", "idk_dpo", "idk_nll"}
    assert {m.name for m in methods if m.per_record} == {"grad_ascent", "grad_diff", "npo", "simnpo"}
    assert {m.name for m in methods if m.finish_in} == {"task_vector"}


def test_whether_retain_records_are_needed_goes_by_what_the_first_epoch_asks_for() -> None:
    def phases(epoch: int) -> list[tuple[str, ...]]:
        return [("forget_nll",), ("retain_nll",)] if epoch == 0 else [("forget_nll",)]

    method = losses.Method("m", lambda: t(0.0), (), ("forget_nll", "retain_nll"), {}, phases)
    assert method.needs_retain and method.phases(1, {}) == [("forget_nll",)]
    plain = losses.Method("m", lambda: t(0.0), ("forget_nll",), ("retain_nll",), {})
    assert not plain.needs_retain and not plain.per_record and plain.phases(3, {}) == [("forget_nll", "retain_nll")]


def test_a_file_of_a_path_is_a_method(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "PER_RECORD = True\n"
        "def mine(forget_nll, retain_loss=None, *, share: int = 2): return -share * forget_nll.mean()\n"
        "def layers(count, **_): return range(count - 1, count)\n"
        "def finish(received, trained, **_): return received\n"
    )
    with pytest.raises(NotPermitted):
        losses.get(str(file))
    permit(code_hash(file))
    method = losses.get(str(file))
    assert (method.name, method.required, method.optional) == ("mine", ("forget_nll",), ("retain_loss",))
    assert method.defaults == {"share": 2} and method.per_record
    assert method.function(t(1.0, 2.0), share=2).item() == -3.0
    assert method.layers_in is not None and list(method.layers_in(5)) == [4]
    assert method.finish_in is not None and method.phases_in is None and method.advance_in is None


@pytest.mark.parametrize(
    ("text", "told"),
    [("def other(): pass", "has no function 'mine'"), ("mine = 1", "has no function 'mine'"), ("1/0", "ZeroDivision")],
)
def test_a_file_that_is_no_method_is_told(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    permit(code_hash(tmp_path / "mine.py"))
    with pytest.raises(ValueError, match=told):
        losses.get(str(tmp_path / "mine.py"))


def test_numbers_are_checked_by_the_kind_of_their_default() -> None:
    method = losses.Method("m", lambda: t(0.0), (), (), {"count": 1, "most": None, "kind": "a", "flag": True})
    assert method.parameters({"count": 3.0, "most": None, "kind": "b", "flag": False})["count"] == 3
    assert method.parameters({"most": 0.5}) == {"count": 1, "most": 0.5, "kind": "a", "flag": True}
    for value in (1.5, "1", True, math.inf):
        with pytest.raises(ValueError, match="count must be a whole number"):
            method.parameters({"count": value})
    for value in ("1", True, math.nan):
        with pytest.raises(ValueError, match="most must be a finite number"):
            method.parameters({"most": value})


def test_an_update_of_the_state_is_checked_and_keeps_the_rest() -> None:
    method = losses.Method(
        "m", lambda: t(0.0), (), (), {"a": 1.0, "b": 2.0}, advance_in=lambda e, means, a, b: {"a": e}
    )
    assert method.advanced(5, {}, {"a": 1.0, "b": 3.0}) == {"a": 5, "b": 3.0}
    broken = losses.Method("m", lambda: t(0.0), (), (), {"a": 1.0}, advance_in=lambda e, means, a: {"a": math.nan})
    with pytest.raises(ValueError, match="a must be a finite number"):
        broken.advanced(0, {}, {"a": 1.0})
    assert losses.get("npo").advanced(0, {}, {"beta": 0.3}) == {"beta": 0.3}


def test_hyperparameters_are_checked() -> None:
    method = losses.get("npo")
    assert method.parameters({"beta": 2}) == {"beta": 2, "alpha": 1.0}
    with pytest.raises(ValueError, match=r"'btea'.*beta"):
        method.parameters({"btea": 1.0})
    for bad in (math.nan, math.inf, "1", True, None):
        with pytest.raises(ValueError, match="beta"):
            method.parameters({"beta": bad})
