"""A page of a run's report for each deletion request: who asked for what, what was done, and what is left of it.

A page shows texts of the request's own records only.
"""

from __future__ import annotations

import html
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oblivionis.assessment.audit_numbers import read_audit
from oblivionis.audits.people_outcomes import PersonAudit, audits_of, person_slug
from oblivionis.config.schema import Config
from oblivionis.files import read_lines, write_atomic
from oblivionis.naming import MODELS
from oblivionis.reports import summary as report
from oblivionis.reports.certificate.page import EVENTS, JSON_FILE, MEANING, PAGE_FILE
from oblivionis.reports.certificate.page import FOLDER as CERTIFICATES
from oblivionis.reports.format import number
from oblivionis.reports.found import forget_answers, leakage_audit
from oblivionis.reports.markup import explained, facts_list, glossary, html_page, html_table
from oblivionis.reports.nodes import SHOWN, audit_rows
from oblivionis.requests.ledger import PENDING, SERVED, VERIFIED, Ledger, Request
from oblivionis.runs.directory import RunDirectory
from strategies.protocol import SCOPE_CLIENT, SCOPE_SUBJECT

FOLDER = "requests"


@dataclass(frozen=True, slots=True)
class _Known:
    """What the pages of a run read, loaded once.

    events: ledger entries by request; logs: per-question logs by stage; leakage: by stage, the rows of the latest
    leakage audit by question id; people: the latest person audits by stage.
    """

    run: RunDirectory
    config: Config
    events: Mapping[str, Sequence[Mapping[str, Any]]]
    logs: Mapping[str, Mapping[str, Mapping[str, Any]]]
    leakage: Mapping[str, Mapping[str, Mapping[str, Any]]]
    people: Mapping[str, PersonAudit]


def page_of(request_id: str) -> str:
    """Path of a request's page from the folder of the run."""
    return f"{FOLDER}/{person_slug(request_id)}.html"


def write_pages(run: RunDirectory, config: Config) -> None:
    """Write `requests/<id>.html` for every request in the ledger of `run`, and remove pages of others."""
    requests = list(Ledger(run.ledger_path))
    written = set()
    known = _load(run, config)
    for request in requests:
        path = run.path / page_of(request.id)
        body = "".join(_page(request, known))
        write_atomic(path, html_page(f"{request.id} in {run.name}", [body, glossary(body)]))
        written.add(path.name)
    for path in (run.path / FOLDER).glob("*.html"):
        if path.name not in written:
            path.unlink()


def _load(run: RunDirectory, config: Config) -> _Known:
    events: dict[str, list[Mapping[str, Any]]] = {}
    for event in read_lines(run.ledger_path):
        if "id" in event:
            events.setdefault(event["id"], []).append(event)
    stages = ("finetune", "unlearn", "retrain")
    logs = {s: answers for s in stages if (answers := forget_answers(run.evaluation_log(s)))}
    leakage = {s: rows for s in stages if (rows := _leakage(run, s))}
    return _Known(run, config, events, logs, leakage, audits_of(run))


def _leakage(run: RunDirectory, stage: str) -> dict[str, Mapping[str, Any]]:
    """The rows of the latest readable leakage audit of a stage, by question id."""
    return {row["id"]: row for row in (leakage_audit(run, stage) or {"questions": []})["questions"]}


def _page(request: Request, known: _Known) -> list[str]:
    return [
        '<p><a href="../report.html#requests">report</a></p>',
        f"<h1>Deletion request {html.escape(request.id)}</h1>",
        f"<p>Run <b>{html.escape(known.run.name)}</b>. {html.escape(_in_short(request, known))}</p>",
        "<h2>What was asked</h2>",
        _asked(request, known),
        "<h2>What was done</h2>",
        _timeline(known.events.get(request.id, ())),
        _unlearned(known.events.get(request.id, ())),
        "<h2>What is left of its records</h2>",
        _records(request, known),
        *_answers(request, known),
        "<h2>Audits</h2>",
        *_audits(request, known),
        *_certificate(request, known.run),
    ]


