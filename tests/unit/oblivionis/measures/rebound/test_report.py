"""What came back of what was forgotten, in a sentence."""

from __future__ import annotations

import pytest

from evaluation.metrics.rebound import Curve
from oblivionis.measures.rebound import report
from oblivionis.runs.directory import RunDirectory

QUICK = Curve("a", 1, 0.9, 0.1, [0.1, 0.5, 0.9])
SLOW = Curve("b", 1, 0.9, 0.5, [0.5, 0.5, 0.6])
NONE = Curve("c", 1, 0.5, 0.5, [0.5, 0.5])


@pytest.mark.parametrize(
    ("curves", "said"),
    [
        (
            [QUICK, SLOW],
            "2 requests forgot 0.600 on average; 62% of it is back at the end (median 2 rounds later); half of it came "
            "back for 1 of 2, median half-life 1 round.",
        ),
        (
            [SLOW, NONE],
            "1 request forgot 0.400 on average; 25% of it is back at the end (median 2 rounds later); half of it came "
            "back for 0 of 1.",
        ),
        (
            [QUICK, QUICK, SLOW],
            "3 requests forgot 0.667 on average; 75% of it is back at the end (median 2 rounds later); half of it came "
            "back for 2 of 3, median half-life 1 round.",
        ),
        ([NONE], "no request forgot anything (at least 0.01)."),
    ],
)
def test_what_came_back(curves, said):
    """Shares back at the end: 1 of the quick one, a quarter of the slow one."""
    assert report.sentence("prob", curves).endswith(f": {said}")


def test_each_measure_has_its_line(tmp_path):
    run = RunDirectory.create(tmp_path, "run")
    assert report.sentences(run) == []
    for server_round, moment, prob, rouge in (
        (1, "before_unlearn", 0.9, 0.8),
        (1, "after_unlearn", 0.1, 0.4),
        (1, "round", 0.1, 0.4),
        (2, "round", 0.5, 0.4),
    ):
        row = {"stage": "unlearn", "round": server_round, "moment": moment, "evaluator": "rebound", "metrics": {}}
        run.append_metrics([row | {"requests": {"prob": {"a": prob}, "rouge": {"a": rouge}}}])
    prob, rouge = report.sentences(run)
    assert "1 request forgot 0.800 on average; 50% of it is back" in prob and "for 1 of 1, median half-life 1" in prob
    assert "1 request forgot 0.400 on average; 0% of it is back" in rouge and rouge.endswith("for 0 of 1.")
