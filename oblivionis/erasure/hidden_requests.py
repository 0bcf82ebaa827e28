"""Requests that the server does not see: a node's own share in cover exchanges, committed to and opened on demand.

In each cover exchange every addressed client sends a commitment c, whether or not it asks for anything:

    d_i = SHA-256(s_i, id_i, scope_i, records_i)        c = SHA-256(s, run, session, client, d_1 … d_n)

over canonical JSON (sorted keys, no white space, UTF-8). The salts s and s_i, 32 bytes each, are HMAC-SHA-256 of a
secret that is drawn for the session and stays in the node's ledger. c is 64 hexadecimal digits whatever n is, and
tells nothing (hash commitments: Goldreich, Foundations of Cryptography I, 4.4.1). Who opens one request gives s, s_i
and the digests d of the others, so that these stay sealed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from oblivionis.config.schema import Config
from oblivionis.erasure.events import Committed, read_event
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.node_ledger import COMMITTED, REJOINED, SESSION, NodeLedger, not_held
from oblivionis.erasure.node_record_files import read_node
from oblivionis.erasure.query_schema import COUNTED, LEFT_OUT, LONGEST_SESSION, ROLLED_BACK, SessionOutcome
from oblivionis.erasure.request import SEALED, NodeRequest
from oblivionis.erasure.request_states import NodeStates
from oblivionis.erasure.unlearn_messages import Demand
from oblivionis.errors import FileError, OblivionisError
from oblivionis.files import read_json

MOST_EXCHANGES = 3
"""A request goes into so many exchanges, then it waits for its user. A server that says of sums which it knows that
they came to nothing, or holds run after run, each time among other clients, would narrow down who asks."""
MOST_JOINS = 3
"""So often a client takes part in one and the same exchange, for the same reason, whether or not it asks."""
FORMAT, VERSION = "oblivionis opened request", 1
_HEX = r"\A[0-9a-f]{64}\Z"
_LOST = "the server knows nothing of this exchange"
_UNDONE = "the run resumed from an earlier checkpoint"
_OTHER = "the server's ledger holds another commitment than this node's"


class SealError(OblivionisError):
    """A commitment that cannot be made or opened, or does not fit what is said to be in it."""


def seals(config: Config) -> bool:
    """Whether the clients of a run serve their own requests in cover exchanges, and no server sees one."""
    return config.unlearning.requests.policy == "nodes" and config.unlearning.cover > 0


@dataclass(frozen=True, slots=True)
class Share:
    """A node's share in one cover exchange: what it forgets there, and its commitment to that."""

    session: str
    demands: tuple[Demand, ...]
    commitment: str


