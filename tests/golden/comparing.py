"""What differs between two recordings of the golden runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

SHOWN = 3
"""So many differences of a file are named."""
NORMALISED = """\
Normalised in all runs, when they are recorded: the paths of their folder and of the tree, a port in an address, and
libraries' progress bars, which are left out as flower.log and running.lock are.
Fixed while they run, from outside: the clock, random numbers, keys, free memory, times of files, and the order of the
metadata in safetensors files. Nothing else is normalised, but for:
Runs with real client processes (real-*, full-*): only the wall clock is fixed there. Left out are pages, keys and lines
about what goes on meanwhile; masked are numbers of seconds and bytes; hashes and signatures are numbered in the order
in which they come. The hash that is computed here of each array of a model is compared as it is.
"""
REAL = ("real-", "full-")
_HASHES = (".hashes", ".sha256")
_SHOWN_CHARACTERS = 100
_LEFT_OUT = (".html", ".key")
_MEANWHILE = re.compile(r"\bso far\b|\bleft(, evaluations not counted)?$|^memory: ")
_TIMES = (
    (re.compile(r'("(?:[\w-]*seconds|time|bytes_sent|bytes_received|bytes|size)": )[\d.e+-]+'), r'\1"<number>"'),
    (re.compile(r"\b\d+(\.\d+)? ?(ms|s|min|h|[kMG]?B)\b"), "<number>"),
)
_HEXADECIMAL = re.compile(r"\b[0-9a-f]{6,}\b")


def report(before: Path, after: Path) -> int:
    """Print what differs, and what was normalised; the exit code."""
    missing = [str(folder) for folder in (before, after) if not folder.is_dir()]
    if missing:
        print(f"there is no folder {', '.join(missing)}")
        return 2
    found = list(differences(before, after))
    print("".join(f"{line}\n" for line in found), end="")
    cases = {p.name for p in before.iterdir()} | {p.name for p in after.iterdir()}
    print(f"{len(cases)} runs: {len(found)} differences\n" if found else f"{len(cases)} runs: nothing differs\n")
    print(NORMALISED, end="")
    return int(bool(found))


def differences(before: Path, after: Path) -> Iterator[str]:
    """A text for each file that is missing on one side, and for the first `SHOWN` differences of each other one."""
    for name in sorted(_files(before) | _files(after)):
        if name.startswith(REAL) and name.endswith(_LEFT_OUT):
            continue
        here, there = before / name, after / name
        if not here.is_file() or not there.is_file():
            yield f"{name}: only in {before if here.is_file() else after}"
            continue
        yield from (f"{name}: {text}" for text in _of_files(here, there, name.startswith(REAL)))


def _files(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def _of_files(before: Path, after: Path, real: bool) -> list[str]:
    texts = [path.read_text(encoding="utf-8") for path in (before, after)]
    if real and before.suffix not in _HASHES:
        texts = [_without_what_differs(text) for text in texts]
    if texts[0] == texts[1]:
        return []
    found: list[str] = []
    for number, pair in enumerate(zip_longest(*(text.split("\n") for text in texts)), 1):
        if pair[0] != pair[1]:
            found.append(f"line {number}: {_difference(*pair)}")
    more = len(found) - SHOWN
    return [*found[:SHOWN], f"{more} more lines"] if more > 0 else found


def _without_what_differs(text: str) -> str:
    lines = [line for line in text.split("\n") if not _MEANWHILE.search(line)]
    text = "\n".join(lines)
    for pattern, instead in _TIMES:
        text = pattern.sub(instead, text)
    seen: dict[str, str] = {}
    return _HEXADECIMAL.sub(lambda match: seen.setdefault(match[0], f"<hash {len(seen) + 1}>"), text)


def _difference(before: str | None, after: str | None) -> str:
    """Of JSON the first value that differs, of other lines what stands where they begin to differ."""
    if before is None or after is None:
        return f"{_short(before)} != {_short(after)}"
    try:
        values = json.loads(before), json.loads(after)
    except ValueError:
        values = None
    if values is not None and all(isinstance(value, dict) for value in values):
        return _of_values(*values, "")
    same = next((i for i, (a, b) in enumerate(zip_longest(before, after)) if a != b), 0)
    start = max(0, same - 20)
    return f"column {same + 1}: {_short(before[start:])} != {_short(after[start:])}"


def _of_values(before: Any, after: Any, place: str) -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            if before.get(key) != after.get(key) or (key in before) != (key in after):
                inner = f"{place}.{key}" if place else str(key)
                return _of_values(before.get(key), after.get(key), inner)
        return f"{place or 'keys'}: the same in another order"
    return f"{place}: {_short(json.dumps(before))} != {_short(json.dumps(after))}"


def _short(text: str | None) -> str:
    if text is None:
        return "(no line)"
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")
