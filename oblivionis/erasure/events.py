"""The lines of a run's ledger and of a node's, one struct for each event: its fields, their ranges and what it does.

`read_event` makes an event of a line, `line_fault` says what is wrong with one. A request's state follows from the
events about it alone (`oblivionis.erasure.request_states`), by the methods `run_changes` and `node_changes`. Both
ledgers have one vocabulary: a node enters what a server says of a request by the name that the server's own line has.

Lines are read into these structs and never written from them: a line keeps the order of fields in which its writer gave
it, and with it the bytes that its hash was taken of. Fields and events that are unknown are left alone, so that lines
of other versions stay readable; the events of the run itself are declared in `oblivionis.runs.ledger_run_events`.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from oblivionis.erasure.request import COVERED, OPEN, PENDING, REJECTED, SERVED, NodeRequest, Request, RequestError
from oblivionis.erasure.verification_rules import DONE, ERASED, NOT_VERIFIED, OUTCOMES, VERIFIED
from oblivionis.runs.ledger_run_events import SHAPES
from strategies.message_keys import SCOPE_RECORDS
from strategies.metric_schema import UNLEARN
from strategies.rounds.request_source import SCOPES

_LARGEST = 1.7976931348623157e308
_SHA256 = r"\A[0-9a-f]{64}\Z"
Texts = tuple[str, ...]
Count = Annotated[int, Meta(ge=0)]
Counts = Annotated[tuple[Count, ...], Meta(description="a list of whole numbers")]
CountsByName = Annotated[dict[str, Count], Meta(description="whole numbers by name")]
Number = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
Numbers = Annotated[dict[str, Number], Meta(description="numbers by name")]
Seconds = Annotated[float, Meta(ge=0, lt=1e11, description="seconds since 1970")]
Scope = Annotated[str, Meta(pattern=rf"\A({'|'.join(SCOPES)})\Z", description=f"one of {', '.join(SCOPES)}")]
Commitments = Annotated[
    dict[Annotated[str, Meta(pattern=r"\A[0-9]+\Z")], Annotated[str, Meta(pattern=_SHA256)]],
    Meta(description="a SHA-256 by client"),
]

_IN_WORDS: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Texts: "a list of texts",
    dict[str, str]: "texts by name",
}

Changes = Mapping[str, object]
"""New values of fields of a request."""
Measured = Mapping[str, Mapping[str, float] | None]
"""What a node measured of a request in one run, by moment: before, after, final. None: the numbers are not known."""

TYPES: dict[str, type[Event]] = {}
"""The struct of each event, by the event's name."""


def _name(class_name: str) -> str:
    """`CoverExchange` is the event `cover_exchange`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


class Event(Struct, tag_field="event", tag=_name, kw_only=True):
    """A line of a ledger. `prev` and `hash` link it to the line before it (`oblivionis.chain`); the ledgers of early
    versions had neither."""

    time: Seconds | None = None
    prev: str = ""
    hash: str = ""

    def __init_subclass__(cls) -> None:
        TYPES[_name(cls.__name__)] = cls

    @property
    def name(self) -> str:
        """The value of `event` in the line."""
        return _name(type(self).__name__)

    def need(self, *names: str) -> None:
        """Raise RequestError for the first of these fields that the line does not have."""
        for name in names:
            if getattr(self, name) in (None, ""):
                raise RequestError(f"{name} is missing")


class RequestEvent(Event, kw_only=True):
    """A line about the request `id`. That of a run has its client; lines of early versions have no scope.

    On a node: `run`, in which it happened; `line`, the hash of the server's line of which it is a copy, absent where
    the node speaks itself.
    """

    id: Annotated[str, Meta(min_length=1)]
    client: Count | None = None
    scope: Scope = SCOPE_RECORDS
    subject: str = ""
    run: str = ""
    line: str | None = None

    reported: ClassVar[bool] = False
    """Whether the event is sent to the client if it made the request itself, until it confirms it."""

    def run_changes(self, request: Request) -> Changes:
        """What the event changes of a request in the ledger of a run. RequestError for an event that has no place
        there."""
        raise RequestError(f"unknown event {self.name!r} for request {request.id!r}")

    def node_changes(self, request: NodeRequest, measured: Measured) -> Changes:
        """The same on the request's node, which `measured` its records in the run that the event is of."""
        return {}


