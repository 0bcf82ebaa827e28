"""The deletion requests of all runs, and where each stands between demand and certificate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import htpy as h
from starlette.requests import Request as Asked
from starlette.responses import Response

from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.errors import OblivionisError
from oblivionis.reports import run_summary as report
from oblivionis.reports.html.request_pages import certificate_of, page_of
from oblivionis.reports.markup import explained, html_table
from oblivionis.runs import run_files
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.run_status import DAMAGED
from oblivionis.view import shell
from oblivionis.view.library import Library

SHOWN = 500
FILES = ("requests.jsonl", "certificates/*/certificate.json")
"""What the requests of a run are read from."""
NONE = "none"
"""Chosen among certificates: requests without one."""
NOTHING = "nothing follows"
"""The state of all requests of a run that is damaged or that its ledger does not confirm."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A request of the run called `run`, its state, and the result of its certificate (empty without one)."""

    run: str
    request: Request
    state: str
    certificate: str


def respond(asked: Asked) -> Response:
    """The page."""
    found, faults = _found(asked)
    given = asked.query_params
    text, state, certified = given.get("text", "").strip(), given.get("state", ""), given.get("certificate", "")
    wanted = _wanted(found, text, state, certified)
    rows: list[list[h.Node]] = [
        [
            h.a(href=shell.run_address(row.run, page_of(row.request.id)))[row.request.id],
            row.state,
            row.certificate or "–",
            h.a(href=shell.run_address(row.run))[row.run],
            str(row.request.client),
            report.request_kind(row.request),
            str(len(row.request.record_ids)),
            "–" if row.request.served_round is None else str(row.request.served_round),
        ]
        for row in wanted[:SHOWN]
    ]
    heads = ["request", explained("Request state", "state"), "certificate", "run", "client", "forgets", "records"]
    heads.append(explained("Served in round", "served in"))
    classes = ["who", "who", "who", "label", "n", "", "n", "n"]
    table = html_table(heads, classes, rows, "Deletion requests") if rows else h.p["None."]
    count = f"{len(wanted)} of {len(found)}" if len(wanted) < len(found) else str(len(found))
    more = f" The first {SHOWN} are shown." if len(wanted) > SHOWN else ""
    parts = [
        h.h1["Deletion requests"],
        h.p[f"{count} in all runs.", more],
        _filters(found, text, state, certified),
        table,
        h.p["Of certificates, what their files say: ", h.code["oblivionis certificate verify"], " checks one."],
        shell.exports({"CSV": shell.address("/requests.csv", [*given.items()])}),
        [h.p(".bad")[fault] for fault in faults],
    ]
    return shell.page(asked, "Requests", parts)


def export(asked: Asked) -> Response:
    """The requests that are wanted."""
    given = asked.query_params
    wanted = _wanted(
        _found(asked)[0], given.get("text", "").strip(), given.get("state", ""), given.get("certificate", "")
    )
    rows = [
        (
            r.id,
            of.run,
            r.client,
            r.scope,
            len(r.record_ids),
            r.round,
            r.served_round,
            of.state,
            of.certificate,
            r.reason,
        )
        for of in wanted
        for r in (of.request,)
    ]
    head = ("request", "run", "client", "scope", "records", "asked_in", "served_in", "state", "certificate", "reason")
    return shell.csv_file("requests.csv", head, rows)


def _found(asked: Asked) -> tuple[list[_Row], list[str]]:
    """The requests of all runs; the runs from which nothing follows, and whose ledgers cannot be read, with why."""
    library: Library = asked.app.state.library
    found: list[_Row] = []
    faults: list[str] = []
    runs, glances = library.found().runs, library.glances().runs
    for name in (name for name in runs if name in glances):
        path, seen = runs[name], glances[name]
        try:
            if files := run_files.seen(path, FILES):
                if seen.state == DAMAGED or any(file.is_link for file in files):
                    library.check(path)
                rows = _of_run(asked, path, run_files.digest(files))
                nothing = (seen.nothing or (seen.note if seen.state == DAMAGED else "")) if rows else ""
                found += [
                    _Row(name, r, NOTHING if nothing else r.outcome, "" if nothing else result) for r, result in rows
                ]
                faults += [f"{name}: {nothing}"] if nothing else []
        except OblivionisError as error:
            faults.append(f"{name}: {error}")
    return found, faults


def _of_run(asked: Asked, path: Path, now: bytes) -> list[tuple[Request, str]]:
    """The requests of a run, and the results of their certificates; now: the digest of the files that say so."""
    run = RunDirectory(path, read_only=True)

    def read() -> list[tuple[Request, str]]:
        return [(r, found.result if (found := certificate_of(r, run)) else "") for r in Ledger(run.ledger_path)]

    known: dict[Path, tuple[bytes, list[tuple[Request, str]]]] = asked.app.state.ledgers
    if path not in known or known[path][0] != now:
        known[path] = now, read()
    return known[path][1]


def _wanted(found: list[_Row], text: str, state: str, certified: str) -> list[_Row]:
    text = text.casefold()
    return [
        row
        for row in found
        if (not text or text in f"{row.run}\n{row.request.id}\n{row.request.subject}\n{row.request.reason}".casefold())
        and (not state or row.state == state)
        and (not certified or (row.certificate or NONE) == certified)
    ]


def _filters(found: list[_Row], text: str, state: str, certified: str) -> h.Element:
    states = _options(sorted({row.state for row in found}), state)
    results = _options(sorted({row.certificate or NONE for row in found}), certified)
    return h.form(action="/requests", method="get")[
        h.fieldset(".filters")[
            h.legend["Show"],
            h.label[h.span["run, request, person or reason contains"], h.input(type="search", name="text", value=text)],
            shell.choice("state", "state", states, state),
            shell.choice("certificate", "certificate", results, certified),
            h.button(type="submit")["Filter"],
            h.a(href="/requests")["Show all"],
        ]
    ]


def _options(known: list[str], chosen: str) -> Mapping[str, str]:
    return {"": "all", **{value: value for value in known}, **({chosen: chosen} if chosen else {})}
