"""Exact shares of a count: 0.29 of 100 is 29, though the float product is 28.999999999999996."""

from __future__ import annotations

import math
from fractions import Fraction


def _written(share: float) -> Fraction:
    """The share as it was written: the shortest decimal that reads as this float."""
    return Fraction(repr(float(share)))


def floor_of(share: float, count: int) -> int:
    """⌊share · count⌋, exactly.

    Parameters
    ----------
    share : float, finite
    count : int

    Returns
    -------
    int
    """
    return math.floor(_written(share) * count)


def ceil_of(share: float, count: int) -> int:
    """⌈share · count⌉, exactly.

    Parameters
    ----------
    share : float, finite
    count : int

    Returns
    -------
    int
    """
    return math.ceil(_written(share) * count)


def above(share: float) -> float:
    """The next float above a share, 0 for 0.

    Flower truncates its float product of share and count, which for this float is `floor_of` the share.

    Parameters
    ----------
    share : float, at least 0

    Returns
    -------
    float
    """
    return math.nextafter(share, math.inf) if share else share


def parts_in(count: float, share: float) -> int:
    """⌊count / share⌋, exactly.

    Parameters
    ----------
    count : float, finite
    share : float above 0

    Returns
    -------
    int
    """
    return math.floor(_written(count) / _written(share))
