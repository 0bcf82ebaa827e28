"""Shares of a count, exactly: 0.29 of 100 is 29, though the float product is 28.999999999999996."""

from __future__ import annotations

import math
from fractions import Fraction


def _written(share: float) -> Fraction:
    """The shortest decimal that is read as this float: what was written."""
    return Fraction(repr(float(share)))


def floor_of(share: float, count: int) -> int:
    """⌊share · count⌋ of a finite share."""
    return math.floor(_written(share) * count)


def ceil_of(share: float, count: int) -> int:
    """⌈share · count⌉ of a finite share."""
    return math.ceil(_written(share) * count)


def above(share: float) -> float:
    """The next float above a share, 0 for 0: Flower takes the integer part of its float product with a count, which for
    this one is `floor_of` the share."""
    return math.nextafter(share, math.inf) if share else share


def parts_in(count: float, share: float) -> int:
    """⌊count / share⌋: how many parts of the size `share` > 0 fit into `count`."""
    return math.floor(_written(count) / _written(share))
