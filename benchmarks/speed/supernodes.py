"""What 300 SuperNodes cost instead of 30, with equally many participants: seconds per warm round, peak memory.

    python -m benchmarks.speed.supernodes [--nodes 30 300] [--rounds 12] [--samples 1]

Each run is a real `oblivionis simulate` of the stage finetune on the tiny model: three clients take part in a round,
and every client holds four records, so that a round does the same work whatever the number of SuperNodes. A warm round
is one after the first three; the median counts. Memory is the peak over the whole process tree (server, Ray, client
processes) of the proportional set size, in which shared pages count once.
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
from dataclasses import dataclass
from pathlib import Path

import psutil

WANTED = {"seconds per warm round": 1.2, "peak memory": 1.1}
PARTICIPANTS, RECORDS_PER_CLIENT, COLD_ROUNDS = 3, 4, 3


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: median seconds of a warm round, of which the clients trained so long; peak bytes; seconds in all."""

    round_seconds: float
    train_seconds: float
    peak_bytes: int
    total_seconds: float


class TreeMemory(threading.Thread):
    """Samples the proportional set size of a process and all its descendants until they are gone."""

    def __init__(self, pid: int, every_s: float = 0.5) -> None:
        super().__init__(daemon=True)
        self._root, self._every_s = psutil.Process(pid), every_s
        self.peak = 0

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
            except psutil.Error:
                continue
        return total


def measure(nodes: int, rounds: int) -> Measured:
    """Run a federation of `nodes` SuperNodes for `rounds` rounds with the installed command."""
    with tempfile.TemporaryDirectory() as folder:
        settings = [
            "stages=[finetune]",
            f"federation.clients={nodes}",
            f"federation.fraction_train={PARTICIPANTS / nodes}",
            f"federation.rounds.finetune={rounds}",
            "federation.local_epochs=2",
            f"data.authors={nodes}",
            f"data.questions_per_author={RECORDS_PER_CLIENT}",
            "data.forget_authors=1",
            "evaluation.every=0",
            "evaluation.at_start=false",
            "evaluation.full.questions_per_set=2",
            "evaluation.full.max_new_tokens=4",
            f"output={folder}",
            "name=run",
        ]
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "oblivionis.cli.main", "simulate", "default", *settings],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        memory = TreeMemory(process.pid)
        memory.start()
        output, _ = process.communicate()
        seconds = time.perf_counter() - began
        if process.returncode:
            raise RuntimeError(f"the run with {nodes} SuperNodes failed:\n{output}")
        rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    warm = [r["metrics"] for r in rows if r["evaluator"] == "federation" and r["round"] > COLD_ROUNDS]
    return Measured(
        statistics.median(m["seconds"] for m in warm),
        statistics.median(m["train-seconds"] for m in warm),
        memory.peak,
        seconds,
    )


def main() -> None:
    """Measure and print a line per number of SuperNodes, then the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs=2, default=[30, 300], metavar=("FEW", "MANY"))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--samples", type=int, default=1, help="alternating runs of each; the best round time counts")
    arguments = parser.parse_args()
    if arguments.rounds <= COLD_ROUNDS:
        parser.error(f"--rounds must be above {COLD_ROUNDS}")
    found: dict[int, list[Measured]] = {n: [] for n in arguments.nodes}
    print(f"{'SuperNodes':>10} {'s/warm round':>13} {'mean training s':>16} {'peak MiB':>9} {'whole run s':>12}")
    for _ in range(arguments.samples):
        for nodes in arguments.nodes:
            m = measure(nodes, arguments.rounds)
            found[nodes].append(m)
            print(
                f"{nodes:>10} {m.round_seconds:>13.3f} {m.train_seconds:>16.3f} {m.peak_bytes / 2**20:>9.0f} "
                f"{m.total_seconds:>12.1f}",
                flush=True,
            )
    few, many = (found[n] for n in arguments.nodes)
    ratios = {
        "seconds per warm round": min(m.round_seconds for m in many) / min(m.round_seconds for m in few),
        "peak memory": min(m.peak_bytes for m in many) / min(m.peak_bytes for m in few),
    }
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f} times as much (wanted: at most {WANTED[name]:g})")


if __name__ == "__main__":
    main()
