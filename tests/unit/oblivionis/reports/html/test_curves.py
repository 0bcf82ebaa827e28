"""The main figure: which points, levels and marks, read back from the page, and what is said below."""

from __future__ import annotations

import json
import math

import pytest
from support.pages import Text
from support.reports import make_run
from support.svg_data import Drawing

from oblivionis.config import compose as configuration
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.files import write_json
from oblivionis.measures.audit_numbers import audit_path
from oblivionis.reports.html.curves import Curves, caption_of, curves, curves_of


def point(server_round, moment, **metrics):
    return {"round": server_round, "moment": moment, "metrics": metrics}


POINTS = [
    point(2, "end", forget_rouge=0.2, retain_rouge=0.9),
    point(1, "after_unlearn", forget_rouge=0.5),
    point(0, "start", forget_rouge=0.8, retain_rouge=0.7),
    point(1, "round", forget_rouge=0.4, retain_rouge=None),
]


def measured(run, stage, points, evaluator="tofu"):
    """A row for each point; rows of earlier versions may have numbers that are none."""
    with (run.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({**p, "stage": stage, "evaluator": evaluator}) + "\n" for p in points)


def bare(folder, *overrides):
    return make_run(folder, stages=[], overrides=["evaluation.light.questions_per_set=null", *overrides])


def drawn(run, config, oracle=None):
    return "".join(map(str, curves(run, config, oracle or {})))


def near(lines):
    return [[pytest.approx(p, abs=2e-3) for p in line] for line in lines]


def test_every_number_of_the_run_is_where_the_figure_has_it(tmp_path):
    """By the ticks' labels alone: points in the order of the rounds, right after FedTU half a round early; the end
    apart; the retrained model's levels; and the rounds with requests."""
    run, config = bare(tmp_path)
    prob = {"forget": [0.1, 0.52, 0.9], "retain": [0.2, 0.61, 0.95]}
    rows = [
        point(n, moment, forget_prob=prob["forget"][i], retain_prob=prob["retain"][i])
        for i, (n, moment) in enumerate(((0, "start"), (40, "round"), (60, "end")))
    ]
    measured(run, "finetune", rows)
    measured(run, "retrain", rows[:1])
    after = [point(0, "start", forget_prob=0.9), point(1, "after_unlearn", forget_prob=0.4), point(1, "round")]
    measured(run, "unlearn", [point(3, "end", forget_prob=0.17), *reversed(after), point(2, "round", forget_prob=0.3)])
    ledger = Ledger(run.ledger_path)
    ledger.submit(*(Request(f"r{i}", 0, (f"x{i}",), 1) for i in range(4)))
    for name, server_round in (("r0", 2), ("r2", 1), ("r3", 2)):
        ledger.served(name, server_round)
    figure = Drawing(drawn(run, config, {"forget_prob": 0.22, "retain_prob": 0.93}), "course-prob")
    for word in ("forget", "retain"):
        first, middle, last = prob[word]
        assert figure.lines(f"finetune-{word}") == near([[(0, first), (40, middle)]])
        assert figure.lines(f"finetune-{word}-end") == near([[(60, last)]])
        assert figure.lines(f"retrain-{word}") == near([[(0, first)]])
    assert figure.lines("unlearn-forget") == near([[(0, 0.9), (0.5, 0.4), (2, 0.3)]])
    assert figure.lines("unlearn-forget-end") == near([[(3, 0.17)]])
    for word, level in (("forget", 0.22), ("retain", 0.93)):
        ((left, right),) = figure.lines(f"unlearn-{word}-retrained")
        assert left[1] == right[1] == pytest.approx(level, abs=2e-3)
    marks = figure.lines("unlearn-FedTU")
    assert [[x for x, _ in line] for line in marks] == near([[1, 1], [2, 2]])
    assert not {p for p in figure.parts() if "retrained" in p or "FedTU" in p if not p.startswith("unlearn")}
    assert [w for w in figure.words if w in ("finetune", "retrain", "unlearn")] == ["finetune", "retrain", "unlearn"]
    assert {"forget", "retain", "retrained", "requests served", "Prob"} <= set(figure.words)


