"""The window as an ASGI application: its addresses, the page of each, and the messages for what cannot be shown.

Pages of runs import matplotlib, which takes time: only once one is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from importlib.resources import files
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING

import htpy as h
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from oblivionis.config.problems import ConfigError
from oblivionis.errors import OblivionisError
from oblivionis.reports.style import STYLE
from oblivionis.view import shell
from oblivionis.view.guard import HEADERS, Guard, Refused
from oblivionis.view.library import Library, NotThere
from oblivionis.view.matplotlib_lock import Kept

if TYPE_CHECKING:
    from oblivionis.view.node_page import Node

STATIC = {"window.css": "text/css", "window.js": "text/javascript", "icon.svg": "image/svg+xml"}
PAGES = {
    "/": "runs_page:respond",
    "/runs.csv": "runs_page:export",
    "/compare": "compare_page:respond",
    "/compare.csv": "compare_page:metrics_csv",
    "/answers.csv": "compare_page:answers_csv",
    "/compare.png": "compare_page:curves_png",
    "/requests": "requests_page:respond",
    "/requests.csv": "requests_page:export",
    "/models": "models_page:respond",
    "/suites": "suite_pages:list_suites",
    "/suites/{name:path}/suite.html": "suite_pages:stored",
    "/suites/{name:path}/frontier.png": "suite_pages:frontier_png",
    "/suites/{name:path}/frontier.csv": "suite_pages:frontier_csv",
    "/suites/{name:path}/results.csv": "suite_pages:results_csv",
    "/suites/{name:path}/report.html": "suite_pages:report_of_run",
    "/suites/{name:path}/": "suite_pages:respond",
    "/runs/{name:path}/metrics.csv": "run_pages:metrics_csv",
    "/runs/{name:path}/curves-{stage}.png": "run_pages:curves_png",
    "/runs/{name:path}/requests/{page}.html": "run_pages:request_page",
    "/runs/{name:path}/people/{page}.html": "run_pages:person_page",
    "/runs/{name:path}/report.html": "run_pages:report",
    "/runs/{name:path}/certificates/{demand}/{page}": "run_pages:certificate",
    "/runs/{name:path}/": "run_pages:respond",
}
"""Module and function by address."""


def window(library: Library, token: str, port: int, node: Node | None = None, *, code: str | None = None) -> Starlette:
    """The application. token: what a browser must know, code: the same, once; port: where it will listen; node: the
    node's folder."""
    routes = [Route(path, _lazy(place)) for path, place in PAGES.items()]
    routes.append(Route("/static/{file}", _static))
    if node is not None:
        routes.append(Route("/node", _lazy("node_page:respond")))
        routes += [Route("/node", _lazy("node_page:make"), methods=["POST"])] if node.write else []
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, token=token, port=port, code=code)],
        exception_handlers={
            NotThere: _error_page(404),
            Refused: _error_page(403),
            OblivionisError: _error_page(422),
            ConfigError: _error_page(422),
            HTTPException: _http,
            Exception: _fault,
        },
    )
    app.state.library, app.state.token, app.state.node = library, token, node
    app.state.kept, app.state.ledgers, app.state.lineages = Kept(), {}, {}
    return app


def _lazy(place: str) -> Callable[[Request], Awaitable[Response]]:
    """A handler whose module is imported when it is asked for first."""
    module, _, name = place.partition(":")

    async def handle(request: Request) -> Response:
        def find() -> Callable:
            return getattr(importlib.import_module(f"oblivionis.view.{module}"), name)

        handler = await run_in_threadpool(find)
        return await (handler(request) if iscoroutinefunction(handler) else run_in_threadpool(handler, request))

    return handle


def _static(request: Request) -> Response:
    name = request.path_params["file"]
    if name not in STATIC:
        raise NotThere(f"there is no file {name!r}")
    content = (files("oblivionis.view") / "static" / name).read_bytes()
    return Response(STYLE.encode() + content if name == "window.css" else content, media_type=STATIC[name])


def _error_page(status: int) -> Callable[[Request, Exception], Response]:
    """Make a handler whose page shows an error with this status."""
    titles = {403: "Not allowed", 404: "Not found", 422: "This cannot be shown"}

    def handle(request: Request, error: Exception) -> Response:
        parts = [h.h1[titles[status]], h.pre(tabindex="0")[str(error)], h.p[h.a(href="/")["All runs"]]]
        return shell.page(request, titles[status], parts, status=status)

    return handle


def _http(request: Request, error: Exception) -> Response:
    """No such address, or not with this method."""
    status, detail = getattr(error, "status_code", 500), getattr(error, "detail", "")
    parts = [h.h1[f"{detail}"], h.p[h.a(href="/")["All runs"]]]
    answer = shell.page(request, f"{detail}", parts, status=status)
    answer.headers.update(getattr(error, "headers", None) or {})
    return answer


def _fault(request: Request, error: Exception) -> Response:
    """A fault of the program: the terminal has the details."""
    return Response("This is a fault of oblivionis; the terminal says more.", 500, HEADERS, "text/plain")
