"""Deletion requests: the append-only ledger and the policies that create requests in a simulation."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from oblivionis.errors import OblivionisError
from oblivionis.files import append_lines, read_lines

PENDING, SERVED, VERIFIED, REJECTED = "pending", "served", "verified", "rejected"


class RequestError(OblivionisError):
    """A request file or ledger that cannot be understood."""


@dataclass(frozen=True, slots=True)
class Request:
    """One demand of one client to forget some of its records.

    `client` is the partition id. `round` is the first round in which the request may be served. `attempts` counts
    exchanges that failed.
    """

    id: str
    client: int
    record_ids: tuple[str, ...]
    round: int
    reason: str = ""
    state: str = PENDING
    attempts: int = 0
    served_round: int | None = None


class Ledger:
    """The requests of one run, kept as a JSON-lines file of events that is only ever appended to.

    States: pending → served → verified, or rejected with a reason. Every event carries a wall-clock time, the round and
    the client. Submitting an id twice changes nothing. After a resume, `roll_back` returns to `pending` what was
    served after the checkpoint that the run continues from.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._requests: dict[str, Request] = {}
        for event in read_lines(path):
            self._apply(event)

    def __iter__(self):
        return iter(self._requests.values())

    def get(self, request_id: str) -> Request:
        return self._requests[request_id]

    def submit(self, request: Request) -> bool:
        """Enter `request` as pending; False when its id is already known."""
        if request.id in self._requests:
            return False
        self._append(
            "submitted",
            request,
            round=request.round,
            record_ids=list(request.record_ids),
            count=len(request.record_ids),
            reason=request.reason,
        )
        return True

    def pending(self, round: int) -> list[Request]:
        """Requests to serve in `round`, ordered by id."""
        waiting = [r for r in self._requests.values() if r.state == PENDING and r.round <= round]
        return sorted(waiting, key=lambda r: r.id)

    def served(self, request_id: str, round: int, **info: float | int | str) -> None:
        self._append("served", self._requests[request_id], round=round, **info)

    def failed(self, request_id: str, round: int, reason: str) -> None:
        self._append("failed", self._requests[request_id], round=round, reason=reason)

    def rejected(self, request_id: str, round: int, reason: str) -> None:
        self._append("rejected", self._requests[request_id], round=round, reason=reason)

    def verified(self, request_id: str, round: int, passed: bool, **info: float | int | str) -> None:
        """Record the outcome of a check: `passed` makes the request verified, otherwise it stays served."""
        self._append("verified" if passed else "verification_failed", self._requests[request_id], round=round, **info)

    def roll_back(self, round: int) -> list[str]:
        """Make pending again what was served after `round`; returns the ids."""
        late = [r for r in self._requests.values() if r.served_round is not None and r.served_round > round]
        for request in late:
            self._append("rolled_back", request, round=round, reason="the run resumed from an earlier checkpoint")
        return [r.id for r in late]

    def _append(self, event: str, request: Request, **fields: object) -> None:
        entry = {"event": event, "id": request.id, "client": request.client, "time": time.time(), **fields}
        if event == "failed":
            entry["attempts"] = request.attempts + 1
        append_lines(self.path, [entry])
        self._apply(entry)

    def _apply(self, entry: Mapping) -> None:
        event, request_id = entry["event"], entry["id"]
        if event == "submitted":
            self._requests[request_id] = Request(
                id=request_id,
                client=int(entry["client"]),
                record_ids=tuple(entry["record_ids"]),
                round=int(entry["round"]),
                reason=entry.get("reason", ""),
            )
            return
        known = self._requests.get(request_id)
        if known is None:
            raise RequestError(f"{self.path}: event {event!r} names request {request_id!r}, which was never submitted")
        changes: dict[str, dict] = {
            "served": {"state": SERVED, "served_round": entry.get("round")},
            "failed": {"attempts": known.attempts + 1},
            "rejected": {"state": REJECTED},
            "verified": {"state": VERIFIED},
            "verification_failed": {},
            "rolled_back": {"state": PENDING, "served_round": None},
        }
        if event not in changes:
            raise RequestError(f"{self.path}: unknown event {event!r} for request {request_id!r}")
        self._requests[request_id] = replace(known, **changes[event])


