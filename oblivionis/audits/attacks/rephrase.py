"""Rephrasing: the same questions in other words."""

from __future__ import annotations

from oblivionis.audits.attack_questions import Attack, Battery

LABEL = "rephrase"
WORDED = True
ORDER = 4


def make(battery: Battery) -> list[Attack]:
    """One attack per text of `attack.rephrasings`."""
    return [battery.reworded("rephrase", i, text) for i, text in enumerate(battery.config.attack.rephrasings, 1)]
