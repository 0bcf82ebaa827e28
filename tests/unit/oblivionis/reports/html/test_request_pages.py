"""A page per deletion request: what it says, and what it must not."""

import json

import pytest
from support.pages import Text
from support.reports import HOSTILE, Page, log_of, make_run

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
    from oblivionis.config import compose as configuration

    html_report.write_html(run, configuration.from_yaml(run.read_config()))
    assert "0.210" in page(run).text and "0.770" not in page(run).text
    assert "0.770" in page(run, "other").text and "0.210" not in page(run, "other").text


def test_hostile_names_and_pages_of_before(run):
    from oblivionis.config import compose as configuration

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
