"""GRU: the projection by hand and as a constrained problem, a slow loop, what it is for, what cannot be rectified."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from support import tiny_llama
from support.slow_unlearning import (
    DECAY,
    EPOCHS,
    EPS,
    FORGET,
    RATE,
    RETAIN,
    SEED,
    SETTINGS,
    SIZE,
    fast,
    log_p,
    nll,
)
from torch import Tensor

from clients import unlearning
from clients.calibrated_forgetting import Target, record_nll
from clients.flat_parameters import FlatParameters
from clients.gradient_rectification import Rectifier
from clients.record_level_dp import Privacy, unlearn_privately
from clients.training import TrainSettings
from clients.unlearning import UnlearnOptions, unlearn


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_by_hand() -> None:
    """Against (1, 0) the part −3 of (−3, 2) goes; along it nothing does. Means: (½, 0), (¼, 1)."""
    rule = Rectifier(0.5)
    assert rule.rectify(t(-3, 2), t(1, 0)).tolist() == [0, 2]
    mean = torch.tensor([0.25, 1.0])
    found = rule.rectify(t(-3, 0), t(0, 2))
    torch.testing.assert_close(found, t(-3, 0) - mean * (-0.75 / 1.0625))
    assert torch.dot(found, mean).abs() < 1e-6
    assert rule.rectify(t(3, 2), t(1, 1)).tolist() == [3, 2] and rule.rectified == 2


def test_numbers_that_do_not_move_take_no_part() -> None:
    rule = Rectifier(1.0, torch.tensor([True, True, False]))
    assert rule.rectify(t(-3, 2, 100), t(1, 0, 100)).tolist() == [0, 2, 0]


def test_without_a_retain_gradient_nothing_changes() -> None:
    rule = Rectifier(0.8)
    assert rule.rectify(t(-3, 2), t(0, 0)).tolist() == [-3, 2] and rule.rectified == 0


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_nearest_vector_that_does_not_conflict(seed: int) -> None:
    """min ‖g − g_u‖² subject to ⟨g, g_r⟩ ≥ 0, by SLSQP."""
    given, against = np.random.default_rng(seed).normal(size=(2, 6))
    constraint = {"type": "ineq", "fun": lambda g: g @ against}
    expected = minimize(lambda g: ((g - given) ** 2).sum(), np.zeros(6), constraints=[constraint], tol=1e-12).x
    found = Rectifier(1.0).rectify(torch.from_numpy(given), torch.from_numpy(against))
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("smoothing", [0.0, -0.1, 1.1, float("nan")])
def test_smoothing_out_of_range(smoothing: float) -> None:
    with pytest.raises(ValueError, match="smoothing"):
        Rectifier(smoothing)
    with pytest.raises(ValueError, match="rectify"):
        UnlearnOptions(rectify=smoothing)


def npo(model: Any, received: Any, forget: list[Any]) -> Tensor:
    """NPO with β = 0.5 and no retain term."""
    with torch.no_grad():
        reference = torch.stack([log_p(received, record) for record in forget])
    ratio = torch.stack([log_p(model, record) for record in forget]) - reference
    return (4 * torch.log(1 + torch.exp(0.5 * ratio))).mean()


def slow(smoothing: float) -> tuple[list[float], np.ndarray, int]:
    """NPO with β = 0.5, whose gradients lie in a matrix with those of the retain records: lstsq takes the part out."""
    model = tiny_llama.shallow()
    received = copy.deepcopy(model).eval()
    moving = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(moving, lr=RATE, eps=EPS, weight_decay=DECAY, foreach=False)
    order, draws = torch.Generator().manual_seed(SEED), torch.Generator().manual_seed(SEED + 1)
    count = len(RETAIN)
    cycle = itertools.chain.from_iterable(torch.randperm(count, generator=draws).tolist() for _ in itertools.count())
    history, retained, conflicts = [], [], 0
    for _ in range(EPOCHS):
        permutation = torch.randperm(len(FORGET), generator=order).tolist()
        for start in range(0, len(FORGET), SIZE):
            forget = [FORGET[i] for i in permutation[start : start + SIZE]]
            partners = [RETAIN[next(cycle)] for _ in forget]
            value = npo(model, received, forget)
            history.append(value.item())
            gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, moving)]).double()
            pulled = torch.autograd.grad(nll(model, partners), moving)
            retained.append(torch.cat([g.reshape(-1) for g in pulled]).double())
            weights = [smoothing * (1 - smoothing) ** age for age in reversed(range(len(retained)))]
            mean = sum(w * g for w, g in zip(weights, retained, strict=True))
            assert isinstance(mean, Tensor)
            if (gradient * mean).sum() < 0:
                share = torch.linalg.lstsq(mean[:, None], gradient[:, None]).solution
                gradient, conflicts = gradient - mean * share.item(), conflicts + 1
            for p, part in zip(moving, gradient.split([p.numel() for p in moving]), strict=True):
                p.grad = part.view(p.shape).float()
            optimiser.step()
    return history, torch.cat([p.detach().reshape(-1) for p in moving]).numpy(), conflicts


@pytest.mark.slow
def test_trajectory_equals_the_slow_loop() -> None:
    smoothing = 0.3
    expected_history, expected, conflicts = slow(smoothing)
    assert conflicts, "the test would not see a projection"
    history, found = fast("npo", {"beta": 0.5, "alpha": 0.0}, options=UnlearnOptions(rectify=smoothing))
    np.testing.assert_allclose(history, expected_history, rtol=1e-4, atol=2e-4)
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-4)


def test_a_loss_that_does_not_conflict_goes_its_own_way() -> None:
    """The retain records are the forget records, which are learned: both gradients are one."""
    model, settings = tiny_llama.shallow(), SETTINGS
    found = []
    for options in (UnlearnOptions(), UnlearnOptions(rectify=1.0)):
        model = tiny_llama.shallow()
        flat = FlatParameters(model)
        one = [FORGET[0]]
        report = unlearn(model, flat, one, one, "grad_ascent", {"gamma": -1.0}, settings, seed=0, options=options)
        found.append(flat.numpy())
        assert report.retain_used == (options.rectify is not None)
    np.testing.assert_allclose(*found, rtol=0, atol=1e-6)


def test_it_holds_the_retain_records_where_ascent_alone_lets_them_go() -> None:
    ends = []
    known = TrainSettings(epochs=20, batch_size=8, learning_rate=1e-2, warmup_epochs=0)
    settings = TrainSettings(epochs=10, batch_size=8, learning_rate=2e-3, warmup_epochs=0)
    for options in (UnlearnOptions(), UnlearnOptions(rectify=0.8)):
        model = tiny_llama.shallow()
        flat = FlatParameters(model)
        unlearn(model, flat, RETAIN, [*FORGET, *RETAIN], "fine_tune", {}, known, seed=0)
        unlearn(model, flat, FORGET, RETAIN, "grad_ascent", {}, settings, seed=SEED, options=options)
        with torch.no_grad():
            ends.append((nll(model, RETAIN).item(), nll(model, FORGET).item()))
    (free_retain, _), (held_retain, held_forget) = ends
    assert held_retain < 0.75 * free_retain and held_forget > 1.5 * held_retain, ends


@pytest.mark.parametrize("count", [3, 5])
def test_every_update_takes_its_own_retain_records(count: int) -> None:
    """With half an update in a pass the gradient is the same, also where a pass has fewer records than another."""
    found = []
    for size, accumulation in ((4, 1), (2, 2)):
        model = tiny_llama.shallow()
        flat = FlatParameters(model)
        settings = TrainSettings(
            epochs=2, batch_size=size, gradient_accumulation=accumulation, learning_rate=1e-2, warmup_epochs=0
        )
        options = UnlearnOptions(rectify=0.8)
        unlearn(model, flat, FORGET[:count], RETAIN, "grad_ascent", {}, settings, seed=3, options=options)
        found.append(flat.numpy())
    np.testing.assert_allclose(*found, rtol=0, atol=2e-4)


def test_an_update_that_pulls_all_its_records_back_is_held_against_retain_records_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The method itself then has no record, and its retain records are still as many as those of the update."""
    model = tiny_llama.shallow()
    flat, seen = FlatParameters(model), []
    forget = FORGET[:4]
    target = Target(record_nll(model, forget, 4) - 0.5, 0.1, flat.numpy())
    cycle = torch.randperm(len(RETAIN), generator=torch.Generator().manual_seed(SEED + 1))[:4].tolist()
    rectify = Rectifier.rectify
    monkeypatch.setattr(Rectifier, "rectify", lambda s, *g: (seen.append(g[1].clone()), rectify(s, *g))[1])
    options = UnlearnOptions(rectify=1.0, target=target)
    settings = TrainSettings(epochs=1, batch_size=4, learning_rate=1e-3, warmup_epochs=0)
    report = unlearn(model, flat, forget, RETAIN, "grad_ascent", {}, settings, seed=SEED, options=options)
    assert report.steps == 1 == len(seen)
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    nll(model, [RETAIN[i] for i in cycle]).backward()
    np.testing.assert_allclose(seen[0].numpy(), flat.grad.numpy(), rtol=0, atol=1e-5)


