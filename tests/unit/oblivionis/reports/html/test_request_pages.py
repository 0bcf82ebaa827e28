"""A page per deletion request: what it says, and what it must not."""

import json
import re

import pytest
from support.audits import audit_of, phrasings, write
from support.pages import Text
from support.reports import HOSTILE, Page, log_of, make_run

from oblivionis.audits.people_outcomes import Person, PersonFact, person_slug
from oblivionis.config import compose as configuration
from oblivionis.files import write_json
from oblivionis.naming import MODELS
from oblivionis.reports.html import request_pages
from oblivionis.reports.html import run_page as html_report
from oblivionis.reports.nodes import audit_note
from oblivionis.requests.judgement import Judgement
from oblivionis.requests.ledger import Ledger, Request

OWN, OTHER = "eval_log_forget-1", "eval_log_forget-2"


def logs(stage):
    log = log_of(stage)
    section = log["eval_log_forget"]
    section["avg_gt_loss"] = {str(i): {"finetune": 0.1, "unlearn": 2.0, "retrain": 1.0}[stage] + i for i in range(4)}
    section["rougeL_recall"] = {str(i): {"finetune": 0.91, "unlearn": 0.12, "retrain": 0.33}[stage] for i in range(4)}
    return log


@pytest.fixture
def run(tmp_path):
    run, config = make_run(tmp_path, logs=logs)
    ledger = Ledger(run.ledger_path)
    ledger.submit(Request("mine", 7, (OWN,), 1, "asked by letter"))
    ledger.submit(Request("other", 3, (OTHER,), 2))
    ledger.failed("mine", 1, "the client was away")
    ledger.served("mine", 2, **{"forget-nll-before": 0.25, "forget-nll-after": 3.5})
    ledger.verified("mine", 2, Judgement("verified", "", 0.12), 0.5)
    html_report.write_html(run, config)
    return run


def page(run, request_id="mine"):
    return Text((run.path / request_pages.page_of(request_id)).read_text(encoding="utf-8"))


def test_the_report_links_to_every_page_and_the_pages_back(run):
    report = (run.path / "report.html").read_text(encoding="utf-8")
    for request_id in ("mine", "other"):
        assert f'href="{request_pages.page_of(request_id)}"' in report
        assert "../report.html#requests" in page(run, request_id).links
    assert 'id="requests"' in report


def test_who_when_how_often_and_with_what_outcome(run):
    words = " ".join(page(run).text.split())
    for part in ("client 7", "asked by letter", "the client was away", "UTC", "0.250 → 3.500", "Failed attempts 1"):
        assert part in words, part
    assert "verified: mean ROUGE-L recall 0.120; a record above 0.5 is recited" in words
    assert "Served in round 2" in words and "Asked in round 1" in words
    assert "not served yet" in page(run, "other").text and "No audit" in page(run, "other").text


def test_values_before_and_after_are_those_of_its_records(run):
    words = page(run).text.split()
    for number in ("0.910", "0.120", "0.330", "0.333", "0.050", "0.135"):
        assert number in words, "ROUGE as logged, Prob = exp(-loss): exp(-1.1), exp(-3), exp(-2)"


def test_no_text_of_other_records(run):
    text = page(run).text
    assert "Where does Bo live?" in text and "Bo lives in Ost." in text
    assert not {"Ann", "Cy", "Di"} & set(text.split()) and OTHER not in text


def test_audits_of_its_records_are_shown(run, tmp_path):
    rows = [{"id": i, "samples": 64, "greedy": 0.0, "mean": m, "m_mu": 0.4} for i, m in ((OWN, 0.21), (OTHER, 0.77))]
    folder = run.path / "audits" / "leakage-unlearn-0002"
    folder.mkdir(parents=True)
    (folder / "audit.json").write_text(json.dumps({"questions": rows}))
    broken = run.path / "audits" / "leakage-unlearn-0003"
    broken.mkdir()
    (broken / "audit.json").write_text("{")
    html_report.write_html(run, configuration.from_yaml(run.read_config()))
    assert "0.210" in page(run).text and "0.770" not in page(run).text
    assert "0.770" in page(run, "other").text and "0.210" not in page(run, "other").text


