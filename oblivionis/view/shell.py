"""What every page of the window shares: head, navigation, forms that choose what is shown, exports."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import htpy as h
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from oblivionis.reports.markup import MAIN, html_page, joined

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LIVE_SECONDS = 3
"""How often a page asks for what goes on."""
AGAIN = "x-seconds"
"""The header by which a piece says after how many seconds it is to be asked for again."""
PART = "part"
"""The part of an address by which a page asks for the piece of it that goes on, by its name."""


def page(
    request: Request, title: str, parts: Iterable[h.Node], foot: h.Node = None, *, status: int = 200
) -> HTMLResponse:
    """A page of the window; `html_page` says what the parts are."""
    head = [
        h.link(rel="stylesheet", href="/static/window.css"),
        h.link(rel="icon", href="/static/icon.svg", type="image/svg+xml"),
        h.script(src="/static/window.js", defer=True),
    ]
    banner = [h.a(".skip", href=f"#{MAIN}")["Skip to the content"], _navigation(request)]
    return HTMLResponse(html_page(f"{title} · Oblivionis", parts, foot, head=head, banner=banner), status)


def _navigation(request: Request) -> h.Element:
    names = {"/": "Runs", "/requests": "Requests", "/models": "Models", "/suites": "Suites"}
    names |= {"/node": "Node"} if request.app.state.node is not None else {}
    path = request.url.path
    here = next((place for place in names if place != "/" and path.startswith(place)), "/")
    links = [h.a(href=at, aria_current="page" if at == here else None)[name] for at, name in names.items()]
    return h.header(".top")[h.strong["Oblivionis"], h.nav(aria_label="Pages")[links]]


def trail(*links: tuple[str, str]) -> h.Element:
    """What a page lies below: texts and addresses, from the outside in."""
    return h.nav(".trail", aria_label="Above this page")[[h.a(href=at)[text] for text, at in links]]


def live(name: str, address: str, content: h.Node, *, seconds: int = LIVE_SECONDS) -> h.Element:
    """A piece of a page that is asked for anew every so many seconds, and replaced where it has changed."""
    joint = "&" if "?" in address else "?"
    body = h.fragment[content]
    return h.div(
        id=f"live-{name}",
        data_live=f"{address}{joint}{PART}={quote(name)}",
        data_seconds=str(seconds),
        data_mark=_mark(str(body)),
    )[body]


def piece(request: Request, content: h.Node, *, seconds: int = LIVE_SECONDS) -> Response:
    """What `live` asked for; nothing where it is what the page has. It is asked for again after `seconds`."""
    body = str(h.fragment[content])
    headers = {"etag": _mark(body), AGAIN: str(seconds)}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return HTMLResponse(body, headers=headers)


def _mark(body: str) -> str:
    """What tells a piece from another one."""
    return f'"{hashlib.sha256(body.encode()).hexdigest()[:32]}"'


def asks_for(request: Request, name: str) -> bool:
    """Whether a page asks for its piece `name`."""
    return request.query_params.get(PART) == name


def run_address(name: str, page: str = "") -> str:
    """Where a run's page, or a page below it, is."""
    return f"/runs/{quote(name)}/{quote(page)}"


def suite_address(name: str, page: str = "") -> str:
    """Where a suite's page, or a page below it, is."""
    return f"/suites/{quote(name)}/{quote(page)}"


def address(path: str, values: Iterable[tuple[str, str]]) -> str:
    """A path with what is chosen there; empty choices are left out."""
    chosen = urlencode([(name, value) for name, value in values if value])
    return f"{path}?{chosen}" if chosen else path


def page_number(request: Request) -> int:
    """Which page of a long table is asked for, from 1."""
    given = request.query_params.get("page", "")
    return max(1, int(given)) if given.isascii() and given.isdigit() and len(given) < 6 else 1


def choice(label: str, name: str, options: Mapping[str, str], chosen: str) -> h.Element:
    """A list to choose one of, by value and text."""
    return h.label[
        h.span[label],
        h.select(name=name)[[h.option(value=v, selected=v == chosen)[text] for v, text in options.items()]],
    ]


def exports(links: Mapping[str, str]) -> h.Element:
    """Links to files: text and address."""
    return h.p(".exports")["Export: ", joined([h.a(href=at)[text] for text, at in links.items()], ", ")]


def csv_file(name: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> Response:
    """A file of comma-separated values.

    A text that a spreadsheet would take for a formula gets an apostrophe before it.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return _file(buffer.getvalue().encode(), "text/csv; charset=utf-8", name)


def png_file(name: str, figure: Figure) -> Response:
    """A picture of a figure, on white."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    return _file(buffer.getvalue(), "image/png", name)


def _file(content: bytes, kind: str, name: str) -> Response:
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name)
    return Response(content, media_type=kind, headers={"content-disposition": f'attachment; filename="{plain}"'})


def _cell(value: object) -> object:
    if isinstance(value, str):
        return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
    return "" if value is None else value
