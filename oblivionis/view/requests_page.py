"""The deletion requests of all runs, and where each stands between demand and certificate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import htpy as h
from starlette.requests import Request as Asked
from starlette.responses import Response

from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import PENDING, REJECTED, Request
from oblivionis.erasure.verification_rules import DONE, MEANING, NOT_VERIFIED, OVER_UNLEARNED
from oblivionis.errors import OblivionisError
from oblivionis.reports import run_summary as report
from oblivionis.reports.certificate.page import PAGE_FILE
from oblivionis.reports.format import counted
from oblivionis.reports.html.request_pages import certificate_of, page_of
from oblivionis.reports.markup import explained, html_table
from oblivionis.runs import run_files
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.run_status import DAMAGED
from oblivionis.view import shell
from oblivionis.view.library import Library
from strategies.message_keys import SCOPE_RECORDS

SHOWN = 100
"""Requests on one page."""
FILES = ("requests.jsonl", "certificates/*/certificate.json")
"""What the requests of a run are read from."""
NONE = "none"
"""Chosen among certificates: requests without one."""
NOTHING = "nothing follows"
"""The state of all requests of a run that is damaged or that its ledger does not confirm."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A request of the run called `run`, its state, and the result of its certificate and its folder in the run (both
    empty without one)."""

    run: str
    request: Request
    state: str
    certificate: str
    folder: str


def respond(asked: Asked) -> Response:
    """The page."""
    found, faults = _found(asked)
    given = asked.query_params
    text, state, certified = given.get("text", "").strip(), given.get("state", ""), given.get("certificate", "")
    wanted = _wanted(found, text, state, certified)
    pages = math.ceil(len(wanted) / SHOWN)
    page = min(shell.page_number(asked), max(1, pages))
    rows: list[list[h.Node]] = [
        [
            [h.a(href=shell.run_address(row.run, page_of(row.request.id)))[row.request.id], " ", _of(row.request)],
            *_steps(row),
            h.a(href=shell.run_address(row.run))[row.run],
        ]
        for row in wanted[(page - 1) * SHOWN : page * SHOWN]
    ]
    heads = ["request", "asked", explained("Served in round", "served"), explained("Request state", "checked")]
    table = html_table([*heads, "certified", "run"], ["who", *["step"] * 4, "label"], rows, "Deletion requests")
    count = f"{len(wanted)} of {len(found)}" if len(wanted) < len(found) else str(len(found))
    parts = [
        h.h1["Deletion requests"],
        h.p(".sub")[f"{count} in all runs."],
        _filters(found, text, state, certified),
        table if rows else h.p["None."],
        _pages(given, page, pages),
        h.p["Of certificates, what their files say: ", h.code["oblivionis certificate verify"], " checks one."],
        shell.exports({"CSV": shell.address("/requests.csv", [*given.items()])}),
        [h.p(".bad")[fault] for fault in faults],
    ]
    return shell.page(asked, "Requests", parts)


def _of(request: Request) -> h.Element:
    """Whose share it is, and of what."""
    kind = "" if request.scope == SCOPE_RECORDS else report.request_kind(request)
    parts = (f"client {request.client}", kind, counted(len(request.record_ids), "record"))
    return h.small(".about")[" · ".join(filter(None, parts))]


def _steps(row: _Row) -> list[h.Node]:
    """From the demand to its certificate: what was reached, and what is still to come, a cell each."""
    request, state = row.request, row.state
    served = request.served_round is not None
    judged, waits = state in MEANING, served or request.state == PENDING
    bad = state in (NOT_VERIFIED, OVER_UNLEARNED, NOTHING)
    kind = "bad" if bad else "done" if state in DONE else "open"
    turned_down = "bad" if request.state == REJECTED else "open"
    certificate = h.a(href=shell.run_address(row.run, f"{row.folder}/{PAGE_FILE}"))[row.certificate]
    passed = {"PASS": "done", "FAIL": "bad"}.get(row.certificate, "open")
    return [
        _step("done", f"round {request.round}"),
        _step("done", f"round {request.served_round}") if served else _step(turned_down, request.state),
        _step(kind, state) if judged or bad else _step("open", "not yet") if waits else "",
        _step(passed, certificate) if row.certificate else _step("open", "not yet") if waits else "",
    ]


def _step(kind: str, text: h.Node) -> h.Element:
    return h.span(class_=kind)[text]


def _pages(given: Mapping[str, str], page: int, pages: int) -> h.Node:
    if pages < 2:
        return None
    links = [
        h.a(
            href=shell.address("/requests", [*{**given, "page": str(n)}.items()]),
            aria_current="page" if n == page else None,
        )[str(n)]
        for n in range(1, pages + 1)
    ]
    return h.nav(".tabs", aria_label="Pages of the table")["Page ", links]


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
                    _Row(name, r, NOTHING, "", "") if nothing else _Row(name, r, r.outcome, result, folder)
                    for r, result, folder in rows
                ]
                faults += [f"{name}: {nothing}"] if nothing else []
        except OblivionisError as error:
            faults.append(f"{name}: {error}")
    return found, faults


def _of_run(asked: Asked, path: Path, now: bytes) -> list[tuple[Request, str, str]]:
    """The requests of a run, the results of their certificates and where these lie; now: the digest of the files that
    say so."""
    run = RunDirectory(path, read_only=True)

    def read() -> list[tuple[Request, str, str]]:
        found = [(r, certificate_of(r, run)) for r in Ledger(run.ledger_path)]
        return [(r, of.result, of.folder) if of else (r, "", "") for r, of in found]

    known: dict[Path, tuple[bytes, list[tuple[Request, str, str]]]] = asked.app.state.ledgers
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
            h.legend(".unseen")["Show"],
            h.label[h.span["run, request, person or reason contains"], h.input(type="search", name="text", value=text)],
            shell.choice("state", "state", states, state),
            shell.choice("certificate", "certificate", results, certified),
            h.button(type="submit")["Filter"],
            h.a(href="/requests")["Show all"],
        ]
    ]


def _options(known: list[str], chosen: str) -> Mapping[str, str]:
    return {"": "all", **{value: value for value in known}, **({chosen: chosen} if chosen else {})}
