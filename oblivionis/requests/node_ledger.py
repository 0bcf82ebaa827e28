"""The requests that are made on a node, and what the server said of them: a hash-chained file in the node's folder."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
from filelock import FileLock, Timeout

from oblivionis.chain import HASH, Checked, append_all, append_linked, check_chain, head_of
from oblivionis.errors import FileError
from oblivionis.files import read_lines
from oblivionis.requests.judgement import NOT_VERIFIED, VERIFIED
from oblivionis.requests.ledger import OUTCOMES, RequestError
from oblivionis.requests.wire import valid_id
from strategies.protocol import SCOPE_CLIENT, SCOPE_RECORDS, SCOPE_SUBJECT

LEDGER_FILE = "requests.jsonl"
OPEN, SEALED, SERVED, REJECTED, COVERED = "open", "sealed", "served", "rejected", "covered"
_STATE_AFTER = {
    "served": SERVED,
    "verified": VERIFIED,
    "verification_failed": NOT_VERIFIED,
    "rejected": REJECTED,
    "rolled_back": OPEN,
    "left_out": OPEN,
    "covered": COVERED,
}
_SETTLED = (VERIFIED, REJECTED, COVERED)
_LOCK_SECONDS = 60.0
_WAITING = "in a cover exchange; the server has not said yet whether it counts"
REFUSED, EXCHANGED, RUN_LEARNED, KEY_MADE = "refused", "exchanged", "run", "key"
"""Events about no request: what was refused to a server, what was sent to one, the configuration of a run when the node
first learned of it, and the public key of the node's audits."""
COMMITTED, REJOINED = "committed", "rejoined"
"""Events of a cover exchange: what the node adds to its sum, sealed (`oblivionis.requests.sealed`); the same once more.
"""
REFUSALS_PER_DAY = 100
"""Lines about refusals that a day (UTC) may have: no server fills the disk."""


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """A request made on this node. `reason` and `subject` stay here; `note` is what the server said last in words.

    `exchanges`: how many cover exchanges it was in, those left out in which the node itself added nothing.
    """

    id: str
    scope: str
    record_ids: tuple[str, ...]
    reason: str = ""
    subject: str = ""
    time: float = 0.0
    state: str = OPEN
    run: str = ""
    served_round: int | None = None
    rouge: float | None = None
    note: str = ""
    exchanges: int = 0

    @property
    def settled(self) -> bool:
        """Whether nothing more is to be done: verified, rejected, or covered by earlier requests."""
        return self.state in _SETTLED

    @property
    def forgets(self) -> str:
        """What it is about, in words."""
        count = len(self.record_ids)
        records = f"{count} record{'s' * (count != 1)}"
        more = {SCOPE_CLIENT: f"all, {records}: the client leaves", SCOPE_SUBJECT: f"{records} about {self.subject}"}
        return more.get(self.scope, records)

    @property
    def told(self) -> str:
        """What has become of it, in words."""
        parts = [
            self.state,
            "" if self.served_round is None else f"round {self.served_round} of {self.run}",
            "" if self.rouge is None else f"ROUGE-L {self.rouge:.3f}",
            self.note,
            f"was in {self.exchanges} exchange{'s' * (self.exchanges > 1)}" if self.exchanges else "",
        ]
        return ", ".join(filter(None, parts))


class _Event(TypedDict):
    event: str


class _Line(_Event, total=False):
    id: str
    scope: str
    subject: str
    time: Annotated[float, msgspec.Meta(ge=0, le=1e11)]
    round: int
    record_ids: list[str]
    count: int
    already: int
    reason: str
    run: str
    session: str
    demands: list[dict[str, Any]]
    ledger: str
    line: str
    rouge: float | None
    outcome: str
    why: str
    requests: list[str]
    limit: float
    before: str
    after: str
    prev: str
    hash: str