def test_what_was_not_measured_is_not_drawn_nor_spoken_of(tmp_path):
    run, config = bare(tmp_path)
    measured(run, "finetune", [point(0, "start", forget_prob=None), point(1, "round", forget_prob=math.nan)])
    measured(run, "unlearn", [point(1, "end", forget_rouge=0.5, retain_prob=math.nan)])
    page = drawn(run, config, {"forget_prob": 0.3, "forget_rouge": math.nan})
    figure = Drawing(page, "course-rouge")
    assert figure.parts() == ["unlearn-forget-end"] and figure.lines("unlearn-forget-end") == near([[(1, 0.5)]])
    words = Text(page).words
    assert (
        "of the answers to forget questions. Hollow: at the end" in words
        and 'aria-label="ROUGE-L recall of forget' in page
    )
    for absent in ("Filled", "Dashed", "Dotted", "retain"):
        assert absent not in words


def test_a_run_without_any_curve_says_so(tmp_path):
    run, config = bare(tmp_path)
    assert drawn(run, config) == "<p>No curves: no forget or retain answers were measured.</p>"


@pytest.mark.parametrize(
    ("evaluator", "name", "keys", "words"),
    [
        ("muse", "knowmem", ("knowmem_forget", "knowmem_retain"), ("forget", "retain")),
        ("rwku", "questions", ("forget_questions", "neighbor_questions"), ("forget", "neighbours")),
        ("choices", "choices", ("forget", "utility"), ("forget", "utility")),
    ],
)
def test_other_data_have_another_quantity(tmp_path, evaluator, name, keys, words):
    """The retrained model's level is that of the evaluator's own metric."""
    run, config = bare(tmp_path)
    measured(run, "unlearn", [point(n, "round", **dict.fromkeys(keys, 0.1 * n)) for n in (1, 2)], evaluator)
    figure = Drawing(drawn(run, config, {f"{evaluator}_{keys[0]}": 0.4, keys[0] + "_": 0.9}), f"course-{name}")
    for word in words:
        assert figure.lines(f"unlearn-{word}") == near([[(1, 0.1), (2, 0.2)]])
    assert figure.lines(f"unlearn-{words[0]}-retrained")[0][0][1] == pytest.approx(0.4, abs=2e-3)


def test_a_figure_does_not_grow_with_requests_and_rounds(tmp_path):
    """Of 3000 rounds, each with a request, the marks are short and the points have no dots."""
    run, config = bare(tmp_path)
    measured(run, "unlearn", [point(n, "round", forget_prob=0.5 + 0.4 * (n % 2)) for n in range(3000)])
    of = Curves("unlearn", run.metrics(), list(range(1, 3000)), {})
    page = str(drawn(run, config))
    assert len(page) < 120_000
    (axis,) = of.drawing(["prob"]).axes
    marks = next(line for line in axis.lines if line.get_gid() == "unlearn-FedTU")
    assert max(y for y in marks.get_ydata() if not math.isnan(y)) < 0.1


def test_what_clients_measured_where_the_server_has_no_records(tmp_path):
    """A line per request; a moment that is missing is left out; a request without numbers is none."""
    run, config = bare(tmp_path)
    ledger = Ledger(run.ledger_path)
    ledger.submit(*(Request(name, 3, (name,), 1) for name in ("a", "b", "c", "d")))
    for name, values in (("a", (0.9, 0.3, 0.2)), ("b", (0.8, None, 0.1)), ("c", ())):
        moments = dict(zip(("before", "after", "final"), values, strict=False))
        numbers = {m: {"request_prob": v, "retain_prob": 0.5} for m, v in moments.items() if v is not None}
        write_json(audit_path(run.path, name), {"request": name, "client": 3, **numbers})
    page = drawn(run, config)
    figure = Drawing(page.replace(">before<", ">0<").replace(">after<", ">1<").replace(">final<", ">2<"), "audits")
    assert figure.lines("audits-request_prob") == near([[(0, 0.9), (1, 0.3), (2, 0.2)], [(0, 0.8), (2, 0.1)]])
    assert figure.lines("audits-retain_prob") == near([[(0, 0.5), (1, 0.5), (2, 0.5)], [(0, 0.5), (2, 0.5)]])
    words = Text(page).words
    assert "a line for each of 2 audited requests. The clients measured it" in words