@dataclass(frozen=True, slots=True)
class Opened:
    """One request of a node with everything that its commitment is made of; the others of the exchange stay digests.

    `salts`: of the exchange, and of the request. `digests`: of all requests in the exchange. `line`: the hash of the
    line of the server's ledger that counts it. `audit`: what the node measured of it, with its signatures.
    `covered`: records that it asks for, too, and that other requests of the node name.
    """

    run: str
    session: str
    round: int
    client: int
    demand: Demand
    salts: tuple[str, str]
    digests: tuple[str, ...]
    commitment: str
    line: str
    audit: Mapping[str, Any] = field(default_factory=dict)
    covered: tuple[str, ...] = ()

    def check(self) -> None:
        """SealError unless the request is one of those that the commitment was made of."""
        salt, own = self.salts
        if digest_of(self.demand, own) not in self.digests:
            raise SealError(f"request {self.demand.request_id!r} is not what its digest was made of: {_CHANGED}")
        if commit_to(self.run, self.session, self.client, salt, self.digests) != self.commitment:
            raise SealError(f"commitment {self.commitment[:12]}… was not made of this: {_CHANGED}")

    def to_json(self) -> dict[str, Any]:
        """What `read_opened` reads."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}


_CHANGED = "a salt, an id, a scope, a record, the client, the session or the run was changed"


def join(
    folder: Path,
    run: str,
    session: str,
    client: int,
    *,
    held: Collection[str] | None = None,
    most_exchanges: int = MOST_EXCHANGES,
) -> Share:
    """This node's share in a cover exchange: its due requests, sealed and kept before the call returns.

    Once for each time that the exchange begins; a second call for the session gives the same, and counts as one more
    exchange. `held`: ids of the client's records; a request that names another one cannot be served, stays
    open and says why in the ledger. Raises SealError for a name that is none, a session that another run or client had,
    and one that was joined `MOST_JOINS` times.
    """

    def choose(states: NodeStates) -> tuple[tuple[Demand, ...], Sequence[Mapping[str, Any]]]:
        due, unserved = _due(states, run, most_exchanges), []
        for request in due if held is not None else ():
            if reason := not_held(request.record_ids, held or ()):
                unserved.append((request, reason))
        failed = [
            {"event": "failed", "id": request.id, "run": run, "reason": reason}
            for request, reason in unserved
            if not request.note.endswith(reason)
        ]
        out = {request.id for request, _ in unserved}
        return _demands([request for request in due if request.id not in out]), failed

    return _enter(folder, run, session, client, choose)


def share_of(folder: Path, session: str) -> Share | None:
    """What `join` gave, for the later messages of the exchange; None before it. Nothing is written."""
    committed = NodeLedger(folder).states().committed.get(session)
    return None if committed is None else _share(committed)


def demands_of(folder: Path, run: str) -> tuple[Demand, ...]:
    """The requests that a cover exchange of `run` should serve now, in the order in which they were made.

    Those due in this run (`NodeStates.due`), not served in it, nor in an exchange of it whose outcome is open, nor in
    `MOST_EXCHANGES` so far. No record twice.
    """
    return _demands(_due(NodeLedger(folder).states(), run))


def commit(folder: Path, session: str, demands: Sequence[Demand], *, run: str, client: int) -> str:
    """The commitment to `demands`, 64 hexadecimal digits, after the node's ledger has all that opens it.

    A second call for the session gives the same. Raises SealError where the session had other demands, or another run
    or client, and for a request that was not made on this node.
    """

    def choose(states: NodeStates) -> tuple[tuple[Demand, ...], Sequence[Mapping[str, Any]]]:
        if strange := next((d.request_id for d in demands if d.request_id not in states.requests), None):
            raise SealError(f"request {strange!r} was not made on this node")
        return tuple(demands), []

    share = _enter(folder, run, session, client, choose)
    if share.demands != tuple(demands):
        raise SealError(f"session {session!r} is sealed with other requests already")
    return share.commitment


def give_up(folder: Path, session: str, reason: str) -> None:
    """Note that this node added nothing for its requests of `session`: they stay open, also when it counts."""

    ledger = NodeLedger(folder)

    def make(lines: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        states = ledger.states_after(lines)
        committed = states.committed.get(session)
        if committed is None:
            raise SealError(f"this node was in no session {session!r}")
        yield from _reopened(states, session, committed.run, reason, own=True)

    ledger.extend(make)


def enter_outcomes(folder: Path, outcomes: Sequence[SessionOutcome], *, run: str = "") -> list[str]:
    """Enter what the server says of exchanges; returns the `line` of each that is in the ledger then.

    The requests of one that counts are served, those of the others open again. An outcome about an exchange that this
    node was not in is passed over; one with another commitment than the node's serves nothing. `run`: whose server
    speaks. Since it repeats what a node has not confirmed, those of its exchanges that were never announced are lost.
    """

    ledger = NodeLedger(folder)

    def make(lines: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        states = ledger.states_after(lines)
        known = {line["line"] for line in lines if "line" in line}
        for outcome in outcomes:
            committed = states.committed.get(outcome.session)
            if committed is None or committed.run != outcome.run or outcome.line in known:
                continue
            fits = committed.commitment == outcome.commitment
            said = {k: v for k, v in msgspec.structs.asdict(outcome).items() if v is not None}
            yield _taken_up(states, {"event": SESSION, **said, **({} if fits else {"disputed": True})})
            if outcome.outcome == COUNTED and fits:
                yield from _served(states, outcome)
            else:
                yield from _undone(states, outcome.session, outcome.run, _why(outcome, fits))
        for session, committed in states.committed.items():
            if run and committed.run == run and session in states.waiting:
                yield _taken_up(states, {"event": SESSION, "session": session, "run": run, "outcome": "lost"})
                yield from _undone(states, session, run, _LOST)

    lines = ledger.extend(make)
    entered = {line["line"] for line in lines if line["event"] == SESSION and "line" in line}
    return [outcome.line for outcome in outcomes if outcome.line in entered]


def open_commitment(folder: Path, request_id: str, audit: Mapping[str, Any] | None = None) -> Opened:
    """What the node hands out about one of its requests so that its commitment can be found in the server's ledger.

    `audit`: what the node measured. SealError for a request that it did not make, or that no cover exchange has served.
    """
    ledger = NodeLedger(folder)
    states = ledger.states()
    request = states.requests.get(request_id)
    if request is None:
        raise SealError(f"{ledger.path}: this node made no request {request_id!r}{_others(states.requests)}")
    session = states.served_in.get(request_id, "")
    outcome, committed = states.outcomes.get(session), states.committed.get(session)
    if outcome is None or committed is None:
        raise SealError(
            f"request {request_id!r} is {request.progress}: there is nothing to open before a cover exchange has "
            "served it"
        )
    demands = _read_demands(committed)
    salt, digests = _sealed(committed.secret, demands)
    demand = next(d for d in demands if d.request_id == request_id)
    opened = Opened(
        committed.run,
        session,
        outcome.round or 0,
        committed.client,
        demand,
        (salt, _salt(committed.secret, f"request {request_id}")),
        digests,
        committed.commitment,
        outcome.line,
        dict(audit or {}),
        tuple(i for i in request.everything if i not in demand.record_ids),
    )
    opened.check()
    return opened


def unsettled_sessions(folder: Path) -> dict[str, str]:
    """By request that is not settled, the session that it is sealed in or that served it."""
    states = NodeLedger(folder).states()
    sessions = {**states.served_in, **states.sealed}
    return {name: session for name, session in sessions.items() if not states.requests[name].settled}


def read_opened(path: Path) -> Opened:
    """The file that `oblivionis request open` writes. SealError for what is none, or does not fit its commitment."""
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise SealError(f"{path} cannot be read: there is no such file") from None
    except FileError as error:
        raise SealError(f"{path} is no opened request: {error}") from None
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        raise SealError(f"{path} is no opened request, as `oblivionis request open` of this version writes it")
    try:
        opened = msgspec.convert({k: v for k, v in content.items() if k not in ("format", "version")}, _Opened)
    except msgspec.ValidationError as error:
        raise SealError(f"{path} is no opened request: {error}") from None
    demand = Demand(opened.demand.request_id, opened.demand.scope, opened.demand.record_ids)
    names = ("run", "session", "round", "client", "salts", "digests", "commitment", "line", "audit", "covered")
    made = Opened(demand=demand, **{name: getattr(opened, name) for name in names})
    try:
        made.check()
    except SealError as error:
        raise SealError(f"{path}: {error}") from None
    return made


def valid_commitment(text: object) -> bool:
    """Whether a client's word is a commitment at all."""
    return isinstance(text, str) and re.search(_HEX, text) is not None


