"""A page of a run's report for each deletion request: who asked for what, what was done, and what is left of it.

A page shows texts of the request's own records only.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import htpy as h

from evaluation.metrics.rouge import UNREAD
from oblivionis.audits.people_outcomes import audits_of, person_slug
from oblivionis.config.schema import Config
from oblivionis.erasure.events import reported_numbers
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import PENDING, REJECTED, SERVED, Request
from oblivionis.erasure.verification_records import seen_by_oracle
from oblivionis.erasure.verification_rules import DONE, ERASED, MEANING, NOT_VERIFIED, OVER_UNLEARNED
from oblivionis.errors import FileError
from oblivionis.files import read_json, read_lines, write_atomic
from oblivionis.measures.audit_numbers import read_audit
from oblivionis.naming import MODELS
from oblivionis.reports import run_summary as report
from oblivionis.reports.certificate.page import EVENTS, JSON_FILE, PAGE_FILE, SUPERSEDED_FILE
from oblivionis.reports.certificate.page import FOLDER as CERTIFICATES
from oblivionis.reports.certificate.page import MEANING as RESULTS
from oblivionis.reports.client_tables import SHOWN, audit_note, audit_rows
from oblivionis.reports.format import number
from oblivionis.reports.html import REPORT
from oblivionis.reports.markup import explained, facts_list, folded, html_page, html_table, joined, with_code
from oblivionis.reports.record_results import leakage_audit
from oblivionis.runs.answers import forget_answers
from oblivionis.runs.artifact_binding import nothing_follows
from oblivionis.runs.directory import RunDirectory
from strategies.message_keys import SCOPE_CLIENT, SCOPE_SUBJECT

FOLDER = "requests"


class _Issued(TypedDict):
    """What a page tells of a `certificate.json`."""

    result: str
    issued: str
    signature: str | None


@dataclass(frozen=True, slots=True)
class Known:
    """What the pages of a run read, loaded once.

    events: ledger entries by request; logs: per-question logs by stage; leakage: by stage, the rows of the latest
    leakage audit by question id; people: by record, whom the latest person audits asked about; seen: by request, which
    of its records the retrained model was trained on, where that is known; nothing: that nothing follows from the run,
    and why, else empty.
    """

    run: RunDirectory
    config: Config
    events: Mapping[str, Sequence[Mapping[str, Any]]]
    logs: Mapping[str, Mapping[str, Mapping[str, Any]]]
    leakage: Mapping[str, Mapping[str, Mapping[str, Any]]]
    people: Mapping[str, Sequence[str]]
    seen: Mapping[str, Sequence[str]]
    nothing: str = ""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate in the run's own folder. folder: from there."""

    folder: str
    result: str
    issued: str
    signed: bool
    superseded: bool

    @property
    def link(self) -> h.Element:
        """To its page, from the page of a request."""
        return h.a(href=f"../{self.folder}/{PAGE_FILE}")[self.result]


def page_of(request_id: str) -> str:
    """Path of a request's page from the folder of the run."""
    return f"{FOLDER}/{person_slug(request_id)}.html"


def write_pages(run: RunDirectory, config: Config) -> None:
    """Write `requests/<id>.html` for every request in the ledger of `run`, and remove pages of others."""
    requests = list(Ledger(run.ledger_path))
    written = set()
    known = load(run, config)
    for request in requests:
        path = run.path / page_of(request.id)
        write_atomic(path, html_page(_title(request, run), _page(request, known, REPORT)))
        written.add(path.name)
    for path in (run.path / FOLDER).glob("*.html"):
        if path.name not in written:
            path.unlink()


def page_parts(run: RunDirectory, config: Config, page: str, home: str) -> tuple[str, list[h.Node]] | None:
    """Title and parts of the page that `page_of` calls so, None where no request has it. home: where it links back."""
    request = next((r for r in Ledger(run.ledger_path) if page_of(r.id) == page), None)
    return None if request is None else (_title(request, run), _page(request, load(run, config), home))


def _title(request: Request, run: RunDirectory) -> str:
    return f"{request.id} in {run.name}"


def load(run: RunDirectory, config: Config) -> Known:
    """Read the ledger, answers and leakage of a run."""
    events: dict[str, list[Mapping[str, Any]]] = {}
    for event in read_lines(run.ledger_path):
        if "id" in event:
            events.setdefault(event["id"], []).append(event)
    stages = ("finetune", "unlearn", "retrain")
    logs = {s: answers for s in stages if (answers := forget_answers(run.evaluation_log(s)))}
    leakage = {s: rows for s in stages if (rows := _leakage(run, s))}
    people: dict[str, list[str]] = {}
    for person in (person for audit in audits_of(run).values() for person in audit.people):
        for record_id in person.record_ids:
            people.setdefault(record_id, []).append(person.name)
    return Known(run, config, events, logs, leakage, people, seen_by_oracle(run), nothing_follows(run))


