"""The records that a client keeps on its own machine, and what the server learns of them: counts."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oblivionis.data.errors import DataError, raise_if_any
from oblivionis.data.own_records import content_id, never_trained, read_training
from oblivionis.data.records import Record
from oblivionis.data.twins import content_key, find_twins
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.errors import FileError
from oblivionis.files import read_bytes
from oblivionis.naming import DATA_FOLDER, REFERENCES_TABLE, simulated_folder
from oblivionis.row_files import FORMATS, SUFFIXES, need_all_parts, row_files, tables

log = logging.getLogger("flwr")

FACTS_FILE = "facts.jsonl"
NODE_DIR = "node-dir"
"""Key of a SuperNode's `--node-config`: the client's own folder."""
DATA_NODES = "data-nodes"
"""Key of a message's config: the folder of all clients' folders, in a simulation."""
NODES_DIR = "nodes-dir"
"""Key of a message's config: where the simulated clients of a run keep their folders."""
CONFIG_HASH = "config-hash"
"""Key of a query's config: the hash of the run's configuration, `config_hash`. Other messages carry all of it."""


@dataclass(frozen=True, slots=True)
class NodeRecords:
    """A client's records in the order of its files and lines, and the ids of those marked `forget`."""

    records: tuple[Record, ...]
    marked: frozenset[str]


def node_folder(node_config: Mapping[str, object], message_config: Mapping[str, object], client: int) -> NodeFolder:
    """The client's own folder: its `node-dir`, else `node<client>` under `data.nodes`, else one in the run directory.

    The folder that a client names itself always counts: no message can name another one.
    """
    if own := node_config.get(NODE_DIR):
        return NodeFolder(Path(str(own)).expanduser())
    if nodes := message_config.get(DATA_NODES):
        return NodeFolder(simulated_folder(str(nodes), client))
    return NodeFolder(Path(str(message_config.get(NODES_DIR, ""))) / str(client))


def read_node(folder: Path) -> NodeRecords:
    """The records of all files of rows in `<folder>/data`, whose ids are unique over all files.

    A record without an id has one that is made of what it says. Where it says, word for word, what one said that was
    asked for, it has that one's, so that an export with another space or capital letter makes no new record of it.

    Raises DataError with every faulty line (file and line), and where there is no folder, file or record.
    """
    data = folder / DATA_FOLDER
    if not data.is_dir():
        raise DataError(f"{data}: no such folder; expected the client's records in it ({FORMATS})")
    files = row_files(data)
    if not files:
        raise DataError(
            f"{data}: no file {', '.join(f'*{suffix}' for suffix in SUFFIXES)}; expected the client's records"
        )
    problems: list[str] = []
    try:
        need_all_parts(files)
    except FileError as error:
        problems.append(str(error))
    records, marked = read_training(files, problems)
    if not records and not problems:
        names = ", ".join(file.name for file in files)
        problems.append(f"{data}: expected at least one record in {names}, found none")
    raise_if_any(data, problems)
    known = _known_again(folder, records)
    named = (replace(r, id=known.get(r.id, r.id), subject=known.get(r.subject, r.subject)) for r in records)
    return NodeRecords(tuple(named), frozenset(known.get(i, i) for i in marked))


def contents(folder: Path) -> dict[str, tuple[str, str]]:
    """By what it says (`oblivionis.data.twins.content_key`) the id of each record that was asked for in a node's folder
    or is buried there, or else was said not to be about a person, and the id of the request."""
    ledger = NodeLedger(folder)
    return {**ledger.contents(excluded=True), **NodeFolder(folder).contents(), **ledger.contents()}


def _known_again(folder: Path, records: Sequence[Record]) -> dict[str, str]:
    """By its own id the id that a record without one had when it was asked for, where that id is not held any more."""
    if not (known := contents(folder)):
        return {}
    held, found = {r.id for r in records}, dict[str, str]()
    for r in records:
        own = content_id(r.question, r.answer, None if r.subject == r.id else r.subject)
        former = known.get(content_key(r), ("", ""))[0] if r.id == own else ""
        if former and former not in held:
            held.add(former)
            found[r.id] = former
    return found


def read_references(folder: Path, trained: Sequence[Record]) -> tuple[Record, ...]:
    """The records of `<folder>/references.jsonl` (or another format), none of which may be among `trained`.

    Those that say nearly what a trained one says are left out. Raises DataError with every faulty line, and where there
    is no such file or no record left in it.
    """
    records = never_trained(REFERENCES_TABLE, folder, trained)
    known = {twin.forget for twin in find_twins(records, trained)}
    if len(known) == len(records):
        raise DataError(
            f"{folder / REFERENCES_TABLE}: each record says what a record that is trained on says; expected others"
        )
    if known:
        log.warning(
            "%s: %d left out, since records that are trained on say the same", folder / REFERENCES_TABLE, len(known)
        )
    return tuple(record for record in records if record.id not in known)


def records_hash(records: Iterable[tuple[str, Sequence[int], Sequence[int]]]) -> str:
    """SHA-256 of what a client holds, in its order: id, tokens of the prompt, tokens of the answer of each record."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(json.dumps(record, separators=(",", ":")).encode())
    return digest.hexdigest()


def left_of(records: Iterable[tuple[str, Sequence[int], Sequence[int]]], withheld: Collection[str]) -> str:
    """`records_hash` of what is left of a client's records without those `withheld`."""
    return records_hash(record for record in records if record[0] not in withheld)


def other_files_hash(folder: Path) -> str:
    """SHA-256 of the files of a node's folder that work reads besides its records: references and facts, by name."""
    parts = [folder / FACTS_FILE, *(part for table in tables(folder, REFERENCES_TABLE) for part in table)]
    files = [file for part in parts for file in (sorted(part.rglob("*")) if part.is_dir() else [part])]
    digest = hashlib.sha256()
    for file in (file for file in files if file.is_file()):
        name = file.relative_to(folder).as_posix()
        digest.update(f"{name} {hashlib.sha256(read_bytes(file)).hexdigest()}\n".encode())
    return digest.hexdigest()


def counts(node: NodeFolder, found: NodeRecords | None = None) -> tuple[int, int]:
    """How many records the client holds, and how many of them it may be trained on: neither buried nor held back, and
    it has not left. found: its records, where they were read already."""
    found = found or read_node(node.path)
    buried = node.tombstones().union(*(r.held_back for r in NodeLedger(node.path).requests()))
    live = 0 if node.left_by() is not None else sum(r.id not in buried for r in found.records)
    return len(found.records), live
