"""The curves over a stage's rounds: which points and lines, and what is said below."""

from __future__ import annotations

import pytest
from support.pages import Text
from support.reports import make_run

from oblivionis.config import compose as configuration
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.reports.html.curves import Curves, caption_of, curves, curves_of


def point(server_round, moment, **metrics):
    return {"round": server_round, "moment": moment, "metrics": metrics}


POINTS = [
    point(2, "end", forget_rouge=0.2, retain_rouge=0.9),
    point(1, "after_unlearn", forget_rouge=0.5),
    point(0, "start", forget_rouge=0.8, retain_rouge=0.7),
    point(1, "round", forget_rouge=0.4, retain_rouge=None),
]


def lines(axis):
    """(style, marker, label, points) of each line."""
    return [
        (line.get_linestyle(), line.get_marker(), line.get_label(), list(zip(*line.get_data(), strict=True)))
        for line in axis.lines
    ]


def test_points_in_the_order_of_the_rounds_and_the_end_apart():
    """Right after FedTU a model stands half a round early; the end is hollow, with a dotted line to it."""
    figure = Curves("unlearn", POINTS, [1, 3], {"forget_rouge": 0.25}).drawing(["rouge"], "white")
    (axis,) = figure.axes
    found = lines(axis)
    marks = [(style, label, [x for x, _ in points]) for style, marker, label, points in found[:2]]
    assert marks == [(":", "FedTU", [1, 1]), (":", "_FedTU", [3, 3])]
    plots = [(style, marker, points) for style, marker, _, points in found[2:]]
    assert plots == [
        ("-", "o", [(0, 0.8), (0.5, 0.5), (1, 0.4)]),
        (":", "None", [(1, 0.4), (2, 0.2)]),
        ("None", "o", [(2, 0.2)]),
        ("--", "None", [(0, 0.25), (1, 0.25)]),
        ("-", "o", [(0, 0.7)]),
        (":", "None", [(0, 0.7), (2, 0.9)]),
        ("None", "o", [(2, 0.9)]),
    ]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["FedTU", "forget", "retain"]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("round", "ROUGE-L recall")


@pytest.mark.parametrize(("points", "named"), [([POINTS[1]], ["forget"]), ([POINTS[0]], [])])
def test_a_legend_names_what_is_drawn(points, named):
    figure = Curves("finetune", points, [], {}).drawing(["rouge"])
    assert [text.get_text() for legend in figure.legends for text in legend.get_texts()] == named
    assert len(figure.legends) == bool(named)


def test_a_stage_that_has_not_ended_has_no_hollow_point():
    figure = Curves("finetune", POINTS[1:3], [], {}).drawing(["rouge"])
    assert [(style, points) for style, _, _, points in lines(figure.axes[0])] == [
        ("-", [(0, 0.8), (0.5, 0.5)]),
        ("-", [(0, 0.7)]),
    ]


def test_stages_that_were_measured_more_than_once(tmp_path):
    run, config = make_run(tmp_path, stages=["finetune"])
    run.append_metrics([{**point(1, "end", forget_prob=0.1), "stage": "retrain", "evaluator": "tofu"}])
    ledger = Ledger(run.ledger_path)
    ledger.submit(*(Request(f"r{i}", 0, (f"x{i}",), 1) for i in range(3)))
    for name, server_round in (("r0", 2), ("r2", 1)):
        ledger.served(name, server_round)
    rows = [{**p, "stage": "unlearn", "evaluator": "tofu"} for p in POINTS]
    run.append_metrics([*rows, {**rows[0], "evaluator": "muse"}])
    finetune, unlearn = curves_of(run, {"forget_rouge": 0.25})
    assert (finetune.stage, len(finetune.points), finetune.marks, finetune.target) == ("finetune", 3, [], {})
    assert (unlearn.stage, unlearn.marks, unlearn.target) == ("unlearn", [1, 2], {"forget_rouge": 0.25})
    assert len(unlearn.points) == 4
    words = Text("".join(map(str, curves(run, config, {})))).words
    assert words.count("Filled: after a round, a sample of 2 questions per set.") == 2
    assert words.count("Dotted: rounds that began with FedTU . Dashed: the retrained model at its end.") == 1
    (tmp_path / "b").mkdir()
    bare, config = make_run(tmp_path / "b", stages=[], overrides=["evaluation.light.questions_per_set=null"])
    assert "No stage was measured more than once" in Text("".join(map(str, curves(bare, config, {})))).words


@pytest.mark.parametrize(("size", "asked"), [(7, "a sample of 7 questions per set"), ("null", "all questions")])
def test_how_many_questions_a_point_rests_on(size, asked):
    config = configuration.compose("smoke", [f"evaluation.light.questions_per_set={size}"])
    assert caption_of(config, []) == [f"Filled: after a round, {asked}. Hollow: at the end, with the full profile."]


def test_how_the_curves_are_drawn():
    """Forget red, retain blue, what the retrained model has dashed, and the end hollow."""
    target = {"forget_rouge": 0.25, "retain_prob": 0.5}
    figure = Curves("unlearn", [*POINTS, point(3, "end", forget_rouge=0.3)], [1], target).drawing(paper="#abcdef")
    rouge, prob = figure.axes
    assert tuple(figure.get_size_inches()) == pytest.approx((9.2, 3.0))
    assert (rouge.get_ylabel(), prob.get_ylabel()) == ("ROUGE-L recall", "Prob")
    assert rouge.get_ylim() == prob.get_ylim() == (-0.03, 1.03) and rouge.get_xlabel() == prob.get_xlabel() == "round"
    assert all(float(tick).is_integer() for tick in rouge.get_xticks())
    looks = [(line.get_color(), line.get_linestyle(), line.get_markerfacecolor()) for line in rouge.lines]
    assert looks == [
        ("0.6", ":", "0.6"),
        ("tab:red", "-", "tab:red"),
        ("tab:red", ":", "tab:red"),
        ("tab:red", "None", "#abcdef"),
        ("tab:red", "--", "tab:red"),
        ("tab:blue", "-", "tab:blue"),
        ("tab:blue", ":", "tab:blue"),
        ("tab:blue", "None", "#abcdef"),
    ]
    assert lines(rouge)[3][3] == [(3, 0.3)], "of two ends the last one"
    assert [(line.get_color(), line.get_linestyle()) for line in prob.lines] == [("0.6", ":"), ("tab:blue", "--")]
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 3 and legend._ncols == 3