def _leakage(run: RunDirectory, stage: str) -> dict[str, Mapping[str, Any]]:
    """The rows of the latest readable leakage audit of a stage, by question id."""
    return {row["id"]: row for row in (leakage_audit(run, stage) or {"questions": []})["questions"]}


def _page(request: Request, known: Known, home: str) -> list[h.Node]:
    certificate = certificate_of(request, known.run)
    return [
        h.p[h.a(href=f"../{home}#requests")["report" if home else "run"]],
        h.h1[f"Deletion request {request.id}"],
        h.p(".bad")[known.nothing] if known.nothing else None,
        h.p["Run ", h.b[known.run.name], ". ", _in_short(request)],
        life(request, known, certificate),
        h.h2["What was asked"],
        asked_for(request, known),
        h.h2["What was done"],
        timeline(known.events.get(request.id, ())),
        unlearned(known.events.get(request.id, ())),
        h.h2["What is left of its records"],
        _records(request, known),
        _answers(request, known),
        h.h2["Audits"],
        _audits(request, known),
        _certified(certificate),
    ]


def life(request: Request, known: Known, certificate: Certificate | None) -> h.Element:
    """From the demand to its certificate: what was reached, when, and what is still to come."""
    events = known.events.get(request.id, ())
    asked = next((e for e in events if e["event"] == "submitted"), {})
    served = next((e for e in reversed(events) if e["event"] == "served"), {})
    checked = next((e for e in reversed(events) if e["event"].startswith("verif")), {})
    gone, judged = request.served_round is not None, request.outcome in MEANING
    waits, bad = gone or request.state == PENDING, (NOT_VERIFIED, OVER_UNLEARNED)
    steps: list[tuple[str, str, h.Node]] = [("done", "Asked", f"{when(asked)}, for round {request.round}")]
    if gone:
        steps.append(("done", "Served", f"{when(served)}, in round {request.served_round}"))
    else:
        steps.append(("bad" if request.state == REJECTED else "open", "Served", request.state))
    if judged:
        kind = "bad" if request.outcome in bad else "done" if request.outcome in DONE else "open"
        steps.append((kind, "Checked", f"{when(checked)}: {request.outcome}"))
    elif waits:
        steps.append(("open", "Checked", "at the end of the stage" if gone else "once it is served"))
    if certificate is None and waits:
        command = h.code[f"oblivionis certificate create RUN {request.group or request.id}"]
        steps.append(("open", "Certified", ["not yet", [": ", command] if judged else ""]))
    elif certificate is not None:
        kind = {"PASS": "done", "FAIL": "bad"}.get(certificate.result, "open")
        words = f"{certificate.issued}{', superseded' if certificate.superseded else ''}: "
        steps.append((kind, "Certified", [words, certificate.link]))
    return h.ol(".life")[[h.li(class_=kind)[h.b[name], " ", h.span[text]] for kind, name, text in steps]]


def _in_short(request: Request) -> str:
    if request.outcome in MEANING:
        why = f" ({request.why})" if request.why else ""
        return f"It was served. {request.outcome}: {MEANING[request.outcome]}{why}."
    if request.state == SERVED:
        return "It was served; the stage has not come to its end, where it is verified."
    if request.state == PENDING:
        return "It was not served yet." + (f" Latest failure: {request.failure}." if request.failure else "")
    return f"It is {request.state}."


def asked_for(request: Request, known: Known) -> h.Element:
    """What was asked for, by whom, and of which records."""
    what = {
        SCOPE_CLIENT: "everything that the client holds: it leaves",
        SCOPE_SUBJECT: f"all records about {request.subject or 'a person'}",
    }.get(request.scope, "single records")
    first = next(iter(known.events.get(request.id, ())), {})
    more = f", {request.already} more had been asked for before" if request.already else ""
    return facts_list(
        [
            ("By", f"client {request.client}"),
            ("Forget", what),
            ("Records", f"{len(request.record_ids)}{more}"),
            ("When", when(first)),
            (explained("Asked in round"), str(request.round)),
            ("Reason", request.reason),
            ("One demand with", f"all requests of {request.group}" if request.group else ""),
            (explained("Request state", "State"), request.outcome),
            (explained("Served in round"), "–" if request.served_round is None else str(request.served_round)),
            (explained("Failed attempts"), str(request.attempts)),
            (explained("Verification"), _verification(request, known.config.unlearning.requests.verify_max_rouge)),
        ]
    )


