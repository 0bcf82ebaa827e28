"""The pages about people: which there are, and what each says."""

from __future__ import annotations

import pytest
from support.audits import audit_of, phrasings, write
from support.pages import Text
from support.reports import make_run

from oblivionis.audits.people_outcomes import Outcome, Person, PersonFact, Phrasing, person_slug
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_rules import Judgement
from oblivionis.reports.html import person_pages

BORN = PersonFact("P19", "place of birth", ("Bergen", "Björgvin"), "born", phrasings(3.0, None))
WORK = PersonFact("P106", "occupation", ("baker",), "work", phrasings(None, None), Outcome(2, 2, 1.25, None))
ALONE = PersonFact("P1", "name", ("Bo",), "bo", (Phrasing("t", True, 0.5, 1, "Bo"),))
ANN = Person("Ann Lee", "known", "Lee, Ann", ("r1", "r2"), (BORN, WORK))
BO = Person("Bo", None, None, ("r9",), (ALONE,))


@pytest.fixture
def run(tmp_path):
    run, _ = make_run(tmp_path)
    folder = run.path / "audits" / "person-unlearn-0002"
    folder.mkdir(parents=True)
    write(audit_of(run, [ANN, BO], "unlearn", against="finetune of a run"), folder)
    ledger = Ledger(run.ledger_path)
    ledger.submit(
        Request("by name", 3, ("x",), 1, "by letter", scope="subject", subject="ann  LEE"),
        Request("by the data's name", 4, ("y",), 2, scope="subject", subject="Lee, Ann"),
        Request("by record", 5, ("r2", "r7", "r8"), 3, scope="client"),
        Request("of others", 6, ("r9",), 1),
        Request("of nobody", 7, ("r10",), 1),
    )
    ledger.served("by name", 1)
    ledger.verified("by name", 2, Judgement("verified", "", 0.125), 0.5)
    return run


def page(run, person) -> Text:
    return Text((run.path / "people" / f"{person_slug(person.name)}.html").read_text(encoding="utf-8"))


def test_the_page_of_a_person(run):
    person_pages.write_pages(run)
    told = page(run, ANN)
    assert "Run made ; cohort known; Lee, Ann in the data; 2 training records about this person." in told.words
    facts, requests, born, work = told.tables
    assert facts == [
        ["fact", "true value", "finetuned", "unlearned", "ranked first instead"],
        ["place of birth", "Bergen / Björgvin", "–", " 1 of 2, z* 3.0", "Oslo"],
        ["occupation", "baker", " 2 of 2, z* 1.2", " 0 of 2", "Oslo"],
    ]
    assert requests[0][3:] == [
        "records about this person",
        "asked in round",
        "served in",
        "state",
        "final ROUGE-L recall",
        "reason",
    ]
    assert [row[:8] for row in requests[1:]] == [
        ["by name", "3", requests[1][2], "0 of 1", "1", "1", "verified", "0.125"],
        ["by the data's name", "4", requests[2][2], "0 of 1", "2", "–", "pending", "–"],
        ["by record", "5", requests[3][2], "1 of 3", "3", "–", "pending", "–"],
    ]  # fmt: skip
    assert [row[8] for row in requests] == ["reason", "by letter", "", ""]
    assert born[1:] == [["t0", "memorised", "3.000", "Oslo"], ["t1", "rank 5", "–", "Oslo"]]
    assert len(work) == 3 and "occupation: baker (0 of 2)" in told.words
    assert (
        "place of birth: Bergen / Björgvin (1 of 2, z* 3.0)" in told.words
        and "Phrasings, unlearned model" in told.words
    )
    assert "the records' own words" in told.words and "../report.html" in told.links
    other = page(run, BO)
    assert "Run made ; 1 training record about this person." in other.words
    assert other.tables[1][1][0] == "of others" and len(other.tables[1]) == 2


def test_the_report_lists_people_and_links_to_their_pages(run):
    assert person_pages.section(make_run(run.path / "other")[0]) == []
    told = Text("".join(map(str, person_pages.section(run))))
    ((heads, ann, bo),) = told.tables
    assert heads == ["person", "cohort", "facts", "finetuned", "unlearned", "requests"]
    assert ann == ["Ann Lee", "known", "2", "–", "25%", "verified, pending"]
    assert bo == ["Bo", "", "1", "–", "100%", "pending"]
    assert f"people/{person_slug('Bo')}.html" in told.links


def test_a_share_is_the_mean_over_facts_and_needs_all():
    half, none = Outcome(1, 2, 1.0, None), Outcome(0, 3, None, None)
    assert person_pages.share([half, none, Outcome(4, 4, 1.0, None)]) == "50%"
    assert person_pages.share([half, None]) == person_pages.share([]) == "–"


def test_pages_of_people_who_are_not_audited_any_more_go(run):
    person_pages.write_pages(run)
    (run.path / "people" / "gone.html").write_text("stale")
    person_pages.write_pages(run)
    names = {path.name for path in (run.path / "people").iterdir()}
    assert names == {f"{person_slug(person.name)}.html" for person in (ANN, BO)}


def test_a_page_is_found_by_its_place(run):
    title, parts = person_pages.page_parts(run, f"people/{person_slug('Bo')}.html", "")
    assert title == "Bo in made" and "run" in Text("".join(map(str, parts[:1]))).words
    assert person_pages.page_parts(run, "people/nobody.html", "") is None


def test_the_newest_model_that_was_audited_is_shown(run):
    """Of two audits that of the unlearned model, beside the other one's outcomes."""
    folder = run.path / "audits" / "person-finetune-0002"
    folder.mkdir(parents=True)
    known = PersonFact(BORN.id, BORN.label, BORN.values, BORN.inputs, phrasings(2.0, 1.0))
    write(audit_of(run, [Person("Ann Lee", "known", None, ("r1",), (known,))]), folder)
    person_pages.write_pages(run)
    assert page(run, ANN).tables[0][1] == [
        "place of birth",
        "Bergen / Björgvin",
        " 2 of 2, z* 1.5",
        " 1 of 2, z* 3.0",
        "Oslo",
    ]
    assert page(run, ANN).tables[0][2][2] == "–", "the audit itself counts, not what another one repeats of it"
