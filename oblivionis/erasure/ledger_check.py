"""`request verify`: are ledgers as they were written, and do those of both sides know each other?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from oblivionis.chain import GENESIS, HASH, Checked, check_chain
from oblivionis.erasure.events import Asked, Event, Queried, line_fault, read_event
from oblivionis.erasure.node_ledger import LEDGER_FILE
from oblivionis.erasure.request import RequestError
from oblivionis.erasure.request_states import NodeStates, RunStates
from oblivionis.errors import RunError
from oblivionis.files import checked as of_shape
from oblivionis.runs.ledger_run_events import run_name

E = TypeVar("E", bound=Event)
_Noted = tuple[int, str, int]
"""Of the other side: where it says so, with which hash the ledger ended, and after how many lines (0: not known)."""
Finding = tuple[Checked, list[str]]
"""A ledger and what is wrong with it."""


class _Ledger(TypedDict):
    lines: int
    head: str


class _Evidence(TypedDict):
    ledger: _Ledger


class _Part(TypedDict):
    evidence: _Evidence


class _Run(TypedDict):
    name: str


class _Certificate(TypedDict):
    run: _Run
    requests: list[_Part]


@dataclass(frozen=True, slots=True)
class Certified:
    """What a certificate says of a run's ledger: its file, its JSON, and `doubt`, why nothing shows who made it, empty
    where its signer is known."""

    path: Path
    certificate: Mapping[str, Any]
    doubt: str = ""

    def __post_init__(self) -> None:
        """RunError for what does not say where a ledger ended."""
        try:
            of_shape(self.certificate, _Certificate)
        except ValueError as error:
            raise RunError(f"{self.path}: {error}") from None
        if not self.certificate["requests"]:
            raise RunError(
                f"{self.path}: requests: expected at least one, each with where the run's ledger ended; found none"
            )

    @property
    def run(self) -> str:
        """The name of the run that it is of."""
        return self.certificate["run"]["name"]

    def disagrees(self, run: Checked) -> list[str]:
        """What is wrong with a run's ledger by where it ended then."""
        ledgers = [part["evidence"]["ledger"] for part in self.certificate["requests"]]
        heads = [(number, ledger["head"], ledger["lines"]) for number, ledger in enumerate(ledgers, start=1)]
        return _in_order(heads, run, f"{self.path} says of request")

    def untested(self, run: Checked) -> str:
        """Why it says nothing of a run's ledger; empty where it does."""
        name = run_name(run.entries)
        if name not in (None, self.run):
            return f"{self.path} is of the run {self.run}, and this is the ledger of {name}: the two cannot be compared"
        if not self.doubt:
            return ""
        faults = self.disagrees(run)
        return f"{self.path} {self.doubt}; {f'it says otherwise: {faults[0]}' if faults else 'what it says fits'}"


def find_ledger(place: Path) -> Path:
    """The ledger of a run folder, of a node folder, or the file itself. RunError when there is none."""
    path = place / LEDGER_FILE if place.is_dir() else place
    if not path.is_file():
        raise RunError(f"{path}: there is no ledger of requests here; expected a run folder, a node folder or a file")
    return path


def check_ledgers(
    places: Sequence[Path], node_dirs: Sequence[Path], certificates: Sequence[Certified] = ()
) -> list[Finding]:
    """Check every line of the ledgers in `places` and `node_dirs`; each of the latter also against the one run's.

    A line that is as it was written and makes no sense is a remark: a program wrote it so. `certificates`: of these
    each says where the run's ledger ended when it was made; what nobody known signed, or is of another run
    (`Certified.untested`), shows no fault. With these or `node_dirs`, `places` must be the ledger of one run. RunError
    for what is no ledger.
    """
    if (node_dirs or certificates) and len(places) != 1:
        raise RunError("--node-dir and --certificate compare with the ledger of one run: name one run folder")
    findings: list[Finding] = []
    for place in [*places, *node_dirs]:
        checked = check_chain(find_ledger(place))
        checked = replace(checked, remarks=(*checked.remarks, *_senseless(checked)))
        findings.append((checked, list(checked.faults)))
    if node_dirs:
        (run, run_faults), *nodes = findings
        for node, node_faults in nodes:
            of_run, of_node = compare(run, node)
            run_faults += of_run
            node_faults += of_node
    for certified in certificates:
        run, run_faults = findings[0]
        run_faults += [] if certified.untested(run) else certified.disagrees(run)
    return findings