def _verification(request: Request, limit: float) -> str:
    if request.outcome == ERASED:
        recall = (
            "" if request.rouge is None else f"; mean ROUGE-L recall {number(request.rouge)}, which decides nothing"
        )
        return f"{request.outcome}, {request.why}{recall}"
    if request.rouge is None:
        return "not done"
    recall = f"mean ROUGE-L recall {number(request.rouge)}, without the questions' words"
    return f"{request.outcome}: {recall}; a record above {limit:g} is recited, one of three words at 1"


def when(event: Mapping[str, Any]) -> str:
    """The time of an event in UTC; – where it has none."""
    seconds = event.get("time")
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds)) + " UTC" if seconds is not None else "–"


def timeline(events: Sequence[Mapping[str, Any]]) -> h.Element:
    """The events of a request, a row each."""
    rows = []
    for event in events:
        note = "" if event["event"] == "submitted" else str(event.get("reason") or "")
        if event["event"].startswith("verif") and event.get("rouge") is not None:
            found = f"ROUGE-L recall {number(event['rouge'])}, limit {event.get('limit', 0):g}"
            note = "; ".join(filter(None, (event.get("outcome"), event.get("why"), found)))
        if event["event"] == "applied":
            note = f"SHA-256 {event['before'][:12]}… → {event['after'][:12]}…"
        what = EVENTS.get(event["event"], event["event"])
        rows.append([when(event), str(event.get("round", "–")), what, note])
    heads = ["when", explained("Round", "round"), "what", "note"]
    return html_table(heads, ["who", "n", "", "text"], rows, "What happened to the request, in order")


def unlearned(events: Sequence[Mapping[str, Any]]) -> h.Node:
    """What the client itself reported of the latest exchange in which it unlearned."""
    served = next((e for e in reversed(events) if e["event"] == "served"), None)
    if served is None:
        return None
    reported = reported_numbers(served)
    before, after = reported.get("forget-nll-before"), reported.get("forget-nll-after")
    known = before is not None and after is not None
    loss = f"{number(before)} → {number(after)} nats per token" if known else ""
    return facts_list(
        [
            (explained("Forget loss", "Loss on its records"), loss),
            ("Updates", f"{reported['unlearn-steps']:g}" if "unlearn-steps" in reported else ""),
            ("Client's seconds", f"{reported['unlearn-seconds']:.1f}" if "unlearn-seconds" in reported else ""),
        ]
    )


def _records(request: Request, known: Known) -> h.Node:
    """Probability and ROUGE-L recall of every record's answer in each model that was asked for it."""
    if not request.record_ids:
        return h.p["All its records were asked for before, by other requests."]
    if not any(i in log for log in known.logs.values() for i in request.record_ids):
        ids = ", ".join(request.record_ids)
        return h.p[f"None of its records is among the forget questions of the evaluation: {ids}."]
    rows: list[list[h.Node]] = []
    for record_id in request.record_ids:
        found = [log.get(record_id, {}) for log in known.logs.values()]
        recalls = [number(values.get("rougeL_recall")) for values in found]
        probabilities = [number(_probability(values)) for values in found]
        rows.append([record_id, explained("ROUGE-L recall"), *recalls])
        rows.append(["", explained("Prob"), *probabilities])
    models = [MODELS[stage] for stage in known.logs]
    note = _of_oracle(known.seen[request.id]) if "retrain" in known.logs and request.id in known.seen else None
    caption = "Answers about each of its records, model by model"
    asked = [log[i] for log in known.logs.values() for i in request.record_ids if i in log]
    left_out = any(values.get("rougeL_recall", 0) is None for values in asked)
    unread = h.p[f"ROUGE-L recall –: {UNREAD[known.config.evaluation.rouge]}."] if left_out else None
    return [html_table(["record", "measure", *models], ["", "", *["n"] * len(models)], rows, caption), unread, note]


def _of_oracle(seen: Sequence[str]) -> h.Element:
    """Whether the retrained model is one that never saw the records."""
    text = f"it was trained on {', '.join(seen)}, in these words or nearly" if seen else "it never saw them"
    return h.p[explained("Retrained model"), f": {text}."]


def _probability(values: Mapping[str, Any]) -> float | None:
    loss = values.get("avg_gt_loss")
    return None if loss is None else math.exp(-loss)


