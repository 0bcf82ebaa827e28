"""Fewer bits: small differences between the weights before and after unlearning may be rounded away."""

from __future__ import annotations

import dataclasses

import numpy as np

from evaluation.engine.quantise import QUANTISERS, quantise_merged
from oblivionis.audits.attack_questions import ONE_MODEL, Attack, Battery, Row
from oblivionis.models.shard_merges import assemble_served, serves_ensemble

LABEL = "quantise"
WORDED = True
ORDER = 1
FORMATS = {"int8": "8 bits (int8)", "nf4": "4 bits (nf4)"}


def make(battery: Battery) -> list[Attack]:
    """The adapter merged into the base model, which is then quantised, once per number format."""
    return [_quantised(battery, name) for name in battery.config.attack.quantisers]


def _quantised(battery: Battery, name: str) -> Attack:
    config = battery.config

    def run(vector: np.ndarray) -> list[Row]:
        model = dataclasses.replace(config.model, quantization="none")
        fresh = assemble_served(dataclasses.replace(config, model=model))
        fresh.load(vector)
        quantised = dataclasses.replace(fresh, model=quantise_merged(fresh.model, QUANTISERS[name]).eval())
        return battery.ask(quantised, battery.questions, FORMATS[name])

    unavailable = ONE_MODEL if serves_ensemble(config) else ""
    return Attack("quantise", f"quantise-{name}", {"max_new_tokens": battery.max_new_tokens}, run, unavailable)