class NodeLedger:
    """`requests.jsonl` of a node's folder: appended to only, by one process at a time, each line before it counts.

    The command line and the ClientApp are different processes: each call reads the file anew, under a lock where it
    writes. A line torn by a crash is passed over. States: open → served → verified or not verified; rejected; covered
    (all its records were asked for before). The server is told of every request that is not settled, as often as it
    asks; it serves none twice. In a cover exchange, of which the server is told nothing: open → sealed → served.
    """

    def __init__(self, node_dir: Path) -> None:
        self.node_dir = node_dir
        self.path = node_dir / LEDGER_FILE
        self._made_here = False

    def requests(self) -> list[NodeRequest]:
        """All requests in the order in which they were made. RequestError for a file that is no such ledger."""
        return list(replay(self.path, self._entries()).values())

    def unsettled(self) -> list[NodeRequest]:
        """What the server is told of."""
        return [r for r in self.requests() if not r.settled]

    def asked(self) -> frozenset[str]:
        """Ids of the records that requests name, from the moment on at which they were made.

        Also of those that a server says it rejected: its word alone brings no record back into training.
        """
        return frozenset(i for r in self.requests() for i in r.record_ids)

    def head(self) -> str:
        """The hash of the newest line."""
        return head_of(self._entries())

    def submit(
        self,
        record_ids: Sequence[str],
        *,
        scope: str = SCOPE_RECORDS,
        subject: str = "",
        reason: str = "",
        identifier: str | None = None,
    ) -> NodeRequest:
        """Enter a request, durably. Records that an unsettled request names are left out.

        Raises RequestError for a taken or unfit id, no records, or when unsettled requests name all records.
        """
        if identifier is not None and not valid_id(identifier):
            raise RequestError(
                f"--id {identifier!r}: expected 1 to 64 letters, digits, dots, - and _, no dot, - or _ first"
            )
        if not record_ids:
            raise RequestError("a request must name at least one record")
        with self._locked():
            entries = self._entries()
            known = replay(self.path, entries)
            if identifier in known:
                raise RequestError(f"--id {identifier}: this node has made a request of that name already")
            asked = {i: r.id for r in known.values() if not r.settled for i in r.record_ids}
            new = [i for i in dict.fromkeys(record_ids) if i not in asked]
            if not new:
                named = ", ".join(dict.fromkeys(asked[i] for i in record_ids))
                raise RequestError(f"all of these records are asked for already, by {named}")
            entry = {
                "event": "submitted",
                "id": identifier or _new_id(known),
                "scope": scope,
                "time": time.time(),
                "record_ids": new,
                "count": len(new),
                "already": len(set(record_ids)) - len(new),
                "reason": reason,
                **({"subject": subject} if scope == SCOPE_SUBJECT else {}),
            }
            append_linked(self.path, entry, head_of(entries))
        return _submitted(entry)

    def note(self, event: str, request_id: str | None = None, **fields: object) -> str:
        """Append a line, about a request or none; returns its hash."""
        about = {} if request_id is None else {"id": request_id}
        with self._locked():
            entry = {"event": event, **about, "time": time.time(), **fields}
            return append_linked(self.path, entry, self.head())[HASH]

    def extend(
        self, make: Callable[[Sequence[Mapping[str, Any]]], Iterable[Mapping[str, Any]]]
    ) -> list[Mapping[str, Any]]:
        """Append, durably and at once, what `make` makes of all lines before; no other process writes between.

        Returns all lines that there are then.
        """
        with self._locked():
            entries = self._entries()
            new = [{"event": entry["event"], "time": time.time(), **entry} for entry in make(entries)]
            return [*entries, *append_all(self.path, new, head_of(entries))]

    def heard(self, run: str, ledger: str, outcomes: Sequence[Mapping[str, Any]], **query: object) -> list[str]:
        """Enter what the server told in a query, then the query itself; returns the outcomes that are in the ledger.

        An outcome is known by `line`, the hash of the server's line, and entered once; one about a request that this
        node did not make is not entered. `query` goes into the line `queried`.
        """
        with self._locked():
            entries = self._entries()
            known = {e["line"] for e in entries if "line" in e}
            made, head, confirmed = replay(self.path, entries), head_of(entries), []
            for outcome in outcomes:
                if outcome["id"] not in made:
                    continue
                if outcome["line"] not in known:
                    line = append_linked(self.path, {**outcome, "time": time.time(), "run": run}, head)
                    head = line[HASH]
                confirmed.append(outcome["line"])
            queried = {"event": "queried", "time": time.time(), "run": run, "ledger": ledger, **query}
            append_linked(self.path, queried, head)
        return confirmed

    def learn(self, run: str, config: str, client: int, *, strict: bool = True) -> str | None:
        """Note the hash of the configuration of `run` (`config_hash`), once, when this node first hears of it.

        Returns None, or the hash that the run had before where that is another one. It is then noted only if not
        `strict`.
        """
        if self._learned(run) == config:
            return None
        with self._locked():
            known = self._learned(run)
            if known == config or (known is not None and strict):
                return None if known == config else known
            entry = {"event": RUN_LEARNED, "time": time.time(), "run": run, "config": config, "client": client}
            append_linked(self.path, entry, self.head())
        return known

    def refuse(self, reason: str, **about: object) -> bool:
        """Note that a server was refused something, once a day for each `about`; False where nothing was entered.

        No more than `REFUSALS_PER_DAY` lines are entered a day; the last of them says so.
        """
        day = time.strftime("%Y-%m-%d", time.gmtime())
        with self._locked():
            entries = self._entries()
            today = [e for e in entries if e["event"] == REFUSED and e.get("day") == day]
            if len(today) >= REFUSALS_PER_DAY or any(about.items() <= e.items() for e in today):
                return False
            last = (
                {"more": "further refusals of this day are not entered"} if len(today) == REFUSALS_PER_DAY - 1 else {}
            )
            entry = {"event": REFUSED, "time": time.time(), "day": day, **about, "reason": reason, **last}
            append_linked(self.path, entry, head_of(entries))
        return True

    def lines(self, event: str | None = None) -> list[Mapping[str, Any]]:
        """All lines, or those of one event, in their order."""
        return [e for e in self._entries() if event in (None, e["event"])]

    def exchanges(self) -> list[Mapping[str, Any]]:
        """What this node sent to servers, in order: the lines `exchanged`, each with `asked`, the ids of the records
        that requests named before it."""
        found, asked = [], set[str]()
        for entry in self._entries():
            if entry["event"] == "submitted":
                asked.update(entry["record_ids"])
            elif entry["event"] == EXCHANGED:
                found.append({**entry, "asked": frozenset(asked)})
        return found

    def verify(self) -> Checked:
        """Look at every line of the file; see `oblivionis.chain.check_chain`."""
        return check_chain(self.path)

    def _learned(self, run: str) -> str | None:
        """The hash of the configuration that `run` had last."""
        found = [e.get("config") for e in self.lines(RUN_LEARNED) if e.get("run") == run]
        return found[-1] if found else None

    def _entries(self) -> list[dict[str, Any]]:
        if self._made_here and not self.path.stat().st_size:
            return []
        try:
            return read_lines(self.path, _Line, finite=True)
        except FileError as error:
            raise RequestError(f"{self.path} is no ledger of requests: expected JSON objects ({error})") from None

    def _keep_private(self) -> None:
        """Reasons and names of people are in the file: it is its owner's alone."""
        self._made_here |= not self.path.exists()
        os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600))
        if self.path.stat().st_mode & 0o077:
            self.path.chmod(0o600)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.node_dir.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.node_dir / f".{LEDGER_FILE}.lock", timeout=_LOCK_SECONDS):
                self._keep_private()
                yield
        except Timeout:
            raise RequestError(f"{self.path} is in use by another process; try again") from None


