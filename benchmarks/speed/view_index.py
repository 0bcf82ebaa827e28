"""How long the window (`oblivionis view`) takes over many runs: at its first start, at a later one, and page by page.

    python -m benchmarks.speed.view_index [--runs 2000] [--of RUN ...]

Without `--of`, three runs of `oblivionis simulate smoke` are made first, with different settings. Their copies under
other names are the runs; checkpoints, of which the window reads nothing, are links. Each start is the real command in a
process of its own: the time is that from its start, or from asking, until the page is there, by the clock and of its
processor; what was copied is in the page cache. A page is asked for 5 times, a second after the last one each (until
then what was found counts): the median.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from oblivionis.view.shell import LIVE_SECONDS

COMMAND = (sys.executable, "-m", "oblivionis.cli.main")
KINDS = ("", "strategy=fedadam unlearning=grad_diff", "seed=3 unlearning=simnpo")
PAGES = ("/", "/?order=run&page=3", "/runs.csv", "/requests")
REPEATS = 5
SO_FAR = re.compile(r"(\d+) of \d+ runs in .* are read so far")


@dataclass
class Window:
    """A window that was started; `began` and the processor time count from there."""

    process: psutil.Popen
    began: float
    address: str = ""

    def __post_init__(self) -> None:
        self._browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

    def processor(self) -> float:
        """Seconds of the processor so far."""
        times = self.process.cpu_times()
        return times.user + times.system

    def get(self, path: str) -> str:
        """A page, once the window has told its address."""
        if not self.address:
            self.process.stdout.readline()
            place, _, token = self.process.stdout.readline().strip().partition("?")
            self.address = place.rstrip("/")
            path = f"{path}?{token}"
        return self._browser.open(self.address + path, timeout=600).read().decode()

    def page(self, path: str) -> tuple[float, float]:
        """Seconds by the clock and of the processor that a page takes."""
        time.sleep(1.1)
        clock, processor = time.perf_counter(), self.processor()
        self.get(path)
        return time.perf_counter() - clock, self.processor() - processor

    def since_start(self) -> tuple[float, float]:
        """Seconds by the clock and of the processor since it was started."""
        return time.perf_counter() - self.began, self.processor()


@contextmanager
def started(folder: Path, cache: Path) -> Iterator[Window]:
    """The window on a folder, until it is left."""
    environment = {**os.environ, "OBLIVIONIS_CACHE": str(cache)}
    began = time.perf_counter()
    process = psutil.Popen([*COMMAND, "view", str(folder), "--port", "0"], stdout=-1, text=True, env=environment)
    try:
        yield Window(process, began)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def make(folder: Path) -> list[Path]:
    """A run of each kind."""
    for number, settings in enumerate(KINDS):
        command = [*COMMAND, "simulate", "smoke", f"output={folder}", f"name={number}", "--quiet", *settings.split()]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return sorted(folder.iterdir())


def copy(runs: Sequence[Path], folder: Path, count: int) -> None:
    """`count` runs, each a copy of one of `runs`."""
    for number in range(count):
        source, target = runs[number % len(runs)], folder / f"run-{number:05d}"
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("checkpoints"))
        shutil.copytree(source / "checkpoints", target / "checkpoints", copy_function=os.link)


def show(what: str, seconds: tuple[float, float], more: str = "") -> None:
    """A row of the table."""
    print(f"{what:<44} {seconds[0]:7.2f} {seconds[1]:9.2f}  {more}", flush=True)


def measure(folder: Path, cache: Path) -> None:
    """Start the window twice, and print what each takes."""
    for start in ("first start", "later start"):
        with started(folder, cache) as window:
            page = window.get("/")
            found = SO_FAR.search(page)
            show(f"{start}: first page", window.since_start(), f"{found[1]} runs read" if found else "all runs read")
            while SO_FAR.search(window.get("/?part=runs")):
                time.sleep(LIVE_SECONDS)
            if found:
                show(f"{start}: all runs read", window.since_start())
            for path in PAGES:
                window.get(path)
                taken = [window.page(path) for _ in range(REPEATS)]
                clock, processor = (statistics.median(of) for of in zip(*taken, strict=True))
                show(f"{start}: {path}", (clock, processor))
    (index,) = (cache / "view").iterdir()
    print(f"index: {index.stat().st_size / 1e6:.1f} MB")


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs, and measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--of", type=Path, nargs="+", help="copy these runs, instead of making some")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=given.of[0].parent.parent if given.of else None) as place:
        made, folder, cache = (Path(place) / name for name in ("made", "runs", "cache"))
        for one in (made, folder, cache):
            one.mkdir()
        copy(given.of or make(made), folder, given.runs)
        print(f"{'seconds':<44} {'clock':>7} {'processor':>9}")
        measure(folder, cache)


if __name__ == "__main__":
    main()
