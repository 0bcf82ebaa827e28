"""The conversation about requests that are made on nodes: what `query` asks and what its answer says, checked.

Neither carries content, the name of a subject or a reason: ids, scopes, counts, numbers and hashes only. What arrives
is never trusted: shape, types and sizes are checked before anything is used.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from flwr.app import ConfigRecord
from msgspec import UNSET, Meta, Struct, UnsetType

from oblivionis.erasure import verification_rules
from oblivionis.erasure.events import TYPES, ServerEvent
from oblivionis.errors import OblivionisError
from oblivionis.naming import LONGEST_ID, unfit_character
from strategies import message_keys
from strategies.rounds.request_source import SCOPES
from strategies.untrusted_text import clean

LONGEST_TEXT = 1000
MOST_REQUESTS, MOST_RECORDS, MOST_LINES = 10_000, 1_000_000, 100_000
"""Requests in an answer, records that they name in all (those of a client in a run, too), and lines that a question
tells or an answer confirms."""
EVENTS = tuple(name for name, of in TYPES.items() if issubclass(of, ServerEvent) and not of.__subclasses__())
"""Events by which a server tells what became of a request."""
COUNTED, LEFT_OUT, ROLLED_BACK = "counted", "left_out", "rolled_back"
"""What became of a client's part in a cover exchange: it is in the sum; it is not, or there was no sum; the sum was
undone by a resumed run."""
SESSION_OUTCOMES = (COUNTED, LEFT_OUT, ROLLED_BACK)
LONGEST_SESSION = 200
NUMBERS = ("rouge", "limit")
HASHES = ("before", "after")
WORDS = ("outcome", "why")

_SHA256 = Meta(pattern=r"\A[0-9a-f]{64}\Z", description="a SHA-256")
_ID = Meta(
    pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z", description="an id of 1 to 64 letters, digits, '.', '_', '-'"
)
_SCOPE = Meta(pattern=rf"\A({'|'.join(SCOPES)})\Z", description=f"one of {', '.join(SCOPES)}")
_OUTCOME = Meta(
    pattern=rf"\A({'|'.join(verification_rules.OUTCOMES)})\Z",
    description=f"one of {', '.join(verification_rules.OUTCOMES)}",
)
_EVENT = Meta(pattern=rf"\A({'|'.join(EVENTS)})\Z", description=f"one of {', '.join(EVENTS)}")
_OF_SESSION = Meta(pattern=rf"\A({'|'.join(SESSION_OUTCOMES)})\Z", description=f"one of {', '.join(SESSION_OUTCOMES)}")
_REQUESTS, _RECORDS, _LINES = (Meta(max_length=most) for most in (MOST_REQUESTS, MOST_RECORDS, MOST_LINES))

_Hash = Annotated[str, _SHA256]
_Round = Annotated[int, Meta(ge=0)]

_Checked = TypeVar("_Checked")


class WireError(OblivionisError):
    """A query or an answer to one that does not make sense."""


@dataclass(frozen=True, slots=True)
class Reported:
    """One request of a node, as it tells the server."""

    id: str
    scope: str
    record_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node says: its unsettled requests, the newest line of its ledger, and the outcomes that it has entered."""

    requests: tuple[Reported, ...]
    head: str
    acknowledged: tuple[str, ...]


class SessionOutcome(Struct, frozen=True, forbid_unknown_fields=True):
    """What the server says of a cover exchange to one client.

    `line`: the hash of the line of the server's ledger that says so. `commitment`: the client's, as that ledger has it.
    `before`, `after`: SHA-256 of the global model, absent where there was no sum.
    """

    session: Annotated[str, Meta(min_length=1, max_length=LONGEST_SESSION)]
    run: Annotated[str, Meta(max_length=4096)]
    round: _Round
    outcome: Annotated[str, _OF_SESSION]
    line: _Hash
    commitment: _Hash
    before: _Hash | None = None
    after: _Hash | None = None


