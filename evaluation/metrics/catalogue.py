"""Metadata of a metric: its label, range, direction and meaning, declared by the evaluator that measures it."""

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
    """A group of rows in the comparison table.

    Attributes
    ----------
    title : str
    place : int
        From the top; lower ones come first.
    """

    title: str
    place: int = 80


@dataclass(frozen=True)
class Metric:
    """Metadata of one number that an evaluator measures. Metrics of one label (one per question set) share a meaning.

    Attributes
    ----------
    key : str
        Its name among the evaluator's metrics.
    label : str
        For readers, without the null value.
    direction : Direction or None
        None where no value is better (a count, the end of an interval).
    null : float or None
        The value of a model that knows nothing of the forget records, if known.
    meaning : str
        Text of the glossary, with range and source.
    group : Group or None
        Rows in the comparison table; None: not in it.
    drawn : bool
        Whether it is among the figures of a suite.
    needs_oracle : bool
        Whether it compares with the retrained model.
    least, most : float or None
        Range, ends included; None: no end.
    whole : bool
        Whether it is a count.
    headline : bool
        Whether it is among the few that stand above all others.
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
        """The label with the null value, for tables and the glossary."""
        return self.label if self.null is None else f"{self.label} (null {self.null:g})"

    def fault(self, value: float) -> str:
        """What is wrong with a reported value of this metric; empty if nothing is."""
        if not math.isfinite(value):
            return f"is {value}, expected a finite number"
        if (self.least is not None and value < self.least) or (self.most is not None and value > self.most + ROUNDING):
            least, most = ("any" if end is None else f"{end:g}" for end in (self.least, self.most))
            return f"is {value:g}, expected {f'{least} to {most}' if self.most is not None else f'at least {least}'}"
        return f"is {value:g}, expected a whole number" if self.whole and value != int(value) else ""
