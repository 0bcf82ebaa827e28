"""The runs and suites below a folder. Nothing else is read: names are those found there, and no link leads out."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from oblivionis.errors import OblivionisError, RunError
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.run_status import Glance
from oblivionis.view.run_index import RunIndex
from oblivionis.view.run_readings import Glances, RunReadings

DEPTH = 6
"""How far below the folder a run or a suite may lie."""
FOLDERS = 20_000
"""So many folders are searched, and no more."""
RESULTS, SUITE = "results.parquet", "suite.yaml"
FRESH_SECONDS = 1.0
"""For so long what was found is taken to be there still."""


class NotThere(OblivionisError):
    """There is no such page."""


@dataclass(frozen=True)
class Found:
    """The runs and suites by their names, paths from the folder; whether there were too many folders to see all."""

    runs: Mapping[str, Path] = field(default_factory=dict)
    suites: Mapping[str, Path] = field(default_factory=dict)
    cut: bool = False


class Library:
    """What lies below `root`, or `root` itself where it is a run.

    needed: RunError where it is no folder; else there is nothing in it. indexed: what is read of the runs is kept for
    the next start (`oblivionis.view.run_index`).
    """

    def __init__(self, root: Path, *, needed: bool = True, indexed: bool = False) -> None:
        if needed and not root.is_dir():
            raise RunError(f"{root}: no such folder; expected a folder of runs, or a run")
        self.root = root.resolve()
        self._found, self._searched = Found(), 0.0
        self.readings = RunReadings(self.check, RunIndex(self.root) if indexed else None)
        self._lock = threading.Lock()

    def found(self) -> Found:
        """The runs and suites that are there now."""
        with self._lock:
            if time.monotonic() - self._searched > FRESH_SECONDS or not self._searched:
                self._found, self._searched = _search(self.root), time.monotonic()
            return self._found

    def run(self, name: str) -> RunDirectory:
        """A run, to be read. NotThere without one; RunError where a link in it leads out of the folder."""
        path = self._path(name)
        self.check(path)
        return RunDirectory(path, read_only=True)

    def suite(self, name: str) -> Path:
        """The folder of a suite; as `run`."""
        path = self.found().suites.get(name)
        if path is None:
            raise NotThere(f"there is no suite {name!r} in {self.root}")
        self.check(path)
        return path

    def name_of(self, path: Path) -> str | None:
        """What the run in `path` is called here; None for a place that is no run of this folder."""
        runs = self.found().runs
        name = path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else ""
        return name if runs.get(name) == path else None

    def glances(self, patience: float | None = None) -> Glances:
        """A glance at every run; within `patience` seconds, at those that are read by then, the newest first."""
        return self.readings.glances(self.found().runs, patience)

    def glance(self, name: str) -> Glance:
        """A glance at one run. NotThere without one."""
        return self.readings.glance(name, self._path(name))

    def _path(self, name: str) -> Path:
        path = self.found().runs.get(name)
        if path is None or not (path / "config.yaml").is_file():
            raise NotThere(f"there is no run {name!r} in {self.root}")
        return path

    def signature(self, folder: Path) -> tuple:
        """What is another one as soon as a file below `folder` changes, comes or goes."""
        count, newest, size = 0, 0, 0
        for entry in _entries(folder):
            with contextlib.suppress(FileNotFoundError):  # a run that goes on tidies up
                status = entry.stat(follow_symlinks=False)
                count, newest, size = count + 1, max(newest, status.st_mtime_ns), size + status.st_size
        return count, newest, size

    def check(self, folder: Path) -> None:
        """RunError where a link in `folder` leads out of the library."""
        for entry in _entries(folder):
            if entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(self.root):
                place = Path(entry.path).relative_to(self.root).as_posix()
                raise RunError(f"{place} is a link that leads out of {self.root}, and is not followed")


def _search(root: Path) -> Found:
    if (root / "config.yaml").is_file():
        return Found(runs={root.name: root})
    runs: dict[str, Path] = {}
    suites: dict[str, Path] = {}
    if _is_suite(str(root)):
        suites[root.name] = root
    waiting, searched = [("", 0)], 0
    while waiting and searched < FOLDERS:
        above, depth = waiting.pop()
        searched += 1
        for name in (above + folder for folder in _folders(os.path.join(root, above))):
            path = os.path.join(root, name)
            if os.path.isfile(f"{path}/config.yaml"):
                runs[name] = Path(path)
                continue
            if _is_suite(path):
                suites[name] = Path(path)
            if depth + 1 < DEPTH:
                waiting.append((f"{name}/", depth + 1))
    return Found(dict(sorted(runs.items())), dict(sorted(suites.items())), cut=bool(waiting))


def _is_suite(path: str) -> bool:
    return os.path.isfile(f"{path}/{RESULTS}") or os.path.isfile(f"{path}/{SUITE}")


def _folders(folder: str) -> list[str]:
    """The names of the folders in one, but for hidden ones, links, and those whose names are no text."""
    try:
        with os.scandir(folder) as entries:
            return [
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".") and _is_text(entry.name)
            ]
    except OSError:
        return []


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _entries(folder: Path) -> Iterator[os.DirEntry]:
    """Everything below a folder; links are named, not followed."""
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    yield entry
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
        except FileNotFoundError:
            continue
