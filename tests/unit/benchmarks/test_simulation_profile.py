"""Seconds by part: what is booked where."""

from __future__ import annotations

import pytest

from benchmarks.speed import simulation_profile
from benchmarks.speed.simulation_profile import REST, Meter, metered


class Clock:
    """Says what it was told."""

    def __init__(self) -> None:
        self.now = 10.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


def test_of_parts_within_parts_the_inner_one_counts() -> None:
    clock = Clock()
    meter = Meter(clock)
    clock.passes(1)
    for _ in range(2):
        with meter.part("outer"):
            clock.passes(2)
            with meter.part("inner"):
                clock.passes(4)
            clock.passes(8)
    with pytest.raises(ValueError), meter.part("inner"):
        clock.passes(16)
        raise ValueError
    clock.passes(32)
    assert meter.rows() == [(REST, 1, 33.0), ("inner", 3, 24.0), ("outer", 2, 20.0)]
    assert sum(seconds for _, _, seconds in meter.rows()) == clock.now - 10


def test_the_program_is_what_it_was_afterwards() -> None:
    def methods() -> list[object]:
        return [getattr(owner, name) for owner, name, _ in simulation_profile.PARTS]

    before = methods()
    with metered(Meter()):
        assert not set(before) & set(methods())
    assert methods() == before
