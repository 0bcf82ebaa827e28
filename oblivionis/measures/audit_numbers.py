"""The numbers of a client's audit: their names, the check of what arrives, what follows, and the file of a request.

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
from oblivionis.erasure.verification_evidence import ESTIMATED, ExchangeCounts, Likelihood, RequestCounts
from oblivionis.erasure.verification_rules import Judgement, Thresholds
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
REQUEST_LIKELY = "request_likely"
"""How many of a request's records are not recited and far likelier than `REQUEST_EXPECTED` has them, where that is."""
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
        Metric(REQUEST_LIKELY, "Records far likelier than never seen", None, None, "", most=None, whole=True),
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
"""Everything that a client may report of its records; nothing else is sent, and nothing else is accepted."""


class _Request(TypedDict):
    request: str
    client: int


class _Audit(_Request, total=False):
    round: int
    before: dict[str, float]
    after: dict[str, float]
    final: dict[str, float]
    failed: dict[str, str]
    audits: int


def own_names(numbers: Mapping[str, float]) -> dict[str, float]:
    """The numbers of a moment, those about the request's records without `request_` before their names."""
    others = {name: value for name, value in sorted(numbers.items()) if not name.startswith(_OF_REQUEST)}
    return others | {n.removeprefix(_OF_REQUEST): v for n, v in numbers.items() if n.startswith(_OF_REQUEST)}


def judge_numbers(
    thresholds: Thresholds,
    reported: Mapping[str, Mapping[str, float]],
    records: int,
    *,
    ruined: str = "",
    first: Mapping[str, float] | None = None,
) -> Judgement | None:
    """Judge a request by what its client reports.

    Parameters
    ----------
    thresholds : Thresholds
    reported : mapping of str to mapping
        By moment, of those in `MOMENTS`, the client's numbers by name, as `check_numbers` accepts them.
    records : int
        Records that the request names.
    ruined : str
        Why nothing follows from what the final model does not recite, as far as its weights tell; empty for no reason.
    first : mapping of str to float, optional
        Its numbers from before the first exchange, where `reported` are of a later one: what was known then, and how
        useful the model was.

    Returns
    -------
    Judgement or None
        None without numbers of the final model.
    """
    before, after, final = (own_names(reported.get(moment) or {}) for moment in MOMENTS)
    first = before if first is None else own_names(first)
    if not final:
        return None
    failed = final.get("failed_evaluators", 0.0)
    reason = f"{failed:g} evaluators failed in the client's audit; its log says why" if failed else ruined
    counts = RequestCounts(
        records,
        final["recited"],
        exchange_counts(before, after, first),
        _likelihood(final),
        recall=final["rouge"],
        short=final["short"],
        likely=final.get("likely"),
        twins=int(final.get("twins", 0)),
        inconclusive_reason=reason or thresholds.ruined({}, final, first),
    )
    return thresholds.judge(counts)


def exchange_counts(
    before: Mapping[str, float], after: Mapping[str, float], first: Mapping[str, float] | None = None
) -> ExchangeCounts:
    """An exchange by the numbers from right before and right after it, called as `own_names` does; `first`: from before
    the first exchange, where this is a later one."""
    known = (before if first is None else first).get("prob")
    likely = before.get("likely"), after.get("likely")
    return ExchangeCounts(before.get("recited"), after.get("recited"), known, _likelihood(after), *likely)


def _likelihood(numbers: Mapping[str, float]) -> Likelihood | None:
    return Likelihood(numbers["prob"], numbers.get("expected"), ESTIMATED) if "prob" in numbers else None


def check_numbers(reported: Mapping[str, object], records: int, thresholds: Thresholds) -> dict[str, float]:
    """Check what a client reports.

    Parameters
    ----------
    reported : mapping of str to object
        What arrived, by name.
    records : int
        Records that the request names.
    thresholds : Thresholds
        By which the client counts what is recited.

    Returns
    -------
    dict of str to float

    Raises
    ------
    ValueError
        For an unknown name, for what is no finite number in its range, and where numbers that the verification goes by
        are missing or contradict each other.
    """
    numbers: dict[str, float] = {}
    for name, value in sorted(reported.items()):
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
    _check_counts(numbers, records, thresholds)
    return numbers


def _check_counts(numbers: Mapping[str, float], records: int, thresholds: Thresholds) -> None:
    """Raises ValueError for counts that cannot be true of a request for so many `records`."""
    if numbers["forget_records"] != records:
        raise ValueError(f"forget_records is {numbers['forget_records']:g}, the request names {records}")
    recited, short, mean = numbers[REQUEST_RECITED], numbers[REQUEST_SHORT], numbers[REQUEST_ROUGE]
    if numbers.get(REQUEST_TWINS, 0.0) > records:
        raise ValueError(f"{numbers[REQUEST_TWINS]:g} of {records} records also held by kept ones")
    if recited + short > records:
        raise ValueError(f"{recited:g} recited and {short:g} short records of {records}")
    if REQUEST_LIKELY in numbers and REQUEST_EXPECTED not in numbers:
        raise ValueError(f"{REQUEST_LIKELY} without {REQUEST_EXPECTED}, than which so many records would be likelier")
    if recited + (likely := numbers.get(REQUEST_LIKELY, 0.0)) > records:
        raise ValueError(f"{recited:g} recited and {likely:g} other far likelier records of {records}")
    limit = thresholds.max_recall
    most = recited + short + thresholds.largest_recall() * (records - recited - short)
    if not limit * recited <= mean * records + ROUNDING * records or mean * records > most + ROUNDING * records:
        raise ValueError(f"a mean recall of {mean:g} and {recited:g} of {records} records recited (above {limit:g})")
    questions, samples = numbers.get("leakage_questions", 0.0), numbers.get("leakage_samples", 0.0)
    if questions > records or (questions > 0) != (samples > 0):
        raise ValueError(f"{questions:g} questions with {samples:g} samples each, of {records} records")
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
        audit = read_json(path, _Audit)
    except FileNotFoundError:
        return None
    if audit["request"] != request_id:
        raise FileError(f"{path}: request: expected {request_id!r}, found {audit['request'][:60]!r}")
    return audit