def replay(path: Path, entries: Sequence[Mapping[str, Any]]) -> dict[str, NodeRequest]:
    """The requests by id, after all `entries` of the ledger at `path`. RequestError for lines that make no sense."""
    try:
        return _requests(path, entries)
    except (KeyError, TypeError, ValueError):
        raise RequestError(
            f"{path} is no ledger of requests, or was altered: try `oblivionis request verify`"
        ) from None


def _requests(path: Path, entries: Sequence[Mapping[str, Any]]) -> dict[str, NodeRequest]:
    requests: dict[str, NodeRequest] = {}
    for entry in entries:
        if entry["event"] == "submitted":
            requests[entry["id"]] = _submitted(entry)
        elif entry["event"] == REJOINED:
            for request_id in entry["requests"]:
                requests[request_id] = replace(requests[request_id], exchanges=requests[request_id].exchanges + 1)
        elif entry["event"] == COMMITTED:
            for request_id in (demand["id"] for demand in entry["demands"]):
                asked = requests[request_id]
                sealed = {"state": SEALED, "run": entry["run"], "note": _WAITING}
                count = asked.exchanges + (not entry.get("again", False))
                requests[request_id] = replace(asked, **sealed, served_round=None, rouge=None, exchanges=count)
        elif "id" in entry:
            if entry["id"] not in requests:
                raise RequestError(f"{path}: {entry['event']!r} is about request {entry['id']!r}, which was never made")
            requests[entry["id"]] = _changed(requests[entry["id"]], entry)
    return requests


def _submitted(entry: Mapping[str, Any]) -> NodeRequest:
    return NodeRequest(
        entry["id"],
        entry["scope"],
        tuple(entry["record_ids"]),
        entry.get("reason", ""),
        entry.get("subject", ""),
        float(entry["time"]),
    )


def _changed(request: NodeRequest, entry: Mapping[str, Any]) -> NodeRequest:
    event, run = entry["event"], entry.get("run", "")
    state = entry.get("outcome") or _STATE_AFTER.get(event, request.state)
    note = {
        "failed": f"attempt failed: {entry.get('reason', '')}",
        "rejected": str(entry.get("reason", "")),
        "left_out": str(entry.get("reason", "")),
        "verification_failed": str(entry.get("why", "")),
        "rolled_back": "to be served anew: the run resumed from an earlier checkpoint",
    }.get(event, "" if event in OUTCOMES else request.note)
    changed = replace(request, state=state, run=run or request.run, note=note)
    if event == "served":
        return replace(changed, served_round=entry.get("round"), rouge=None)
    if event in ("rolled_back", "left_out"):
        return replace(changed, served_round=None, rouge=None, exchanges=request.exchanges - entry.get("own", False))
    return replace(changed, rouge=entry["rouge"]) if "rouge" in entry else changed


def _new_id(known: Mapping[str, object]) -> str:
    while (name := f"{time.strftime('%Y%m%d')}-{secrets.token_hex(4)}") in known:
        pass
    return name
