"""Small drawings show the numbers that they are given."""

import itertools
import json
import math
import re

import pytest
from support.reports import make_run
from support.suite_view import METHODS, SEEDS, STRATEGIES, value
from support.window import Visitor

from oblivionis.runs import run_status
from oblivionis.view.sparkline import scatter, sparkline


def path_points(svg):
    """The points of the last path of a drawing, as numbers."""
    return [tuple(map(float, point.split())) for point in re.findall(r' d="M([^"]+)"', svg)[-1].split("L")]


def read_back(svg, first, last):
    """The values and rounds that a curve of 120 by 30 with a margin of 3 shows."""
    return [(first + (x - 3) / 114 * (last - first), (27 - y) / 24) for x, y in path_points(svg)]


def row(number, value, moment="round", stage="unlearn", evaluator="tofu", **more):
    metrics = {"retain_prob": math.nan, "forget_prob": value, **more}
    return {"stage": stage, "round": number, "moment": moment, "evaluator": evaluator, "metrics": metrics}


def test_the_curve_of_a_run_is_that_of_its_rows(tmp_path):
    """One row before another of its round, one of another stage, one of another evaluator, and what is no number."""
    run, _ = make_run(tmp_path)
    rows = [
        *(row(0, 0.75, "start"), row(1, 0.5), row(1, 0.125, "after_unlearn"), row(2, None), row(3, math.nan)),
        *(row(2, 0.9, stage="finetune"), row(2, 0.8, evaluator="muse"), row(4, 0.25, "end"), row(5, math.inf)),
    ]
    torn = '{"stage": "unlearn", "round": 6, "evaluator": "tofu"'
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows) + torn)
    found = run_status.glance(run.path)
    assert found.curve == ((0, 0.75), (0.5, 0.125), (1, 0.5), (4, 0.25))
    drawn = re.search(r'<svg class="spark".*?</svg>', Visitor(tmp_path).page("/"))[0]
    assert "forget Prob from 0.750 to 0.250" in drawn
    for shown, real in itertools.zip_longest(read_back(drawn, 0, 4), found.curve):
        assert shown == pytest.approx(real, abs=5e-4)
    (level,) = re.findall(r'class="level" d="M0 ([\d.]+)H120"', drawn)
    assert (27 - float(level)) / 24 == pytest.approx(found.value("retrain", "forget_prob"), abs=5e-4)


def test_of_a_long_curve_some_points_from_the_first_to_the_last(tmp_path):
    run, _ = make_run(tmp_path)
    rows = [row(n, n / 1000) for n in range(1001)]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    curve = run_status.glance(run.path).curve
    assert len(curve) == run_status.POINTS and (curve[0], curve[-1]) == ((0, 0), (1000, 1))
    assert {x - y for (x, _), (y, _) in itertools.pairwise([*curve][::-1])} <= {10, 11}


@pytest.mark.parametrize("content", [None, "", "[]\n", '{"stage": "unlearn", "evaluator": "tofu"}\n', "\0\n"])
def test_a_run_without_rows_that_make_sense_has_no_curve(tmp_path, content):
    run, _ = make_run(tmp_path)
    path = run.path / "metrics.jsonl"
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert run_status.glance(run.path).curve == ()
    assert "<svg" not in Visitor(tmp_path).page("/")


def test_values_beyond_the_drawing_stay_in_it():
    assert sparkline([(0, 1.0)], None, "x") is None
    svg = str(sparkline([(0, -5), (1, 7)], math.nan, '"<x>'))
    assert path_points(svg) == [(3, 27), (117, 3)] and "level" not in svg and "<x>" not in svg
    assert path_points(str(sparkline([(2, 0.5), (2, 0.5)], None, ""))) == [(3, 15), (3, 15)]


def test_the_points_of_a_suite_lie_where_its_cells_are():
    """x: the distance from the retrained model's ROUGE; y: the utility of the unlearned model."""
    points = [
        (
            abs(value(*cell, "unlearn", "forget_rouge") - value(*cell, "retrain", "forget_rouge")),
            value(*cell, "unlearn", "model_utility"),
        )
        for cell in itertools.product(STRATEGIES, METHODS, SEEDS)
    ]
    right, low, top = max(x for x, _ in points), min(y for _, y in points), max(y for _, y in points)
    svg = str(scatter(points, points[:1], "all"))
    circles = re.findall(r'<circle(?: class="(best)?")? cx="([\d.]+)" cy="([\d.]+)"', svg)
    shown = [((float(x) - 3) / 114 * right, low + (41 - float(y)) / 38 * (top - low)) for _, x, y in circles]
    for one, real in itertools.zip_longest(shown, points):
        assert one == pytest.approx(real, abs=1e-3)
    assert [kind for kind, _, _ in circles].count("best") == points.count(points[0])
    assert scatter([], [], "none") is None and "nan" not in str(scatter([(0, 1)], [(0, 1)], "one"))
