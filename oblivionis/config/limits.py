"""Limits of a configuration key: what it means, its choices and its range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class About:
    """What the schema says of one key. The limits bind a number, or the length of a text or a list."""

    help: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def allows(self, value: float) -> bool:
        """Whether a number lies within the limits."""
        return not (
            (self.at_least is not None and value < self.at_least)
            or (self.above is not None and value <= self.above)
            or (self.at_most is not None and value > self.at_most)
            or (self.below is not None and value >= self.below)
        )

    def range(self, name: str = "value") -> str:
        """The limits in words, such as `0 < value <= 1`; empty when there are none."""
        low = f"{_number(self.at_least)} <= " if self.at_least is not None else ""
        low = f"{_number(self.above)} < " if self.above is not None else low
        high = f" <= {_number(self.at_most)}" if self.at_most is not None else ""
        high = f" < {_number(self.below)}" if self.below is not None else high
        if low and not high:
            sign, limit = (">=", self.at_least) if self.above is None else (">", self.above)
            return f"{name} {sign} {_number(limit)}"
        return f"{low}{name}{high}" if low or high else ""


def _number(value: float | None) -> str:
    return str(int(value)) if value is not None and value == int(value) else str(value)


def about(help: str, **limits: Any) -> dict[str, About]:
    """Metadata of a dataclass field; the keywords are those of `About`."""
    return {"about": About(help, **limits)}


# Limits of method hyperparameters that several methods share, by name. A method's file says which it takes.
PARAMETERS = {
    "alpha": About(
        "Weight of the retain term (`neg_grad`: at most 1, the forget term has 1 - alpha; `scrub`: of its divergence).",
        at_least=0,
    ),
    "gamma": About("Weight of the forget term (`scrub`: of the likelihood of retain records).", at_least=0),
    "beta": About("Inverse temperature of the preference loss.", above=0),
    "delta": About("Margin of the preference loss, outside the beta factor (eq. 39)."),
    "calibration_ratio": About("Local epochs of a calibration as a share of `federation.local_epochs`.", above=0),
    "radius": About("Farthest from the reference model; null: a third of a random model's distance.", above=0),
    "temperature": About("Temperature T of the distributions in divergences, which count T² times.", above=0),
    "msteps": About("First epochs in which a step away from the model as received follows each step.", at_least=0),
    "teacher_seed": About("Seed of the randomly initialised teacher's weights.", at_least=0),
    "steering_coefficient": About("Length c of the vector to which forget records' states are led."),
    "layer": About("Decoder layer, from 0, whose states are led; -1: as deep as layer 7 of 32.", at_least=-1),
    "moved_layers": About("Layers whose parameters move: `layer` and those right before it.", at_least=1),
    "direction_seed": About("Seed of that vector's direction.", at_least=0),
}