def _answers(request: Request, known: Known) -> h.Node:
    """Question, true answer and every model's answer for the request's own records."""
    rows: list[list[h.Node]] = []
    for record_id in request.record_ids:
        texts = {s: log[record_id]["generated_text"] for s, log in known.logs.items() if _has_text(log, record_id)}
        if not texts:
            continue
        prompt, _, truth = next(iter(texts.values()))
        question = report.question_of(prompt, known.config.model.template)
        rows.append([record_id, "question", h.b[question]])
        rows.append(["", "truth", truth])
        rows += [["", MODELS[stage], answer.strip() or "(empty)"] for stage, (_, answer, _) in texts.items()]
    if not rows:
        return None
    table = html_table(["record", "who", "text"], ["who", "who", "text"], rows, "Answers about its records")
    return folded("What the models answer about them", table)


def _has_text(log: Mapping[str, Mapping[str, Any]], record_id: str) -> bool:
    return bool(log.get(record_id, {}).get("generated_text"))


def _audits(request: Request, known: Known) -> h.Node:
    parts = [*_by_the_client(request, known), *_leakage_rows(request, known), *_people(request, known)]
    return parts or [h.p["No audit of this run asked about its records."]]


def certificate_of(request: Request, run: RunDirectory) -> Certificate | None:
    """The latest erasure certificate of a request, None without one."""
    names = dict.fromkeys(name for name in (request.group, request.told, request.id) if name)
    made = [f"{CERTIFICATES}/{person_slug(name)}" for name in names]
    folder = next((f for f in made if (run.path / f / JSON_FILE).exists()), made[-1])
    file = run.path / folder / JSON_FILE
    try:
        found = read_json(file, _Issued)
    except FileNotFoundError:
        return None
    if (result := found["result"]) not in RESULTS:
        raise FileError(f"{file}: result: expected one of {', '.join(RESULTS)}, found {json.dumps(result[:60])}")
    superseded = (run.path / folder / SUPERSEDED_FILE).exists()
    return Certificate(folder, result, found["issued"], bool(found["signature"]), superseded)


def _certified(found: Certificate | None) -> h.Node:
    if found is None:
        return None
    text = f". {RESULTS[found.result]} Issued {found.issued}, {'signed' if found.signed else 'not signed'}."
    if found.superseded:
        text += " Superseded: more was measured since; make a new one."
    text += " That is what the file says; `oblivionis certificate verify` looks whether it is as it was signed."
    return [h.h2["Erasure certificate"], h.p[found.link, with_code(text)]]


def _by_the_client(request: Request, known: Known) -> list[h.Element]:
    """What the client measured of its own records."""
    audit = read_audit(known.run.path, request.id) or {}
    rows, note = audit_rows(audit), audit_note(audit)
    if not rows:
        return []
    heads = ["moment", *SHOWN.values()]
    table = html_table(heads, ["who", *["n"] * len(SHOWN)], rows, "Measured by the client itself")
    intro = h.p[f"Measured by client {request.client} on its own records, which the server does not have:"]
    return [intro, table, *([h.p[f"{note}."]] if note else [])]


def _leakage_rows(request: Request, known: Known) -> list[h.Element]:
    rows = [
        [
            record_id,
            MODELS[stage],
            str(row.get("samples", "–")),
            *(number(row.get(name)) for name in ("greedy", "mean", "ed", "m_mu", "m_bin")),
        ]
        for stage, found in known.leakage.items()
        for record_id in request.record_ids
        if (row := found.get(record_id)) is not None
    ]
    if not rows:
        return []
    heads = [
        explained("Mean leakage", "mean"),
        explained("ED score"),
        explained("Bound on mean leakage (M_μ)", "M_μ"),
        explained("Questions that may leak (M_bin)", "M_bin"),
    ]
    heads = ["record", "model", "samples", "greedy", *heads]
    table = html_table(heads, ["who", "who", *["n"] * 6], rows, "Leakage of sampled answers")
    return [h.p["Leakage of sampled answers (", h.code["oblivionis audit leakage"], "):"], table]


def _people(request: Request, known: Known) -> list[h.Element]:
    names = dict.fromkeys(name for record_id in request.record_ids for name in known.people.get(record_id, ()))
    links = [h.a(href=f"../people/{person_slug(name)}.html")[name] for name in names]
    command = h.code["oblivionis audit person"]
    return [h.p["Facts about people (", command, "): ", joined(links, ", "), "."]] if links else []