def sealed_counts(node: NodeFolder) -> tuple[int, int]:
    """What a sealed node tells in the place of `node_records.counts`: twice how many records it ever held.

    Those in its folder and all that were asked for: the number falls neither when a request is made, nor when it is
    served, nor when the records are deleted afterwards, nor when the client leaves.
    """
    held = {record.id for record in read_node(node.path).records}
    count = len(held | NodeLedger(node.path).asked())
    return count, count


def _taken_up(states: NodeStates, line: Mapping[str, Any]) -> Mapping[str, Any]:
    """A line that is about to be entered; `states` are then those after it."""
    states.apply(read_event(line))
    return line


def _served(states: NodeStates, outcome: SessionOutcome) -> Iterator[Mapping[str, Any]]:
    """Lines by which the requests that are sealed in the exchange are served."""
    models = {"before": outcome.before, "after": outcome.after}
    known = {name: model for name, model in models.items() if model is not None}
    about = {"session": outcome.session, "run": outcome.run, "round": outcome.round, **known}
    for request_id in [i for i, session in states.sealed.items() if session == outcome.session]:
        yield _taken_up(states, {"event": "served", "id": request_id, **about})


def _undone(states: NodeStates, session: str, run: str, reason: str) -> Iterator[Mapping[str, Any]]:
    """Lines by which the requests of the exchange are open again, whether they were sealed in it or served."""
    yield from _reopened(states, session, run, reason)
    about = {"session": session, "run": run, "reason": reason}
    for request_id in [i for i, of in states.served_in.items() if of == session]:
        yield _taken_up(states, {"event": ROLLED_BACK, "id": request_id, **about})


def _reopened(
    states: NodeStates, session: str, run: str, reason: str, *, own: bool = False
) -> Iterator[Mapping[str, Any]]:
    """Lines by which the requests sealed in the exchange are open again; `own`: it is the node that says so."""
    about = {"session": session, "run": run, "reason": reason, **({"own": True} if own else {})}
    for request_id in [i for i, of in states.sealed.items() if of == session]:
        yield _taken_up(states, {"event": LEFT_OUT, "id": request_id, **about})


class _Demand(msgspec.Struct):
    request_id: str
    scope: str
    record_ids: tuple[str, ...]


_Digest = Annotated[str, Meta(pattern=_HEX, description="64 hexadecimal digits")]
_Count = Annotated[int, Meta(ge=0)]