OWN = frozenset(("event", *RequestEvent.__struct_fields__))
"""Fields of a line that the ledger itself fills in."""


class Submitted(RequestEvent):
    """A request was made. The line of a run has the round from which on it may be served; `told`: its id on the node.

    `contents`: on the node, by id what each record says (`oblivionis.data.twins.content_key`). The rest is explained at
    `oblivionis.erasure.request.Request`.
    """

    record_ids: Texts
    round: Count | None = None
    count: Count | None = None
    already: Count = 0
    covered: Texts = ()
    group: str = ""
    reason: str = ""
    told: str = ""
    included: Texts = ()
    excluded: Texts = ()
    contents: dict[str, str] = {}

    def run_request(self) -> Request:
        """The request of a run. RequestError without a round."""
        self.need("round")
        return Request(**_taken_over(self, Request), state=PENDING if self.record_ids else COVERED)

    def node_request(self) -> NodeRequest:
        """The request of a node. RequestError without a time."""
        self.need("time")
        return NodeRequest(**_taken_over(self, NodeRequest))


class ServerEvent(RequestEvent):
    """What a server did about a request. `reason`: why it failed, was rejected or undone; `attempts`: how many failed;
    `audits`: on a node, whether that may measure at all."""

    round: Count | None = None
    reason: str = ""
    attempts: Count | None = None
    audits: bool = True

    reported: ClassVar[bool] = True


class Served(ServerEvent):
    """The request was served in `round`. `told`: the numbers that the client reported of it; `session`: of the cover
    exchange that served it."""

    count: Count | None = None
    told: Numbers = {}
    session: str = ""
    before: str = ""
    after: str = ""

    def run_changes(self, request: Request) -> Changes:
        return {"state": SERVED, "served_round": self.round}

    def node_changes(self, request: NodeRequest, measured: Measured) -> Changes:
        return {"state": SERVED, "served_round": self.round, "rouge": None, "note": ""}


class Applied(ServerEvent):
    """The exchange that served the request changed the global model: SHA-256 `before` and `after`; in a federation in
    shards also of each shard's part of it, `parts_before` and `parts_after`."""

    before: str = ""
    after: str = ""
    parts_before: Texts = ()
    parts_after: Texts = ()

    def run_changes(self, request: Request) -> Changes:
        return {}

    def node_changes(self, request: NodeRequest, measured: Measured) -> Changes:
        return {"note": ""}


class Failed(ServerEvent):
    """An attempt to serve the request failed."""

    def run_changes(self, request: Request) -> Changes:
        return {"attempts": request.attempts + 1, "failure": self.reason}

    def node_changes(self, request: NodeRequest, measured: Measured) -> Changes:
        return {"note": f"attempt failed: {self.reason}"}


class Rejected(ServerEvent):
    """The request cannot be served."""

    def run_changes(self, request: Request) -> Changes:
        return {"state": REJECTED}

    def node_changes(self, request: NodeRequest, measured: Measured) -> Changes:
        return {"state": REJECTED, "note": self.reason}


class Verification(ServerEvent):
    """What a verification of the served request came to: its `outcome`, one of
    `oblivionis.erasure.verification_rules.OUTCOMES`, and `why`.

    `rouge`: mean recall of its records; `limit`: a larger one is a recitation; `records`: how many of them have which
    outcome; `model`: the hash of the model, where the node measured it at its user's command.
    """

    outcome: str = ""
    why: str = ""
    rouge: Number | None = None
    limit: Number | None = None
    records: CountsByName = {}
    model: str = ""

    def run_changes(self, request: Request) -> Changes:
        return {"rouge": self.rouge, "judged": self.outcome, "why": self.why}

    def node_changes(self, request: NodeRequest, measured: Measured) -> Changes:
        own = measured.get("final") or {}
        return {"rouge": own.get("request_rouge", self.rouge)}


