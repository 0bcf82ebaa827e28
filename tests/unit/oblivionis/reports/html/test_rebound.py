"""What comes back, on the page: sentences, and curves of each request and of their mean."""

from __future__ import annotations

import pytest
from support.pages import Text
from support.reports import make_run

from evaluation.metrics.rebound import Curve
from oblivionis.reports.html import rebound

QUICK = Curve("a", 1, 0.9, 0.1, [0.1, 0.5, 0.9])
"""Shares 0, a half, all of it."""
OVER = Curve("b", 1, 0.5, 0.25, [0.5, 0.625])
"""Shares 1 and 1.5."""
NONE = Curve("c", 1, 0.5, 0.5, [0.5, 0.5])


@pytest.fixture
def drawn(monkeypatch):
    """The figures that pages get, instead of their SVG."""
    found = []
    monkeypatch.setattr(rebound, "svg_figure", lambda figure, name, label: found.append((figure, name, label)))
    return found


def test_each_request_has_a_thin_curve_and_their_mean_a_thick_one(drawn):
    words = Text(str(rebound.figure_of([QUICK, OVER, NONE]))).words
    ((figure, name, label),) = drawn
    (axis,) = figure.axes
    lines = [(line.get_linewidth(), line.get_xydata().tolist()) for line in axis.lines]
    thin, mean = [width for width, _ in lines[:2]], lines[2]
    assert [points for _, points in lines[:2]] == [[[0, 0], [1, 0.5], [2, 1]], [[0, 1], [1, 1.5]]]
    assert mean[1] == [[0, 0.5], [1, 1.0], [2, 1.0]], "(0 + 1) / 2, (0.5 + 1.5) / 2, and one request alone"
    assert max(thin) < mean[0]
    level, floor = axis.lines[3:]
    assert [list(line.get_ydata()) for line in (level, floor)] == [[0.5, 0.5], [0, 0]]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["mean", "half of it"]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("rounds since served", "share back")
    assert name == "rebound" and label == "Share of what each request forgot that is back, by rounds since served"
    assert words.startswith("Share of what a request forgot (Prob")


@pytest.mark.parametrize(
    ("curve", "shown"),
    [
        (Curve("a", 1, 0.9, 0.1, [0.1, 0.5]), (-0.05, 1.03)),
        (OVER, (-0.075, 1.575)),
        (Curve("a", 1, 0.5, 0.25, [0.0, 0.5]), (-1.1, 1.1)),
    ],
)
def test_nothing_and_all_of_it_are_in_sight_and_whatever_lies_beyond(drawn, curve, shown):
    """matplotlib leaves a twentieth of the range on either side."""
    rebound.figure_of([curve])
    (axis,) = drawn[0][0].axes
    assert axis.get_ylim() == pytest.approx(shown)
    assert all(float(tick).is_integer() for tick in axis.get_xticks()), "rounds are whole"


def measured(run, *rows):
    for server_round, moment, prob in rows:
        row = {"stage": "unlearn", "round": server_round, "moment": moment, "evaluator": "rebound", "metrics": {}}
        run.append_metrics([row | {"requests": {"prob": {"a": prob}}}])


def test_the_section_has_sentences_and_curves_where_something_was_measured(tmp_path):
    run, _ = make_run(tmp_path)
    assert rebound.section(run) == []
    measured(run, (1, "before_unlearn", 0.9), (1, "after_unlearn", 0.1), (1, "round", 0.1), (2, "round", 0.5))
    source = "".join(map(str, rebound.section(run)))
    assert source.count("<svg") == 1
    assert "1 request forgot 0.800 on average; 50% of it is back at the end (median 1 round later)" in source


def test_where_nothing_was_forgotten_there_is_no_curve(tmp_path):
    assert rebound.figure_of([NONE]) is None
    run, _ = make_run(tmp_path)
    measured(run, (1, "before_unlearn", 0.5), (1, "after_unlearn", 0.5), (1, "round", 0.5))
    source = "".join(map(str, filter(None, rebound.section(run))))
    assert "no request forgot anything" in source and "<svg" not in source
