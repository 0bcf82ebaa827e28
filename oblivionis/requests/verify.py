"""`request verify`: are ledgers as they were written, and do those of both sides know each other?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from oblivionis.chain import GENESIS, HASH, Checked, check_chain
from oblivionis.errors import RunError
from oblivionis.requests.node_ledger import LEDGER_FILE

Finding = tuple[Checked, list[str]]
"""A ledger and what is wrong with it."""


def find_ledger(place: Path) -> Path:
    """The ledger of a run folder, of a node folder, or the file itself. RunError when there is none."""
    path = place / LEDGER_FILE if place.is_dir() else place
    if not path.is_file():
        raise RunError(f"{path}: there is no ledger of requests here; expected a run folder, a node folder or a file")
    return path


def check_ledgers(places: Sequence[Path], node_dirs: Sequence[Path]) -> list[Finding]:
    """Check every line of the ledgers in `places` and `node_dirs`; each of the latter also against the one run's.

    With `node_dirs`, `places` must be the ledger of one run. RunError for what is no ledger.
    """
    if node_dirs and len(places) != 1:
        raise RunError("--node-dir compares the ledgers of nodes with that of one run: name one run folder")
    findings: list[Finding] = []
    for place in [*places, *node_dirs]:
        checked = check_chain(find_ledger(place))
        findings.append((checked, list(checked.faults)))
    if node_dirs:
        (run, wrong), *nodes = findings
        for node, faults in nodes:
            wrong_here, wrong_there = compare(run, node)
            wrong += wrong_here
            faults += wrong_there
    return findings


def compare(run: Checked, node: Checked) -> tuple[list[str], list[str]]:
    """What is wrong with a run's ledger, and with a node's, by what each noted of the other at every query."""
    ours = next((entry[HASH] for entry in run.entries if HASH in entry), GENESIS)
    name = next((entry.get("run") for entry in run.entries if entry.get("event") == "opened"), None)
    queries = [(n, e) for n, e in enumerate(node.entries, start=1) if e.get("event") == "queried"]
    mine = [(n, e) for n, e in queries if e.get("ledger") == ours]
    if not mine:
        if any(e.get("run") == name for _, e in queries):
            return [f"{node.path} noted another ledger of a run called {name}: this one was replaced"], []
        return [], []
    heads = [(n, e.get("server_head")) for n, e in mine]
    wrong_run = _in_order(heads, run, f"{node.path} noted in line")
    client = str(mine[-1][1].get("client"))
    noted = [
        (n, e["heads"][client])
        for n, e in enumerate(run.entries, start=1)
        if e.get("event") == "asked" and client in e.get("heads", {})
    ]
    return wrong_run, _in_order(noted, node, f"{run.path} noted in line")


def strangers(run: Checked, node: Checked) -> str:
    """Why a run's ledger and a node's cannot be compared; empty where they can, or where one was replaced."""
    ours = next((entry[HASH] for entry in run.entries if HASH in entry), GENESIS)
    name = next((entry.get("run") for entry in run.entries if entry.get("event") == "opened"), None)
    queries = [e for e in node.entries if e.get("event") == "queried"]
    if any(e.get("ledger") == ours or e.get("run") == name for e in queries):
        return ""
    return f"it noted no query of the run of {run.path}: the two cannot be compared"


def _in_order(noted: Sequence[tuple[int, object]], checked: Checked, who: str) -> list[str]:
    """Every noted head must be the hash of a line, each not before the one noted earlier."""
    places = {line: number for number, line in enumerate(checked.hashes)}
    places[GENESIS] = -1
    faults: list[str] = []
    reached = -1
    for number, head in noted:
        place = places.get(str(head))
        if place is None:
            faults.append(
                f"{who} {number} that it ended with {str(head)[:12]}…, and no line has that hash: lines are gone"
            )
            return faults
        if place < reached:
            faults.append(f"{who} {number} an earlier end than before: lines were moved, or an old copy was put back")
        reached = max(reached, place)
    return faults