class Verified(Verification):
    """The records of the request are forgotten, or erased exactly."""

    def run_changes(self, request: Request) -> Changes:
        return {**super().run_changes(request), "state": VERIFIED}

    def node_changes(self, request: NodeRequest, measured: Measured) -> Changes:
        if self.outcome == ERASED:
            held = {"state": ERASED, "note": "this node held its rounds again"}
            return {**super().node_changes(request, measured), **held}
        unmeasured = "by the word of its server alone: this node measures nothing"
        note = "" if "final" in measured or self.line is None else unmeasured
        return {**super().node_changes(request, measured), "state": VERIFIED, "note": note}


class VerificationFailed(Verification):
    """The request is not verified; lines of early versions do not say what was found instead."""

    def run_changes(self, request: Request) -> Changes:
        return {**super().run_changes(request), "state": SERVED}

    def node_changes(self, request: NodeRequest, measured: Measured) -> Changes:
        known = self.outcome in OUTCOMES and self.outcome not in DONE
        state = self.outcome if known else NOT_VERIFIED
        return {**super().node_changes(request, measured), "state": state, "note": self.why}


class RolledBack(ServerEvent):
    """What served the request was undone: the run, or the cover exchange `session`, goes on before it."""

    session: str = ""

    def run_changes(self, request: Request) -> Changes:
        return {"state": PENDING, "served_round": None, "rouge": None, "judged": "", "why": ""}

    def node_changes(self, request: NodeRequest, measured: Measured) -> Changes:
        note = "to be served anew: the run resumed from an earlier checkpoint"
        return {"state": OPEN, "served_round": None, "rouge": None, "note": note}


class Covered(ServerEvent):
    """A node's line: by its server all records of the request are named by earlier ones."""

    def node_changes(self, request: NodeRequest, measured: Measured) -> Changes:
        return {"state": COVERED}


# -- further lines of a run's ledger ----------------------------------------------------------------------------------


class Acknowledged(Event):
    """The client entered these lines, by their hashes, into its own ledger."""

    client: Count
    lines: Texts


class CoverFailed(Event):
    """A cover exchange came to no sum. `commitments`: by addressed client (`oblivionis.erasure.hidden_requests`)."""

    round: Count
    session: str
    commitments: Commitments
    reason: str = ""


class CoverExchange(Event):
    """A cover exchange whose sum became part of the global model. `survivors`: whose part is in the sum; `before`,
    `after`: SHA-256 of the model; `count`: how many records were forgotten in all."""

    round: Count
    session: str
    commitments: Commitments
    survivors: Counts
    before: str
    after: str
    count: Count


class CoverUndone(Event):
    """A resumed run goes on before the cover exchange whose line has the hash `of`."""

    round: Count
    session: str
    of: str


class Barrier(Event):
    """Asynchronous rounds: the exchange of `round` made this version of the model, and so many clients worked on older
    ones, whose updates are discarded."""

    round: Count
    version: Count
    discarded: Count
    requests: Texts = ()


class ServedAgain(Event):
    """The exchange of `round` served earlier `requests` again; SHA-256 of the global model `before` and `after`."""

    round: Count
    requests: Texts
    before: str = ""
    after: str = ""


class Opened(Event):
    """The first line of a run whose nodes are asked for requests: its name."""

    run: str = ""


class Asked(Event):
    """The nodes were asked for requests. `heads`: by client the hash with which its ledger ended."""

    round: Count | None = None
    heads: dict[str, str] = {}


class Repaired(Event):
    """Lines that made no sense were set `aside`; the ledger as it `was`, by its last hash, is `kept` in a file."""

    kept: str
    was: str
    aside: tuple[dict[str, Any], ...] = ()


class Waiting(Event):
    """So many requests of the client were not taken up in this round."""

    client: Count | None = None
    round: Count | None = None
    count: Count | None = None


# -- further lines of a node's ledger ---------------------------------------------------------------------------------


class LeftOut(RequestEvent):
    """The request is open again: its part is not in the sum of a cover exchange. `own`: the node itself left it out."""

    session: str = ""
    reason: str = ""
    own: bool = False

    def node_changes(self, request: NodeRequest, measured: Measured) -> Changes:
        count = request.exchanges - self.own
        return {"state": OPEN, "served_round": None, "rouge": None, "exchanges": count, "note": self.reason}


