"""A language model and clients with heavy-tailed times: seconds of a simulated clock until it knows as much.

    python -m benchmarks.speed.late_language_model [--rounds 60] [--seeds 3] [KEY=VALUE ...]

The embedded default's stage finetune as `oblivionis simulate` does it, in this one process: 30 clients, ten at work at
once, a Pareto tail of exponent 1, median 60 s. What is compared is the waiting, as in `benchmarks.speed.late_clients`,
which has more ways and says what they are. The goal is nine tenths of the probability of the retain answers with which
the synchronous run of the same seed ends; `seconds` and `rounds` until then, medians over the seeds.
"""

from __future__ import annotations

import argparse
import logging
import math
import statistics
import tempfile
import threading
from pathlib import Path

from benchmarks.speed.late_clients import DEADLINE_MEDIANS, MEDIAN_S, OVERSAMPLE
from benchmarks.speed.simulation_profile import in_this_process
from oblivionis.config import compose as configuration
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.progress import Events
from oblivionis.server.app import serve

AT_ONCE, CLIENTS, SHARE, EVERY = 10, 30, 0.9, 2
COMMON = (
    "stages=[finetune]",
    f"federation.clients={CLIENTS}",
    f"federation.fraction_train={AT_ONCE / CLIENTS}",
    "federation.timeout=1000000000",
    f"evaluation.every_training={EVERY}",
    "evaluation.light.sets=[retain]",
    "evaluation.leakage.samples=0",
    "evaluation.leakage.full_samples=0",
    "evaluation.wikimem.enabled=false",
    "evaluation.ruler.enabled=false",
    "federation.simulated_seconds.distribution=pareto",
    "federation.simulated_seconds.spread=1.0",
    f"federation.simulated_seconds.median={MEDIAN_S}",
)
SYNCHRONOUS = "synchronous"
DEADLINE = (f"federation.oversample={OVERSAMPLE}", f"federation.deadline={DEADLINE_MEDIANS * MEDIAN_S}")
WAYS: dict[str, tuple[str, ...]] = {
    SYNCHRONOUS: (),
    "deadline and over-sampling": DEADLINE,
    "FedBuff": (f"federation.buffer.size={AT_ONCE // 2}", f"federation.buffer.concurrency={AT_ONCE}"),
}

Course = list[tuple[int, float, float]]
"""Round, clock in seconds, mean probability of the retain answers, where it was measured."""


def course(overrides: list[str]) -> Course:
    """Run it."""
    with tempfile.TemporaryDirectory() as folder:
        config = configuration.compose("default", [*COMMON, *overrides, f"output={folder}"])
        run = RunDirectory.create(Path(config.output), config.name)
        run.write_config(configuration.to_yaml(config))
        serve(config, in_this_process(config.federation.clients), run, Events(), threading.Event())
        rows = run.metrics()
    clock = {row["round"]: row["metrics"]["clock_seconds"] for row in rows if row["evaluator"] == "federation"}
    known = {row["round"]: row["metrics"]["retain_prob"] for row in rows if "retain_prob" in row["metrics"]}
    return [(number, clock[number], known[number]) for number in sorted(clock.keys() & known.keys())]


def reached(found: Course, goal: float) -> tuple[float, float]:
    """Round and seconds at which the goal was first seen; infinite where it was not."""
    return next(((number, seconds) for number, seconds, known in found if known >= goal), (math.inf, math.inf))


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    rows: dict[str, list[tuple[float, ...]]] = {name: [] for name in WAYS}
    for seed in range(options.seeds):
        goal = plain = math.nan
        for name, keys in WAYS.items():
            rounds = options.rounds * (2 if name == "FedBuff" else 1)
            own = [f"federation.rounds.finetune={rounds}", f"seed={seed}", *keys, *options.overrides]
            found = course(own)
            if name == SYNCHRONOUS:
                goal = SHARE * found[-1][2]
            number, seconds = reached(found, goal)
            plain = seconds if name == SYNCHRONOUS else plain
            rows[name].append((number, seconds, plain / seconds, found[-1][2]))
    print(f"goal: {SHARE:.0%} of what the synchronous run ends with, looked at every {EVERY} rounds")
    print(f"{'':<27} {'rounds':>7} {'seconds':>9} {'faster':>7} {'at the end':>11}")
    for name, found in rows.items():
        number, seconds, faster, known = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"{name:<27} {number:>7.0f} {seconds:>9.0f} {faster:>7.2f} {known:>11.3f}")


if __name__ == "__main__":
    main()