def test_hostile_names_and_pages_of_before(run):
    ledger = Ledger(run.ledger_path)
    for request_id in (HOSTILE, "../../etc/passwd", "A", "a"):
        ledger.submit(Request(request_id, 1, (), 1, HOSTILE, already=2, scope="subject", subject=HOSTILE))
    (run.path / "requests" / "gone.html").write_text("stale")
    report = Page(run, configuration.from_yaml(run.read_config()))
    pages = sorted((run.path / "requests").iterdir())
    assert not any(p.name == "gone.html" for p in pages) and all(p.parent == run.path / "requests" for p in pages)
    assert HOSTILE in page(run, HOSTILE).text
    assert not any("<script" in p.read_text() or "<img" in p.read_text() for p in pages)
    linked = [a["href"] for tag, a in report.tags if tag == "a" and a["href"].startswith("requests/")]
    assert len(linked) == 6 and all((run.path / link).is_file() for link in linked)


@pytest.mark.parametrize(
    ("rule", "why"),
    [("paper", "reads Latin letters and digits alone; evaluation.rouge=any_script"), ("any_script", "has no letter")],
)
def test_a_recall_that_does_not_count_is_a_dash_with_its_reason(tmp_path, rule, why):
    def unread(stage):
        log = logs(stage)
        log["eval_log_forget"]["rougeL_recall"]["1"] = None
        return log

    run, config = make_run(tmp_path, logs=unread, overrides=[f"evaluation.rouge={rule}"])
    ledger = Ledger(run.ledger_path)
    ledger.submit(Request("mine", 7, (OWN,), 1))
    ledger.submit(Request("other", 3, (OTHER,), 2))
    html_report.write_html(run, config)
    words = " ".join(page(run).text.split())
    assert "ROUGE-L recall – – –" in words and "ROUGE-L recall –: " in words and why in words
    assert "ROUGE-L recall –" not in " ".join(page(run, "other").text.split())


def test_a_client_without_rouge_of_its_other_records_is_told_why():
    numbers = {"request_rouge": 0.1, "retain_prob": 0.5}
    assert "evaluation.rouge=any_script" in audit_note({"request": "r", "client": 0, "final": numbers})
    assert (
        audit_note({"final": {**numbers, "retain_rouge": 0.0}}) == audit_note({"final": {"request_rouge": 1.0}}) == ""
    )


def steps(run, request_id):
    """The line of life: kind, name and words of each step."""
    source = (run.path / request_pages.page_of(request_id)).read_text(encoding="utf-8")
    found = re.findall(r'<li class="(\w+)"><b>(.*?)</b> <span>(.*?)</span></li>', source)
    return [(kind, name, re.sub(r"<[^>]+>", "", told)) for kind, name, told in found]


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [("verified", "done"), ("not verified", "bad"), ("over-unlearned", "bad"), ("not testable", "open")],
)
def test_the_life_of_a_request(tmp_path, outcome, kind):
    run, config = make_run(tmp_path)
    ledger = Ledger(run.ledger_path)
    ledger.submit(
        Request("mine", 7, (OWN,), 1, group="ivo"),
        Request("served", 7, (OTHER,), 1),
        Request("open", 3, ("x",), 2),
        Request("refused", 3, ("y",), 2),
    )
    for name in ("mine", "served"):
        ledger.served(name, 2)
    ledger.verified("mine", 3, Judgement(outcome, "", 0.12), 0.5)
    ledger.rejected("refused", 2, "unknown")
    html_report.write_html(run, config)
    asked, served, checked, certified = steps(run, "mine")
    assert asked[:2] == ("done", "Asked") and asked[2].endswith(" UTC, for round 1")
    assert served[:2] == ("done", "Served") and served[2].endswith(" UTC, in round 2")
    assert checked[:2] == (kind, "Checked") and checked[2].endswith(f" UTC: {outcome}")
    assert certified == ("open", "Certified", "not yet: oblivionis certificate create RUN ivo")
    assert steps(run, "served")[2:] == [
        ("open", "Checked", "at the end of the stage"),
        ("open", "Certified", "not yet"),
    ]
    assert steps(run, "open")[1:3] == [("open", "Served", "pending"), ("open", "Checked", "once it is served")]
    assert steps(run, "refused")[1] == ("bad", "Served", "rejected")
    assert "It was served. " in page(run, "mine").words and "It is rejected." in page(run, "refused").words
    assert "the stage has not come to its end" in page(run, "served").words
    assert request_pages._when({}) == "–" and request_pages._when({"time": 3661}) == "1970-01-01 01:01:01 UTC"


