"""The requests that are made on a node, and what the server said of them: a hash-chained file in the node's folder."""

from __future__ import annotations

import itertools
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
from filelock import FileLock, Timeout

from oblivionis.chain import HASH, Checked, append_all, append_linked, check_chain, head_of
from oblivionis.config.schema import Requests
from oblivionis.erasure.ledger import OUTCOMES, RequestError
from oblivionis.erasure.query_schema import valid_id
from oblivionis.erasure.verification_evidence import ExchangeCounts, RequestCounts
from oblivionis.erasure.verification_rules import NOT_VERIFIED, VERIFIED, Thresholds
from oblivionis.erasure.verification_rules import OUTCOMES as JUDGED
from oblivionis.errors import FileError
from oblivionis.files import read_lines
from oblivionis.naming import subject_key
from strategies.message_keys import AUDIT, BURY, SCOPE_CLIENT, SCOPE_RECORDS, SCOPE_SUBJECT, UNLEARN

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
_SETTLED = (VERIFIED, COVERED)
_LOCK_SECONDS = 60.0
_UNMEASURED = "by the word of its server alone: this node measures nothing"
_WAITING = "in a cover exchange; the server has not said yet whether it counts"
REFUSED, EXCHANGED, RUN_LEARNED, KEY_MADE = "refused", "exchanged", "run", "key"
"""Events about no request: what was refused to a server, what was sent to one, the configuration of a run when the node
first learned of it, and the public key of the node's audits."""
RECORDS, BESIDE = "records", "beside"
"""Of a line `exchanged`: the hashes of what the work was done with, the node's records and what it reads beside them.
"""
TOOK_PART = "took_part"
"""An event about no request: the node trains for a sum under masks (`oblivionis.client.single_participation`)."""
COMMITTED, REJOINED = "committed", "rejoined"
"""Events of a cover exchange: what the node adds to its sum, sealed (`oblivionis.erasure.hidden_requests`); the same
once more.
"""
DECIDED, HELD_BACK, WITHDRAWN, NEAR_COPIES = "decided", "held_back", "withdrawn", "near_copies"
"""Events of demands about a person: records named alike that are not about them; records that turned up later and are
held back; the demand does not stand any more. And about no request: records that say nearly what one that is not to be
trained on says."""
_OF_PERSONS = (DECIDED, HELD_BACK, WITHDRAWN)
REFUSALS_PER_DAY = 100
"""Lines about refusals that a day (UTC) may have: no server fills the disk."""


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """A request made on this node. `reason` and `subject` stay here; `note` is what the server said last in words.

    `exchanges`: how many cover exchanges it was in, those left out in which the node itself added nothing. `covered`:
    records within its scope that earlier requests of the node name; they are not among `record_ids`. Of one about
    a person: `included`, `excluded`: records that are named alike, and were said to be about the person, or not;
    `held_back`: those that turned up later and are not trained on, since the demand stands; `withdrawn`: it does not.
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
    covered: tuple[str, ...] = ()
    included: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    held_back: tuple[str, ...] = ()
    withdrawn: bool = False

    @property
    def stands(self) -> bool:
        """Whether it is about a person whose later records are held back, too."""
        return self.scope == SCOPE_SUBJECT and bool(self.subject) and not self.withdrawn

    @property
    def settled(self) -> bool:
        """Whether nothing more is to be done: verified, or covered by earlier requests; no server's word alone makes
        it so."""
        return self.state in _SETTLED

    @property
    def everything(self) -> tuple[str, ...]:
        """Ids of all records within its scope."""
        return (*self.record_ids, *self.covered)

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
            f"{len(self.held_back)} later record{'s' * (len(self.held_back) > 1)} held back" if self.held_back else "",
            "withdrawn: does not stand for later records" if self.withdrawn else "",
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
    included: list[str]
    excluded: list[str]
    contents: dict[str, str]
    count: int
    already: int
    covered: list[str]
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
    kind: str
    client: int
    requests: list[str]
    numbers: dict[str, float]
    prev: str
    hash: str


class NodeLedger:
    """`requests.jsonl` of a node's folder: appended to only, by one process at a time, each line before it counts.

    The command line and the ClientApp are different processes: each call reads the file anew, under a lock where it
    writes. A line torn by a crash is passed over. States: open → served → verified or not verified; rejected; covered
    (all its records were asked for before). The server is told of every request that is not settled, as often as it
    asks; it serves none twice. In a cover exchange, of which the server is told nothing: open → sealed → served.

    What a server says is entered, and believed as far as the node's own lines bear it out (`_Standing`): none of its
    words alone ends a demand.
    """

    def __init__(self, node_dir: Path) -> None:
        self.node_dir = node_dir
        self.path = node_dir / LEDGER_FILE
        self._made_here = False

    def requests(self) -> list[NodeRequest]:
        """All requests in the order in which they were made. RequestError for a file that is no such ledger."""
        return list(replay(self.path, self.entries()).values())

    def unsettled(self) -> list[NodeRequest]:
        """What the server is told of."""
        return [r for r in self.requests() if not r.settled]

    def asked(self) -> frozenset[str]:
        """Ids of the records that requests name, from the moment on at which they were made, and of those held back.

        Also of those that a server says it rejected: its word alone brings no record back into training.
        """
        return frozenset(i for r in self.requests() for i in (*r.record_ids, *r.held_back))

    def contents(self, *, excluded: bool = False) -> dict[str, tuple[str, str]]:
        """By what it says (`oblivionis.data.twins.content_key`) the id of each record that a request names, or one that
        is `excluded` from a demand about a person, and the id of that request."""
        lines = [e for e in self.entries() if "contents" in e and "id" in e]
        return {
            content: (i, e["id"])
            for e in lines
            for i, content in e["contents"].items()
            if (i in e.get("excluded", ())) == excluded
        }

    def head(self) -> str:
        """The hash of the newest line."""
        return head_of(self.entries())

    def submit(
        self,
        record_ids: Sequence[str],
        *,
        scope: str = SCOPE_RECORDS,
        subject: str = "",
        reason: str = "",
        identifier: str | None = None,
        included: Sequence[str] = (),
        excluded: Sequence[str] = (),
        contents: Mapping[str, str] | None = None,
    ) -> NodeRequest:
        """Enter a request, durably. Records that an unsettled request names are left out.

        contents: by id what the records say (`oblivionis.data.twins.content_key`); the rest as in `NodeRequest`.
        Raises RequestError for a taken or unfit id, no records, or when unsettled requests name all records.
        """
        if identifier is not None and not valid_id(identifier):
            raise RequestError(
                f"--id {identifier!r}: expected 1 to 64 letters, digits, dots, - and _, no dot, - or _ first"
            )
        if not record_ids:
            raise RequestError("a request must name at least one record")
        with self._locked():
            entries = self.entries()
            known = replay(self.path, entries)
            if identifier in known:
                raise RequestError(f"--id {identifier}: this node has made a request of that name already")
            asked = {i: r.id for r in known.values() if not (r.settled or r.state == REJECTED) for i in r.record_ids}
            new = [i for i in dict.fromkeys(record_ids) if i not in asked]
            covered = [i for i in dict.fromkeys(record_ids) if i in asked]
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
                "already": len(covered),
                **({"covered": covered} if covered else {}),
                "reason": reason,
                **({"subject": subject} if scope == SCOPE_SUBJECT else {}),
                **({"included": list(included)} if included else {}),
                **({"excluded": list(excluded)} if excluded else {}),
                **({"contents": dict(contents)} if contents else {}),
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
            entries = self.entries()
            new = [{"event": entry["event"], "time": time.time(), **entry} for entry in make(entries)]
            return [*entries, *append_all(self.path, new, head_of(entries))]

    def heard(
        self, run: str, ledger: str, outcomes: Sequence[Mapping[str, Any]], *, audits: bool = True, **query: object
    ) -> list[str]:
        """Enter what the server told in a query, then the query itself; returns the outcomes that are in the ledger.

        An outcome is known by `line`, the hash of the server's line, and entered once; one about a request that this
        node did not make is not entered. audits: whether this node may measure at all; where it may not, the server's
        word that a request is verified has to do. `query` goes into the line `queried`.
        """
        with self._locked():
            entries = self.entries()
            known = {e["line"] for e in entries if "line" in e}
            made, head, confirmed = replay(self.path, entries), head_of(entries), []
            for outcome in outcomes:
                if outcome["id"] not in made:
                    continue
                if outcome["line"] not in known:
                    more = {"time": time.time(), "run": run, **({} if audits else {"audits": False})}
                    line = append_linked(self.path, {**outcome, **more}, head)
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
            entries = self.entries()
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
        return [e for e in self.entries() if event in (None, e["event"])]

    def exchanges(self) -> list[Mapping[str, Any]]:
        """What this node sent to servers, in order: the lines `exchanged`, each with `asked`, the ids of the records
        that requests named before it or that were held back then, and `config`, the hash of the run's configuration as
        the node knew it then."""
        found, known, configs = [], dict[str, NodeRequest](), dict[str, str]()
        for entry in self.entries():
            if entry["event"] == "submitted":
                _enter(known, entry)
            elif entry["event"] in _OF_PERSONS and entry.get("id") in known:
                _decide(known, entry)
            elif entry["event"] == RUN_LEARNED:
                configs[entry["run"]] = entry["config"]
            elif entry["event"] == EXCHANGED:
                asked = frozenset(i for r in known.values() for i in (*r.record_ids, *r.held_back))
                found.append({**entry, "asked": asked, "config": configs.get(entry["run"])})
        return found

    def verify(self) -> Checked:
        """Look at every line of the file; see `oblivionis.chain.check_chain`."""
        return check_chain(self.path)

    def _learned(self, run: str) -> str | None:
        """The hash of the configuration that `run` had last."""
        found = [e.get("config") for e in self.lines(RUN_LEARNED) if e.get("run") == run]
        return found[-1] if found else None

    def entries(self) -> list[dict[str, Any]]:
        """All lines, in their order; none of a ledger that was just made. RequestError for a file that is no ledger."""
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


def lack(record_ids: Iterable[str], held: Collection[str]) -> str:
    """Why a client that holds these records cannot be asked to forget `record_ids`; empty where it can."""
    absent = sorted(set(record_ids).difference(held))
    return f"this client does not hold record {absent[0]!r} any more" if absent else ""


def own_id(request_id: str, client: int) -> str:
    """The id by which the node itself knows a request whose id the server had to change."""
    return re.sub(rf"-client-{client:04d}(-\d+)?\Z", "", request_id)


def _requests(path: Path, entries: Sequence[Mapping[str, Any]]) -> dict[str, NodeRequest]:
    standing = _Standing(path)
    for entry in entries:
        standing.take(entry)
    return standing.requests


class _Standing:
    """What has become of a node's requests, by its own lines, and by a server's where the node's bear them out.

    | a server says | believed where this node's own lines say that |
    | --- | --- |
    | `served` | it did the exchange of that run and round for the request; one that is undone is done again |
    | `verified` | the request is served by that run, and what it measured before and of the final model says so, too |
    | `covered` | all its records are named by requests made here before, none of them rejected |
    | `verification_failed` | the request is served by that run |
    | `failed`, `rejected`, `rolled_back` | always: none of them ends the demand |

    What is not believed leaves the request as it is, with a note that says so.
    """

    def __init__(self, path: Path) -> None:
        self.requests: dict[str, NodeRequest] = {}
        self._path = path
        self._worked = Counter[tuple[str, int, str]]()
        self._measured: dict[tuple[str, str], dict[str, Mapping[str, float] | None]] = {}

    def take(self, entry: Mapping[str, Any]) -> None:
        """Take up the next line. KeyError, TypeError and ValueError for one that makes no sense."""
        event = entry["event"]
        if event == "submitted":
            _enter(self.requests, entry)
        elif event == EXCHANGED:
            self._exchanged(entry)
        elif event == REJOINED:
            for request_id in entry["requests"]:
                asked = self.requests[request_id]
                self.requests[request_id] = replace(asked, exchanges=asked.exchanges + 1)
        elif event == COMMITTED:
            for request_id in (demand["id"] for demand in entry["demands"]):
                asked = self.requests[request_id]
                sealed = {"state": SEALED, "run": entry["run"], "note": _WAITING}
                count = asked.exchanges + (not entry.get("again", False))
                self.requests[request_id] = replace(asked, **sealed, served_round=None, rouge=None, exchanges=count)
        elif "id" in entry:
            if entry["id"] not in self.requests:
                raise RequestError(f"{self._path}: {event!r} is about request {entry['id']!r}, which was never made")
            if event in _OF_PERSONS:
                _decide(self.requests, entry)
                return
            request = self.requests[entry["id"]]
            # Only what a server said has the hash of its line.
            doubt = self._doubt(request, entry) if "line" in entry else ""
            self.requests[request.id] = replace(request, note=doubt) if doubt else self._changed(request, entry)
            if event == "served" and "line" in entry and not doubt:
                self._worked[entry["run"], entry["round"], request.id] -= 1

    def _exchanged(self, entry: Mapping[str, Any]) -> None:
        """Keep what the node did for requests, and what it measured of them last, by moment."""
        for name in entry.get("requests", ()):
            request_id = name if name in self.requests else own_id(name, entry["client"])
            measured = self._measured.setdefault((entry["run"], request_id), {})
            if entry["kind"] in (UNLEARN, BURY):
                self._worked[entry["run"], entry["round"], request_id] += 1
                measured.pop("final", None)
            elif entry["kind"] == AUDIT:
                measured[entry["moment"]] = entry.get("numbers")

    def _doubt(self, request: NodeRequest, entry: Mapping[str, Any]) -> str:
        """Why this node does not believe what a server says of a request; empty where it does."""
        event, run = entry["event"], entry["run"]
        said = f"run {run} says that it is {event.replace('_', ' ')}"
        if event == "served":
            known = self._worked[run, entry["round"], request.id]
            return "" if known > 0 else f"{said}; this node did no such exchange"
        if event in ("verified", "verification_failed"):
            if request.served_round is None or request.run != run:
                return f"{said}; by this node's ledger it did not serve the request"
            return self._unverified(request, entry, said) if event == "verified" else ""
        if event == "covered":
            earlier = itertools.takewhile(lambda r: r.id != request.id, self.requests.values())
            named = {i for r in earlier if r.state != REJECTED for i in r.record_ids}
            missing = set(request.record_ids) - named
            return f"{said}; no earlier request of this node names {min(missing)!r}" if missing else ""
        return ""

    def _unverified(self, request: NodeRequest, entry: Mapping[str, Any], said: str) -> str:
        measured = self._measured.get((entry["run"], request.id), {})
        if "final" not in measured:
            return f"{said}; this node has not measured it" if entry.get("audits", True) else ""
        before, after, final = (measured.get(moment) for moment in ("before", "after", "final"))
        if final is None:  # an earlier version entered that it measured, and not what
            return ""
        recited = [None if numbers is None else numbers["request_recited"] for numbers in (before, after)]
        counts = RequestCounts(
            len(request.record_ids),
            final["request_recited"],
            ExchangeCounts(before=recited[0], after=recited[1]),
            short=final.get("request_short", 0.0),
            twins=int(final.get("request_twins", 0)),
        )
        # Which share of the records must be verified is the server's to say.
        found = replace(Thresholds.of(Requests()), min_testable=0.0).judge(counts)
        if found.outcome == VERIFIED:
            return ""
        return f"{said}; by this node's own audit it is {found.outcome}: {found.why}"

    def _changed(self, request: NodeRequest, entry: Mapping[str, Any]) -> NodeRequest:
        event, run = entry["event"], entry.get("run", "")
        measured = self._measured.get((run, request.id), {})
        note = {
            "verified": "" if "final" in measured else _UNMEASURED,
            "failed": f"attempt failed: {entry.get('reason', '')}",
            "rejected": str(entry.get("reason", "")),
            "left_out": str(entry.get("reason", "")),
            "verification_failed": str(entry.get("why", "")),
            "rolled_back": "to be served anew: the run resumed from an earlier checkpoint",
        }.get(event, "" if event in OUTCOMES else request.note)
        changed = replace(request, state=_state_after(entry, request.state), run=run or request.run, note=note)
        if event == "served":
            return replace(changed, served_round=entry.get("round"), rouge=None)
        if event in ("rolled_back", "left_out"):
            count = request.exchanges - entry.get("own", False)
            return replace(changed, served_round=None, rouge=None, exchanges=count)
        if event in ("verified", "verification_failed"):
            own = measured.get("final") or {}
            return replace(changed, rouge=own.get("request_rouge", entry.get("rouge")))
        return changed


def _state_after(entry: Mapping[str, Any], before: str) -> str:
    """The state that a line makes; only one by which a check failed says itself what was found."""
    event = entry["event"]
    if event == "verification_failed" and entry.get("outcome") in JUDGED and entry["outcome"] != VERIFIED:
        return entry["outcome"]
    return _STATE_AFTER.get(event, before)


def _enter(requests: dict[str, NodeRequest], entry: Mapping[str, Any]) -> None:
    """Take up a request that was made."""
    requests[entry["id"]] = made = _submitted(entry)
    _release(requests, made.subject, (*made.record_ids, *made.excluded))


def _decide(requests: dict[str, NodeRequest], entry: Mapping[str, Any]) -> None:
    """Take up what was said later of a demand about a person: one of `_OF_PERSONS`."""
    event, request = entry["event"], requests[entry["id"]]
    if event == WITHDRAWN:
        requests[request.id] = replace(request, held_back=(), withdrawn=True)
    elif event == HELD_BACK and not request.withdrawn:
        held_back = tuple(dict.fromkeys((*request.held_back, *entry["record_ids"])))
        requests[request.id] = replace(request, held_back=held_back)
    elif event == DECIDED:
        excluded = tuple(dict.fromkeys((*request.excluded, *entry["excluded"])))
        requests[request.id] = replace(request, excluded=excluded)
        _release(requests, request.subject, entry["excluded"])


def _release(requests: dict[str, NodeRequest], subject: str, record_ids: Collection[str]) -> None:
    """Hold these records back no more for a person: they are asked for, or not about the person."""
    for request in [r for r in requests.values() if r.held_back and subject_key(r.subject) == subject_key(subject)]:
        left = tuple(i for i in request.held_back if i not in record_ids)
        requests[request.id] = replace(request, held_back=left)


def _submitted(entry: Mapping[str, Any]) -> NodeRequest:
    return NodeRequest(
        entry["id"],
        entry["scope"],
        tuple(entry["record_ids"]),
        entry.get("reason", ""),
        entry.get("subject", ""),
        float(entry["time"]),
        covered=tuple(entry.get("covered", ())),
        included=tuple(entry.get("included", ())),
        excluded=tuple(entry.get("excluded", ())),
    )


def _new_id(known: Mapping[str, object]) -> str:
    while (name := f"{time.strftime('%Y%m%d')}-{secrets.token_hex(4)}") in known:
        pass
    return name
