"""A node's own page: the deletion requests that were made here and what became of them, and a form for new ones."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

import htpy as h
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from oblivionis.data.records import Record
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.node_record_files import read_node
from oblivionis.erasure.request import NodeRequest
from oblivionis.erasure.request_submission import submit
from oblivionis.erasure.standing_demands import find_later
from oblivionis.errors import OblivionisError
from oblivionis.reports.client_tables import later_as_text
from oblivionis.reports.format import counted
from oblivionis.reports.markup import html_table
from oblivionis.view import shell
from oblivionis.view.guard import check_form, form_token

SHOWN = 200
MOST_BYTES = 1_000_000
"""Of a form."""
RECORDS, PERSON, ALL = "records", "person", "all"


@dataclass(frozen=True)
class Node:
    """The folder of a node, and whether requests may be made there."""

    folder: Path
    write: bool


def respond(request: Request) -> Response:
    """The page, or its requests alone."""
    node: Node = request.app.state.node
    requests = NodeLedger(node.folder).requests()
    table = _requests(requests)
    if shell.asks_for(request, "requests"):
        return shell.piece(request, table)
    made = next((r for r in requests if r.id == request.query_params.get("made")), None)
    said = h.p(".said", role="status")[f"Request {made.id} was made: {made.forgets}."] if made else None
    return shell.page(request, "Node", [*_head(node), said, *_body(request, node, table)])


async def make(request: Request) -> Response:
    """Enter the request that the form asks for."""
    return await run_in_threadpool(_enter, request, await _form(request))


def _enter(request: Request, form: Mapping[str, str]) -> Response:
    node: Node = request.app.state.node
    check_form(request, form, request.app.state.token)
    try:
        made = submit(node.folder, **_asked(form)).request
    except OblivionisError as error:
        said = h.div(".said.bad", role="alert")[[h.p[line] for line in str(error).split("\n")]]
        table = _requests(NodeLedger(node.folder).requests())
        parts = [*_head(node), said, *_body(request, node, table, form)]
        return shell.page(request, "Node", parts, status=422)
    return RedirectResponse(shell.address("/node", [("made", made.id)]), status_code=303)


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form; those of one name with commas between. OblivionisError for one that is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise OblivionisError("the form is too large")
    fields: dict[str, str] = {}
    for name, value in parse_qsl(body.decode(errors="replace"), keep_blank_values=True):
        fields[name] = f"{fields[name]},{value}" if name in fields else value
    return fields


def _asked(form: Mapping[str, str]) -> dict:
    """What `submit` takes."""
    what = form.get("what", "")
    if what == ALL and form.get("sure") != "yes":
        raise OblivionisError("this client would leave the federation: say that you are sure (--all)")
    ids = ",".join(filter(None, (form.get("record", ""), form.get("ids", ""))))
    return {
        "ids": ids if what == RECORDS else None,
        "subject": form.get("subject", "") if what == PERSON else None,
        "everything": what == ALL,
        "include": form.get("include", "").strip() or None if what == PERSON else None,
        "exclude": form.get("exclude", "").strip() or None if what == PERSON else None,
        "reason": form.get("reason", ""),
        "identifier": form.get("id", "").strip() or None,
    }


def _head(node: Node) -> list[h.Node]:
    left = NodeFolder(node.folder).left_by()
    return [
        h.h1["This node"],
        h.p["Folder: ", h.code[str(node.folder)], ". Names and reasons stay on this machine."],
        h.p(".bad")[f"This client has left the federation, by request {left}."] if left else None,
    ]


def _body(request: Request, node: Node, table: h.Node, form: Mapping[str, str] | None = None) -> list[h.Node]:
    following = [h.h2["Deletion requests made here"], shell.live("requests", "/node", table)]
    try:
        records = read_node(node.folder).records
        later = later_as_text(find_later(NodeFolder(node.folder), records))
    except OblivionisError as error:
        return [*following, h.p(".bad")[str(error)]]
    if later:
        following += [h.h2["Records that came later"], h.ul[(h.li[line] for line in later)]]
    if not node.write:
        hint = ["To make one here, start the window with ", h.code["--write"], "."]
        return [*following, h.p[hint]]
    return [*following, h.h2["Ask to forget"], _ask(request, records, form or {})]


def _requests(requests: Sequence[NodeRequest]) -> h.Node:
    if not requests:
        return h.p["None yet."]
    rows = [
        [r.id, time.strftime("%Y-%m-%d %H:%M", time.localtime(r.time)), r.forgets, r.progress, r.reason]
        for r in reversed(requests)
    ]
    heads = ["request", "made", "forgets", "state", "reason"]
    return html_table(heads, ["who", "who", "label", "label", "text"], rows, "Deletion requests made on this node")


def _ask(request: Request, records: Sequence[Record], form: Mapping[str, str]) -> h.Element:
    what = form.get("what", RECORDS)
    subjects = list(dict.fromkeys(" ".join(r.subject.split()) for r in records if r.subject))

    def radio(value: str, text: str) -> h.Element:
        return h.label[h.input(type="radio", name="what", value=value, checked=what == value), " ", text]

    return h.form(".ask", action="/node", method="post")[
        h.input(type="hidden", name="form_token", value=form_token(request.app.state.token)),
        h.fieldset[
            h.legend["What is to be forgotten?"],
            radio(RECORDS, "Single records"),
            h.label[
                h.span["their ids, with commas between (--ids)"],
                h.input(type="text", name="ids", value=form.get("ids", ""), autocomplete="off"),
            ],
            _records(records, set(form.get("record", "").split(","))),
            radio(PERSON, "All records about a person"),
            h.label[
                h.span["name (--subject)"],
                h.input(
                    type="text", name="subject", value=form.get("subject", ""), list="subjects", autocomplete="off"
                ),
            ],
            h.datalist(id="subjects")[[h.option(value=name) for name in subjects[:SHOWN]]],
            [
                h.label[
                    h.span[f"named alike, and {what_it_is}: ids with commas between, or all (--{option})"],
                    h.input(type="text", name=option, value=form.get(option, ""), autocomplete="off"),
                ]
                for option, what_it_is in (("include", "about the person"), ("exclude", "about somebody else"))
            ],
            radio(ALL, "Everything: this client leaves the federation (--all)"),
            h.label[h.input(type="checkbox", name="sure", value="yes"), " I am sure: it shall leave for good"],
        ],
        h.fieldset[
            h.legend["Why?"],
            h.label[
                h.span["reason, kept in this node's ledger (--reason)"],
                h.input(type="text", name="reason", value=form.get("reason", ""), required=True, autocomplete="off"),
            ],
            h.label[
                h.span["name of the request, if you want one (--id)"],
                h.input(type="text", name="id", value=form.get("id", ""), autocomplete="off"),
            ],
        ],
        h.button(type="submit")["Make the request"],
    ]


def _records(records: Sequence[Record], chosen: set[str]) -> h.Element:
    rows: list[list[h.Node]] = [
        [
            h.label[h.input(type="checkbox", name="record", value=r.id, checked=r.id in chosen), " ", r.id],
            r.subject,
            r.question or r.answer,
        ]
        for r in records[:SHOWN]
    ]
    more = f" The first {SHOWN} of {len(records)} are listed." if len(records) > SHOWN else ""
    table = html_table(["id", "about", "text"], ["who", "", "text"], rows, "Records of this node")
    summary = h.summary[f"or choose among {counted(len(records), 'record')}.{more}"]
    return h.details(open=bool(chosen & {r.id for r in records}))[summary, table]