class _Opened(msgspec.Struct, forbid_unknown_fields=True):
    """An opened request as it lies in a file."""

    run: str
    session: str
    round: _Count
    client: _Count
    demand: _Demand
    salts: tuple[_Digest, _Digest]
    digests: tuple[_Digest, ...]
    commitment: _Digest
    line: _Digest
    audit: dict[str, Any] = {}
    covered: tuple[str, ...] = ()


_Choice = Callable[[NodeStates], tuple[tuple[Demand, ...], Sequence[Mapping[str, Any]]]]


def _enter(folder: Path, run: str, session: str, client: int, choose: _Choice) -> Share:
    """Commit, once for a session, to what `choose` makes of the node's requests, after further lines that it gives."""
    if not session or len(session) > LONGEST_SESSION or not session.isprintable():
        raise SealError(f"expected a session's name of 1 to {LONGEST_SESSION} printable characters")
    ledger = NodeLedger(folder)

    def make(lines: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        states = ledger.states_after(lines)
        known = states.committed.get(session)
        if known is not None:
            if (known.run, known.client) != (run, client):
                raise SealError(f"session {session!r} is one of another run or client")
            again = sum(e["event"] == REJOINED and e["session"] == session for e in lines)
            if again >= MOST_JOINS - 1:
                raise SealError(f"session {session!r} was begun {MOST_JOINS} times already")
            yield {"event": REJOINED, "session": session, "requests": [demand.id for demand in known.demands]}
            if session not in states.waiting:  # its sum is made again
                yield {**_committed(run, session, client, _read_demands(known), known.secret), "again": True}
            return
        demands, further = choose(states)
        yield from further
        yield _committed(run, session, client, demands, secrets.token_hex(32))

    return _share(ledger.states_after(ledger.extend(make)).committed[session])


def _committed(run: str, session: str, client: int, demands: Sequence[Demand], secret: str) -> Mapping[str, Any]:
    """The line by which a node commits to its demands in an exchange."""
    salt, digests = _sealed(secret, demands)
    return {
        "event": COMMITTED,
        "run": run,
        "session": session,
        "client": client,
        "demands": [{"id": d.request_id, "scope": d.scope, "record_ids": list(d.record_ids)} for d in demands],
        "secret": secret,
        "commitment": commit_to(run, session, client, salt, digests),
    }


def _share(committed: Committed) -> Share:
    return Share(committed.session, _read_demands(committed), committed.commitment)


def _due(states: NodeStates, run: str, most_exchanges: int = MOST_EXCHANGES) -> list[NodeRequest]:
    return [
        request
        for request in states.due(run)
        if request.exchanges < most_exchanges
        and not (request.run == run and (request.state == SEALED or request.served_round is not None))
    ]


def _demands(requests: Sequence[NodeRequest]) -> tuple[Demand, ...]:
    """Each with those of its records that no earlier one names; one that has none left waits."""
    demands, named = [], set[str]()
    for request in requests:
        records = tuple(i for i in request.record_ids if i not in named)
        named.update(records)
        if records:
            demands.append(Demand(request.id, request.scope, records))
    return tuple(demands)


def _read_demands(committed: Committed) -> tuple[Demand, ...]:
    return tuple(Demand(d.id, d.scope, d.record_ids) for d in committed.demands)


def _sealed(secret: str, demands: Sequence[Demand]) -> tuple[str, tuple[str, ...]]:
    """The salt of an exchange, and the digest of each demand."""
    digests = tuple(digest_of(d, _salt(secret, f"request {d.request_id}")) for d in demands)
    return _salt(secret, "exchange"), digests


def _salt(secret: str, label: str) -> str:
    return hmac.digest(bytes.fromhex(secret), label.encode("utf-8", "surrogatepass"), "sha256").hex()


def digest_of(demand: Demand, salt: str) -> str:
    """SHA-256 of one demand and the salt, in hex."""
    body = {"id": demand.request_id, "scope": demand.scope, "record_ids": list(demand.record_ids), "salt": salt}
    return _hashed(body)


def commit_to(run: str, session: str, client: int, salt: str, digests: Sequence[str]) -> str:
    """SHA-256, in hex, of a client's digests in one exchange: what it commits to before it tells its demands."""
    return _hashed({"run": run, "session": session, "client": client, "salt": salt, "requests": list(digests)})


def _hashed(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _why(outcome: SessionOutcome, fits: bool) -> str:
    if not fits:
        return _OTHER
    if outcome.outcome == ROLLED_BACK:
        return _UNDONE
    return "this client's part is not in the sum: it is asked for again in the next exchange"


def _others(requests: Mapping[str, object]) -> str:
    return f"; it has {', '.join(requests)}" if 0 < len(requests) <= 10 else ""
