"""What statistical tests say of a run's finished stages, kept in the run so that showing it again needs no tests."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from oblivionis.errors import FileError
from oblivionis.files import parse_json, read_bytes, write_json
from oblivionis.runs.directory import RunDirectory
from oblivionis.version import __version__

FILE = "figures.json"
"""In the run directory: by name what was found, and the hash of what it was found from. May be deleted at any time."""

T = TypeVar("T")


def kept(run: RunDirectory, name: str, compute: Callable[[], T], *settings: Any) -> T:
    """`compute()`, plain JSON values that follow from the stages, their logs and `settings` alone.

    Without computing where it is kept from the very same. Tests are scipy's, which takes a second to import. A value
    that is no JSON (a number that is not finite), or a run that cannot be written to or is only read, is computed
    each time.
    """
    of = key_of(run, settings)
    found = _read(run)
    entry = found.get(name)
    if isinstance(entry, dict) and "value" in entry and entry.get("of") == of and entry.get("sha256") == _own(entry):
        return entry["value"]
    value = compute()
    if run.read_only:
        return value
    with contextlib.suppress(OSError, ValueError):
        entry = {"of": of, "value": value}
        write_json(run.path / FILE, {**found, name: {**entry, "sha256": _own(entry)}})
    return value


def _own(entry: Mapping[str, Any]) -> str:
    """The hash of what is kept: an entry that is not as it was written is computed anew."""
    return hashlib.sha256(json.dumps([entry["of"], entry["value"]], sort_keys=True).encode()).hexdigest()


def key_of(run: RunDirectory, settings: tuple[Any, ...]) -> str:
    """SHA-256, in hex, of what a kept result depends on: the version, `settings`, the stages and evaluations."""
    digest = hashlib.sha256(json.dumps([__version__, *settings]).encode())
    for folder in ("stages", "evaluations"):
        for file in sorted((run.path / folder).glob("*.json")):
            digest.update(f"\0{folder}/{file.name}\0".encode())
            digest.update(read_bytes(file))
    return digest.hexdigest()


def _read(run: RunDirectory) -> dict[str, Any]:
    try:
        found = parse_json(read_bytes(run.path / FILE))
    except (FileNotFoundError, FileError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
