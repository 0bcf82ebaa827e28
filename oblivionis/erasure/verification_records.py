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
    found: dict[str, dict[str, tuple[Exchange, ...]]] = {}
    for row in exchanges(run, stage, MOMENTS[0]):
        end, compared_with = ends.get(row["round"], ({}, {}))
        for request, records in row["requests"].items():
            known = found.setdefault(request, {})
            for i, first in records.items():
                if (last := end.get(request, {}).get(i)) is not None:
                    left = Likelihood(last["prob"], last.get("reference"), compared_with.get(i, ""))
                    measured = Exchange(first["rouge"], last["rouge"], first["prob"], left)
                    known[i] = (*known.get(i, ()), measured)
    return found


def judgement_of(run: RunDirectory, request_id: str) -> dict[str, Any]:
    """What `judgements.json` says of a request, with the file's `limit`, `doubt` and `model`; empty without it.

    FileError, with the key, for a damaged file.
    """
    try:
        found = read_json(run.path / FILE, _File)
    except FileNotFoundError:
        return {}
    of = found["requests"].get(request_id)
    return {} if of is None else {**of, "limit": found["limit"], "doubt": found["doubt"], "model": found["model"]}


def seen_by_oracle(run: RunDirectory) -> dict[str, list[str]]:
    """By request those of its records that the retrained model was trained on, in these words or nearly.

    A request of which that is not known is not there. FileError, with the key, for a damaged file.
    """
    try:
        found = read_json(run.path / FILE, _File)["requests"]
    except FileNotFoundError:
        return {}
    return {request: of["seen"] for request, of in found.items() if "seen" in of}


def records_of(judgement: Mapping[str, Any]) -> dict[str, RecordEvidence]:
    """The evidence by record in what `judgement_of` found."""
    return {
        i: msgspec.convert({name: of.get(name) for name in _FIELDS if name in of}, RecordEvidence)
        for i, of in judgement.get("records", {}).items()
    }


_FIELDS = RecordEvidence.__dataclass_fields__
