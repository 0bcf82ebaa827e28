"""The requests that are made on a node, and what the server said of them: a hash-chained file in the node's folder."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from msgspec import to_builtins

from oblivionis.chain import HASH, Checked, append_all, check_chain, head_of
from oblivionis.erasure.events import Event, Exchanged, line_fault, read_event
from oblivionis.erasure.query_schema import valid_id
from oblivionis.erasure.request import REJECTED, NodeRequest, RequestError
from oblivionis.erasure.request_states import NodeStates
from oblivionis.errors import FileError
from oblivionis.files import read_lines
from oblivionis.runs.ancestry import Descent
from oblivionis.runs.ledger_run_events import DESCENDS
from strategies.message_keys import SCOPE_RECORDS, SCOPE_SUBJECT

LEDGER_FILE = "requests.jsonl"
_LOCK_SECONDS = 60.0
REFUSED, EXCHANGED, RUN_LEARNED, KEY_MADE, TOOK_PART = "refused", "exchanged", "run", "key", "took_part"
COMMITTED, REJOINED, SESSION = "committed", "rejoined", "session"
DECIDED, HELD_BACK, WITHDRAWN, NEAR_COPIES = "decided", "held_back", "withdrawn", "near_copies"
"""Events of a node's ledger: `oblivionis.erasure.events` tells what each of them says."""
RECORDS, BESIDE = "records", "beside"
"""Of a line `exchanged`: the hashes of what the work was done with, the node's records and what else it reads.
"""
REFUSALS_PER_DAY = 100
"""Lines about refusals that a day (UTC) may have: no server fills the disk."""