class Policy(Protocol):
    """Creates requests. `holdings` maps a client to those of its forget records that nobody has asked to delete yet."""

    def due(self, round: int, holdings: Mapping[int, Sequence[str]]) -> list[Request]: ...


@dataclass(frozen=True, slots=True)
class RandomClientPerRound:
    """In each round one randomly chosen client asks for its share of the forget split (the paper's §4.1)."""

    seed: int

    def due(self, round: int, holdings: Mapping[int, Sequence[str]]) -> list[Request]:
        candidates = sorted(client for client, ids in holdings.items() if ids)
        if not candidates:
            return []
        client = random.Random(f"{self.seed}/requests/{round}").choice(candidates)
        return [_request(round, client, holdings[client], "its share of the forget split")]


@dataclass(frozen=True, slots=True)
class AllAtRound:
    """At one round the named clients (None: all that hold forget records) ask at the same time."""

    round: int
    clients: tuple[int, ...] | None = None

    def due(self, round: int, holdings: Mapping[int, Sequence[str]]) -> list[Request]:
        if round != self.round:
            return []
        named = sorted(holdings) if self.clients is None else self.clients
        return [_request(round, c, holdings[c], "its share of the forget split") for c in named if holdings.get(c)]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A fixed schedule of requests, read from a file of JSON lines."""

    requests: tuple[Request, ...]

    def due(self, round: int, holdings: Mapping[int, Sequence[str]]) -> list[Request]:
        return [r for r in self.requests if r.round == round]


@dataclass(frozen=True, slots=True)
class NoRequests:
    """Nobody asks for anything."""

    def due(self, round: int, holdings: Mapping[int, Sequence[str]]) -> list[Request]:
        return []


def _request(round: int, client: int, record_ids: Sequence[str], reason: str) -> Request:
    return Request(f"round-{round:04d}-client-{client:04d}", client, tuple(record_ids), round, reason)


def read_schedule(path: Path, held: Mapping[int, Sequence[str]]) -> Schedule:
    """Read requests from JSON lines with the fields `client`, `round`, `record_ids`, and optionally `id` and `reason`.

    `held` maps each client to the ids of all its records. All faults of the file are reported at once, with their line.
    """
    if not path.is_file():
        raise RequestError(f"unlearning.requests.file: there is no file {path}")
    problems, requests = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            problems.append(f"{where}: not JSON ({error.msg})")
            continue
        missing = [k for k in ("client", "round", "record_ids") if not isinstance(row, dict) or k not in row]
        if missing:
            problems.append(f"{where}: missing {', '.join(missing)}; expected client, round, record_ids")
            continue
        client, round_, ids = row["client"], row["round"], row["record_ids"]
        if client not in held:
            problems.append(f"{where}: client {client!r} does not exist; expected 0 to {len(held) - 1}")
            continue
        if not isinstance(round_, int) or round_ < 1:
            problems.append(f"{where}: round {round_!r}; expected a whole number of at least 1")
            continue
        foreign = [i for i in ids if i not in set(held[client])] if isinstance(ids, list) else [ids]
        if not ids or foreign:
            what = f"record {foreign[0]!r} is not held by client {client}" if foreign else "no record ids"
            problems.append(f"{where}: {what}")
            continue
        identifier = str(row.get("id", f"file-{number:04d}-client-{client:04d}"))
        requests.append(Request(identifier, client, tuple(ids), round_, str(row.get("reason", ""))))
    if problems:
        raise RequestError("\n".join(problems))
    return Schedule(tuple(requests))
