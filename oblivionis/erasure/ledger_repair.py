"""`request repair`: set lines of a run's ledger aside that make no sense, and link the others anew."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oblivionis.chain import GENESIS, HASH, PREV, check_chain, line_hash, linked
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import RequestError
from oblivionis.errors import RunError
from oblivionis.files import write_atomic

NOTE = "repaired"
"""Event of the line that says what was done."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did: why which lines (from 1) were set aside, and where the ledger as it was is kept."""

    aside: Mapping[int, str]
    kept: Path | None


def repair(path: Path) -> Repaired:
    """Set aside the lines of the ledger at `path` that make no sense; nothing is done where there is none.

    In early versions a client's reply could overwrite the ledger's own fields by numbers of the same names. The lines
    after such a line are linked anew, a copy of the file as it was is kept in the same folder, and a last line says all
    this. RunError for a ledger whose chain is broken: it was altered, and that is not repaired.
    """
    if not path.exists():
        return Repaired({}, None)
    checked = check_chain(path)
    if checked.faults:
        raise RunError(
            f"{path}: {checked.faults[0]}. The chain is broken, so somebody altered this file; that is not repaired"
        )
    good, aside = _sorted(path, checked.entries)
    if not aside:
        return Repaired({}, None)
    kept = next(
        p for n in range(1, 1 << 30) if not (p := path.with_name(f"{path.stem}.before-repair-{n}.jsonl")).exists()
    )
    shutil.copy2(path, kept)
    note = {
        "event": NOTE,
        "time": time.time(),
        "kept": kept.name,
        "was": checked.head,
        "aside": [{"line": n + 1, HASH: checked.hashes[n]} for n in sorted(aside)],
    }
    lines = _relinked(good, checked.entries, checked.hashes, note)
    write_atomic(path, "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines))
    return Repaired({number + 1: why for number, why in aside.items()}, kept)


def _sorted(path: Path, entries: Sequence[Mapping[str, Any]]) -> tuple[list[int], dict[int, str]]:
    """The places of the lines that make sense one after another, and why which others do not."""
    book, good, aside = Ledger(path, ()), list[int](), dict[int, str]()
    for place, entry in enumerate(entries):
        try:
            book.read(entry)
        except RequestError as error:
            aside[place] = str(error)
        else:
            good.append(place)
    return good, aside


def _relinked(
    good: Sequence[int], entries: Sequence[Mapping[str, Any]], hashes: Sequence[str], note: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """The good lines in a chain, those before the first bad one as they were; new hashes also where they are named."""
    head, lines, new = GENESIS, list[Mapping[str, Any]](), dict[str, str]()
    for place in good:
        entry = entries[place]
        named = (*entry.get("lines", ()), entry.get("of"))
        if entry.get(PREV, head) != head or any(h in new for h in named):
            body = {k: v for k, v in entry.items() if k not in (PREV, HASH)}
            if "of" in body:
                body["of"] = new.get(body["of"], body["of"])
            if "lines" in body:
                body["lines"] = [new.get(h, h) for h in body["lines"]]
            entry = linked(body, head)
        head = entry[HASH] if HASH in entry else line_hash({**entry, PREV: head})
        if head != hashes[place]:
            new[hashes[place]] = head
        lines.append(entry)
    return [*lines, linked(note, head)]