class NodeLedger:
    """`requests.jsonl` of a node's folder: appended to only, by one process at a time, each line before it counts.

    The command line and the ClientApp are different processes: each call reads the file anew, under a lock where it
    writes. A line torn by a crash is passed over. States: open → served → verified or not verified; rejected; covered
    (all its records were asked for before). The server gets every request that is not settled, as often as it
    asks; it serves none twice. In a cover exchange, of which the server learns nothing: open → sealed → served.

    What a server says is entered, and believed as far as the node's own lines bear it out
    (`oblivionis.erasure.request_states.NodeStates`): none of its words alone ends a demand.
    """

    def __init__(self, node_dir: Path) -> None:
        self.node_dir = node_dir
        self.path = node_dir / LEDGER_FILE
        self._made_here = False

    def requests(self) -> list[NodeRequest]:
        """All requests in the order in which they were made. RequestError for a file that is no such ledger."""
        return list(self.states().requests.values())

    def states(self) -> NodeStates:
        """What has become of the requests by now. RequestError for a file that is no such ledger."""
        return self.states_after(self._lines())

    def states_after(self, lines: Iterable[Mapping[str, Any]]) -> NodeStates:
        """The same after these lines, its first ones."""
        states = NodeStates()
        for number, line in enumerate(lines, start=1):
            self._apply(states, number, line)
        return states

    def unsettled(self, run: str = "") -> list[NodeRequest]:
        """The requests that are reported to the server of `run` (`NodeStates.due`)."""
        return self.states().due(run)

    def asked(self) -> frozenset[str]:
        """Ids of the records that requests name, from the moment on at which they were made, and of those held back.

        Also of those that a server says it rejected: its word alone brings no record back into training.
        """
        return self.states().withheld

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
            known = self.states_after(entries).requests
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
            self._append([entry], head_of(entries))
        return self.states_after([entry]).requests[entry["id"]]

    def note(self, event: str, request_id: str | None = None, **fields: object) -> str:
        """Append a line, about a request or none; returns its hash."""
        about = {} if request_id is None else {"id": request_id}
        with self._locked():
            entry = {"event": event, **about, "time": time.time(), **fields}
            return self._append([entry], self.head())[0][HASH]

    def extend(
        self, make: Callable[[Sequence[Mapping[str, Any]]], Iterable[Mapping[str, Any]]]
    ) -> list[Mapping[str, Any]]:
        """Append, durably and at once, what `make` makes of all lines before; no other process writes between.

        Returns all lines that there are then.
        """
        with self._locked():
            entries = self.entries()
            new = [{"event": entry["event"], "time": time.time(), **entry} for entry in make(entries)]
            return [*entries, *self._append(new, head_of(entries))]

    def heard(
        self,
        run: str,
        ledger: str,
        outcomes: Sequence[Mapping[str, Any]],
        *,
        audits: bool = True,
        descent: Descent | None = None,
        **query: object,
    ) -> list[str]:
        """Enter the outcomes in a query, then the query itself; returns the outcomes that are in the ledger.

        An outcome is known by `line`, the hash of the server's line, and entered once; one about a request that this
        node did not make is not entered. audits: whether this node may measure at all; where it may not, the server's
        word that a request is verified has to do. descent: of the run's first model, where others made that; it is
        entered once. `query` goes into the line `queried`.
        """
        with self._locked():
            entries = self.entries()
            known = {e["line"] for e in entries if "line" in e}
            made = self.states_after(entries).requests
            ours = [outcome for outcome in outcomes if outcome["id"] in made]
            more = {"run": run, **({} if audits else {"audits": False})}
            fresh = [of for of in ours if of["line"] not in known]
            new = {(of["line"], of["event"]): {**of, "time": time.time(), **more} for of in fresh}
            about = {"time": time.time(), "run": run, "ledger": ledger}
            begun = any(e["event"] == DESCENDS and e["ledger"] == ledger for e in entries)
            first = [] if descent is None or begun else [{"event": DESCENDS, **about, **to_builtins(descent)}]
            self._append([*new.values(), *first, {"event": "queried", **about, **query}], head_of(entries))
        return [outcome["line"] for outcome in ours]

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
            self._append([entry], self.head())
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
            self._append([entry], head_of(entries))
        return True

    def lines(self, event: str | None = None) -> list[Mapping[str, Any]]:
        """All lines, or those of one event, in their order."""
        return [e for e in self.entries() if event in (None, e["event"])]

    def exchanges(self) -> list[Mapping[str, Any]]:
        """What this node sent to servers, in order: the lines `exchanged`, each with `asked`, the ids of the records
        that requests named before it or that were held back then, and `config`, the hash of the run's configuration as
        the node knew it then."""
        sent, states = list[Mapping[str, Any]](), NodeStates()
        for number, line in enumerate(self._lines(), start=1):
            event = self._apply(states, number, line)
            if isinstance(event, Exchanged):
                sent.append({**line, "asked": states.withheld, "config": states.configs.get(event.run)})
        return sent

    def verify(self) -> Checked:
        """Check every line of the file; see `oblivionis.chain.check_chain`."""
        return check_chain(self.path)

    def _learned(self, run: str) -> str | None:
        """The hash of the configuration that `run` had last."""
        return self.states().configs.get(run)

    def entries(self) -> list[dict[str, Any]]:
        """All lines, in their order; none of a ledger that was just made. RequestError for a file that is no ledger."""
        lines = self._lines()
        for number, line in enumerate(lines, start=1):
            if fault := line_fault(line):
                raise self._altered(number, fault)
        return lines

    def _lines(self) -> list[dict[str, Any]]:
        """The same, whatever they say."""
        if self._made_here and not self.path.stat().st_size:
            return []
        try:
            return read_lines(self.path, finite=True)
        except FileError as error:
            raise RequestError(f"{self.path} is no ledger of requests: expected JSON objects ({error})") from None

    def _apply(self, states: NodeStates, number: int, line: Mapping[str, Any]) -> Event:
        """Take up a line of that number."""
        try:
            event = read_event(line)
            states.apply(event)
        except RequestError as error:
            raise self._altered(number, error) from None
        return event

    def _append(self, lines: Sequence[Mapping[str, Any]], head: str) -> list[dict[str, Any]]:
        """Append lines durably after the one with the hash `head`; none of them if one makes no sense (ValueError)."""
        if faults := list(filter(None, map(line_fault, lines))):
            raise ValueError(f"a line of the ledger makes no sense: {faults[0]}")
        return append_all(self.path, lines, head)

    def _altered(self, number: int, fault: object) -> RequestError:
        return RequestError(
            f"{self.path}: line {number}: {fault}. It is no ledger of requests, or was altered: try "
            "`oblivionis request verify`"
        )

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


def not_held(record_ids: Iterable[str], held: Collection[str]) -> str:
    """Why a client that holds these records cannot be asked to forget `record_ids`; empty where it can."""
    absent = sorted(set(record_ids).difference(held))
    return f"this client does not hold record {absent[0]!r} any more" if absent else ""


def _new_id(known: Mapping[str, object]) -> str:
    while (name := f"{time.strftime('%Y%m%d')}-{secrets.token_hex(4)}") in known:
        pass
    return name