def test_many_audits_are_drawn_in_part_and_the_page_says_so(tmp_path):
    run, config = bare(tmp_path)
    Ledger(run.ledger_path).submit(*(Request(f"q{i}", 3, (str(i),), 1) for i in range(201)))
    for i in range(201):
        audit = {"request": f"q{i}", "client": 3, "before": {"request_prob": 0.5}, "final": {"request_prob": 0.1}}
        write_json(audit_path(run.path, f"q{i}"), audit)
    page = drawn(run, config)
    assert "a line for each of 200 of 201 audited requests." in Text(page).words
    assert (
        len(Drawing(page.replace(">before<", ">0<").replace(">final<", ">2<"), "audits").lines("audits-request_prob"))
        == 200
    )


def test_stages_that_were_measured_more_than_once(tmp_path):
    run, _ = make_run(tmp_path, stages=["finetune"])
    measured(run, "retrain", [point(1, "end", forget_prob=0.1)])
    ledger = Ledger(run.ledger_path)
    ledger.submit(*(Request(f"r{i}", 0, (f"x{i}",), 1) for i in range(3)))
    for name, server_round in (("r0", 2), ("r2", 1)):
        ledger.served(name, server_round)
    measured(run, "unlearn", POINTS)
    measured(run, "unlearn", POINTS[:1], "muse")
    finetune, unlearn = curves_of(run, {"forget_rouge": 0.25})
    assert (finetune.stage, len(finetune.points), finetune.marks, finetune.target) == ("finetune", 3, [], {})
    assert (unlearn.stage, unlearn.marks, unlearn.target) == ("unlearn", [1, 2], {"forget_rouge": 0.25})
    assert len(unlearn.points) == 4


@pytest.mark.parametrize(("size", "asked"), [(7, "a sample of 7 questions per set"), ("null", "all questions")])
def test_how_many_questions_a_point_rests_on(size, asked):
    config = configuration.compose("smoke", [f"evaluation.light.questions_per_set={size}"])
    of = Curves("finetune", [point(1, "round", forget_prob=0.5), point(2, "end", retain_prob=0.5)], [], {})
    words = Text("".join(map(str, caption_of(config, [of])))).words
    assert words == (
        f"Prob of the answers to forget and retain questions. Filled: during the stage, {asked}. Hollow: at the end, "
        "with the full profile."
    )


def test_a_drawing_of_one_stage_has_a_panel_per_measure():
    """As README has it, and the picture that the window offers: forget round and red, retain square and blue."""
    target = {"forget_rouge": 0.25, "retain_prob": 0.5}
    figure = Curves("unlearn", [*POINTS, point(3, "end", forget_rouge=0.3)], [1], target).drawing(paper="#abcdef")
    rouge, prob = figure.axes
    assert tuple(figure.get_size_inches()) == pytest.approx((9.2, 3.0))
    assert (rouge.get_ylabel(), prob.get_ylabel()) == ("ROUGE-L recall", "Prob")
    assert rouge.get_ylim() == prob.get_ylim() == (-0.03, 1.03) and rouge.get_xlabel() == prob.get_xlabel() == "round"
    looks = [(line.get_color(), line.get_linestyle(), line.get_marker()) for line in rouge.lines]
    assert looks == [
        ("0.6", ":", "None"),
        ("tab:red", "-", "o"),
        ("tab:red", ":", "None"),
        ("tab:red", "None", "o"),
        ("tab:red", "--", "None"),
        ("tab:blue", "-", "s"),
        ("tab:blue", ":", "None"),
        ("tab:blue", "None", "s"),
    ]
    end = rouge.lines[3]
    assert list(zip(*end.get_data(), strict=True)) == [(3, 0.3)] and end.get_markerfacecolor() == "#abcdef"
    assert [(line.get_color(), line.get_linestyle()) for line in prob.lines] == [("0.6", ":"), ("tab:blue", "--")]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["forget", "retain", "retrained", "requests served"]
    assert Curves("finetune", [point(0, "start")], [], {}).drawing(["rouge"]).legends == []
