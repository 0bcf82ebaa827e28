"""Where models that were unpacked or fetched are kept on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """`$OBLIVIONIS_CACHE`, else `~/.cache/oblivionis`."""
    named = os.environ.get("OBLIVIONIS_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "oblivionis"
