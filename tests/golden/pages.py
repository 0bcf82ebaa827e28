"""All pages of a web application, by its links, without a network."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, urldefrag, urljoin, urlsplit

_LINK = re.compile(r'\b(?:href|src)="([^"]+)"')
MOST = 60
"""So many pages are looked at."""


def keep(app: Any, address: str, folder: Path) -> None:
    """Ask for `address`, which may have a token, and for what is linked from there on the same host; write the answers.

    A file is named after the address that was asked for, and begins with the status.
    """
    from starlette.testclient import TestClient

    host = urlsplit(address).netloc
    client = TestClient(app, base_url=f"http://{host}")
    waiting, seen = [address], {address}
    folder.mkdir()
    while waiting and len(seen) <= MOST:
        here = waiting.pop(0)
        answer = client.get(here)
        path = here.partition(host)[2].partition("?token=")[0]
        file = folder / quote(path, safe="")[:200]
        file.write_bytes(f"{answer.status_code}\n".encode() + answer.content)
        if "text/html" not in answer.headers.get("content-type", ""):
            continue
        for link in _LINK.findall(answer.text):
            there = urldefrag(urljoin(str(answer.url), html.unescape(link))).url
            if urlsplit(there).netloc == host and there not in seen:
                seen.add(there)
                waiting.append(there)