@pytest.mark.parametrize(
    ("result", "kind", "signed", "newer"),
    [("PASS", "done", "s", False), ("FAIL", "bad", None, False), ("INCONCLUSIVE", "open", "s", True)],
)
def test_the_certificate_of_a_request(run, result, kind, signed, newer):
    folder = run.path / "certificates" / request_pages.person_slug("mine")
    write_json(folder / "certificate.json", {"result": result, "issued": "2026-01-01", "signature": signed})
    if newer:
        write_json(folder / "superseded.json", {})
    config = configuration.from_yaml(run.read_config())
    html_report.write_html(run, config)
    words = f"2026-01-01{', superseded' if newer else ''}: {result}"
    assert steps(run, "mine")[3] == (kind, "Certified", words)
    assert f"Issued 2026-01-01, {'signed' if signed else 'not signed'}." in page(run).words
    assert ("Superseded: more was measured since" in page(run).words) is newer
    assert f"../certificates/{folder.name}/certificate.html" in page(run).links
    assert "Certified not yet" in page(run, "other").words


def test_what_was_asked_is_told_in_full(tmp_path):
    run, config = make_run(tmp_path)
    ledger = Ledger(run.ledger_path)
    ledger.submit(
        Request("a", 1, ("x",), 1, "why", scope="subject", subject="Ivo", group="ivo", already=2),
        Request("b", 2, ("y", "z"), 2, scope="client"),
        Request("c", 3, (), 1),
    )
    html_report.write_html(run, config)
    assert (
        "By client 1 Forget all records about Ivo Records 1, 2 more had been asked for before When"
        in page(run, "a").words
    )
    assert "One demand with all requests of ivo" in page(run, "a").words
    assert "By client 2 Forget everything that the client holds: it leaves Records 2 When" in page(run, "b").words
    assert "One demand" not in page(run, "b").words and "Forget single records Records 0 When" in page(run, "c").words
    assert "All its records were asked for before, by other requests." in page(run, "c").words
    none = "None of its records is among the forget questions of the evaluation: y, z."
    assert none in page(run, "b").words and "What the models answer" not in page(run, "b").words


def test_the_answers_about_its_records_model_by_model(run):
    rows = [table for table in page(run).tables if table[0] == ["record", "who", "text"]]
    assert rows == [
        [
            ["record", "who", "text"],
            [OWN, "question", "Where does Bo live?"],
            ["", "truth", "Bo lives in Ost."],
            *[["", MODELS[s], f"{s} says: They live in Vell."] for s in ("finetune", "unlearn", "retrain")],
        ]
    ]
    assert "What the models answer about them" in page(run).words


def test_a_page_is_found_by_its_place(run):
    config = configuration.from_yaml(run.read_config())
    title, parts = request_pages.page_parts(run, config, request_pages.page_of("mine"), "")
    assert title == "mine in made" and 'href="../#requests"' in str(parts[0])
    assert request_pages.page_parts(run, config, "requests/none.html", "") is None


def test_people_whom_its_records_are_about_are_named(run):
    folder = run.path / "audits" / "person-unlearn-0002"
    folder.mkdir(parents=True)
    fact = PersonFact("P1", "name", ("Bo",), "bo", phrasings(1.0))
    people = [Person(name, None, None, (OWN, "x"), (fact,)) for name in ("Bo", "Al")]
    write(audit_of(run, [*people, Person("Cy", None, None, (OTHER,), (fact,))], "unlearn"), folder)
    html_report.write_html(run, configuration.from_yaml(run.read_config()))
    told = page(run)
    assert "Facts about people ( oblivionis audit person ): Bo , Al ." in told.words and "Cy" not in told.words
    assert {f"../people/{person_slug(name)}.html" for name in ("Bo", "Al")} <= set(told.links)
