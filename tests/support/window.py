"""The window without a browser, asked in this process; and with one, on a port of this machine."""

import asyncio
import threading
from contextlib import contextmanager
from urllib.parse import quote

import httpx

from oblivionis.view import serve
from oblivionis.view.app import window
from oblivionis.view.library import Library

TOKEN = "the-token-of-the-tests"
PORT = 8420
ADDRESS = f"http://127.0.0.1:{PORT}"


class Visitor:
    """Somebody with the token's cookie (`cookies`) who asks the window on `root` for pages."""

    def __init__(self, root, node=None, code=None):
        self.library = Library(root)
        self.app = window(self.library, TOKEN, PORT, node, code=code)
        self.cookies = {f"oblivionis-{PORT}": TOKEN}

    def ask(self, method, path, *, faults=False, **given):
        """The answer; redirections are not followed. faults: one of the program is answered, too, not raised."""

        async def send():
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=not faults)
            given.setdefault("cookies", self.cookies)
            async with httpx.AsyncClient(transport=transport, base_url=ADDRESS, cookies=given.pop("cookies")) as client:
                return await client.request(method, path, **given)

        return asyncio.run(send())

    def get(self, path, **given):
        return self.ask("GET", path, **given)

    def page(self, path, **given):
        """The text of a page that is there."""
        answer = self.get(path, **given)
        assert answer.status_code == 200, (path, answer.status_code, answer.text[:2000])
        return answer.text


def run_page(name, page=""):
    """The address of a run's page."""
    return f"/runs/{quote(name)}/{page}"


@contextmanager
def served(root, node=None):
    """The window on a free port; gives the address with the token."""
    socket = serve.listen(0)
    port = socket.getsockname()[1]
    server = serve.server(window(Library(root), TOKEN, port, node))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
