"""IdkNLL: numbers by hand, and a slow loop that sees no true answer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_llama
from support.slow_unlearning import FORGET, OTHERS, RETAIN, SEED, SETTINGS, fast, in_turn, nll, trajectory
from torch import Tensor

from clients.flat_parameters import FlatParameters
from clients.losses.idk_nll import idk_nll
from clients.unlearning import unlearn
from evaluation.engine.sequences import TokenSequence

LN2 = math.log(2)


def test_by_hand() -> None:
    idk, retain = torch.tensor([LN2, 3 * LN2]), torch.tensor([4 * LN2, 2 * LN2])
    assert idk_nll(idk).item() == pytest.approx(2 * LN2)
    assert idk_nll(idk, retain, gamma=0.5, alpha=2.0).item() == pytest.approx(LN2 + 6 * LN2)


@pytest.mark.parametrize("mode", ["", "padded"])
def test_trajectory_equals_the_slow_loop(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    others = in_turn()

    def loss(model: Any, received: Any, forget: list[TokenSequence], retain: list[TokenSequence]) -> Tensor:
        return 1.4 * nll(model, others(forget)) + 0.6 * nll(model, retain)

    expected_history, expected = trajectory(loss)
    if mode:
        monkeypatch.setattr("evaluation.engine.forward.resolve_mode", lambda *_: "padded")
    history, found = fast("idk_nll", {"gamma": 1.4, "alpha": 0.6})
    np.testing.assert_allclose(history, expected_history, rtol=0, atol=2e-4)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-4)


def test_it_does_not_look_at_the_true_answers() -> None:
    """Other true answers to the same questions: the same model, and nothing said about their likelihood."""
    results, true = [], [FORGET, [record._replace(answer=(5, 2)) for record in FORGET]]
    for forget in true:
        model = tiny_llama.shallow()
        flat = FlatParameters(model)
        report = unlearn(
            model, flat, forget, RETAIN, "idk_nll", {}, SETTINGS, seed=SEED, alternatives=OTHERS
        )  # fmt: skip
        results.append(flat.numpy())
        assert math.isnan(report.first_forget_nll) and report.retain_used and report.num_examples == 7
    np.testing.assert_array_equal(*results)


def test_epochs_take_the_answers_in_turn_and_begin_anew() -> None:
    """Of two answers the third epoch takes the first one again, as if it were the third of three."""
    results, settings = [], replace(SETTINGS, epochs=3)
    two = [[TokenSequence(record.prompt, answer) for answer in ((5, 9, 2), (11, 2))] for record in FORGET]
    for others in (two, [[*pair, pair[0]] for pair in two], [[*pair, pair[1]] for pair in two]):
        model = tiny_llama.shallow()
        flat = FlatParameters(model)
        unlearn(model, flat, FORGET, [], "idk_nll", {}, settings, seed=SEED, alternatives=others)
        results.append(flat.numpy())
    np.testing.assert_array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])