class Decided(RequestEvent):
    """These records are named like the person of the demand, and are not about them."""

    excluded: Texts
    contents: dict[str, str] = {}

    def node_changes(self, request: NodeRequest, measured: Measured) -> Changes:
        return {"excluded": tuple(dict.fromkeys((*request.excluded, *self.excluded)))}


class HeldBack(RequestEvent):
    """These records came later, and are not trained on since the demand about a person stands."""

    record_ids: Texts

    def node_changes(self, request: NodeRequest, measured: Measured) -> Changes:
        if request.withdrawn:
            return {}
        return {"held_back": tuple(dict.fromkeys((*request.held_back, *self.record_ids)))}


class Withdrawn(RequestEvent):
    """The demand about a person stands no more."""

    reason: str = ""

    def node_changes(self, request: NodeRequest, measured: Measured) -> Changes:
        return {"held_back": (), "withdrawn": True}


class NearCopies(Event):
    """These records say nearly what a forgotten one says, and are trained on."""

    record_ids: Texts = ()


class Demanded(Struct, frozen=True):
    """A request's share of a cover exchange."""

    id: str
    scope: Scope
    record_ids: Texts


class Committed(Event):
    """What the node adds to the sum of a cover exchange, and its commitment to that; `secret`: of which the salts are
    made. `again`: the exchange was begun once more after its outcome was known."""

    run: str
    session: str
    client: Count
    demands: Annotated[tuple[Demanded, ...], Meta(description="a list of objects with id, scope and record_ids")]
    secret: str
    commitment: str
    again: bool = False


class Rejoined(Event):
    """The node took part in a cover exchange that was begun once more, with the same requests."""

    session: str
    requests: Texts


class Session(Event):
    """What became of a cover exchange by the server of its run, in whose ledger `line` says so; `disputed`: that ledger
    has another commitment than the node."""

    session: str
    run: str
    outcome: str
    round: Count | None = None
    line: str = ""
    commitment: str = ""
    before: str = ""
    after: str = ""
    disputed: bool = False


class Exchanged(Event):
    """What the node sent in answer to a message of this `kind`. `requests`: about which; `moment`, `numbers`: what an
    audit measured, and when.

    SHA-256: `before` of the model received, `after` of the one sent back, `records` of the node's records, `beside` of
    what it reads in addition to them; `trained` of the records trained on, or left to train on, where past rounds can
    be held again. `tombstones`: how many there were. `replay`: in which round of unlearn a past round was held again;
    `exclude`: what the stage retrain went without.
    """

    kind: str
    run: str
    client: Count
    round: Count
    stage: str = ""
    before: str = ""
    after: str = ""
    tombstones: Count = 0
    records: str = ""
    beside: str = ""
    requests: Texts = ()
    moment: str = ""
    again: bool = False
    replay: Count = 0
    exclude: str = ""
    trained: str = ""
    numbers: Numbers | UnsetType = UNSET


class TookPart(Event):
    """The node trains for a sum under masks (`oblivionis.client.single_participation`)."""

    kind: str = ""
    run: str = ""
    stage: str = ""
    round: Count | None = None
    times: Count = 0


class Queried(Event):
    """A server asked for requests. `ledger`: the hash of its ledger's first line; `server_head`, `server_lines`: with
    which line it ended."""

    run: str = ""
    ledger: str = ""
    client: Count | None = None
    round: Count | None = None
    server_head: str = ""
    server_lines: Count = 0


class Descends(Event):
    """The run, whose ledger begins with the line of that hash, begins with a `model` that others made; `models` and
    `runs`: by the word of its server all that this comes of (`oblivionis.runs.ancestry`)."""

    model: str
    models: Texts
    runs: Texts
    run: str = ""
    ledger: str = ""


class Retired(Event):
    """The model, by its hash or by the `run` that made it, is used no more, and is not asked to forget anything."""

    reason: str
    model: str = ""
    run: str = ""


class Run(Event):
    """The configuration of a run, by its hash, when the node first heard of it."""

    run: str
    config: str
    client: Count | None = None


