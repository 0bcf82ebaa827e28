"""A page per deletion request: what it says, and what it must not."""

import json
import re

import pytest
from support.audits import audit_of, phrasings, write
from support.pages import Text
from support.reports import HOSTILE, Page, log_of, make_run

from oblivionis.audits.people_outcomes import Person, PersonFact, person_slug
from oblivionis.config import compose as configuration
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_rules import Judgement
from oblivionis.errors import FileError
from oblivionis.files import write_json
from oblivionis.naming import MODELS
from oblivionis.reports.client_tables import audit_note
from oblivionis.reports.html import request_pages
from oblivionis.reports.html import run_page as html_report

OWN, OTHER = "eval_log_forget-1", "eval_log_forget-2"


def logs(stage):
    log = log_of(stage)
    section = log["eval_log_forget"]
    section["avg_gt_loss"] = {str(i): {"finetune": 0.1, "unlearn": 2.0, "retrain": 1.0}[stage] + i for i in range(4)}
    section["rougeL_recall"] = {str(i): {"finetune": 0.91, "unlearn": 0.12, "retrain": 0.33}[stage] for i in range(4)}
    return log


@pytest.fixture
def made(tmp_path):
    """A run with two requests, without its pages."""
    run, _ = make_run(tmp_path, logs=logs)
    ledger = Ledger(run.ledger_path)
    ledger.submit(Request("mine", 7, (OWN,), 1, "asked by letter"))
    ledger.submit(Request("other", 3, (OTHER,), 2))
    ledger.failed("mine", 1, "the client was away")
    ledger.served("mine", 2, **{"forget-nll-before": 0.25, "forget-nll-after": 3.5})
    ledger.verified("mine", 2, Judgement("verified", "", 0.12), 0.5)
    return run


@pytest.fixture
def run(made):
    request_pages.write_pages(made, config_of(made))
    return made


def config_of(run):
    return configuration.from_yaml(run.read_config())


def page(run, request_id="mine"):
    return Text((run.path / request_pages.page_of(request_id)).read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_report_links_to_every_page_and_the_pages_back(run):
    html_report.write_html(run, config_of(run))
    report = (run.path / "report.html").read_text(encoding="utf-8")
    for request_id in ("mine", "other"):
        assert f'href="{request_pages.page_of(request_id)}"' in report
        assert "../report.html#requests" in page(run, request_id).links
    assert 'id="requests"' in report


def test_who_when_how_often_and_with_what_outcome(run):
    words = " ".join(page(run).text.split())
    for part in ("client 7", "asked by letter", "the client was away", "UTC", "0.250 → 3.500", "Failed attempts 1"):
        assert part in words, part
    assert "verified: mean ROUGE-L recall 0.120, without the questions' words; a record above 0.5 is recited" in words
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
    request_pages.write_pages(run, config_of(run))
    assert "0.210" in page(run).text and "0.770" not in page(run).text
    assert "0.770" in page(run, "other").text and "0.210" not in page(run, "other").text


def test_hostile_names_and_pages_of_before(run):
    ledger = Ledger(run.ledger_path)
    for request_id in (HOSTILE, "../../etc/passwd", "A", "a"):
        ledger.submit(Request(request_id, 1, (), 1, HOSTILE, already=2, scope="subject", subject=HOSTILE))
    (run.path / "requests" / "gone.html").write_text("stale")
    report = Page(run, config_of(run))
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
    request_pages.write_pages(run, config)
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
    request_pages.write_pages(run, config)
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
    assert request_pages.when({}) == "–" and request_pages.when({"time": 3661}) == "1970-01-01 01:01:01 UTC"


@pytest.mark.parametrize(
    ("result", "kind", "signed", "newer"),
    [("PASS", "done", "s", False), ("FAIL", "bad", None, False), ("INCONCLUSIVE", "open", "s", True)],
)
def test_the_certificate_of_a_request(run, result, kind, signed, newer):
    folder = run.path / "certificates" / request_pages.person_slug("mine")
    write_json(folder / "certificate.json", {"result": result, "issued": "2026-01-01", "signature": signed})
    if newer:
        write_json(folder / "superseded.json", {})
    config = config_of(run)
    request_pages.write_pages(run, config)
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
    request_pages.write_pages(run, config)
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
    config = config_of(run)
    title, parts = request_pages.page_parts(run, config, request_pages.page_of("mine"), "")
    assert title == "mine in made" and 'href="../#requests"' in str(parts[0])
    assert request_pages.page_parts(run, config, "requests/none.html", "") is None


def test_people_whom_its_records_are_about_are_named(run):
    folder = run.path / "audits" / "person-unlearn-0002"
    folder.mkdir(parents=True)
    fact = PersonFact("P1", "name", ("Bo",), "bo", phrasings(1.0))
    people = [Person(name, None, None, (OWN, "x"), (fact,)) for name in ("Bo", "Al")]
    write(audit_of(run, [*people, Person("Cy", None, None, (OTHER,), (fact,))], "unlearn"), folder)
    request_pages.write_pages(run, config_of(run))
    told = page(run)
    assert "Facts about people ( oblivionis audit person ): Bo , Al ." in told.words and "Cy" not in told.words
    assert {f"../people/{person_slug(name)}.html" for name in ("Bo", "Al")} <= set(told.links)


def test_records_of_which_one_alone_was_asked_for_have_their_rows(tmp_path):
    run, config = make_run(tmp_path, logs=logs)
    Ledger(run.ledger_path).submit(Request("two", 1, ("x", OWN), 1))
    request_pages.write_pages(run, config)
    (rows,) = [table for table in page(run, "two").tables if table[0][:2] == ["record", "measure"]]
    assert rows[1:] == [
        ["x", "ROUGE-L recall", "–", "–", "–"],
        ["", "Prob", "–", "–", "–"],
        [OWN, "ROUGE-L recall", "0.910", "0.120", "0.330"],
        ["", "Prob", "0.333", "0.050", "0.135"],
    ]
    assert "ROUGE-L recall –:" not in page(run, "two").words, "a record that nobody asked for is not left out"
    (answers,) = [table for table in page(run, "two").tables if table[0] == ["record", "who", "text"]]
    assert [row[0] for row in answers[1:]] == [OWN, "", "", "", ""]


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({"mine": [OWN]}, f"Retrained model : it was trained on {OWN} , in these words or nearly."),
        ({"mine": []}, "Retrained model : it never saw them."),
        ({}, None),
    ],
)
def test_whether_the_retrained_model_saw_its_records(made, monkeypatch, seen, said):
    monkeypatch.setattr(request_pages, "seen_by_oracle", lambda run: seen)
    request_pages.write_pages(made, config_of(made))
    words = page(made).words
    assert ("Retrained model :" in words) is (said is not None)
    if said is not None:
        assert said.replace(" ,", ",") in words


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"forget-nll-before": 0.25}, {}),
        ({"forget-nll-after": 0.25, "unlearn-steps": 12.0}, {"Updates": "12"}),
        ({"forget-nll-before": 0.5, "forget-nll-after": 0.75}, {"Loss on its records": "0.500 → 0.750 nats per token"}),
        ({"unlearn-seconds": 1.25}, {"Client's seconds": "1.2"}),
    ],
)
def test_what_the_client_told_of_its_unlearning(told, said):
    events = [
        {"event": "served", "told": {"unlearn-steps": 99}},
        {"event": "served", "told": told},
        {"event": "failed"},
    ]
    source = re.sub(r"</?(?:a|abbr)[^>]*>", "", str(request_pages.unlearned(events)))
    assert dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", source)) == {
        k.replace("'", "&#39;"): v for k, v in said.items()
    }
    assert request_pages.unlearned([{"event": "failed"}]) is None