def _senseless(checked: Checked) -> Iterator[str]:
    """Which lines of an unbroken ledger say what no program should write, one after another."""
    made = next((line for line in checked.entries if line.get("event") == "submitted"), {})
    states = RunStates() if "client" in made else NodeStates()
    for number, line in enumerate(() if checked.faults else checked.entries, start=1):
        try:
            states.apply(read_event(line))
        except RequestError as error:
            yield f"line {number} is as it was written, and makes no sense: {error}"


def compare(run: Checked, node: Checked) -> tuple[list[str], list[str]]:
    """What is wrong with a run's ledger, and with a node's, by what each noted of the other at every query."""
    of_run, of_node = _compared(run, node)
    return [*of_run, *_unreadable(run, "asked")], [*of_node, *_unreadable(node, "queried")]


def _unreadable(checked: Checked, event: str) -> Iterator[str]:
    """Why lines about queries cannot be compared with the other ledger."""
    for number, line in enumerate(checked.entries, start=1):
        if line.get("event") == event and (fault := line_fault(line)):
            yield f"line {number} cannot be compared: {fault}"


def _compared(run: Checked, node: Checked) -> tuple[list[str], list[str]]:
    first, name = _first(run), run_name(run.entries)
    queries = list(_events(node, Queried))
    of_run = [(number, query) for number, query in queries if query.ledger == first]
    if not of_run:
        if any(query.run == name for _, query in queries):
            return [f"{node.path} noted another ledger of a run called {name}: this one was replaced"], []
        return [], []
    heads = [(number, query.server_head, query.server_lines) for number, query in of_run]
    run_faults = _in_order(heads, run, f"{node.path} noted in line")
    client = str(of_run[-1][1].client)
    noted = [(number, asked.heads[client], 0) for number, asked in _events(run, Asked) if client in asked.heads]
    return run_faults, _in_order(noted, node, f"{run.path} noted in line")


def strangers(run: Checked, node: Checked) -> str:
    """Why a run's ledger and a node's cannot be compared; empty where they can, or where one was replaced."""
    first, name = _first(run), run_name(run.entries)
    if any(query.ledger == first or query.run == name for _, query in _events(node, Queried)):
        return ""
    return f"it noted no query of the run of {run.path}: the two cannot be compared"


def _first(run: Checked) -> str:
    """The hash of a ledger's first line, by which others know it."""
    return next((entry[HASH] for entry in run.entries if HASH in entry), GENESIS)


def _events(checked: Checked, kind: type[E]) -> Iterator[tuple[int, E]]:
    """The events of a kind with their numbers; lines that make no sense are passed over."""
    for number, line in enumerate(checked.entries, start=1):
        if not line_fault(line) and isinstance(event := read_event(line), kind):
            yield number, event


def _in_order(noted: Sequence[_Noted], checked: Checked, who: str) -> list[str]:
    """Every noted head must be the hash of a line, of that number where it is known, and each not before the one noted
    earlier."""
    places = {line: number for number, line in enumerate(checked.hashes)}
    places[GENESIS] = -1
    faults: list[str] = []
    reached = -1
    for number, head, count in noted:
        place, after = places.get(head), f" after {count} lines" if count else ""
        if place is None:
            there = len(checked.hashes)
            faults.append(
                f"{who} {number} that it ended with {head[:12]}…{after}, and none of the {there} there are has "
                "that hash: lines are gone, or were written anew"
            )
            return faults
        if count and place + 1 != count:
            faults.append(f"{who} {number} that line {count} has the hash that line {place + 1} has: lines were moved")
        if place < reached:
            faults.append(f"{who} {number} an earlier end than before: lines were moved, or an old copy was put back")
        reached = max(reached, place)
    return faults
