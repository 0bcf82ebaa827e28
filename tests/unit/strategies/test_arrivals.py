"""How often answers are asked for."""

from __future__ import annotations

import pytest

from strategies.arrivals import Pauses


def test_asking_takes_two_percent_of_the_time_by_the_quickest_question() -> None:
    pauses = Pauses()
    assert pauses.after(0.004) == pytest.approx(0.2)
    assert pauses.after(0.0002) == pytest.approx(0.01)
    assert pauses.after(0.009) == pytest.approx(0.01), "it waited for the processor, or fetched answers"


@pytest.mark.parametrize(("cost", "pause"), [(0.0, 0.005), (1e-5, 0.005), (0.02, 0.5), (3.0, 0.5)])
def test_a_pause_is_neither_none_nor_long(cost: float, pause: float) -> None:
    assert Pauses().after(cost) == pause
