"""The window on this machine's own address, until it is stopped."""

from __future__ import annotations

import socket

import uvicorn
from starlette.types import ASGIApp

from oblivionis.errors import OblivionisError

HOST = "127.0.0.1"
PORT = 8420
"""The default port; any free one if it is taken."""


def listen(port: int | None) -> socket.socket:
    """A socket of this machine's own address. None: `PORT`, or any that is free where it is taken.

    Raises OblivionisError for a port that cannot be had.
    """
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((HOST, PORT if port is None else port))
    except OSError as error:
        if port is not None:
            raise OblivionisError(f"--port {port}: {error.strerror}; choose another one") from None
        made.bind((HOST, 0))
    made.listen(128)
    return made


def server(app: ASGIApp) -> uvicorn.Server:
    """What serves `app`; addresses with the token are written down nowhere."""
    config = uvicorn.Config(
        app,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)
