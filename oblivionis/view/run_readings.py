"""What is known of the runs below a folder: each is read once, and again where its files changed since."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from oblivionis.errors import RunError
from oblivionis.runs.run_status import DAMAGED, Glance, Look, Reading, glance_of, look, read
from oblivionis.view.run_index import Kept, RunIndex

SETTLED_NS = 2_000_000_000
"""Files that changed so shortly before they were read could change once more unseen, within a tick of the file system's
clock (2 s at most): such a reading is not settled, and is made again."""
SAVE_SECONDS = 60.0
"""So long after the index was written it is not written again."""


@dataclass(frozen=True, slots=True)
class Glances:
    """Glances at runs by name, as they are now; unread: how many runs are not among them yet."""

    runs: Mapping[str, Glance] = field(default_factory=dict)
    unread: int = 0


class RunReadings:
    """Readings of runs by name. One thread reads those that changed, the newest first.

    check: RunError where a link in a run may not be followed; index: what was kept of them at the last start.
    """

    def __init__(self, check: Callable[[Path], None], index: RunIndex | None = None) -> None:
        self._check, self._index = check, index
        self._kept: dict[str, Kept] | None = None
        self._listed: Mapping[str, Path] = {}
        self._faults: dict[str, Exception] = {}
        self._changed = threading.Condition()
        self._waiting: dict[str, Path] = {}
        self._times_read: Counter[str] = Counter()
        self._being_read: str | None = None
        self._has_reader = False
        self._unsaved, self._saved = False, -SAVE_SECONDS

    def glances(self, runs: Mapping[str, Path], patience: float | None) -> Glances:
        """A glance at each of all runs, as its files are now; within `patience` seconds, at those read by then."""
        self._listed = runs
        return self._glances(runs, patience)

    def glance(self, name: str, path: Path) -> Glance:
        """A glance at one run, as its files are now."""
        return self._glances({name: path}, None).runs[name]

    def wait(self) -> None:
        """Until nothing is being read."""
        with self._changed:
            self._changed.wait_for(lambda: not self._has_reader)

    def _known(self) -> dict[str, Kept]:
        with self._changed:
            if self._kept is None:
                self._kept = self._index.load() if self._index else {}
            return self._kept

    def _glances(self, runs: Mapping[str, Path], patience: float | None) -> Glances:
        found: dict[str, Glance] = {}
        changed: dict[str, Look] = {}
        again: dict[str, Path] = {}
        kept, now = self._known(), time.time_ns()
        for name, path in runs.items():
            known = kept.get(name)
            looked = look(path, known.reading.others if known else ())
            if looked.links and (fault := self._link_fault(path)):
                found[name] = Glance(DAMAGED, 0.0, fault)
            elif known and known.digest == looked.digest and (known.settled or not _just_changed(looked, now)):
                found[name] = glance_of(path, looked, known.reading)
                again |= {} if known.settled else {name: path}
            else:
                changed[name] = looked
        newest = sorted(changed, key=lambda name: changed[name].changed, reverse=True)
        read_now = self._have_read({name: runs[name] for name in newest}, again, patience)
        found |= {name: glance_of(runs[name], changed[name], reading) for name, reading in read_now.items()}
        return Glances({name: found[name] for name in runs if name in found}, len(changed) - len(read_now))

    def _link_fault(self, path: Path) -> str:
        try:
            self._check(path)
        except (OSError, RunError) as error:
            return str(error)
        return ""

    def _have_read(self, runs: dict[str, Path], later: dict[str, Path], patience: float | None) -> dict[str, Reading]:
        """Have `runs` read next, in this order; what was read of them within `patience` seconds. `later` can wait."""
        end = None if patience is None else time.monotonic() + patience
        with self._changed:
            wanted = {name: self._times_read[name] + 1 + (name == self._being_read) for name in runs}
            others = {name: path for name, path in self._waiting.items() if name not in runs}
            self._waiting = {**runs, **others, **{name: path for name, path in later.items() if name not in others}}
            self._start_reader()
            while any(self._times_read[name] < count for name, count in reversed(wanted.items())):
                if not self._changed.wait(None if end is None else end - time.monotonic()):
                    break
                self._start_reader()
            done = [name for name, count in wanted.items() if self._times_read[name] >= count]
            for fault in [self._faults[name] for name in done if name in self._faults]:
                raise fault
            return {name: self._known()[name].reading for name in done}

    def _start_reader(self) -> None:
        """Have a thread read what waits; the condition is held."""
        if self._waiting and not self._has_reader:
            threading.Thread(target=self._read_all, daemon=True).start()
            self._has_reader = True

    def _read_all(self) -> None:
        """Read until nothing waits to be read, and what was read is kept."""
        try:
            while True:
                while self._read_next():
                    pass
                self._save()
                with self._changed:
                    if not self._waiting:
                        self._has_reader = False
                        self._changed.notify_all()
                        return
        except BaseException:
            with self._changed:
                self._has_reader = False
                self._changed.notify_all()
            raise

    def _read_next(self) -> bool:
        """Read what waits to be read next; whether there was anything."""
        with self._changed:
            name = next(iter(self._waiting), None)
            if name is None:
                return False
            self._being_read, path, known = name, self._waiting.pop(name), self._known().get(name)
        found: Kept | None = None
        fault: Exception | None = None
        try:
            found = _read(path, known.reading.others if known else ())
        except Exception as error:  # whoever waits for it is told
            fault = error
        with self._changed:
            self._being_read = None
            self._times_read[name] += 1
            if found is not None:
                self._known()[name], self._unsaved = found, True
            self._faults = {other: one for other, one in self._faults.items() if other != name}
            self._faults |= {name: fault} if fault else {}
            self._changed.notify_all()
        return True

    def _save(self) -> None:
        with self._changed:
            if self._index is None or not self._unsaved or time.monotonic() - self._saved < SAVE_SECONDS:
                return
            self._unsaved, self._saved = False, time.monotonic()
            kept = {name: one for name, one in self._known().items() if one.settled and name in self._listed}
        self._index.save(kept)


def _read(path: Path, others: tuple[str, ...]) -> Kept:
    """Read a run, with the digest that its files had before. What cannot be read may be there the next time."""
    for _ in range(2):  # once more where its ledger names other files than before
        begun, looked, used = time.time_ns(), look(path, others), others
        try:
            reading = read(path)
        except OSError as error:  # gone, or not to be read
            return Kept(looked.digest, Reading(Glance(DAMAGED, 0.0, str(error))), settled=False)
        others = reading.others
        if others == used:
            break
    settled = others == used and looked.latest + SETTLED_NS < begun and reading.glance.state != DAMAGED
    return Kept(looked.digest, reading, settled=settled)


def _just_changed(looked: Look, now: int) -> bool:
    """Whether the files may have changed since within a tick; their times may also lie in the future."""
    return looked.latest <= now <= looked.latest + SETTLED_NS
