"""A person audit in words and in its figure, on audits made by hand."""

from __future__ import annotations

import io
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from rich.console import Console
from support.audits import audit_of, phrasings
from support.reports import make_run

from oblivionis.audits.people_outcomes import Outcome, Person, PersonFact
from oblivionis.audits.requests_from_audit import Demand, Plan
from oblivionis.data.records import Record
from oblivionis.erasure.request import Request
from oblivionis.reports import people, people_figures

LOST, HELD, FRESH, NEVER = (True, False), (True, True), (False, True), (False, False)


def fact(name, before, after):
    """Two phrasings; whether the fact is memorised in the first of them, before (None: not asked) and now."""
    earlier = None if before is None else Outcome(int(before), 2, 1.0 if before else None, "Oslo")
    return PersonFact(name, name, ("Bergen",), name, phrasings(2.0 if after else None, None), earlier)


def person(name, facts, cohort=None):
    return Person(name, cohort, None, (), tuple(facts))


def told(audit):
    out = io.StringIO()
    people.print_audit(audit, Console(file=out, width=160))
    return " ".join(out.getvalue().split())


def test_what_is_gone_what_stays_and_what_is_new():
    moves = [LOST] * 3 + [HELD] * 2 + [FRESH] + [NEVER]
    facts = [fact(f"P{i}", *move) for i, move in enumerate(moves)]
    one = audit_of(None, [person("Ann", facts)], "unlearn", against="finetune of a run")
    assert (
        "Before: finetune of a run. Of 5 facts that it had memorised, 3 are no longer, 2 still are; 1 of the others "
        "are now." in people.sentences(one)
    )
    more = audit_of(None, [person("Ann", [*facts, fact("P9", None, True)])], "unlearn", against="finetune of a run")
    assert people.sentences(more)[1].endswith("now (1 further facts were not asked in the same words).")


def test_nothing_in_common_cannot_be_compared():
    one = audit_of(None, [person("Ann", [fact("P1", None, True)])], "unlearn", against="finetune of a run")
    assert people.sentences(one)[1] == (
        "No fact was asked in the same words as of finetune of a run; nothing can be compared."
    )


def test_figures_of_all_and_of_each_cohort():
    """Of Ann's two facts one is memorised in one of two phrasings; of Bo nothing is."""
    ann, bo = (
        person("Ann", [fact("P1", None, True), fact("P2", None, False)], "known"),
        person("Bo", [fact("P1", None, False)], "unknown"),
    )
    everybody, known, unknown = people.sentences(audit_of(None, [ann, bo]))
    assert everybody == (
        "All: memorised in 16.7% of the phrasings (M̄), 33.3% of 3 facts in any, mean z* 2.00, median rank of the true "
        "value 5; nothing about 1 of 2 people."
    )
    assert known.startswith("Cohort known: memorised in 25.0% of the phrasings (M̄), 50.0% of 2 facts in any")
    assert unknown == (
        "Cohort unknown: memorised in 0.0% of the phrasings (M̄), 0.0% of 1 fact in any, median rank of the true value "
        "5; nothing about 1 of 1 person."
    )


def test_the_median_rank_is_that_of_the_cohort():
    ann = person("Ann", [PersonFact("P1", "P1", ("x",), "i", phrasings(1.0, 1.0))], "known")
    bo = person("Bo", [PersonFact("P1", "P1", ("x",), "j", phrasings(None, None, None))], "unknown")
    everybody, known, unknown = people.sentences(audit_of(None, [ann, bo]))
    ranks = [line.split("true value ")[1].split(";")[0] for line in (everybody, known, unknown)]
    assert ranks == ["5", "1", "5"]


@pytest.mark.parametrize("phrased", ["canaries", "records"])
def test_other_phrasings_are_pointed_to_where_nothing_is_memorised_in_canaries(phrased):
    audit = replace(audit_of(None, [person("Ann", [fact("P1", None, False)])]), settings={"phrasings": phrased})
    assert any("--phrasings records asks in their own words" in line for line in people.sentences(audit)) is (
        phrased == "canaries"
    )
    known = replace(audit, people=(person("Ann", [fact("P1", None, True)]),))
    assert not any("Nothing is memorised" in line for line in people.sentences(known))


