"""The attacks on an unlearned model, one file per kind.

A kind is a module of this package that defines `make(battery) -> list[Attack]`: the attacks of its settings. An attack
is applied to one model at a time and depends on that model, its own settings and the run's seed only: never on another
attack, nor on the order of attacks.

For tables, which do not import it, the module has literals:

- `LABEL`: what the kind is called there;
- `WORDED = True`: a variant is a text, not words that go on from the label, and follows after a colon;
- `ORDER`: its place among the kinds; those without one come last, by name.

Its settings are `attack.<kind>.<key>`: the keys and defaults of `conf/attack/<kind>.yaml`, within the module's
`LIMITS`; `battery.settings(kind)` gives them. So to add an attack is to add a file and its YAML.
"""

from __future__ import annotations

import importlib

import numpy as np

from oblivionis.audits.attack_questions import Attack, Battery, Row

NONE = "none"


def build(battery: Battery) -> list[Attack]:
    """The questions as they are, under the kind `none`, then every attack of `attack.attacks`."""

    def plain(vector: np.ndarray) -> list[Row]:
        return battery.ask(battery.load(vector), battery.questions, "")

    first = Attack(NONE, NONE, {"max_new_tokens": battery.max_new_tokens}, plain)
    kinds = battery.config.attack.attacks
    return [first, *(a for kind in kinds for a in importlib.import_module(f"{__name__}.{kind}").make(battery))]