class Question(Struct, frozen=True):
    """What the server says when it asks: its run and ledger, the round, and outcomes that the node did not confirm.

    `head` and `lines`: where its ledger ends, so that the node finds it out where lines are cut off there later.
    `sealed`: the node must not report any request; `sessions` then says what became of the node's cover exchanges.
    `model`, `models`, `runs`: of a run that began with another's model, what that comes of
    (`oblivionis.runs.ancestry.Descent`).
    """

    run: Annotated[str, Meta(max_length=4096)] = msgspec.field(name=message_keys.RUN)
    ledger: _Hash = msgspec.field(name=message_keys.LEDGER)
    head: _Hash = msgspec.field(name=message_keys.LEDGER_HEAD)
    round: _Round = msgspec.field(name=message_keys.SERVER_ROUND)
    outcomes: tuple[dict[str, Any], ...] = msgspec.field(name=message_keys.OUTCOMES, default=())
    lines: Annotated[int, Meta(ge=0)] = msgspec.field(name=message_keys.LEDGER_LINES, default=0)
    sealed: bool = msgspec.field(name=message_keys.SEALED, default=False)
    sessions: tuple[SessionOutcome, ...] = msgspec.field(name=message_keys.SESSIONS, default=())
    model: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z", description="a SHA-256")] = msgspec.field(
        name=message_keys.MODEL, default=""
    )
    models: Annotated[tuple[_Hash, ...], _LINES] = msgspec.field(name=message_keys.MODELS, default=())
    runs: Annotated[tuple[Annotated[str, Meta(max_length=4096)], ...], _LINES] = msgspec.field(
        name=message_keys.RUNS, default=()
    )


class _Outcomes(Struct):
    """The outcomes of a question as they travel, each as JSON."""

    texts: Annotated[list[str], _LINES] = msgspec.field(name=message_keys.OUTCOMES)
    sessions: Annotated[list[str], _LINES] = msgspec.field(name=message_keys.SESSIONS, default_factory=list)


class _Outcome(Struct, forbid_unknown_fields=True):
    """One of a question's outcomes: what became of a request, and the line of the server's ledger that says so."""

    event: Annotated[str, _EVENT]
    id: str
    line: _Hash
    round: _Round
    reason: Annotated[str, Meta(max_length=LONGEST_TEXT)] | UnsetType = UNSET
    rouge: float | UnsetType = UNSET
    limit: float | UnsetType = UNSET
    outcome: Annotated[str, _OUTCOME] | UnsetType = UNSET
    why: Annotated[str, Meta(max_length=LONGEST_TEXT)] | UnsetType = UNSET
    before: _Hash | UnsetType = UNSET
    after: _Hash | UnsetType = UNSET


class _Answer(Struct):
    """An answer as it travels: `counts` divides `records` among the requests."""

    ids: Annotated[list[Annotated[str, _ID]], _REQUESTS] = msgspec.field(name=message_keys.REQUEST_IDS)
    scopes: Annotated[list[Annotated[str, _SCOPE]], _REQUESTS] = msgspec.field(name=message_keys.SCOPES)
    counts: Annotated[list[Annotated[int, Meta(ge=1)]], _REQUESTS] = msgspec.field(name=message_keys.RECORD_COUNTS)
    records: Annotated[list[Annotated[str, Meta(min_length=1, max_length=LONGEST_ID)]], _RECORDS] = msgspec.field(
        name=message_keys.RECORD_IDS
    )
    head: _Hash = msgspec.field(name=message_keys.LEDGER_HEAD)
    acknowledged: Annotated[list[_Hash], _LINES] = msgspec.field(name=message_keys.ACKNOWLEDGED)


def valid_id(text: str) -> bool:
    """Whether a node may give a request this id: it becomes the name of files."""
    return re.search(_ID.pattern or "", text) is not None


def write_question(question: Question) -> dict[str, Any]:
    """The config of a query."""
    outcomes = [json.dumps(outcome, allow_nan=False) for outcome in question.outcomes]
    sessions = [msgspec.json.encode(session).decode() for session in question.sessions]
    config = {**msgspec.to_builtins(question), message_keys.OUTCOMES: outcomes, message_keys.SESSIONS: sessions}
    if not question.sealed:
        del config[message_keys.SEALED], config[message_keys.SESSIONS]
    if question.model:
        config |= {message_keys.MODELS: [*question.models], message_keys.RUNS: [*question.runs]}
    else:
        del config[message_keys.MODEL], config[message_keys.MODELS], config[message_keys.RUNS]
    return config


def read_question(config: Mapping[str, object]) -> Question | None:
    """The question in the config of a query; None where the server wants no more than the partition. WireError."""
    if message_keys.LEDGER not in config:
        return None
    found = _check({**config}, _Outcomes)
    outcomes = [_outcome(*numbered) for numbered in enumerate(found.texts)]
    sessions = [_decoded(text, f"{message_keys.SESSIONS}[{number}]") for number, text in enumerate(found.sessions)]
    question = _check({**config, message_keys.OUTCOMES: outcomes, message_keys.SESSIONS: sessions}, Question)
    runs = tuple(clean(run, LONGEST_TEXT) for run in question.runs)
    return msgspec.structs.replace(question, run=clean(question.run, LONGEST_TEXT), runs=runs)