def test_what_was_not_asked_or_not_measured_is_told():
    audit = audit_of(None, [person("Ann", [fact("P1", None, True)])])
    skipped = replace(audit, skipped=("a", "b", "c", "d", "e"), failed={"Bo": "no\nname"})
    assert people.sentences(skipped)[1:] == ["Not asked for (5): a · b · c and 2 more", "Failed: Bo: no name"]
    assert "Bo" in told(skipped) and "not measured" in told(skipped)


def test_people_with_the_most_memorised_come_first_and_the_rest_is_in_the_file():
    crowd = [person(f"Q{i:02d}", [fact(f"P{i}", None, i == 44)]) for i in range(45)]
    text = told(audit_of(None, crowd))
    assert "40 of 45 facts; all are in audit.json" in text
    assert text.index("Q44") < text.index("Q00") and "Q43" not in text


def test_a_rate_before_needs_all_facts():
    """One of two phrasings of the first fact, none of the second: a quarter."""
    assert people_figures.before_rate(person("Ann", [fact("P1", True, False), fact("P2", False, False)])) == 0.25
    assert people_figures.before_rate(person("Ann", [fact("P1", True, False), fact("P2", None, False)])) is None


def drawn(audit) -> Figure:
    return people_figures.people_figure(audit)


def test_the_figure_shows_rates_and_strengths_before_and_now():
    ann, bo = person("Ann", [fact("P1", False, True)]), person("Bo", [fact("P1", True, False)])
    figure = drawn(audit_of(None, [ann, bo], "unlearn", against="finetune of a run"))
    left, right = figure.axes
    dots = [line for line in left.lines if line.get_marker() == "o"]
    points = {(str(line.get_label()), float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in dots}
    assert {label.get_text() for label in left.get_yticklabels()} == {"Ann", "Bo"}
    places = dict(zip([t.get_text() for t in left.get_yticklabels()], left.get_yticks(), strict=True))
    assert points == {
        ("finetuned", 0.0, places["Ann"]),
        ("unlearned", 0.5, places["Ann"]),
        ("finetuned", 0.5, places["Bo"]),
        ("unlearned", 0.0, places["Bo"]),
    }
    strengths = {(str(line.get_label()), tuple(line.get_xdata())) for line in right.lines if len(line.get_xdata())}
    assert strengths == {("unlearned", (2.0,)), ("finetuned", (1.0,))}


# -- what is to be asked for --------------------------------------------------------------------------------------


def records(*names):
    return tuple(Record(name, f"Where does {name} live?", "There.", "Ann") for name in names)


def printed_plan(plan):
    out = io.StringIO()
    people.print_plan(plan, Console(file=out, width=300))
    return out.getvalue().splitlines()


def test_a_plan_says_who_is_asked_to_forget_what(tmp_path):
    run, config = make_run(tmp_path)
    asked = Demand("Ann", (fact("P19", None, True),), {0: records("a"), 3: records(*"bcde")})
    plan = Plan(run, config, (asked,), (Request("old", 0, ("z",), 1),), ("Bo: name Bo",), 2)
    assert printed_plan(plan) == [
        "Ann: P19 Bergen (1 of 2, z* 2.0)",
        "  client 0: 1 record",
        "    Where does a live?",
        "  client 3: 4 records",
        *[f"    Where does {name} live?" for name in "bcd"],
        "    … 1 more",
        "nothing to delete: Bo: name Bo",
        "What made was asked before (1 request) comes first, at its own rounds: unlearning begins anew from the "
        "finetuned model.",
        "2 of 5 records lie outside the forget split: the retrained model has them, so the comparison table says "
        "nothing about them. What counts is each request's verification and the next audit.",
    ]
    three = Plan(run, config, (Demand("Ann", (), {3: records(*"bcd")}),), (), (), 0)
    assert len(printed_plan(three)) == 5, "three are shown, and nothing is outside or was asked before"
    assert printed_plan(Plan(run, config, (), (Request("old", 0, ("z",), 1),), (), 0)) == []


@pytest.mark.parametrize(("length", "shown"), [(70, "x" * 70), (71, "x" * 69 + "…")])
def test_a_long_question_is_cut(length, shown):
    assert people.cut("x" * length) == shown
    assert people.cut("x" * 68 + " yyy") == "x" * 68 + "…"


@pytest.mark.parametrize(
    ("settings", "subjects", "more"),
    [
        ({}, None, []),
        ({"phrasings": "canaries", "templates": None, "context": 0, "embedder": None}, None, []),
        ({"phrasings": "records"}, "people.json", ["--subjects", "people.json", "--phrasings", "records"]),
        ({"templates": 3, "context": 2}, None, ["--templates", "3", "--context", "2"]),
        (
            {"counterfactuals_from": "other.json", "embedder": "small"},
            None,
            ["--counterfactuals", "other.json", "--embedder", "small"],
        ),
    ],
)
def test_the_commands_that_serve_a_plan_and_audit_afterwards(tmp_path, monkeypatch, settings, subjects, more):
    run, config = make_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    audit = replace(audit_of(run, []), settings=settings, subjects_file=subjects and str(tmp_path / subjects))
    if "counterfactuals_from" in settings:
        audit.settings["counterfactuals_from"] = str(tmp_path / settings["counterfactuals_from"])
    serve, again = people.commands(Plan(run, config, (), (), (), 0), audit, Path("ask.jsonl"))
    assert shlex.split(serve) == [
        *("oblivionis", "simulate", "runs/made/config.yaml", "stages=[unlearn]", "start_from=runs/made"),
        *("name=made-forgets", "unlearning.requests.policy=file", "unlearning.requests.file=ask.jsonl"),
    ]
    assert shlex.split(again) == ["oblivionis", "audit", "person", "made-forgets", *more]


def test_the_table_of_an_audit():
    """Each person's name stands once, and what was not asked before is a dash."""
    ann = person("Ann", [fact("P1", True, False), fact("P2", None, True)], "known")
    text = told(audit_of(None, [ann], "unlearn", against="finetune of a run"))
    assert text.count("Ann (known)") == 1
    assert "person fact true value finetuned unlearned ranked first instead" in text
    assert "Ann (known) P1 Bergen 1 of 2, z* 1.0 0 of 2 Oslo" in text or "Ann (known) P2 Bergen" in text
    assert "P2 Bergen – 1 of 2, z* 2.0 Oslo" in text and "all are in audit.json" not in text
    single = told(audit_of(None, [person("Bo", [fact("P1", None, True)])]))
    assert "person fact true value memorised in ranked first instead" in single and "Bo P1 Bergen 1 of 2" in single
    nothing = PersonFact("P1", "P1", ("x",), "i", phrasings(1.0))
    assert people.print_audit(audit_of(None, [person("Cy", [nothing])]), Console(file=io.StringIO())) is None


@pytest.mark.parametrize(
    ("skipped", "said"),
    [
        ("a", "Not asked for (1): a"),
        ("abc", "Not asked for (3): a · b · c"),
        ("abcd", "Not asked for (4): a · b · c and 1 more"),
    ],
)
def test_the_first_three_that_were_not_asked_for_are_named(skipped, said):
    audit = replace(audit_of(None, [person("Ann", [fact("P1", None, True)])]), skipped=tuple(skipped))
    assert people.sentences(audit)[1:] == [said]


def test_one_cohort_is_no_cohort():
    everybody = audit_of(None, [person(name, [fact("P1", None, True)], "known") for name in ("Ann", "Bo")])
    assert len(people.sentences(everybody)) == 1


@pytest.mark.parametrize(("facts", "shown"), [((39, 1, 1), 2), ((40, 1), 1), ((39, 2), 1), ((41, 1), 1)])
def test_people_are_shown_whole_until_forty_facts(facts, shown):
    """The first is shown however many facts there are."""
    crowd = [person(f"N{i}", [fact(f"P{k}", None, True) for k in range(count)]) for i, count in enumerate(facts)]
    text = told(audit_of(None, crowd))
    assert [f"N{i}" in text for i in range(len(facts))] == [i < shown for i in range(len(facts))]
    assert f"{sum(facts[:shown])} of {sum(facts)} facts; all are in audit.json" in text


@pytest.mark.parametrize(("count", "lines"), [(3, 3), (4, 4)])
def test_of_the_records_of_a_client_the_first_three_are_shown(tmp_path, count, lines):
    run, config = make_run(tmp_path)
    plan = Plan(run, config, (Demand("Ann", (), {0: records(*"abcd"[:count])}),), (), (), 0)
    assert len(printed_plan(plan)) == 2 + lines and (printed_plan(plan)[-1] == "    … 1 more") is (count == 4)


def test_the_figure_is_written_and_repeats(tmp_path):
    audit = audit_of(None, [person("Ann", [fact("P1", False, True)])], "unlearn", against="finetune of a run")
    paths = people_figures.write_figures(audit, tmp_path)
    assert paths == [tmp_path / "people.svg", tmp_path / "people.png"] and set(tmp_path.iterdir()) == set(paths)
    svg, png = (path.read_bytes() for path in paths)
    assert b">Ann<" in svg and b"share of phrasings memorised" in svg and png.startswith(b"\x89PNG")
    assert people_figures.write_figures(audit, tmp_path)[0].read_bytes() == svg


def test_the_figure_is_laid_out_for_its_people():
    """Ann's rate was 1 and is 1/2, Bo's 0 and 1/2; of Cy nothing is known from before, and it is all memorised now."""
    both = PersonFact("P1", "P1", ("x",), "i", phrasings(1.0, 3.0))
    ann, bo, cy = (
        person("Ann", [replace(fact("P1", True, True), before=Outcome(2, 2, 1.5, None))]),
        person("Bo", [fact("P1", False, True)]),
        Person("Cy", None, None, (), (both,)),
    )
    figure = drawn(audit_of(None, [bo, ann, cy], "unlearn", against="finetune of a run"))
    left, right = figure.axes
    assert tuple(figure.get_size_inches()) == pytest.approx((8.4, 1.4 + 3 * 0.28))
    assert [label.get_text() for label in left.get_yticklabels()] == ["Cy", "Ann", "Bo"]
    assert left.get_yticks().tolist() == [2, 1, 0]
    assert left.get_xlim() == (-0.03, 1.03) and left.get_ylim() == pytest.approx((-0.7, 2.7))
    assert (left.get_xlabel(), right.get_xlabel()) == (
        "share of phrasings memorised",
        "z* of a memorised fact (mean over its phrasings)",
    )
    assert right.get_xlim()[0] == 0
    moves = [line.get_xydata().tolist() for line in left.lines if line.get_marker() == "None"]
    assert moves == [[[1.0, 1], [0.5, 1]], [[0.0, 0], [0.5, 0]]]
    strengths = [(line.get_label(), line.get_xydata().tolist()) for line in right.lines if len(line.get_xdata())]
    assert strengths == [
        ("unlearned", [[2.0, 1.88]]),
        ("finetuned", [[1.5, 1.12]]),
        ("unlearned", [[2.0, 0.88]]),
        ("unlearned", [[2.0, -0.12]]),
    ]
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {"finetuned", "unlearned"} and legend._ncols == 2
    for axis in (left, right):
        assert not any(axis.spines[side].get_visible() for side in ("top", "right"))
    colours = {line.get_label(): line.get_color() for line in left.lines if line.get_marker() == "o"}
    assert colours == {"finetuned": "0.6", "unlearned": "tab:red"}


def test_no_more_than_forty_people_are_drawn_and_a_model_of_no_run_is_this_one():
    crowd = [person(f"Q{i:02d}", [fact("P1", None, i == 40)]) for i in range(41)]
    left, _ = drawn(replace(audit_of(None, crowd), stage=None)).axes
    names = [label.get_text() for label in left.get_yticklabels()]
    assert len(names) == 40 and names[0] == "Q40" and "Q39" not in names
    assert {str(line.get_label()) for line in left.lines} == {"this model"}


def test_who_could_not_be_measured_stands_below_a_line():
    audit = replace(audit_of(None, [person("Ann", [fact("P1", None, True)])]), failed={"Bo": "no name"})
    out = io.StringIO()
    people.print_audit(audit, Console(file=out, width=120))
    assert [line.strip() for line in out.getvalue().splitlines()][1:7] == [
        "",
        "person   fact           true value        memorised in     ranked first instead",
        "─" * 79,
        "Ann      P1             Bergen            1 of 2, z* 2.0   Oslo",
        "",
        "Bo       not measured   failed: no name",
    ]


def test_words_are_no_markup_and_get_no_colours_of_their_own():
    audit = replace(audit_of(None, [person("Ann", [fact("P1", None, True)])]), failed={"Bo": "[red]3 of 'x'"})
    out = io.StringIO()
    people.print_audit(audit, Console(file=out, width=200, force_terminal=True, color_system="standard"))
    assert out.getvalue().splitlines()[-1] == "Failed: Bo: [red]3 of 'x'"
