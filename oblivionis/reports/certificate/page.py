"""The erasure certificate as a page that can be read and printed: everything on it is in the certificate."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import htpy as h

from oblivionis.measures import registry
from oblivionis.measures.audit_numbers import OWN
from oblivionis.reports.certificate.exact import EXACT, proof_section
from oblivionis.reports.format import counted
from oblivionis.reports.markup import facts_list, html_page, html_table
from oblivionis.reports.privacy import certified

FOLDER, JSON_FILE, PAGE_FILE = "certificates", "certificate.json", "certificate.html"
SUPERSEDED_FILE = "superseded.json"
"""Where certificates lie in a run: in a folder for each request, a certificate and its page."""
MOMENTS = {"before": "before the exchange", "after": "right after it", "final": "in the final model"}
EVENTS = {
    "submitted": "asked",
    "served": "served: unlearned and averaged in",
    "applied": "the global model changed",
    "cover_exchange": "the global model changed by a sum in which this client's part is",
    "failed": "attempt failed",
    "rejected": "rejected",
    "verified": "verified",
    "verification_failed": "verification failed",
    "rolled_back": "served anew: the run resumed from an earlier checkpoint",
}
EXACT_EVENTS = {"served": "served: rounds were held again without its records", "verified": "erased exactly"}
SCOPES = {"client": "everything that the client holds: it leaves", "subject": "all records about one person"}
HELD_AGAIN = "Every round that the records had gone into was held again without them."
"""What PASS means of an exact erasure."""
SHORT, TWINS, FAILED = "short", "twins", "failed_evaluators"
"""Counts that matter only where they are not 0."""
MEANING = {
    "PASS": "Every required check holds.",
    "FAIL": "At least one check says that the records are not forgotten.",
    "INCONCLUSIVE": "No check fails, but a required one cannot tell.",
}


def certificate_page(certificate: Mapping[str, Any]) -> str:
    """A page that needs no other file. Every text is escaped."""
    demand, run, parts = (certificate[name] for name in ("demand", "run", "requests"))
    result, exact = certificate["result"], certificate.get("class") == EXACT
    clients = ", ".join(map(str, demand["clients"]))
    about = h.p[
        f"{HELD_AGAIN if exact and result == 'PASS' else MEANING[result]} Demand ",
        h.b[demand["id"]],
        f" for {counted(demand['records'], 'record')} of client{'s' * (len(demand['clients']) > 1)} {clients}, run ",
        h.b[run["name"]],
        f", issued {certificate['issued']}."
        + ("" if exact else f" Measured by {'; '.join(sorted({_who(part) for part in parts}))}."),
    ]
    title = "Exact erasure certificate: " if exact else "Erasure certificate: "
    body = [h.h1[title, h.span(class_={"bad": result == "FAIL"})[result]], about]
    if "records" in certificate:
        body += _scope(certificate["records"])
    for part in parts:
        body += _part(part, alone=len(parts) == 1, measured=not exact)
    body += proof_section(certificate) if exact else []
    body += _not_covered(certificate.get("not_covered", []))
    body += [h.h2["Replay"], _replay(certificate), h.h2["Signature"], _signature(certificate)]
    return html_page(f"Erasure certificate {demand['id']}", body)


def _scope(records: Sequence[Mapping[str, Any]]) -> list[h.Node]:
    """Every record of the demand, on every client."""
    rows = [[r["record"], *(str(r[name]) for name in ("client", "request", "served_round", "found"))] for r in records]
    heads = ["record", "client", "request that names it", "served in round", "found"]
    table = html_table(heads, ["who", "n", "who", "n", "who"], rows, "Records of the demand")
    return [h.h2["Records of the demand"], table]


def _not_covered(models: Sequence[Mapping[str, Any]]) -> list[h.Node]:
    """Other models that may still know the records: the certificate says nothing of them."""
    if not models:
        return []
    rows: list[list[h.Node]] = [
        [m["what"], ", ".join(f"{r}: {s}" for r, s in m["requests"].items()), _code(m["model"])] for m in models
    ]
    heads = ["model", "request, and what came of it there", "SHA-256"]
    about = "This certificate is about the final model of its run. These others may still know the records:"
    return [h.h2["Models that are not covered"], h.p[about], html_table(heads, [""] * 3, rows, "Models not covered")]


def _who(part: Mapping[str, Any]) -> str:
    evidence = part["evidence"]
    keys = evidence["signed_by"]
    signed = f", signed with the key {', '.join(key[:16] + '…' for key in keys)}" if keys else ""
    own = evidence["source"].startswith("the client")
    return f"client {part['request']['client']} itself, on its own records{signed}" if own else evidence["source"]


def _part(part: Mapping[str, Any], *, alone: bool, measured: bool) -> list[h.Node]:
    """What was found of one request; with a heading of its own where there are several."""
    request, evidence = part["request"], part["evidence"]
    title = f"Request {request['id']} of client {request['client']}: {part['result']}"
    return [
        None if alone else h.h2[title],
        h.h3["Checks"],
        _checks(part["checks"]),
        h.h3["What was asked"],
        _asked(request),
        h.h3["What was done"],
        _events(evidence["events"], EVENTS if measured else EVENTS | EXACT_EVENTS),
        _rounds(evidence.get("rounds", ()), request["served_round"]),
        h.h3["Models"],
        _models(evidence["models"]),
        *_sealed(evidence.get("sealed")),
        *(_measurements(part) if measured else ()),
    ]


def _measurements(part: Mapping[str, Any]) -> list[h.Node]:
    evidence = part["evidence"]
    return [
        h.h3["What was measured"],
        h.p[f"By {_who(part)}."],
        _measured(evidence),
        _records(evidence["judgement"]),
        _further(evidence),
        _privacy(evidence.get("privacy")),
    ]


def _records(judgement: Mapping[str, Any]) -> h.Node:
    """Record by record: recall before, right after the last exchange, in the final and in the retrained model, what
    follows, and how likely the answers are."""
    records = judgement.get("records", {})
    if not records:
        return None
    if not any("exchanges" in record for record in records.values()):  # of an earlier version
        rows = [
            [i, record["outcome"], str(record["units"]), *(_shown(record[m]) for m in ("before", "final", "oracle"))]
            for i, record in records.items()
        ]
        heads = ["record", "outcome", "words", "recall before", "in the final model", "in the retrained model"]
        return html_table(heads, ["who", "who", *["n"] * 4], rows, "Record by record")
    recalls, likelihoods = [], []
    for i, record in records.items():
        exchanges, final = record["exchanges"], record["likelihood"] or {}
        last = exchanges[-1] if exchanges else {}
        values = (record["before"], last.get("after"), record["final"], record["oracle"])
        recalls.append([i, record["outcome"], str(record["units"]), *map(_shown, values)])
        left = last.get("left", {})
        known = (exchanges[0]["known"] if exchanges else None, left.get("prob"), left.get("reference"))
        compared_with = final.get("compared_with") or left.get("compared_with") or "–"
        likelihoods.append([i, *map(_shown, (*known, final.get("prob"), final.get("reference"))), compared_with])
    heads = [
        "record",
        "outcome",
        "words",
        "recall before",
        "right after",
        "in the final model",
        "in the retrained model",
    ]
    more = [
        "record",
        "likelihood before",
        "right after",
        "compared with",
        "in the final model",
        "compared with",
        "that of",
    ]
    return h.fragment[
        html_table(heads, ["who", "who", *["n"] * 5], recalls, "Record by record"),
        html_table(more, ["who", *["n"] * 5, ""], likelihoods, "How likely the answers are, record by record"),
    ]


def _checks(checks: Sequence[Mapping[str, Any]]) -> h.Element:
    rows = [
        [
            check["name"],
            h.b(class_={"bad": check["result"] == "FAIL"})[check["result"]],
            "yes" if check["required"] else "no",
            ", ".join(f"{name} {_shown(value)}" for name, value in check["figure"].items()),
            check["why"],
        ]
        for check in checks
    ]
    heads = ["check", "result", "required", "figures", "why"]
    return html_table(heads, ["who", "who", "", "", ""], rows, "Checks and their results")


def _asked(request: Mapping[str, Any]) -> h.Element:
    count = counted(request["records"], "record")
    return facts_list(
        [
            ("Request", f"{request['id']} of client {request['client']}"),
            ("What", SCOPES.get(request["scope"], "the named records")),
            ("Records", f"{count}: {', '.join(request['record_ids'])}"),
            ("Asked in round", str(request["round"])),
            ("Served in round", str(request["served_round"])),
            ("State", request["state"]),
        ]
    )


def _events(events: Sequence[Mapping[str, Any]], words: Mapping[str, str]) -> h.Element:
    rows = []
    for event in events:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(event["time"])) if "time" in event else "–"
        what = words.get(event["event"], str(event["event"]))
        rows.append([when, str(event.get("round", "–")), what, h.code[str(event.get("hash", "–"))]])
    heads = ["when (UTC)", "round", "what", "line of the ledger"]
    return html_table(heads, ["who", "n", "", ""], rows, "Lines of the ledger about the request")


def _rounds(rounds: Sequence[Mapping[str, Any]], served: int) -> h.Node:
    rows: list[list[h.Node]] = []
    for row in rounds:
        clients = {kind: ", ".join(map(str, ids)) for kind, ids in row["clients"].items()}
        number = str(row["round"])
        mark = h.b[number] if row["round"] == served else number
        rows.append([mark, *(clients.get(kind, "–") for kind in ("unlearn", "train", "failed"))])
    if not rows:
        return None
    heads = ["round", "clients that forgot", "that trained", "left out"]
    return html_table(heads, ["n", "", "", ""], rows, "Who took part, round by round")


def _models(models: Mapping[str, Any]) -> h.Element:
    base, final = models["base"], models["final"]
    moments = (("before", "Before the exchange"), ("after", "After it"))
    parts = [
        (f"{text}, shard {shard}", _code(digest))
        for moment, text in moments
        for shard, digest in enumerate(models.get(f"parts_{moment}", ()))
    ]
    return facts_list(
        [
            (f"Base model {base['source']}", _code(base["fingerprint"])),
            *((text, _code(models[moment])) for moment, text in moments),
            *parts,
            (f"Final, round {final['round']}", _code(final["sha256"])),
        ]
    )


def _sealed(sealed: Mapping[str, Any] | None) -> list[h.Node]:
    """Of a request that the server did not see: the commitment, and what opens it."""
    if sealed is None:
        return []
    hashes = ("commitment", "line", "salts", "digests")
    shown = [
        (k, h.code[", ".join(v) if isinstance(v, list) else v] if k in hashes else str(v)) for k, v in sealed.items()
    ]
    return [h.h3["Sealed: the server did not see the request"], facts_list(shown)]


def _code(text: object) -> h.Node:
    return h.code[str(text)] if text else None


def _measured(evidence: Mapping[str, Any]) -> h.Node:
    moments = [m for m in MOMENTS if evidence[m]]
    found = {name: [evidence[m].get(name) for m in moments] for m in moments for name in evidence[m]}
    rows = [[_title(name), *map(_shown, values)] for name, values in found.items() if _is_said(name, found)]
    if not rows:
        return None
    heads = ["measure", *(MOMENTS[m] for m in moments)]
    return html_table(heads, ["", *["n"] * len(moments)], rows, "What was measured, moment by moment")


def _title(name: str) -> str:
    """What readers call a number that a client or the server measured."""
    own = OWN.get(f"request_{name}") or OWN.get(name)
    return own.title if own and own.title != name else registry.reader_name(name).replace("_", " ")


def _is_said(name: str, found: Mapping[str, Sequence[object]]) -> bool:
    """Whether a number belongs on the page: not where it says that nothing is amiss, or what another row says, too."""
    if name in (SHORT, TWINS, FAILED):
        return any(found[name])
    return not name.startswith("forget_") or found.get(name.removeprefix("forget_")) != found[name]


def _further(evidence: Mapping[str, Any]) -> list[h.Element]:
    """Bounds, ranks, the retrained model and attacks, where there are any."""
    titles = {"leakage": "Sampled answers", "rank": "Representations (RULER, Lens 2)", "oracle": "Retrained model"}
    parts = []
    for name, title in titles.items():
        if evidence[name]:
            parts += [h.h3[title], facts_list([(k, _shown(v)) for k, v in evidence[name].items()])]
    if evidence["attacks"]:
        rows = [
            [
                row["attack"],
                str(row["questions"]),
                _shown(row["before"]),
                _shown(row["rouge"]),
                row["verdict"] or "–",
            ]
            for row in evidence["attacks"]
        ]
        head = ["attack", "questions", "ROUGE-L before", "after", "beside the retrained model"]
        parts += [h.h3["Attacks"], html_table(head, ["", "n", "n", "n", ""], rows, "Attacks")]
    return parts


def _privacy(spent: Mapping[str, Any] | None) -> h.Node:
    if spent is None:
        return None
    shown = facts_list([(name, _shown(value)) for name, value in spent.items()])
    return h.fragment[h.h3["Differential privacy"], h.p[certified(spent)], shown]


def _replay(certificate: Mapping[str, Any]) -> list[h.Element]:
    run, replay = certificate["run"], certificate["replay"]
    versions = ", ".join(f"{name} {version}" for name, version in run["packages"].items())
    facts: list[tuple[h.Node, h.Node]] = [
        ("Where", replay["where"]),
        ("Also needs", replay.get("needs", "")),
        ("Configuration, SHA-256", _code(run["config_sha256"])),
        ("Seed", str(run["seed"])),
        ("Aggregator, method", f"{run['aggregator']}, {run['method']}"),
        ("Clients", str(run["clients"])),
        ("Software", f"oblivionis {run['oblivionis']}, {versions}"),
    ]
    return [h.pre(tabindex="0")[replay["command"]], facts_list(facts)]


def _signature(certificate: Mapping[str, Any]) -> h.Node:
    if not certificate["signature"]:
        return h.p["This certificate is not signed."]
    facts: list[tuple[h.Node, h.Node]] = [
        ("Ed25519 public key", _code(certificate["public_key"])),
        ("Signature of certificate.json", _code(certificate["signature"])),
    ]
    command = h.code["oblivionis certificate verify certificate.json --public-key FILE"]
    about = (
        "The signature is about certificate.json, not about this page. Check, with the signer's key, that the file is "
    )
    return [facts_list(facts), h.p[f"{about}as it was signed and that this page says the same: ", command]]


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else str(value)
