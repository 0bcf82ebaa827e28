"""What SuperNodes cost that take no part: start-up, a warm round and memory, by how many are registered.

    python -m benchmarks.speed.supernodes [--nodes 30 300] [--participants 3] [--rounds 12] [--samples 1] [--json FILE]
                                          [--figure SVG]

Each run is a real `oblivionis simulate` of the stage finetune on the tiny model: `participants` clients take part in a
round (all, where there are fewer), and every client holds four records, so that a round does the same work whatever the
number of SuperNodes. Start-up is from the command to the end of the first round, less a warm round; a warm round is one
after the first three, and the median counts. Memory is the peak over the whole process tree (server and client
processes) of the proportional set size, in which shared pages count once; processor time is that of the same tree. The
exponents are the slopes of straight lines through the logarithms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
from matplotlib.figure import Figure

WANTED = {"seconds per warm round": 1.2, "peak memory": 1.3}
RECORDS_PER_CLIENT, COLD_ROUNDS, MOST_AUTHORS = 4, 3, 5000


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: seconds of the start-up and of a warm round (the median), a client's mean seconds of training in that;
    peak bytes; processor seconds and seconds in all."""

    nodes: int
    start_seconds: float
    round_seconds: float
    train_seconds: float
    peak_bytes: int
    processor_seconds: float
    total_seconds: float


class TreeUse(threading.Thread):
    """Samples the proportional set size of a process and all its descendants until they are gone, and their time."""

    def __init__(self, pid: int, every_s: float = 0.5) -> None:
        super().__init__(daemon=True)
        self._root, self._every_s = psutil.Process(pid), every_s
        self.peak = 0
        self._processor: dict[int, float] = {}

    @property
    def processor(self) -> float:
        """Processor seconds of all of them, as last seen."""
        return sum(self._processor.values())

    def run(self) -> None:
        while self._root.is_running() and self._root.status() != psutil.STATUS_ZOMBIE:
            self.peak = max(self.peak, self._sample())
            time.sleep(self._every_s)

    def _sample(self) -> int:
        total = 0
        try:
            tree = [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return 0
        for process in tree:
            try:
                total += process.memory_full_info().pss
                times = process.cpu_times()
                self._processor[process.pid] = times.user + times.system
            except psutil.Error:
                continue
        return total


def measure(nodes: int, participants: int, rounds: int) -> Measured:
    """Run a federation of `nodes` SuperNodes for `rounds` rounds with the installed command."""
    authors = min(nodes, MOST_AUTHORS)
    with tempfile.TemporaryDirectory() as folder:
        settings = [
            "stages=[finetune]",
            f"federation.clients={nodes}",
            f"federation.fraction_train={min(1.0, (participants + 0.5) / nodes)}",
            f"federation.rounds.finetune={rounds}",
            "federation.local_epochs=2",
            "data.partition.scheme=iid",
            f"data.authors={authors}",
            f"data.questions_per_author={RECORDS_PER_CLIENT * nodes // authors}",
            "data.forget_authors=1",
            "evaluation.every=0",
            "evaluation.at_start=false",
            "evaluation.full.questions_per_set=2",
            "evaluation.full.max_new_tokens=4",
            f"output={folder}",
            "name=run",
        ]
        began, launched = time.perf_counter(), time.time()
        process = subprocess.Popen(
            [sys.executable, "-m", "oblivionis.cli.main", "simulate", "default", *settings],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        use = TreeUse(process.pid)
        use.start()
        output, _ = process.communicate()
        seconds = time.perf_counter() - began
        if process.returncode:
            raise RuntimeError(f"the run with {nodes} SuperNodes failed:\n{output}")
        rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    done = [r for r in rows if r["evaluator"] == "federation"]
    warm = [r["metrics"] for r in done if r["round"] > COLD_ROUNDS]
    usual = statistics.median(m["seconds"] for m in warm)
    return Measured(
        nodes,
        done[0]["time"] - launched - usual,
        usual,
        statistics.median(m["train-seconds"] for m in warm),
        use.peak,
        use.processor,
        seconds,
    )


def exponent(found: Sequence[tuple[float, float]]) -> float:
    """The slope of the straight line through the logarithms of pairs of positive numbers, by least squares."""
    logs = np.log(np.array(found))
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def main() -> None:
    """Measure and print a line per run, then the ratios to the fewest SuperNodes, and the exponents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[30, 300])
    parser.add_argument("--participants", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--samples", type=int, default=1, help="alternating runs of each; the best of each kind counts")
    parser.add_argument("--json", type=Path, help="write the measurements there, too")
    parser.add_argument("--figure", type=Path, help="draw them over the number of SuperNodes there, as SVG")
    arguments = parser.parse_args()
    if arguments.rounds <= COLD_ROUNDS:
        parser.error(f"--rounds must be above {COLD_ROUNDS}")
    heads = ("SuperNodes", "start-up s", "s/warm round", "mean training s", "peak MiB", "processor s", "whole run s")
    print(" ".join(f"{head:>15}" for head in heads))
    found: list[Measured] = []
    for nodes in list(arguments.nodes) * arguments.samples:
        m = measure(nodes, arguments.participants, arguments.rounds)
        found.append(m)
        times = (m.start_seconds, m.round_seconds, m.train_seconds)
        cells = [f"{nodes}", *(f"{t:.3f}" for t in times), f"{m.peak_bytes / 2**20:.0f}"]
        cells += [f"{m.processor_seconds:.1f}", f"{m.total_seconds:.1f}"]
        print(" ".join(f"{cell:>15}" for cell in cells), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(m) for m in found], indent=1))
    _compare(arguments.nodes, found)
    if arguments.figure is not None:
        lines = {
            "start-up, s": [(m.nodes, m.start_seconds) for m in found],
            "warm round, s": [(m.nodes, m.round_seconds) for m in found],
            "peak memory, GB": [(m.nodes, m.peak_bytes / 1e9) for m in found],
        }
        draw(arguments.figure, lines, f"registered SuperNodes, {arguments.participants} in a round", "seconds, GB")


def _compare(nodes: Sequence[int], found: Sequence[Measured]) -> None:
    kinds = {"start-up": "start_seconds", "seconds per warm round": "round_seconds", "peak memory": "peak_bytes"}
    for name, field in kinds.items():
        best = [(n, min(getattr(m, field) for m in found if m.nodes == n)) for n in nodes]
        ratio = best[-1][1] / best[0][1]
        wanted = f" (wanted: at most {WANTED[name]:g})" if name in WANTED else ""
        slope = f", exponent {exponent(best):.2f}" if len(best) > 2 else ""
        print(f"{name}: {ratio:.2f} times as much{wanted}{slope}")


def draw(file: Path, lines: Mapping[str, Sequence[tuple[int, float]]], along: str, up: str) -> None:
    """Values by numbers, both logarithmic, and a line that is linear below them, as SVG."""
    figure = Figure(figsize=(5.6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for name, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name)
    numbers = [number for number, _ in next(iter(lines.values()))]
    low = min(points[0][1] for points in lines.values())
    axes.plot(numbers, [low * number / numbers[0] for number in numbers], color="0.6", linestyle="--", label="linear")
    axes.set(xscale="log", yscale="log", xlabel=along, ylabel=up)
    axes.legend(frameon=False, fontsize="small")
    figure.savefig(file)


if __name__ == "__main__":
    main()
