"""Seeds that depend on what is done and by whom, never on the order in which processes do it."""

from __future__ import annotations

import hashlib


def derive(*parts: object) -> int:
    """A seed in [0, 2^63) from the run seed and any labels (stage, client, round …): equal parts, equal seed."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
