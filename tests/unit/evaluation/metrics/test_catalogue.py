"""What is wrong with a value that somebody tells of a metric."""

from __future__ import annotations

import math

import pytest

from evaluation.metrics.catalogue import ROUNDING, Metric

SHARE = Metric("a", "A", "higher", 0.5, "")
COUNT = Metric("b", "B", None, None, "", most=None, whole=True)
FREE = Metric("c", "C", None, None, "", least=None, most=None)


@pytest.mark.parametrize(
    ("metric", "value", "fault"),
    [
        (SHARE, 0.0, ""),
        (SHARE, 1.0, ""),
        (SHARE, 1 + ROUNDING / 2, ""),
        (SHARE, 1 + 2 * ROUNDING, "is 1, expected 0 to 1"),
        (SHARE, -1e-9, "is -1e-09, expected 0 to 1"),
        (SHARE, math.nan, "is nan, expected a finite number"),
        (SHARE, math.inf, "is inf, expected a finite number"),
        (COUNT, 1e9, ""),
        (COUNT, 1.5, "is 1.5, expected a whole number"),
        (COUNT, -1.0, "is -1, expected at least 0"),
        (FREE, -1e9, ""),
        (Metric("d", "D", None, None, "", least=None), 2.0, "is 2, expected any to 1"),
    ],
)
def test_a_value_lies_in_the_range_of_its_metric_up_to_rounding(metric, value, fault):
    assert metric.fault(value) == fault


def test_the_title_has_the_null_value():
    assert (SHARE.title, COUNT.title) == ("A (null 0.5)", "B")


def test_a_metric_is_a_share_that_is_not_drawn_unless_it_says_otherwise():
    plain = Metric("e", "E", None, None, "")
    assert (plain.least, plain.most, plain.group) == (0.0, 1.0, None)
    assert not (plain.drawn or plain.needs_oracle or plain.whole or plain.headline)