def _in_short(request: Request, known: _Known) -> str:
    if request.state == VERIFIED:
        return "It was served, and the final model does not recite its records any more: verified."
    if request.state == SERVED and request.rouge is not None:
        return "It was served, but not verified: the final model still recites its records."
    if request.state == SERVED:
        return "It was served; the stage has not come to its end, where it is verified."
    if request.state == PENDING:
        return "It was not served yet." + (f" Latest failure: {request.failure}." if request.failure else "")
    return f"It is {request.state}."


def _asked(request: Request, known: _Known) -> str:
    what = {
        SCOPE_CLIENT: "everything that the client holds: it leaves",
        SCOPE_SUBJECT: f"all records about {request.subject or 'a person'}",
    }.get(request.scope, "single records")
    first = next(iter(known.events.get(request.id, ())), {})
    more = f", {request.already} more had been asked for before" if request.already else ""
    return facts_list(
        {
            "By": f"client {request.client}",
            "Forget": html.escape(what),
            "Records": f"{len(request.record_ids)}{more}",
            "When": html.escape(_when(first)),
            explained("Asked in round"): str(request.round),
            "Reason": html.escape(request.reason),
            "One demand with": html.escape(f"all requests of {request.group}" if request.group else ""),
            explained("Request state", "State"): html.escape(request.state),
            explained("Served in round"): "–" if request.served_round is None else str(request.served_round),
            explained("Failed attempts"): str(request.attempts),
            explained("Verification"): _verification(request, known.config.unlearning.requests.verify_max_rouge),
        }
    )


def _verification(request: Request, limit: float) -> str:
    if request.rouge is None:
        return "not done"
    verdict = "passed" if request.state == VERIFIED else "failed"
    return f"{verdict}: ROUGE-L recall {number(request.rouge)}, at most {limit:g} was asked for"


def _when(event: Mapping[str, Any]) -> str:
    seconds = event.get("time")
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds)) + " UTC" if seconds is not None else "–"


