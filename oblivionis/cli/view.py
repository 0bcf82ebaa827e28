"""The command `view`: a window on runs, in the browser."""

from __future__ import annotations

import secrets
import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from oblivionis.errors import OblivionisError
from oblivionis.reports.format import counted

RUNS = Path("runs")


def view(
    runs: Annotated[
        Path, typer.Argument(metavar="[RUNS]", help="A folder of runs and suites, or one run.", show_default=True)
    ] = RUNS,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Where to listen on 127.0.0.1 (default: 8420, or any that is free)."),
    ] = None,
    node_dir: Annotated[
        Path | None,
        typer.Option("--node-dir", metavar="DIR", help="A node's own folder: follow the requests made there."),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Let deletion requests be made in the node's folder.")] = False,
    open_: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Show all runs in the browser, live: compare them, follow deletion requests, see a suite's frontier.

    The address that is printed works on this machine only, for whoever has its token. Nothing is written among the
    runs, but with `--write` requests of the node. Ctrl-C stops it.
    """
    if write and node_dir is None:
        raise OblivionisError("--write needs --node-dir DIR: the node's folder, where requests are to be made")

    from oblivionis.view import serve
    from oblivionis.view.app import window
    from oblivionis.view.library import Library

    node = None
    if node_dir is not None:
        from oblivionis.erasure.request_submission import need_folder
        from oblivionis.view.node_page import Node

        need_folder(node_dir)
        node = Node(node_dir.resolve(), write)
    library = Library(runs, needed=node_dir is None or runs != RUNS, indexed=True)  # a node need not have runs
    token, code = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    socket = serve.listen(port)
    place = socket.getsockname()[1]
    first = "" if library.root.is_dir() else "node"
    address = f"http://{serve.HOST}:{place}/{first}"
    console = Console()
    count = len(library.found().runs)
    console.print(f"{counted(count, 'run')} in {library.root}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{address}?token={token}", markup=False, highlight=False, soft_wrap=True)
    threading.Thread(target=library.glances, daemon=True).start()  # all is read, whatever the first visitor asks for
    if open_:
        webbrowser.open(f"{address}?code={code}")
    serve.server(window(library, token, place, node, code=code if open_ else None)).run(sockets=[socket])
