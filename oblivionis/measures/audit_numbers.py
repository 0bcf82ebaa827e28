"""The numbers of a client's audit: their names, the check of what arrives, and the file of a request.

`audits/request-<id>.json` of a run: `request`, `client` (partition id), `round` of the exchange that it is of, the one
that served the request or a later one that finished it, and for each moment of `MOMENTS` that was measured the numbers
by name; `failed` says why a moment is missing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from evaluation.metrics.catalogue import ROUNDING, Metric
from oblivionis.errors import FileError
from oblivionis.files import read_json
from oblivionis.measures import registry

MOMENTS = {"before": "before_unlearn", "after": "after_unlearn", "final": "end"}
"""When a client is asked, and what that is called in metrics.jsonl."""
REQUEST_ROUGE, REQUEST_PROB, REQUEST_EXPECTED = "request_rouge", "request_prob", "request_expected"
"""Means over a request's records: recall, likelihood, and the likelihood in a model that never saw them, as calibrated
forgetting estimates it; the last only where the client has records that nobody trains on."""
REQUEST_RECITED, REQUEST_SHORT, REQUEST_TWINS = "request_recited", "request_short", "request_twins"
"""How many of a request's records the model recites; how many have too short an answer to tell; how many are also held,
word for word or nearly, by records that the client keeps."""
_OF_REQUEST = "request_"
COUNTS = ("forget_records", "retain_records", "failed_evaluators")

OWN = {
    metric.key: metric
    for metric in (
        Metric(REQUEST_ROUGE, "ROUGE-L recall", "oracle", None, "Mean over the request's records."),
        Metric(REQUEST_PROB, "Prob", "oracle", None, "Mean over the request's records."),
        Metric(REQUEST_EXPECTED, "Prob never seen", None, None, "Mean over the request's records, an estimate."),
        Metric(REQUEST_RECITED, "Records recited", "oracle", None, "", most=None, whole=True),
        Metric(REQUEST_SHORT, "Records too short to tell", None, None, "", most=None, whole=True),
        Metric(REQUEST_TWINS, "Records that kept ones also hold", None, None, "", most=None, whole=True),
        *(Metric(name, name, None, None, "", most=None, whole=True) for name in COUNTS),
    )
}
ORDERED = (
    ("leakage_mu_lower", "leakage_mean"),
    ("leakage_mu_lower", "leakage_mu_upper"),
    ("leakage_mean", "leakage_mu_upper"),
    ("leakage_mean", "leakage_max"),
    ("leakage_mean", "leakage_ed"),
    ("wikimem_forget_strict", "wikimem_forget_lenient"),
    ("wikimem_retain_strict", "wikimem_retain_lenient"),
)
"""The first of each pair is never above the second."""

NAMES = frozenset({*OWN, *registry.reported_by_clients()})
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


def own_names(numbers: Mapping[str, float]) -> dict[str, float]:
    """The numbers of a moment, those about the request's records without `request_` before their names."""
    found = {name: value for name, value in sorted(numbers.items()) if not name.startswith(_OF_REQUEST)}
    return found | {n.removeprefix(_OF_REQUEST): v for n, v in numbers.items() if n.startswith(_OF_REQUEST)}


def check_numbers(told: Mapping[str, object], records: int, limit: float) -> dict[str, float]:
    """`told` as numbers by name; `records`: how many the request names; `limit`: a recall above it is a recitation.

    Raises ValueError for an unknown name, for what is no finite number in its range, and where numbers that the
    verification goes by are missing or contradict each other.
    """
    numbers: dict[str, float] = {}
    for name, value in sorted(told.items()):
        if name not in NAMES:
            raise ValueError(f"unknown number {name[:60]!r}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} is no number")
        try:
            numbers[name] = float(value)
        except OverflowError:
            raise ValueError(f"{name} is larger than any number") from None
        if fault := _metric(name).fault(numbers[name]):
            raise ValueError(f"{name} {fault}")
    for name in (REQUEST_ROUGE, REQUEST_RECITED, REQUEST_SHORT, "forget_records"):
        if name not in numbers:
            raise ValueError(f"{name} is missing")
    _check_counts(numbers, records, limit)
    return numbers


def _check_counts(numbers: Mapping[str, float], records: int, limit: float) -> None:
    """Raises ValueError for counts that cannot be true of a request for so many `records`."""
    if numbers["forget_records"] != records:
        raise ValueError(f"forget_records is {numbers['forget_records']:g}, the request names {records}")
    recited, short, mean = numbers[REQUEST_RECITED], numbers[REQUEST_SHORT], numbers[REQUEST_ROUGE]
    if numbers.get(REQUEST_TWINS, 0.0) > records:
        raise ValueError(f"{numbers[REQUEST_TWINS]:g} of {records} records also held by kept ones")
    if recited + short > records:
        raise ValueError(f"{recited:g} recited and {short:g} short records of {records}")
    most = recited + short + limit * (records - recited - short)
    if not limit * recited <= mean * records + ROUNDING * records or mean * records > most + ROUNDING * records:
        raise ValueError(f"a mean recall of {mean:g} and {recited:g} of {records} records recited (above {limit:g})")
    asked, samples = numbers.get("leakage_questions", 0.0), numbers.get("leakage_samples", 0.0)
    if asked > records or (asked > 0) != (samples > 0):
        raise ValueError(f"{asked:g} questions with {samples:g} samples each, of {records} records")
    for low, high in ORDERED:
        if numbers.get(low, 0.0) > numbers.get(high, numbers.get(low, 0.0)) + ROUNDING:
            raise ValueError(f"{low} is {numbers[low]:g}, above {high}, {numbers[high]:g}")
    if "leakage_m_bin" in numbers and not numbers["leakage_m_bin"] > 0:
        raise ValueError("leakage_m_bin is 0: no number of samples shows that")


def _metric(name: str) -> Metric:
    return OWN[name] if name in OWN else registry.catalogue()[name]


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