def _timeline(events: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for event in events:
        note = "" if event["event"] == "submitted" else str(event.get("reason") or "")
        if event["event"].startswith("verif") and event.get("rouge") is not None:
            note = f"ROUGE-L recall {number(event['rouge'])}, limit {event.get('limit', 0):g}"
        if event["event"] == "applied":
            note = f"SHA-256 {event['before'][:12]}… → {event['after'][:12]}…"
        what = EVENTS.get(event["event"], event["event"])
        rows.append([_when(event), str(event.get("round", "–")), html.escape(what), html.escape(note)])
    return html_table(["when", explained("Round", "round"), "what", "note"], ["", "n", "", ""], rows)


def _unlearned(events: Sequence[Mapping[str, Any]]) -> str:
    """What the client itself reported of the latest exchange in which it unlearned."""
    served = next((e for e in reversed(events) if e["event"] == "served"), None)
    if served is None:
        return ""
    before, after = served.get("forget-nll-before"), served.get("forget-nll-after")
    facts = {
        explained("Forget loss", "Loss on its records"): f"{number(before)} → {number(after)} nats per token"
        if before is not None and after is not None
        else "",
        "Updates": f"{served['unlearn-steps']:g}" if "unlearn-steps" in served else "",
        "Client's seconds": f"{served['unlearn-seconds']:.1f}" if "unlearn-seconds" in served else "",
    }
    return facts_list(facts)


def _records(request: Request, known: _Known) -> str:
    """Probability and ROUGE-L recall of every record's answer in each model that was asked for it."""
    if not request.record_ids:
        return "<p>All its records were asked for before, by other requests.</p>"
    if not any(i in log for log in known.logs.values() for i in request.record_ids):
        ids = ", ".join(map(html.escape, request.record_ids))
        return f"<p>None of its records is among the forget questions of the evaluation: {ids}.</p>"
    rows = []
    for record_id in request.record_ids:
        found = [log.get(record_id, {}) for log in known.logs.values()]
        recalls = [number(values.get("rougeL_recall")) for values in found]
        probabilities = [number(_probability(values)) for values in found]
        rows.append([html.escape(record_id), explained("ROUGE-L recall"), *recalls])
        rows.append(["", explained("Prob"), *probabilities])
    models = [MODELS[stage] for stage in known.logs]
    note = f"<p>{explained('Retrained model')}: it never saw them.</p>" if "retrain" in known.logs else ""
    return html_table(["record", "measure", *models], ["", "", *["n"] * len(models)], rows) + note


def _probability(values: Mapping[str, Any]) -> float | None:
    loss = values.get("avg_gt_loss")
    return None if loss is None else math.exp(-loss)


def _answers(request: Request, known: _Known) -> list[str]:
    """Question, true answer and every model's answer for the request's own records."""
    rows = []
    for record_id in request.record_ids:
        texts = {s: log[record_id]["generated_text"] for s, log in known.logs.items() if _has_text(log, record_id)}
        if not texts:
            continue
        prompt, _, truth = next(iter(texts.values()))
        question = report.question_of(prompt, known.config.model.template)
        rows.append([html.escape(record_id), "question", f"<b>{html.escape(question)}</b>"])
        rows.append(["", "truth", html.escape(truth)])
        for stage, (_, answer, _) in texts.items():
            rows.append(["", html.escape(MODELS[stage]), html.escape(answer.strip()) or "(empty)"])
    if not rows:
        return []
    table = html_table(["record", "who", "text"], ["who", "who", "text"], rows)
    return [f"<details><summary>What the models answer about them</summary>{table}</details>"]


def _has_text(log: Mapping[str, Mapping[str, Any]], record_id: str) -> bool:
    return bool(log.get(record_id, {}).get("generated_text"))


def _audits(request: Request, known: _Known) -> list[str]:
    parts = [*_by_the_client(request, known), *_leakage_rows(request, known), *_people(request, known)]
    return parts or ["<p>No audit of this run asked about its records.</p>"]


def _certificate(request: Request, run: RunDirectory) -> list[str]:
    """The latest erasure certificate in the run's own folder."""
    folder = f"{CERTIFICATES}/{person_slug(request.id)}"
    try:
        found = json.loads((run.path / folder / JSON_FILE).read_text(encoding="utf-8"))
        result, issued, signed = found["result"], str(found["issued"]), bool(found["signature"])
        meaning = MEANING[result]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    link = f'<a href="../{folder}/{PAGE_FILE}">{result}</a>'
    told = f"{link}. {meaning} Issued {html.escape(issued)}, {'signed' if signed else 'not signed'}."
    return ["<h2>Erasure certificate</h2>", f"<p>{told}</p>"]


def _by_the_client(request: Request, known: _Known) -> list[str]:
    """What the client measured of its own records."""
    rows = audit_rows(read_audit(known.run.path, request.id) or {})
    if not rows:
        return []
    heads = ["moment", *SHOWN.values()]
    table = html_table(heads, ["who", *["n"] * len(SHOWN)], rows)
    return [f"<p>Measured by client {request.client} on its own records, which the server does not have:</p>", table]


def _leakage_rows(request: Request, known: _Known) -> list[str]:
    mine = set(request.record_ids)
    rows = [
        [
            html.escape(record_id),
            html.escape(MODELS[stage]),
            str(row.get("samples", "–")),
            *(number(row.get(name)) for name in ("greedy", "mean", "ed", "m_mu", "m_bin")),
        ]
        for stage, found in known.leakage.items()
        for record_id, row in found.items()
        if record_id in mine
    ]
    if not rows:
        return []
    heads = [
        explained("Mean leakage", "mean"),
        explained("ED score"),
        explained("Bound on mean leakage (M_μ)", "M_μ"),
        explained("Questions that may leak (M_bin)", "M_bin"),
    ]
    table = html_table(["record", "model", "samples", "greedy", *heads], ["who", "who", *["n"] * 6], rows)
    return ["<p>Leakage of sampled answers (<code>oblivionis audit leakage</code>):</p>", table]


def _people(request: Request, known: _Known) -> list[str]:
    mine = set(request.record_ids)
    names = {
        person.name: None for audit in known.people.values() for person in audit.people if mine & set(person.record_ids)
    }
    links = [f'<a href="../people/{person_slug(name)}.html">{html.escape(name)}</a>' for name in names]
    return [f"<p>Facts about people (<code>oblivionis audit person</code>): {', '.join(links)}.</p>"] if links else []
