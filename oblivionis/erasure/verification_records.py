"""What a run keeps of the evidence about its requests: `judgements.json`, and rows of metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec

from oblivionis.erasure.verification_evidence import Exchange, Likelihood, RecordEvidence
from oblivionis.files import read_json
from oblivionis.runs.directory import RunDirectory

FILE = "judgements.json"
"""In the run: the outcome of each request with the evidence of each of its records, and of which model."""
EVALUATOR = "requests"
MOMENTS = ("before_unlearn", "after_unlearn")
"""When the records are measured around an exchange, as metrics.jsonl has it."""


class _Judged(TypedDict):
    units: int
    final: float
    before: float | None
    oracle: float | None


class _Likelihood(TypedDict):
    prob: float
    reference: float | None
    compared_with: str


class _Exchange(TypedDict):
    before: float
    after: float
    known: float
    left: _Likelihood


class _Record(_Judged, total=False):
    outcome: str
    why: str
    exchanges: list[_Exchange]
    likelihood: _Likelihood | None
    leakage: dict[str, float] | None


class _Request(TypedDict, total=False):
    outcome: str
    why: str
    knows: str
    rouge: float
    records: dict[str, _Record]
    twins: dict[str, list[str]]
    seen: list[str]


class _File(TypedDict):
    limit: float
    doubt: str
    model: str
    requests: dict[str, _Request]


def exchanges(run: RunDirectory, stage: str, moment: str) -> list[Mapping[str, Any]]:
    """The rows that a verification wrote at the exchanges: by request and record the values `rouge` and `prob`, and
    right after an exchange also `reference`, where the answer could be compared, by record with what `compared_with`
    says."""
    return [
        row
        for row in run.metrics()
        if row["evaluator"] == EVALUATOR and row["stage"] == stage and row["moment"] == moment and "requests" in row
    ]


def exchanges_of(run: RunDirectory, stage: str) -> dict[str, dict[str, tuple[Exchange, ...]]]:
    """By request and record the exchanges that served it and were measured, in their order."""
    ends = {row["round"]: (row["requests"], row.get("compared_with", {})) for row in exchanges(run, stage, MOMENTS[1])}
    by_request: dict[str, dict[str, tuple[Exchange, ...]]] = {}
    for row in exchanges(run, stage, MOMENTS[0]):
        end, compared_with = ends.get(row["round"], ({}, {}))
        for request, records in row["requests"].items():
            by_record = by_request.setdefault(request, {})
            for i, before in records.items():
                if (after := end.get(request, {}).get(i)) is not None:
                    left = Likelihood(after["prob"], after.get("reference"), compared_with.get(i, ""))
                    measured = Exchange(before["rouge"], after["rouge"], before["prob"], left)
                    by_record[i] = (*by_record.get(i, ()), measured)
    return by_request


def judgement_of(run: RunDirectory, request_id: str) -> dict[str, Any]:
    """What `judgements.json` says of a request, with the file's `limit`, `doubt` and `model`; empty without it.

    Raises
    ------
    FileError
        With the key, for a damaged file.
    """
    try:
        file = read_json(run.path / FILE, _File)
    except FileNotFoundError:
        return {}
    request = file["requests"].get(request_id)
    terms = {"limit": file["limit"], "doubt": file["doubt"], "model": file["model"]}
    return {} if request is None else {**request, **terms}


def seen_by_oracle(run: RunDirectory) -> dict[str, list[str]]:
    """By request those of its records that the retrained model was trained on, in these words or nearly.

    A request of which that is not known is not there.

    Raises
    ------
    FileError
        With the key, for a damaged file.
    """
    try:
        requests = read_json(run.path / FILE, _File)["requests"]
    except FileNotFoundError:
        return {}
    return {i: request["seen"] for i, request in requests.items() if "seen" in request}


def records_of(judgement: Mapping[str, Any]) -> dict[str, RecordEvidence]:
    """The evidence by record in what `judgement_of` returns."""
    return {
        i: msgspec.convert({name: record.get(name) for name in _FIELDS if name in record}, RecordEvidence)
        for i, record in judgement.get("records", {}).items()
    }


_FIELDS = RecordEvidence.__dataclass_fields__
