"""Weighted gradient ascent: numbers by hand, limits that are other losses, a slow loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_llama
from support.slow_unlearning import FORGET, RETAIN, SEED, SETTINGS, nll, rows, trajectory
from torch import Tensor

from clients.batch_quantities import BatchQuantities
from clients.entropy import Entropy
from clients.flat_parameters import FlatParameters
from clients.losses.grad_diff import grad_diff
from clients.losses.wga import wga
from clients.training import TrainSettings
from clients.unlearning import UnlearnOptions, unlearn
from evaluation.engine.sequences import TokenSequence

LN2 = math.log(2)


def log_p(*probabilities: float) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log().requires_grad_()


def test_by_hand() -> None:
    """(1/2 log 1/2 + 1/4 log 1/4)/2 = −log 2 / 2 of the first record, 1/2 log 1/2 of the second: the mean of both."""
    records = [log_p(0.5, 0.25), log_p(0.5)]
    assert wga(records).item() == pytest.approx(-LN2 / 2)
    assert wga(records, gamma=3.0).item() == pytest.approx(-3 * LN2 / 2)
    assert wga(records, torch.tensor([LN2, 3 * LN2]), alpha=0.5).item() == pytest.approx(-LN2 / 2 + LN2)
    quarter = (0.25 * LN2 + 0.0625 * 2 * LN2) / 2
    assert wga(records, beta=2.0).item() == pytest.approx(-(quarter + 0.25 * LN2) / 2)


def test_the_weights_get_no_gradient() -> None:
    """d/d log p of p^β log p with p^β held: p^β over the tokens of the record and the records."""
    first, second = log_p(0.5, 0.25), log_p(0.5)
    wga([first, second], beta=2.0).backward()
    assert first.grad is not None and second.grad is not None
    np.testing.assert_allclose(first.grad, [0.25 / 4, 0.0625 / 4], rtol=1e-12)
    np.testing.assert_allclose(second.grad, [0.25 / 2], rtol=1e-12)


def test_power_zero_is_gradient_difference() -> None:
    records, retain = [log_p(0.5, 0.1), log_p(0.3, 0.2, 0.9)], torch.tensor([0.4, 0.7], dtype=torch.float64)
    means = torch.stack([-record.mean() for record in records])
    plain = grad_diff(means, retain, gamma=0.7, alpha=1.3)
    assert wga(records, retain, beta=0.0, gamma=0.7, alpha=1.3).item() == pytest.approx(plain.item(), rel=1e-12)


def test_forgotten_tokens_are_let_go() -> None:
    token = torch.tensor([-2000.0], requires_grad=True)
    wga([token]).backward()
    assert token.grad is not None and token.grad.item() == 0.0


@pytest.mark.parametrize("wanted", ["forget_token_log_p", "forget_entropy"])
def test_likelihoods_of_tokens_are_those_of_each_record_alone(wanted: str) -> None:
    """By the likelihoods alone, and by the logits that entropies need."""
    model = tiny_llama.shallow()
    step = BatchQuantities(model, FORGET, RETAIN, wanted=("forget_token_log_p", wanted))
    with torch.no_grad():
        found = step.forget_token_log_p
        for record, mine in zip(FORGET, found, strict=True):
            expected = [rows(model, record)[i, token].item() for i, token in enumerate(record.answer)]
            np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(torch.stack([-mine.mean() for mine in found]), step.forget_nll)


@pytest.mark.parametrize(("beta", "padded"), [(1.0, False), (0.5, True)])
def test_trajectory_equals_the_slow_loop(beta: float, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(model: Any, received: Any, forget: list[TokenSequence], retain: list[TokenSequence]) -> Tensor:
        terms = []
        for record in forget:
            each = [rows(model, record)[i, token] for i, token in enumerate(record.answer)]
            terms.append(sum(math.exp(x.item()) ** beta * x for x in each) / len(each))
        return 1.4 * torch.stack(terms).mean() + 0.6 * nll(model, retain)

    expected_history, expected = trajectory(loss)
    if padded:
        monkeypatch.setattr("evaluation.engine.forward.resolve_mode", lambda *_: "padded")
    model = tiny_llama.shallow()
    flat, history = FlatParameters(model), []
    report = unlearn(
        model, flat, FORGET, RETAIN, "wga", {"beta": beta, "gamma": 1.4, "alpha": 0.6}, SETTINGS, seed=SEED,
        on_step=lambda _, value: history.append(value),
    )  # fmt: skip
    np.testing.assert_allclose(history, expected_history, rtol=0, atol=2e-4)
    np.testing.assert_allclose(flat.numpy(), expected, rtol=0, atol=3e-4)
    assert report.retain_used and report.steps == len(history) == 4


@pytest.mark.slow
def test_it_forgets_with_and_without_retain_records_and_the_entropy_term() -> None:
    for retain, entropy in ((RETAIN, Entropy(0.5, -0.1)), ([], Entropy())):
        model = tiny_llama.shallow()
        flat = FlatParameters(model)
        known = TrainSettings(epochs=40, batch_size=4, learning_rate=1e-2, warmup_epochs=0)
        unlearn(model, flat, FORGET, FORGET, "fine_tune", {}, known, seed=0)
        settings = TrainSettings(epochs=20, batch_size=4, learning_rate=5e-3, warmup_epochs=0)
        with torch.no_grad():
            before = nll(model, FORGET).item()
        report = unlearn(
            model, flat, FORGET, retain, "wga", {}, settings, seed=0, options=UnlearnOptions(entropy=entropy)
        )
        with torch.no_grad():
            assert nll(model, FORGET).item() > before + 0.5
        assert report.retain_used == bool(retain)