def outcome_of(entry: Mapping[str, Any], node_id: str, line: str) -> dict[str, Any]:
    """A line of the server's ledger as it is sent to a node: its own id of the request, numbers and hashes only."""
    event = "covered" if entry["event"] == "submitted" else entry["event"]
    kept = {k: entry[k] for k in (*NUMBERS, *HASHES, *WORDS) if entry.get(k) is not None}
    if event in ("failed", "rejected"):
        kept["reason"] = clean(str(entry.get("reason", "")), LONGEST_TEXT)
    if "why" in kept:
        kept["why"] = clean(kept["why"], LONGEST_TEXT)
    return {"event": event, "id": node_id, "line": line, "round": int(entry["round"]), **kept}


def as_many_as_fit(requests: Iterable[Reported], most: int = MOST_REQUESTS, named: int = 0) -> tuple[Reported, ...]:
    """The first `most` of `requests` for whose records there is room in addition to those that were `named` before."""
    taken, left = list[Reported](), MOST_RECORDS - named
    for request in requests:
        if len(taken) < most and len(request.record_ids) <= left:
            taken.append(request)
            left -= len(request.record_ids)
    return tuple(taken)


def write_answer(answer: Answer) -> ConfigRecord:
    """The record `requests` of the answer to a query."""
    return ConfigRecord(
        {
            message_keys.REQUEST_IDS: [r.id for r in answer.requests],
            message_keys.SCOPES: [r.scope for r in answer.requests],
            message_keys.RECORD_COUNTS: [len(r.record_ids) for r in answer.requests],
            message_keys.RECORD_IDS: [i for r in answer.requests for i in r.record_ids],
            message_keys.LEDGER_HEAD: answer.head,
            message_keys.ACKNOWLEDGED: list(answer.acknowledged),
        }
    )


def read_answer(record: Mapping[str, object]) -> Answer:
    """The record `requests` of a node's answer. WireError for anything that is not entirely well."""
    found = _check({**record}, _Answer)
    ids, counts = found.ids, found.counts
    if not len(ids) == len(found.scopes) == len(counts):
        raise WireError(f"{len(ids)} requests, but {len(found.scopes)} scopes and {len(counts)} record counts")
    if sum(counts) != len(found.records):
        raise WireError(f"the record counts add up to {sum(counts)}, but there are {len(found.records)} record ids")
    if len(set(ids)) < len(ids):
        raise WireError(f"request {Counter(ids).most_common(1)[0][0]} is told twice")
    requests, start = [], 0
    for name, scope, count in zip(ids, found.scopes, counts, strict=True):
        named = tuple(found.records[start : start + count])
        if len(set(named)) < count:
            raise WireError(f"request {name} names a record twice")
        if unfit := next((c for i in named if (c := unfit_character(i))), ""):
            raise WireError(f"request {name} names a record with the character {unfit} in its id")
        requests.append(Reported(name, scope, named))
        start += count
    return Answer(tuple(requests), found.head, tuple(found.acknowledged))


def _outcome(number: int, text: str) -> dict[str, Any]:
    where = f"{message_keys.OUTCOMES}[{number}]"
    value = _decoded(text, where)
    _check(value, _Outcome, where)
    return value | {key: clean(value[key], LONGEST_TEXT) for key in ("reason", "why") if key in value}


def _decoded(text: str, where: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise WireError(f"{where}: {_shown(text)} is no JSON ({error})") from None


def _check(value: Any, expected: type[_Checked], where: str = "") -> _Checked:
    """`value` as `expected`; WireError with the key's path, what was expected there and what was found."""
    try:
        return msgspec.convert(value, expected)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        keys = re.findall(r"\.([^.[]+)|\[(\d+)\]", path.rstrip("`"))
        for key, index in keys:
            value = value[key] if key else value[int(index)]
        for meta in (_SHA256, _ID, _SCOPE, _EVENT, _OUTCOME, _OF_SESSION):
            text = text.replace(f"`str` matching regex {meta.pattern!r}", meta.description or "")
        place = where + "".join(f".{key}" if key else f"[{index}]" for key, index in keys)
        found = "" if text.startswith("Object") else f"; found {_shown(value)}"
        raise WireError(f"{place.lstrip('.')}: {text}{found}" if place else text) from None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
