"""The erasure certificate as a page that can be read and printed: everything on it is in the certificate."""

from __future__ import annotations

import html
import time
from collections.abc import Mapping, Sequence
from typing import Any

from oblivionis.reports.markup import facts_list, html_page, html_table

FOLDER, JSON_FILE, PAGE_FILE = "certificates", "certificate.json", "certificate.html"
"""Where certificates lie in a run: in a folder for each request, a certificate and its page."""
MOMENTS = {"before": "before the exchange", "after": "right after it", "final": "in the final model"}
EVENTS = {
    "submitted": "asked",
    "served": "served: unlearned and averaged in",
    "applied": "the global model changed",
    "failed": "attempt failed",
    "rejected": "rejected",
    "verified": "verified",
    "verification_failed": "verification failed",
    "rolled_back": "served anew: the run resumed from an earlier checkpoint",
}
SCOPES = {"client": "everything that the client holds: it leaves", "subject": "all records about one person"}
MEANING = {
    "PASS": "Every required check holds.",
    "FAIL": "At least one check says that the records are not forgotten.",
    "INCONCLUSIVE": "No check fails, but a required one cannot tell.",
}


def certificate_page(certificate: Mapping[str, Any]) -> str:
    """A page that needs no other file. Every text is escaped."""
    request, run, evidence = (certificate[name] for name in ("request", "run", "evidence"))
    result = certificate["result"]
    bad = ' class="bad"' if result == "FAIL" else ""
    parts = [
        f"<h1>Erasure certificate: <span{bad}>{html.escape(result)}</span></h1>",
        f"<p>{MEANING[result]} Request <b>{html.escape(request['id'])}</b> of client {request['client']}, run "
        f"<b>{html.escape(run['name'])}</b>, issued {html.escape(certificate['issued'])}.</p>",
        "<h2>Checks</h2>",
        _checks(certificate["checks"]),
        "<h2>What was asked</h2>",
        _asked(request),
        "<h2>What was done</h2>",
        _events(evidence["events"]),
        _rounds(evidence["rounds"], request["served_round"]),
        "<h2>Models</h2>",
        _models(evidence["models"]),
        "<h2>What was measured</h2>",
        f"<p>By {html.escape(evidence['source'])}.</p>",
        _measured(evidence),
        *_further(evidence),
        "<h2>Replay</h2>",
        _replay(certificate),
        "<h2>Signature</h2>",
        _signature(certificate),
    ]
    return html_page(f"Erasure certificate {request['id']}", parts)


def _checks(checks: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            html.escape(check["name"]),
            f'<b class="bad">{check["result"]}</b>' if check["result"] == "FAIL" else f"<b>{check['result']}</b>",
            "yes" if check["required"] else "no",
            html.escape(", ".join(f"{name} {_shown(value)}" for name, value in check["figure"].items())),
            html.escape(check["why"]),
        ]
        for check in checks
    ]
    return html_table(["check", "result", "required", "figures", "why"], ["who", "who", "", "", ""], rows)


def _asked(request: Mapping[str, Any]) -> str:
    ids = ", ".join(map(html.escape, request["record_ids"]))
    count = f"{request['records']} record{'s' * (request['records'] != 1)}"
    return facts_list(
        {
            "What": html.escape(SCOPES.get(request["scope"], "the named records")),
            "Records": f"{count}: {ids}",
            "Asked in round": str(request["round"]),
            "Served in round": str(request["served_round"]),
            "State": html.escape(request["state"]),
        }
    )


def _events(events: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for event in events:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(event["time"])) if "time" in event else "–"
        what = html.escape(EVENTS.get(event["event"], str(event["event"])))
        line = html.escape(str(event.get("hash", "–")))
        rows.append([when, str(event.get("round", "–")), what, f"<code>{line}</code>"])
    return html_table(["when (UTC)", "round", "what", "line of the ledger"], ["who", "n", "", ""], rows)


def _rounds(rounds: Sequence[Mapping[str, Any]], served: int) -> str:
    rows = []
    for row in rounds:
        clients = {kind: ", ".join(map(str, ids)) for kind, ids in row["clients"].items()}
        mark = f"<b>{row['round']}</b>" if row["round"] == served else str(row["round"])
        rows.append([mark, *(html.escape(clients.get(kind, "–")) for kind in ("unlearn", "train", "failed"))])
    if not rows:
        return ""
    return html_table(["round", "clients that forgot", "that trained", "left out"], ["n", "", "", ""], rows)


def _models(models: Mapping[str, Any]) -> str:
    def code(text: object) -> str:
        return f"<code>{html.escape(str(text))}</code>" if text else ""

    base, final = models["base"], models["final"]
    return facts_list(
        {
            f"Base model {html.escape(str(base['source']))}": code(base["fingerprint"]),
            "Before the exchange": code(models["before"]),
            "After it": code(models["after"]),
            f"Final, round {final['round']}": code(final["sha256"]),
        }
    )


def _measured(evidence: Mapping[str, Any]) -> str:
    moments = [m for m in MOMENTS if evidence[m]]
    names = list(dict.fromkeys(name for m in moments for name in evidence[m]))
    rows = [[html.escape(name), *(_shown(evidence[m].get(name)) for m in moments)] for name in names]
    return html_table(["measure", *(MOMENTS[m] for m in moments)], ["", *["n"] * len(moments)], rows) if rows else ""


def _further(evidence: Mapping[str, Any]) -> list[str]:
    """Bounds, ranks, the retrained model and attacks, where there are any."""
    titles = {"leakage": "Sampled answers", "rank": "Representations (RULER, Lens 2)", "oracle": "Retrained model"}
    parts = []
    for name, title in titles.items():
        if evidence[name]:
            facts = {html.escape(k): html.escape(_shown(v)) for k, v in evidence[name].items()}
            parts.append(f"<h3>{title}</h3>{facts_list(facts)}")
    if evidence["attacks"]:
        rows = [
            [
                html.escape(row["attack"]),
                str(row["questions"]),
                _shown(row["before"]),
                _shown(row["rouge"]),
                html.escape(row["verdict"] or "–"),
            ]
            for row in evidence["attacks"]
        ]
        head = ["attack", "questions", "ROUGE-L before", "after", "beside the retrained model"]
        parts.append(f"<h3>Attacks</h3>{html_table(head, ['', 'n', 'n', 'n', ''], rows)}")
    return parts


def _replay(certificate: Mapping[str, Any]) -> str:
    run, replay = certificate["run"], certificate["replay"]
    versions = ", ".join(f"{name} {version}" for name, version in run["packages"].items())
    return f"<pre>{html.escape(replay['command'])}</pre>" + facts_list(
        {
            "Also needs": html.escape(replay.get("needs", "")),
            "Configuration, SHA-256": f"<code>{run['config_sha256']}</code>",
            "Seed": str(run["seed"]),
            "Aggregator, method": html.escape(f"{run['aggregator']}, {run['method']}"),
            "Clients": str(run["clients"]),
            "Software": html.escape(f"oblivionis {run['oblivionis']}, {versions}"),
        }
    )


def _signature(certificate: Mapping[str, Any]) -> str:
    if not certificate["signature"]:
        return "<p>This certificate is not signed.</p>"
    return facts_list(
        {
            "Ed25519 public key": f"<code>{certificate['public_key']}</code>",
            "Signature of certificate.json": f"<code>{certificate['signature']}</code>",
        }
    ) + ("<p>Check the file beside this page: <code>oblivionis certificate verify certificate.json</code></p>")


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else str(value)
