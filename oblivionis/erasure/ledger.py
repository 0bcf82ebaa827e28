"""Deletion requests: the append-only, hash-chained ledger and the policies that create requests in a simulation."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from oblivionis.chain import GENESIS, HASH, Chain
from oblivionis.erasure.events import (
    OWN,
    Acknowledged,
    CoverExchange,
    CoverFailed,
    CoverUndone,
    Event,
    RequestEvent,
    Submitted,
    line_fault,
    read_event,
)
from oblivionis.erasure.request import COVERED, PENDING, REJECTED, Request, RequestError
from oblivionis.erasure.request import SERVED as SERVED
from oblivionis.erasure.request_queue import Queue, Turn
from oblivionis.erasure.request_states import RunStates
from oblivionis.erasure.verification_rules import DONE, Judgement
from oblivionis.files import parse_lines, read_bytes
from strategies.message_keys import SCOPE_CLIENT, SCOPE_SUBJECT

EXCHANGE, EXCHANGE_FAILED, EXCHANGE_UNDONE = "cover_exchange", "cover_failed", "cover_undone"
"""Lines about cover exchanges: it counts; it came to no sum; a resumed run goes on before it."""


class Ledger:
    """The requests of one run, kept as a JSON-lines file of events that is only ever appended to.

    `oblivionis.erasure.events` declares the events, `oblivionis.erasure.request_states` says what becomes of a request
    by them. Every event about one carries a wall-clock time, the round, the client and the scope, with the subject if
    there is one; the numbers that a client reported stand by themselves, under `told`, and can change nothing of that.
    Submitting an id twice changes nothing. After a resume, `roll_back` returns to `pending` what was served after the
    checkpoint that the run continues from. Each line names the hash of the line before it (`oblivionis.chain`). Ledgers
    written before there were scopes or hashes can be read.

    A client that made a request itself learns what becomes of it: `unacknowledged` has what it has not confirmed.

    Other objects and programs may append lines that are about no request (`RunDirectory.note`): they are taken up
    before the next line is written.

    `entries`: the lines, instead of those at `path`. RequestError for a line that makes no sense.
    """

    def __init__(self, path: Path, entries: Sequence[Mapping[str, Any]] | None = None) -> None:
        self.path = path
        self._states = RunStates()
        self._requests = self._states.requests
        self._place: dict[str, int] = {}
        self._of_client: dict[int, list[str]] = {}
        self._pending: dict[str, None] = {}
        self._number: dict[str, int] = {}
        self._last_number: dict[int, int] = {}
        self._reached = 0
        self._queue = Queue()
        self.rejections = 0
        self._served_in: dict[int, dict[str, None]] = {}
        self._submitted_for: dict[int, list[str]] = {}
        self._unconfirmed: dict[int, dict[str, Mapping[str, Any]]] = {}
        self._notes: list[Mapping[str, Any]] = []
        self._exchanges: set[str] = set()
        data = b""
        if entries is None:
            try:
                data = read_bytes(path)
                entries = parse_lines(path, data, finite=True)
            except FileNotFoundError:
                entries = ()
        self._chain = Chain(path, data)
        self.first: str = next((entry[HASH] for entry in entries if HASH in entry), GENESIS)
        for number, entry in enumerate(entries, start=1):
            try:
                self.read(entry)
            except RequestError as error:
                raise RequestError(
                    f"{path}: line {number}: {error}. Is the file as it was (`oblivionis request verify`)? Then "
                    "`oblivionis request repair` sets such lines aside"
                ) from None

    def __iter__(self):
        return iter(self._requests.values())

    @property
    def head(self) -> str:
        """The hash of the last line that it knows."""
        return self._chain.head

    @property
    def count(self) -> int:
        """How many lines there are up to that one."""
        return self._chain.count

    def get(self, request_id: str) -> Request:
        return self._requests[request_id]

    def of_client(self, client: int) -> list[Request]:
        """The requests of `client`, in the order in which they were submitted."""
        return [self._requests[i] for i in self._of_client.get(client, ())]

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def submit(self, *requests: Request) -> bool:
        """Enter `requests` as pending, without records as covered, at once.

        Those whose id is known already are left out; False where that leaves none.
        """
        new: dict[str, Request] = {}
        for request in requests:
            if request.id not in self._requests:
                new.setdefault(request.id, request)
        self._write_all([self._entry("submitted", r, _asked(r)) for r in new.values()])
        return bool(new)

    def pending(self, server_round: int) -> list[Request]:
        """Requests to serve in `round`, ordered by id."""
        waiting = (self._requests[i] for i in self._pending)
        return sorted((r for r in waiting if r.round <= server_round), key=lambda r: r.id)

    def first_pending(
        self, server_round: int, most: int, most_of_client: int | None = None, passed_over: Container[str] = ()
    ) -> list[Request]:
        """At most `most` of them, ordered by id: each client's first before anybody's second, then those that failed
        least often, and then those asked for first.

        Start-time fair queueing (Goyal, Vin and Cheng 1996): a request has the number after that of its client's last
        one, or the highest that was attempted so far if that is higher; one that fails gets the number after the
        highest. So no client waits for more than one request of each other client at a time, however many those make,
        and whatever fails.

        `most_of_client`: no more than so many of one client; `passed_over`: ids of some that keep their turn.
        """
        of_client = Counter[int]()

        def takes(request_id: str) -> bool:
            request = self._requests[request_id]
            if request.round > server_round or request_id in passed_over:
                return False
            of_client[request.client] += 1
            return most_of_client is None or of_client[request.client] <= most_of_client

        chosen = self._queue.first(most, self._is_in_turn, takes)
        return [self._requests[request_id] for request_id in sorted(chosen)]

    def served_in(self, server_round: int) -> list[Request]:
        """The requests that were served in `round`, also those verified since, in the order in which they were made."""
        return [self._requests[i] for i in sorted(self._served_in.get(server_round, ()), key=self._place.__getitem__)]

    def submitted_for(self, server_round: int) -> list[Request]:
        """The requests that may be served from `round` on and no earlier, in the order in which they were made."""
        return [self._requests[i] for i in self._submitted_for.get(server_round, ())]

    @property
    def rounds(self) -> list[int]:
        """The rounds from which on requests may be served, ascending."""
        return sorted(self._submitted_for)

    def served(self, request_id: str, server_round: int, **info: float | int | str | Mapping[str, float]) -> None:
        self._append("served", self._requests[request_id], round=server_round, **info)

    def applied(self, request_id: str, server_round: int, before: str, after: str, **parts: Sequence[str]) -> None:
        """The exchange that served the request changed the global model: its SHA-256 before and after; `parts`: those
        of the shards' parts, as `oblivionis.erasure.events.Applied` names them."""
        self._append("applied", self._requests[request_id], round=server_round, before=before, after=after, **parts)

    def failed(self, request_id: str, server_round: int, reason: str) -> None:
        self._append("failed", self._requests[request_id], round=server_round, reason=reason)

    def rejected(self, request_id: str, server_round: int, reason: str) -> None:
        self._append("rejected", self._requests[request_id], round=server_round, reason=reason)

    def verified(self, request_id: str, server_round: int, judgement: Judgement, limit: float) -> None:
        """Record the outcome of a check: a request that is not verified by it stays served."""
        event = "verified" if judgement.outcome in DONE else "verification_failed"
        info = {"outcome": judgement.outcome, "why": judgement.why}
        info |= {} if judgement.recall is None else {"rouge": judgement.recall, "limit": limit}
        counts = {"records": judgement.counts} if judgement.records else {}
        self._append(event, self._requests[request_id], round=server_round, **info, **counts)

    def roll_back(self, server_round: int) -> list[str]:
        """Make pending again what was served after `round`; returns the ids."""
        rounds = sorted(r for r in self._served_in if r > server_round)
        late = sorted((r for n in rounds for r in self.served_in(n)), key=lambda r: self._place[r.id])
        for request in late:
            self._append(
                "rolled_back", request, round=server_round, reason="the run resumed from an earlier checkpoint"
            )
        return [r.id for r in late]

    def note(self, event: str, **fields: object) -> None:
        """Append a line that is about no request."""
        self._write({"event": event, "time": time.time(), **fields})

    def notes(self, *events: str) -> list[Mapping[str, Any]]:
        """The lines of some events that are about no request, in their order."""
        return [entry for entry in self._notes if entry["event"] in events]

    def unacknowledged(self, client: int) -> list[Mapping[str, Any]]:
        """The lines that are to be sent to `client` and that it has not confirmed, in their order."""
        return list(self._unconfirmed.get(client, {}).values())

    @property
    def has_unacknowledged(self) -> bool:
        """Whether any client has yet to confirm something."""
        return any(self._unconfirmed.values())

    def acknowledged(self, client: int, hashes: Iterable[str]) -> None:
        """Note that `client` has entered these lines into its own ledger; lines not sent to it are ignored."""
        known = [h for h in hashes if h in self._unconfirmed.get(client, {})]
        if known:
            self.note("acknowledged", client=client, lines=known)

    def read(self, entry: Mapping[str, Any]) -> None:
        """Take up a line that is written already. RequestError where it makes no sense after those before it."""
        event = read_event(entry)
        if not isinstance(event, RequestEvent):
            self._take_up(event)
            self._notes.append(entry)
            return
        before = self._requests.get(event.id)
        request = self._states.apply(event)
        assert request is not None
        if isinstance(event, Submitted):
            self._of_client.setdefault(request.client, []).append(request.id)
            self._submitted_for.setdefault(request.round, []).append(request.id)
        self._enter(before, request)
        if request.told and (event.reported or request.state == COVERED):
            event.need("hash")
            self._unconfirmed.setdefault(request.client, {})[event.hash] = entry

    def _take_up(self, event: Event) -> None:
        """Take up an event about no request."""
        if isinstance(event, CoverExchange | CoverFailed):
            event.need("hash")
            self._exchanges.add(event.hash)
        elif isinstance(event, CoverUndone) and event.of not in self._exchanges:
            raise RequestError(f"event {event.name!r} names line {event.of[:12]}…, which is about no exchange")
        elif isinstance(event, Acknowledged):
            for line in event.lines:
                self._unconfirmed.get(event.client, {}).pop(line, None)

    def _append(self, event: str, request: Request, **fields: object) -> None:
        self._write(self._entry(event, request, fields))

    def _entry(self, event: str, request: Request, fields: Mapping[str, object]) -> dict[str, Any]:
        if given := OWN & fields.keys():
            raise ValueError(f"a line of the ledger says itself what {sorted(given)} is")
        entry: dict[str, Any] = {"event": event, "id": request.id, "client": request.client, "scope": request.scope}
        if request.subject:
            entry["subject"] = request.subject
        entry |= {"time": time.time(), **fields}
        if event == "failed":
            entry["attempts"] = request.attempts + 1
        return entry

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._write_all([entry])

    def _write_all(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Append lines, durably; none of them if one makes no sense."""
        if faults := [fault for entry in entries if (fault := line_fault(entry))]:
            raise ValueError(f"a line of the ledger makes no sense: {faults[0]}")
        others, lines = self._chain.append(entries) if entries else ((), ())
        for line in (*others, *lines):
            self.first = line[HASH] if self.first == GENESIS else self.first
            self.read(line)

    def _enter(self, before: Request | None, request: Request) -> None:
        """Put a request into the indices, by what it is now instead of what it was `before`."""
        self._place.setdefault(request.id, len(self._place))
        self._count_off(before, request)
        if before is not None and before.served_round is not None:
            self._served_in[before.served_round].pop(request.id, None)
        if request.served_round is not None:
            self._served_in.setdefault(request.served_round, {})[request.id] = None
        self.rejections += request.state == REJECTED
        if request.state == PENDING:
            self._pending[request.id] = None
            self._queue.add(self._turn(request))
        else:
            self._pending.pop(request.id, None)

    def _count_off(self, before: Request | None, request: Request) -> None:
        """Give a request that is new or failed its number, and go on to that of one that was attempted."""
        if before is None:
            number = self._number[request.id] = max(self._reached, self._last_number.get(request.client, -1) + 1)
            if request.state == PENDING:
                self._last_number[request.client] = number
            return
        failed = request.attempts > before.attempts
        if failed or (request.served_round is not None and before.served_round is None):
            self._reached = max(self._reached, self._number[request.id])
        if failed:
            self._number[request.id] = self._reached + 1

    def _is_in_turn(self, turn: Turn) -> bool:
        return turn[-1] in self._pending and turn == self._turn(self._requests[turn[-1]])

    def _turn(self, request: Request) -> Turn:
        """What puts pending requests in the order in which a batch takes them."""
        return self._number[request.id], request.attempts, request.round, request.id


def _asked(request: Request) -> dict[str, object]:
    """What a line `submitted` says of a request."""
    return {
        "round": request.round,
        "record_ids": list(request.record_ids),
        "count": len(request.record_ids),
        "already": request.already,
        **({"covered": list(request.covered)} if request.covered else {}),
        "group": request.group,
        "reason": request.reason,
        **({"told": request.told} if request.told else {}),
        **({"included": list(request.included)} if request.included else {}),
        **({"excluded": list(request.excluded)} if request.excluded else {}),
    }


def without(request: Request, *asked: Container[str]) -> Request:
    """`request` about those of its records that nobody has `asked` for; the others are covered."""
    covered = tuple(i for i in request.record_ids if any(i in of for of in asked))
    named = frozenset(covered)
    new = tuple(i for i in request.record_ids if i not in named)
    return replace(request, record_ids=new, already=len(covered), covered=covered)


class Policy(Protocol):
    """Creates requests. `holdings` maps a client to those of its forget records that nobody has asked to delete yet."""

    def due(self, server_round: int, holdings: Mapping[int, Sequence[str]]) -> list[Request]: ...


@dataclass(frozen=True, slots=True)
class RandomClientPerRound:
    """In each round one randomly chosen client asks for its share of the forget split (the paper's §4.1).

    With `everything`, all record ids by client, it leaves with all that it holds instead.
    """

    seed: int
    everything: Mapping[int, Sequence[str]] | None = None

    def due(self, server_round: int, holdings: Mapping[int, Sequence[str]]) -> list[Request]:
        candidates = sorted(client for client, ids in holdings.items() if ids)
        if not candidates:
            return []
        client = random.Random(f"{self.seed}/requests/{server_round}").choice(candidates)
        return [_request(server_round, client, holdings, self.everything)]


@dataclass(frozen=True, slots=True)
class AllAtRound:
    """At one round the named clients (None: all that hold forget records) ask for their shares at the same time.

    With `everything`, all record ids by client, they leave with all that they hold instead.
    """

    round: int
    clients: tuple[int, ...] | None = None
    everything: Mapping[int, Sequence[str]] | None = None

    def due(self, server_round: int, holdings: Mapping[int, Sequence[str]]) -> list[Request]:
        if server_round != self.round:
            return []
        named = sorted(c for c, ids in holdings.items() if ids) if self.clients is None else self.clients
        held = holdings if self.everything is None else self.everything
        return [_request(server_round, c, holdings, self.everything) for c in named if held.get(c)]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A fixed schedule of requests."""

    requests: tuple[Request, ...]
    _by_round: dict[int, list[Request]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_round: dict[int, list[Request]] = {}
        for request in self.requests:
            by_round.setdefault(request.round, []).append(request)
        object.__setattr__(self, "_by_round", by_round)

    def due(self, server_round: int, holdings: Mapping[int, Sequence[str]]) -> list[Request]:
        return list(self._by_round.get(server_round, ()))


@dataclass(frozen=True, slots=True)
class NoRequests:
    """Nobody asks for anything."""

    def due(self, server_round: int, holdings: Mapping[int, Sequence[str]]) -> list[Request]:
        return []


def _request(
    server_round: int,
    client: int,
    holdings: Mapping[int, Sequence[str]],
    everything: Mapping[int, Sequence[str]] | None,
) -> Request:
    name = f"round-{server_round:04d}-client-{client:04d}"
    if everything is not None:
        return Request(name, client, tuple(everything[client]), server_round, "it leaves", scope=SCOPE_CLIENT)
    return Request(name, client, tuple(holdings[client]), server_round, "its share of the forget split")


def as_text(requests: Iterable[Request], again: int = 0, covering: int = 0) -> str:
    """Who asks for what, for a line of progress: `client 3 leaves with 7 records; client 5 asks to forget 1 record`.

    again: how many further clients check whether what they forgot has come back; covering: how many take part besides,
    of whom nobody sees whether they forget something.
    """
    requests = sorted(requests, key=lambda r: (r.client, r.id))
    leaving = [r for r in requests if r.scope == SCOPE_CLIENT]
    about = sorted((r for r in requests if r.scope == SCOPE_SUBJECT), key=lambda r: r.group)
    plain = [r for r in requests if r.scope not in (SCOPE_CLIENT, SCOPE_SUBJECT)]
    parts = [f"{_clients(leaving, 'leaves', 'leave')} with {_records(leaving)}"] if leaving else []
    for _, group in itertools.groupby(about, key=lambda r: r.group):
        members = list(group)
        subject = "".join(c if c.isprintable() else " " for c in members[0].subject)
        parts.append(f"{_clients(members, 'forgets', 'forget')} {subject or 'a person'} ({_records(members)})")
    parts += [f"{_clients(plain, 'asks', 'ask')} to forget {_records(plain)}"] if plain else []
    parts += [f"{again} earlier client{'s recheck' if again > 1 else ' rechecks'}"] if again else []
    parts += [f"{covering} {'more ' * bool(requests)}client{'s' * (covering != 1)} under cover"] if covering else []
    return "; ".join(parts)


def _clients(requests: Sequence[Request], one: str, several: str) -> str:
    clients = sorted({r.client for r in requests})
    return f"client{'s' * (len(clients) > 1)} {', '.join(map(str, clients))} {several if len(clients) > 1 else one}"


def _records(requests: Sequence[Request]) -> str:
    count = sum(len(r.record_ids) for r in requests)
    return f"{count} record{'s' * (count != 1)}"
