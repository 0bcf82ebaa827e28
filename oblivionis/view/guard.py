"""Who may see the window: whoever has the token that it was started with, from a page of the window itself."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import quote, urlencode

import htpy as h
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oblivionis.errors import OblivionisError

TOKEN = "token"
"""The part of an address that carries the token, once."""
CODE = "code"
"""The part of an address that carries the code for one browser: its command line can be read by all on a machine."""
HOSTS = ("127.0.0.1", "localhost")
"""Names of this machine in addresses; any other was made to lead here (DNS rebinding)."""
COOKIE = "oblivionis"
POLICY = (
    "default-src 'self'; script-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
STORED = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; sandbox allow-same-origin"
)
"""For pages that lie in a run: they have their style within, and whoever wrote them, they run nothing."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Refused(OblivionisError):
    """A form that did not come from a page of the window."""


class Guard:
    """Lets a request through that carries the token as a cookie; of an address that has it, it makes that cookie.

    code: what does the same, the first time that it is given. A request for another host or port is refused.
    """

    def __init__(self, app: ASGIApp, token: str, port: int, code: str | None = None) -> None:
        self.app, self.token = app, token
        self.cookie = f"{COOKIE}-{port}"  # cookies are shared by all ports of a host
        self._code = code
        self._hosts = [[f"{name}:{port}"] for name in HOSTS] + [[name] for name in HOSTS if port == 80]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._answer(Request(scope))
        await (answer or self.app)(scope, receive, with_headers)

    def _answer(self, request: Request) -> Response | None:
        """What is answered instead of a page; None where the page may be seen."""
        if request.headers.getlist("host") not in self._hosts:
            return PlainTextResponse("This is not the address that oblivionis view printed.", 400)
        if TOKEN in request.query_params or CODE in request.query_params:
            if not (self._same(request.query_params.get(TOKEN, "")) or self._spend(request.query_params.get(CODE, ""))):
                return _refusal(request)
            others = [(k, value) for k, value in request.query_params.multi_items() if k not in (TOKEN, CODE)]
            answer = RedirectResponse(_here(request) + (f"?{urlencode(others)}" if others else ""), status_code=303)
            answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
            return answer
        return None if self._same(request.cookies.get(self.cookie, "")) else _refusal(request)

    def _spend(self, given: str) -> bool:
        """Whether `given` is the code, which counts once."""
        if self._code is None or not hmac.compare_digest(given.encode(), self._code.encode()):
            return False
        self._code = None
        return True

    def _same(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())


def _here(request: Request) -> str:
    """The path of an address, which names no other host."""
    return "/" + quote(request.url.path.lstrip("/\\"))


def _refusal(request: Request) -> Response:
    """A page that links to itself: a link on another site arrives without the cookie, and this one with it."""
    page = h.html(lang="en")[
        h.head[h.meta(charset="utf-8"), h.title["Not allowed"]],
        h.body[
            h.main[
                h.h1["Not allowed"],
                h.p["Open the address that ", h.code["oblivionis view"], " printed, with its token."],
                h.p[h.a(href=_here(request))["Try again"], " if you have opened it in this browser before."],
            ]
        ],
    ]
    return HTMLResponse(str(page), status_code=403)


def form_token(token: str) -> str:
    """What a form of the window carries, which no other site can know."""
    return hmac.new(token.encode(), b"form", hashlib.sha256).hexdigest()


def check_form(request: Request, form: Mapping[str, str], token: str) -> None:
    """Refused unless a form was sent by a page of this window."""
    origin = f"{request.url.scheme}://{request.headers.get('host', '')}"
    if request.headers.get("origin") != origin:
        raise Refused("the form was not sent by a page of this window")
    if not hmac.compare_digest(form.get("form_token", "").encode(), form_token(token).encode()):
        raise Refused("the form is of another start of the window: load the page anew")