def test_what_happened_is_told_line_by_line():
    events = [
        {"event": "submitted", "time": 0, "round": 1, "reason": "asked by letter"},
        {"event": "failed", "reason": "away"},
        {
            "event": "verification_failed",
            "round": 2,
            "rouge": 0.75,
            "limit": 0.5,
            "outcome": "not verified",
            "why": "w",
        },
        {"event": "verified", "round": 3, "rouge": None, "reason": "none"},
        {"event": "unheard of", "round": 4},
    ]
    (rows,) = Text(str(request_pages.timeline(events))).tables
    assert rows == [
        ["when", "round", "what", "note"],
        ["1970-01-01 00:00:00 UTC", "1", "asked", ""],
        ["–", "–", "attempt failed", "away"],
        ["–", "2", "verification failed", "not verified; w; ROUGE-L recall 0.750, limit 0.5"],
        ["–", "3", "verified", "none"],
        ["–", "4", "unheard of", ""],
    ]


def test_of_several_moments_the_newest_counts(made):
    """A request that was served, rolled back and served again, and checked twice."""
    request = next(r for r in Ledger(made.ledger_path) if r.id == "mine")
    moments = ["submitted", "served", "served", "verification_failed", "verified"]
    events = {"mine": [{"event": event, "time": 60 * n} for n, event in enumerate(moments)]}
    known = request_pages.Known(made, config_of(made), events, {}, {}, {}, {})
    told = Text(str(request_pages.life(request, known, None))).words
    assert "00:00:00 UTC, for round 1" in told and "00:02:00 UTC, in round 2" in told
    assert "00:04:00 UTC: verified" in told


def test_what_is_refused_is_not_checked_and_needs_no_certificate(made):
    Ledger(made.ledger_path).rejected("other", 2, "unknown")
    request_pages.write_pages(made, config_of(made))
    assert [step[:2] for step in steps(made, "other")] == [("done", "Asked"), ("bad", "Served")]


def test_a_result_that_no_certificate_has_is_refused(made):
    file = made.path / "certificates" / request_pages.person_slug("mine") / "certificate.json"
    write_json(file, {"result": "FINE", "issued": "x", "signature": None})
    request = next(iter(Ledger(made.ledger_path)))
    with pytest.raises(FileError, match=r'certificate\.json: result: expected one of .*PASS.*, found "FINE"$'):
        request_pages.certificate_of(request, made)


def test_the_certificate_of_the_whole_demand_comes_before_that_of_the_request(made):
    for name, result in (("the-demand", "PASS"), ("as-told", "FAIL"), ("one", "INCONCLUSIVE")):
        folder = made.path / "certificates" / request_pages.person_slug(name)
        write_json(folder / "certificate.json", {"result": result, "issued": "x", "signature": ""})
    named = Request("one", 0, ("a",), 1, told="as-told", group="the-demand")
    found = [
        request_pages.certificate_of(request, made)
        for request in (
            named,
            Request("one", 0, (), 1, told="as-told"),
            Request("one", 0, (), 1),
            Request("two", 0, (), 1),
        )
    ]
    assert [made and made.result for made in found] == ["PASS", "FAIL", "INCONCLUSIVE", None]
    assert not found[0].signed and not found[0].superseded


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"scope": "subject"}, "all records about a person"),
        ({"scope": "subject", "subject": "Ivo"}, "all records about Ivo"),
        ({"scope": "client"}, "everything that the client holds: it leaves"),
        ({}, "single records"),
    ],
)
def test_what_was_asked_to_be_forgotten(made, asked, what):
    known = request_pages.load(made, config_of(made))
    assert f"<dt>Forget</dt><dd>{what}</dd>" in str(request_pages.asked_for(Request("x", 0, ("a",), 1, **asked), known))
