"""The conversation about requests that are made on nodes: what `query` asks and what its answer says, checked.

Neither carries content, the name of a subject or a reason: ids, scopes, counts, numbers and hashes only. What arrives
is never trusted: shape, types and sizes are checked before anything is used.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord

from oblivionis.errors import OblivionisError
from strategies import protocol
from strategies.requests import SCOPES

MOST_REQUESTS, MOST_RECORDS, LONGEST_ID, LONGEST_TEXT = 10_000, 1_000_000, 512, 1000
EVENTS = ("served", "applied", "failed", "rejected", "verified", "verification_failed", "rolled_back", "covered")
NUMBERS = ("rouge", "limit")
HASHES = ("before", "after")

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")


class WireError(OblivionisError):
    """A query or an answer to one that does not make sense."""


@dataclass(frozen=True, slots=True)
class Told:
    """One request of a node, as it tells the server."""

    id: str
    scope: str
    record_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node says: its unsettled requests, the newest line of its ledger, and the outcomes that it has entered."""

    requests: tuple[Told, ...]
    head: str
    acknowledged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """What the server says when it asks: its run and ledger, the round, and outcomes that the node did not confirm."""

    run: str
    ledger: str
    head: str
    round: int
    outcomes: tuple[Mapping[str, Any], ...] = ()


def valid_id(text: str) -> bool:
    """Whether a node may give a request this id: it becomes the name of files."""
    return _ID.fullmatch(text) is not None


def write_question(question: Question) -> dict[str, Any]:
    """The config of a query."""
    return {
        protocol.RUN: question.run,
        protocol.LEDGER: question.ledger,
        protocol.LEDGER_HEAD: question.head,
        protocol.SERVER_ROUND: question.round,
        protocol.OUTCOMES: [json.dumps(outcome, allow_nan=False) for outcome in question.outcomes],
    }


def read_question(config: Mapping[str, object]) -> Question | None:
    """The question in the config of a query; None where the server wants no more than the partition. WireError."""
    if protocol.LEDGER not in config:
        return None
    round = config.get(protocol.SERVER_ROUND)
    if not isinstance(round, int) or isinstance(round, bool) or round < 0:
        raise WireError(f"the query names round {round!r}")
    outcomes = tuple(_outcome(text) for text in _texts(config, protocol.OUTCOMES, MOST_REQUESTS * 10))
    return Question(
        _text(config, protocol.RUN),
        _hash(config.get(protocol.LEDGER)),
        _hash(config.get(protocol.LEDGER_HEAD)),
        round,
        outcomes,
    )


def outcome_of(entry: Mapping[str, Any], told: str, line: str) -> dict[str, Any]:
    """A line of the server's ledger as the node `told` of it: by its own id of the request, numbers and hashes only."""
    event = "covered" if entry["event"] == "submitted" else entry["event"]
    kept = {k: entry[k] for k in (*NUMBERS, *HASHES) if entry.get(k) is not None}
    if event in ("failed", "rejected"):
        kept["reason"] = str(entry.get("reason", ""))[:LONGEST_TEXT]
    return {"event": event, "id": told, "line": line, "round": int(entry["round"]), **kept}


def write_answer(answer: Answer) -> ConfigRecord:
    """The record `requests` of the answer to a query."""
    return ConfigRecord(
        {
            protocol.REQUEST_IDS: [r.id for r in answer.requests],
            protocol.SCOPES: [r.scope for r in answer.requests],
            protocol.RECORD_COUNTS: [len(r.record_ids) for r in answer.requests],
            protocol.RECORD_IDS: [i for r in answer.requests for i in r.record_ids],
            protocol.LEDGER_HEAD: answer.head,
            protocol.ACKNOWLEDGED: list(answer.acknowledged),
        }
    )


def read_answer(record: Mapping[str, object]) -> Answer:
    """The record `requests` of a node's answer. WireError for anything that is not entirely well."""
    ids = _texts(record, protocol.REQUEST_IDS, MOST_REQUESTS)
    scopes = _texts(record, protocol.SCOPES, MOST_REQUESTS)
    records = _texts(record, protocol.RECORD_IDS, MOST_RECORDS)
    counts = record.get(protocol.RECORD_COUNTS)
    if not isinstance(counts, list) or not all(isinstance(n, int) and not isinstance(n, bool) for n in counts):
        raise WireError(f"expected a list of numbers under {protocol.RECORD_COUNTS!r}")
    if not len(ids) == len(scopes) == len(counts):
        raise WireError(f"{len(ids)} requests, but {len(scopes)} scopes and {len(counts)} record counts")
    if any(n < 1 for n in counts) or sum(counts) != len(records):
        raise WireError("the record counts do not divide the record ids")
    if bad := [i for i in ids if not valid_id(i)]:
        raise WireError(f"{_shown(bad[0])} is no id of a request")
    if len(set(ids)) < len(ids):
        raise WireError("a request is told twice")
    if bad := [s for s in scopes if s not in SCOPES]:
        raise WireError(f"a request has the scope {_shown(bad[0])}, expected one of {', '.join(SCOPES)}")
    if any(not i or len(i) > LONGEST_ID for i in records):
        raise WireError(f"a record id is empty or longer than {LONGEST_ID} characters")
    told, start = [], 0
    for name, scope, count in zip(ids, scopes, counts, strict=True):
        named = tuple(records[start : start + count])
        if len(set(named)) < count:
            raise WireError(f"request {name} names a record twice")
        told.append(Told(name, scope, named))
        start += count
    acknowledged = tuple(_hash(text) for text in _texts(record, protocol.ACKNOWLEDGED, MOST_REQUESTS * 10))
    return Answer(tuple(told), _hash(record.get(protocol.LEDGER_HEAD)), acknowledged)


def _outcome(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        raise WireError("an outcome is no JSON") from None
    if not isinstance(value, dict) or value.get("event") not in EVENTS or not isinstance(value.get("id"), str):
        raise WireError(f"an outcome does not say what became of which request: {_shown(text)}")
    fields = ("event", "id", "line", "round", "reason", *NUMBERS, *HASHES)
    if foreign := set(value).difference(fields):
        raise WireError(f"an outcome has an unknown field {_shown(min(foreign))}")
    round = value.get("round")
    if not isinstance(round, int) or isinstance(round, bool) or round < 0:
        raise WireError(f"an outcome names round {_shown(round)}")
    for name in ("line", *(h for h in HASHES if h in value)):
        _hash(value.get(name))
    for name in NUMBERS:
        number = value.get(name, 0)
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise WireError(f"an outcome has {name} {_shown(number)}")
    reason = value.get("reason", "")
    if not isinstance(reason, str) or len(reason) > LONGEST_TEXT:
        raise WireError("an outcome gives a reason that is no text, or too long")
    return value


def _texts(config: Mapping[str, object], key: str, most: int) -> Sequence[str]:
    values = config.get(key)
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise WireError(f"expected a list of texts under {key!r}")
    if len(values) > most:
        raise WireError(f"{len(values)} entries under {key!r}, more than {most}")
    return values


def _text(config: Mapping[str, object], key: str) -> str:
    value = config.get(key)
    if not isinstance(value, str) or len(value) > 4096:
        raise WireError(f"expected a text under {key!r}")
    return value


def _hash(value: object) -> str:
    if not isinstance(value, str) or _HASH.fullmatch(value) is None:
        raise WireError(f"{_shown(value)} is no SHA-256")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
