"""A message every few seconds during a long computation, from a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SECONDS, SOON, LATER = 10.0, 60, 60.0


class Ticker:
    """Calls `tell` with the seconds since the beginning, every `SECONDS`, after `SOON` calls every `LATER` seconds."""

    def __init__(self, tell: Callable[[float], None]) -> None:
        self._tell, self._began, self._over = tell, time.monotonic(), threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        calls = 0
        while not self._over.wait(SECONDS if calls < SOON else LATER):
            self._tell(time.monotonic() - self._began)
            calls += 1

    def close(self) -> None:
        """Stop the messages."""
        self._over.set()
