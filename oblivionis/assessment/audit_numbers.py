"""The numbers of a client's audit: their names, the check of what arrives, and the file of a request.

`audits/request-<id>.json` of a run: `request`, `client` (partition id), `round` in which it was served, and for each
moment of `MOMENTS` that was measured the numbers by name; `failed` says why a moment is missing.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from oblivionis.assessment import evaluators
from oblivionis.errors import FileError
from oblivionis.files import read_json

MOMENTS = {"before": "before_unlearn", "after": "after_unlearn", "final": "end"}
"""When a client is asked, and what that is called in metrics.jsonl."""
REQUEST_ROUGE, REQUEST_PROB = "request_rouge", "request_prob"
COUNTS = ("forget_records", "retain_records", "failed_evaluators")

NAMES = frozenset({REQUEST_ROUGE, REQUEST_PROB, *COUNTS, *evaluators.told_by_clients()})
"""Everything that a client may tell of its records; nothing else is sent, and nothing else is accepted."""


class _Of(TypedDict):
    request: str
    client: int


class _Audit(_Of, total=False):
    round: int
    before: dict[str, float]
    after: dict[str, float]
    final: dict[str, float]
    failed: dict[str, str]


def check_numbers(told: Mapping[str, object]) -> dict[str, float]:
    """`told` as numbers by name. Raises ValueError for an unknown name, for what is no finite number, and where the
    mean ROUGE-L recall of the request's records, by which it is verified, is missing or not within [0, 1]."""
    for name, value in told.items():
        if name not in NAMES:
            raise ValueError(f"unknown number {name[:60]!r}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{name} is no finite number")
    numbers = {name: float(value) for name, value in sorted(told.items())}  # type: ignore[arg-type]
    if not 0 <= numbers.get(REQUEST_ROUGE, -1.0) <= 1:
        raise ValueError(f"{REQUEST_ROUGE} is {numbers.get(REQUEST_ROUGE, 'missing')}, expected 0 to 1")
    return numbers


def audit_path(run: Path, request_id: str) -> Path:
    """The file of a request in the run directory `run`; an id that is no plain file name is replaced by its hash."""
    plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", request_id)
    name = request_id if plain else hashlib.sha256(request_id.encode()).hexdigest()[:16]
    return run / "audits" / f"request-{name}.json"


def read_audit(run: Path, request_id: str) -> dict[str, Any] | None:
    """What is known of a request, None before its first audit. FileError, with the key, for a damaged file."""
    path = audit_path(run, request_id)
    try:
        found = read_json(path, _Audit)
    except FileNotFoundError:
        return None
    if found["request"] != request_id:
        raise FileError(f"{path}: request: expected {request_id!r}, found {found['request'][:60]!r}")
    return found
