"""What a metric is called, which way is better, and what it says: told once, beside the evaluator that measures it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

ROUNDING = 1e-6
"""Rounding error by which a value may exceed its range."""
Direction = Literal["higher", "lower", "oracle"]
"""Which value is better: the higher, the lower, or the one nearer the retrained model's."""


@dataclass(frozen=True)
class Group:
    """Rows of the comparison table that belong together: what they are about, and their place from the top."""

    title: str
    place: int = 80


@dataclass(frozen=True)
class Metric:
    """One number that an evaluator measures.

    key: its name among the evaluator's metrics; label: for readers, without the null value; direction: None where no
    value is better (a count, the end of an interval); null: what a model that knows nothing of the forget records has,
    None where nobody can say; meaning: what the glossary says of it, with range and source; group: its rows in the
    comparison table, None: not in it; drawn: among the figures of a suite; needs_oracle: it compares with the retrained
    model; least, most: the ends of its range, None where there is none; whole: it counts something; chief: among the
    few that stand above all others. Metrics of one label (the same of several question sets) have one meaning.
    """

    key: str
    label: str
    direction: Direction | None
    null: float | None
    meaning: str
    group: Group | None = None
    drawn: bool = False
    needs_oracle: bool = False
    least: float | None = 0.0
    most: float | None = 1.0
    whole: bool = False
    headline: bool = False

    @property
    def title(self) -> str:
        """The label with the null value, as tables and the glossary have it."""
        return self.label if self.null is None else f"{self.label} (null {self.null:g})"

    def fault(self, value: float) -> str:
        """What is wrong with a value of this metric that somebody tells, empty where nothing is."""
        if not math.isfinite(value):
            return f"is {value}, expected a finite number"
        if (self.least is not None and value < self.least) or (self.most is not None and value > self.most + ROUNDING):
            least, most = ("any" if end is None else f"{end:g}" for end in (self.least, self.most))
            return f"is {value:g}, expected {f'{least} to {most}' if self.most is not None else f'at least {least}'}"
        return f"is {value:g}, expected a whole number" if self.whole and value != int(value) else ""