def test_updates_on_other_answers_are_rectified_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """No forget record takes part with its own answer, and what is learned instead must not undo the retain records."""
    seen: list[float] = []
    rectify = Rectifier.rectify
    monkeypatch.setattr(Rectifier, "rectify", lambda s, *g: (seen.append(g[1].norm().item()), rectify(s, *g))[1])
    history, _ = fast("idk_nll", {"alpha": 0.0}, options=UnlearnOptions(rectify=1.0))
    assert len(seen) == len(history) and all(seen)


def test_what_cannot_be_rectified() -> None:
    model = tiny_llama.shallow()
    flat, options = FlatParameters(model), UnlearnOptions(rectify=0.8)
    with pytest.raises(ValueError, match="takes retain records"):
        unlearn(model, flat, FORGET, [], "npo", {}, SETTINGS, seed=0, options=options)
    with pytest.raises(ValueError, match="no gradient of forget records"):
        unlearn(model, flat, FORGET, RETAIN, "fine_tune", {}, SETTINGS, seed=0, options=options)
    with pytest.raises(ValueError, match="rectify goes by more"):
        unlearn_privately(
            model, flat, FORGET, RETAIN, "grad_diff", {}, SETTINGS, Privacy(1.0, 1.0, 0), seed=0, options=options
        )


def test_gradients_are_rectified_where_the_method_moves_something_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """RMU's layers: the products of gradients are of what moves, and of everything for a method that moves all."""
    made: list[Any] = []
    build = unlearning.Rectifier
    monkeypatch.setattr(unlearning, "Rectifier", lambda *given: (made.append(given), build(*given))[1])
    model = tiny_llama.lora(num_hidden_layers=3)
    flat = FlatParameters(model)
    given = TrainSettings(epochs=1, batch_size=4, learning_rate=1e-3, warmup_epochs=0)
    values = {"layer": 1, "moved_layers": 1}
    for method, parameters in (("rmu", values), ("npo", {})):
        options = UnlearnOptions(rectify=0.4)
        unlearning.unlearn(model, flat, FORGET, RETAIN, method, parameters, given, seed=0, options=options)
    (smoothing, moving), everything = made
    assert smoothing == 0.4 and everything == (0.4, None)
    assert torch.equal(moving, flat.mask([".layers.1."])) and 0 < moving.sum() < flat.size
