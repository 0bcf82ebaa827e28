"""Entropy optimisation with λ_f = λ_r = 0 is the loss that it wraps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support import tiny_llama

from clients import batch_quantities
from clients.entropy import Entropy
from clients.flat_parameters import FlatParameters
from clients.training import TrainSettings
from clients.unlearning import UnlearnOptions, UnlearnReport, unlearn
from evaluation.engine.packing import TokenSequence

FORGET, RETAIN = tiny_llama.sequences(7, seed=1), tiny_llama.sequences(5, seed=2)
METHODS: dict[str, dict[str, float]] = {
    "grad_ascent": {"gamma": 0.7},
    "grad_diff": {"gamma": 0.7, "alpha": 1.3},
    "npo": {"beta": 0.3, "alpha": 0.6},
    "simnpo": {"beta": 2.0, "delta": 0.4, "alpha": 0.6},
}


def run(
    method: str, entropy: Entropy | None, retain: list[TokenSequence] = RETAIN
) -> tuple[Any, UnlearnReport, np.ndarray]:
    model = tiny_llama.lora()
    flat = FlatParameters(model)
    settings = TrainSettings(epochs=2, batch_size=4, learning_rate=2e-3, warmup_epochs=0)
    options = None if entropy is None else UnlearnOptions(entropy=entropy)
    report = unlearn(model, flat, FORGET, retain, method, METHODS[method], settings, seed=9, options=options)
    return model, report, flat.numpy()


@pytest.mark.parametrize("method", METHODS)
def test_weights_of_zero_change_nothing(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_quantities, "answer_rows", None)
    _, plain, vector = run(method, None)
    for entropy, retain in ((Entropy(), RETAIN), (Entropy(0, -0.0), RETAIN)):
        _, report, same = run(method, entropy, retain)
        np.testing.assert_array_equal(same, vector)
        assert (report.first_loss, report.last_loss) == (plain.first_loss, plain.last_loss)
        assert report.retain_used == plain.retain_used
        assert math.isnan(report.first_forget_entropy) and math.isnan(report.last_forget_entropy)