class Key(Event):
    """The public key of the node's audits."""

    public_key: str = ""


class Refused(Event):
    """A server was refused something on this day (UTC)."""

    reason: str = ""
    day: str = ""


# -- reading ----------------------------------------------------------------------------------------------------------


class UnknownEvent(Event):
    """A line of a run itself, or of another version of the program. `called`: its event."""

    called: str = "unknown_event"
    client: Count | None = None
    round: Count | None = None

    @property
    def name(self) -> str:
        return self.called


class UnknownRequestEvent(RequestEvent):
    """A line of another version about a request. `called`: its event."""

    called: str = "unknown_request_event"

    @property
    def name(self) -> str:
        return self.called


for _base in (RequestEvent, ServerEvent, Verification, UnknownEvent, UnknownRequestEvent):
    del TYPES[_name(_base.__name__)]  # no event by itself


def read_event(line: Mapping[str, Any]) -> Event:
    """The event of a line. RequestError says which field is wrong, what it is and what was expected."""
    name = line.get("event")
    if not isinstance(name, str):
        raise RequestError(f"event is {_shown(name)}, expected a text")
    known = TYPES.get(name)
    if known is not None:
        if "id" in line and not issubclass(known, RequestEvent):
            raise RequestError(f"id is {_shown(line['id'])}, expected none: {name} is about no request")
        return _converted(line, known)
    if name in SHAPES:
        with contextlib.suppress(_Missing):  # whether such a line is complete `oblivionis.runs` checks itself
            _converted(line, SHAPES[name])
    rest = {key: value for key, value in line.items() if key != "event"}
    return _converted({**rest, "called": name}, UnknownRequestEvent if "id" in line else UnknownEvent)


def line_fault(line: Mapping[str, Any]) -> str:
    """What is wrong with the fields of a line, empty if nothing is."""
    try:
        read_event(line)
    except RequestError as error:
        return str(error)
    return ""


def reported_numbers(line: Mapping[str, Any]) -> Mapping[str, float]:
    """What a client reported in a line `served`; in early versions it stood among the line's own fields."""
    nested = line.get("told")
    numbers = nested if isinstance(nested, Mapping) else {name: line[name] for name in UNLEARN if name in line}
    return {name: value for name, value in numbers.items() if name in UNLEARN and _is_number(value)}


class _Missing(RequestError):
    """A line without a field that it must have."""


_T = TypeVar("_T")


def _converted(line: Mapping[str, Any], shape: type[_T]) -> _T:
    try:
        return msgspec.convert(line, shape)
    except msgspec.ValidationError as error:
        text = str(error)
        if missing := re.search(r"missing required field `(\w+)`\Z", text):
            raise _Missing(f"{missing[1]} is missing") from None
        key = re.search(r"`\$\.([^.\[`]+)", text)
        if key is None:
            raise RequestError(text) from None
        expected = _expected(shape).get(key[1], text.partition(" - at ")[0].removeprefix("Expected "))
        raise RequestError(f"{key[1]} is {_shown(line.get(key[1]))}, expected {expected}") from None


@functools.cache
def _expected(shape: Any) -> dict[str, str]:
    """What each field of a line must be, in words; without those for which there are none."""
    words = {name: _in_words(kind) for name, kind in get_type_hints(shape, include_extras=True).items()}
    return {name: text for name, text in words.items() if text}


def _in_words(kind: Any) -> str:
    notes = kind.__metadata__ if get_origin(kind) is Annotated else ()
    described = [note.description for note in notes if note.description]
    if described or kind in _IN_WORDS:
        return described[0] if described else _IN_WORDS[kind]
    return next(filter(None, map(_in_words, get_args(kind))), "")


@functools.cache
def _same_fields(event: type[Event], request: type[Any]) -> tuple[str, ...]:
    return tuple(of.name for of in fields(request) if of.name in event.__struct_fields__)


def _taken_over(event: Event, request: type[Any]) -> dict[str, Any]:
    """The fields that a request has in common with the event that made it."""
    return {name: getattr(event, name) for name in _same_fields(type(event), request)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
