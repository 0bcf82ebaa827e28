"""All that is shown of a run whose every figure can be worked out on paper (`support.worked`): `worked/` has it.

The texts there were checked figure by figure; who changes one works out the new figure first. How they come about:

Prob is the mean of 2^-2 to 2^-9, (1/2 − 1/512) / 8 = 0.062, against 1/2: eight differences of one sign have the
one-sided p-value 1/256 = 0.004. Right over wrong: the medians of four 2 and four 3, 2.5, and of eight 3. Forget
quality: the distributions of the unlearned and the retrained model lie 4/8 apart, p = 2 (C(16, 4) − C(16, 0)) /
C(16, 8) = 0.283; those of the finetuned and the retrained one share nothing, p = 2 / C(16, 8) = 1.6e-4, the least
there is. 6/8 is the least distance that tells: 2 C(16, 2) / 12870 = 0.019, and 2 C(16, 3) / 12870 = 0.087 for 5/8.

Ranks 0.55 to 0.90 in steps of 0.05: mean 0.725, deviation 0.05 · √6, error that over √8 = 0.043, two-sided p = 2/256.
Eight samples without a leak: M_bin 1 − 0.01^(1/8) = 0.44, and √(ln 100 / 16) = 0.54 for the mean. Rebound: 0.9 − 0.1 =
0.8 forgotten; 0.3 and 0.5 later are 25 % and 50 % of it. Of eight forget questions three (e0, e1, e2) were served.

Ann's two facts: 2/2 and 1/2 of the phrasings before, 75 %; 1/2 and 0/2 now, 25 %. Δ of the attacks: the values after
them, e.g. 0.75 − 0.25. Utility: 0.45 / 0.6. The ledger's lines were written a minute apart, from noon on.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from support.audits import audit_of
from support.pages import page_lines, wrapped
from support.reports import summary
from support.worked import PEOPLE, worked_run

from oblivionis.audits.people_outcomes import person_slug
from oblivionis.reports import attacks, people, verdicts
from oblivionis.reports.html.request_pages import page_of
from oblivionis.reports.html.run_page import write_html
from oblivionis.reports.json_documents import run_document
from oblivionis.reports.model_card import ADAPTER, model_card
from oblivionis.reports.request_figures import request_figures, write_request_figures
from oblivionis.version import __version__

EXPECTED = Path(__file__).with_name("worked")
FACTS = {"round": 2, "parameters": 12345, "adapter": "a" * 64, "fingerprint": "f" * 64}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run, config = worked_run(tmp_path_factory.mktemp("worked"))
    write_html(run, config)
    return run, config


def expected(name):
    return (EXPECTED / f"{name}.txt").read_text(encoding="utf-8").replace("VERSION", __version__).splitlines()


def shown(run, place):
    """The lines of a page; the glossary, which is one and the same, is left out with all that follows it."""
    lines = page_lines((run.path / place).read_text(encoding="utf-8"))
    end = lines.index("## What the words mean") if "## What the words mean" in lines else len(lines)
    return [line.rstrip() for line in lines[:end]]


PAGES = {"report": "report.html"}
PAGES |= {f"request_{name}": page_of(name) for name in ("mine", "other", "leaves", "refused", "covered")}
PAGES |= {f"person_{name.split()[0].lower()}": f"people/{person_slug(name)}.html" for name in ("Ann Lee", "Bo")}


@pytest.mark.parametrize(("name", "place"), PAGES.items())
def test_every_line_of_every_page(whole, name, place):
    assert shown(whole[0], place) == expected(name)


@pytest.mark.parametrize("full", [False, True])
def test_every_line_on_the_terminal(whole, full):
    run, config = whole
    lines = summary(run, config, width=104, full=full).replace(str(run.path), "RUN").splitlines()
    assert [line.rstrip() for line in lines] == expected("full" if full else "short")


def printed(show, given, width):
    out = io.StringIO()
    show(given, Console(file=out, width=width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(("name", "place", "width"), [("wide", 0, 102), ("narrow", 0, 101), ("alone", 1, 66)])
def test_every_line_on_the_attacks(whole, name, place, width):
    """Beside a retrained model 102 columns are enough for the truth ratios, without one 66."""
    found = attacks.latest(whole[0])
    assert printed(attacks.print_results, found[place], width) == expected(f"attacks_{name}")


def test_every_line_on_the_people(whole):
    """Ranks 1, 5, 5, 5 and 1; of two facts that were known of before one is gone, and the third was not asked."""
    audit = audit_of(whole[0], PEOPLE, "unlearn", against="finetune of a run")
    assert printed(people.print_audit, audit, 120) == expected("people")


def test_every_line_of_the_models_card(whole):
    assert wrapped(model_card(*whole, "unlearn", ADAPTER, FACTS).splitlines()) == expected("card")


def test_the_configuration_stands_at_the_end_of_the_report(whole):
    run, _ = whole
    source = (run.path / "report.html").read_text(encoding="utf-8")
    *_, heading, text = page_lines(source, 10**6)
    assert heading == "+ ## Configuration every key of it"
    assert text == " ".join(run.read_config().split())


def test_the_document_of_the_run(whole):
    run, config = whole
    found = run_document(run, config)
    assert list(found) == [
        *("run", "state", "stages", "metrics", "notes", "outcome", "verdicts", "requests", "audits", "privacy"),
        *("failed", "report"),
    ]
    assert [(stage["stage"], stage["done"], stage["total"], stage["finished"]) for stage in found["stages"]] == [
        *((stage, 2, 2, True) for stage in ("finetune", "retrain", "unlearn")),
        ("local", 0, 4, False),
    ]
    assert list(found["metrics"]) == ["finetune", "unlearn", "retrain"]
    assert found["metrics"]["finetune"] == pytest.approx(
        {"forget_prob": 0.8, "forget_rouge": 0.9, "retain_rouge": 0.8, "model_utility": 0.6}
        | {"forget_quality": 2 / 12870, "forget_ks": 1.0}
    )
    assert found["metrics"]["unlearn"]["forget_ks"] == 0.5 and found["notes"] == {}
    assert (found["outcome"].grade, len(found["outcome"].steps)) == ("doubtful", 1)
    assert [request["outcome"] for request in found["requests"]] == (
        ["verified", "inconclusive", "pending", "rejected", "covered"]
    )
    assert [(audit["request"], audit["client"]) for audit in found["audits"]] == [("mine", 1)]
    assert found["privacy"]["lineages"]["retrain"]["epsilon"] == 1.5
    assert [(f.stage, f.round, f.evaluator, f.reason) for f in found["failed"]] == [("unlearn", 2, "muse", "no memory")]
    assert (found["run"], found["report"]) == (run.path, run.path / "report.html")
    assert found["verdicts"] == verdicts.verdict_document(run, config.evaluation.truth_ratio)


def test_the_document_of_its_verdicts(whole):
    run, config = whole
    found = verdicts.verdict_document(run, config.evaluation.truth_ratio)
    assert {key: value for key, value in found.items() if key not in ("measures", "ruler")} == (
        {"model": "unlearn", "oracle": "retrain", "failed": {"unlearn": {"muse": "no memory"}}}
    )
    prob, ratio = found["measures"]["prob"], found["measures"]["truth_ratio"]
    mean = (1 / 2 - 1 / 512) / 8
    assert prob == pytest.approx(
        {"verdict": "over-unlearned", "value": mean, "oracle": 0.5, "p_below": 1 / 256, "p_above": 1.0, "questions": 8}
    )
    assert (ratio["verdict"], ratio["value"], ratio["oracle"]) == ("near", pytest.approx(2.5), pytest.approx(3.0))
    rank = found["ruler"]["mean_rank"]
    assert (rank["verdict"], rank["null"], rank["p_value"], rank["records"]) == ("above", 0.5, 2 / 256, 8)
    assert rank["mean"] == pytest.approx(0.725) and rank["band"]["verdict"] == "outside"


def test_the_figures_of_each_request(whole):
    """Of `mine` (1/4 + 1/8) / 2 against 1/2, and ranks 0.55 and 0.6: two of one side, p = 2/4."""
    run, _ = whole
    write_request_figures(run)
    mine = request_figures(run, "mine")
    assert mine["oracle"] == pytest.approx(
        {"verdict": "undecided", "value": 0.1875, "oracle": 0.5, "questions": 2, "records": 2}
    )
    assert mine["rank"] == pytest.approx({"mean rank": 0.575, "records": 2, "p": 0.5, "verdict": "undecided"})
    assert request_figures(run, "leaves") == request_figures(run, "covered") == {}
    assert request_figures(run, "other")["oracle"]["value"] == pytest.approx(1 / 16)
    assert request_figures(run, "other")["rank"] == {
        "mean rank": pytest.approx(0.65),
        "records": 1,
        "p": 1.0,
        "verdict": "undecided",
    }
