"""What RULER adds to the evaluation of one checkpoint of the embedded default, in the light and in the full profile.

    python -m benchmarks.speed.ruler_hook [--run RUN] [--repeats 7] [--threads 1]

Both ways evaluate the same model with all other evaluators (TOFU metrics, sampled leakage), by turns; RULER has both
lenses to compute, with the representations of two more models at hand. Processor time of the process counts, since
other work on the machine would blur the wall clock more than RULER costs. RUN: a run of the embedded default, whose
finetuned model is evaluated; without it the model as it is before training, whose long answers take longer to generate,
so that RULER's share is smaller.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from evaluation.ruler.evaluator import References
from oblivionis import seeds
from oblivionis.config import compose as configuration
from oblivionis.measures.assessor import Assessor
from oblivionis.models.assembly import Assembled, assemble
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory

WANTED = 0.10
"""RULER's share of the evaluation's time, at most."""


def assessors(run: RunDirectory | None) -> tuple[Assembled, dict[bool, Assessor]]:
    """The model, and what measures it with RULER and without."""
    experiment: str | Path = "default" if run is None else run.path / "config.yaml"
    config = configuration.compose(experiment, [])
    assembled = assemble(config.model, seeds.derive(config.seed, "adapter"))
    corpus = corpus_of(config)
    found = {}
    for enabled in (False, True):
        settings = configuration.compose(experiment, [f"evaluation.ruler.enabled={str(enabled).lower()}"])
        found[enabled] = Assessor(assembled, corpus, settings)
    return assembled, found


def measure(
    ways: dict[bool, Assessor], vector: np.ndarray, full: bool, repeats: int
) -> tuple[dict[bool, list[float]], float]:
    """Seconds of processor time of each evaluation, with RULER and without by turns; seconds in its evaluator alone."""
    embedded = ways[True].embed(vector)
    references = References(embedded, embedded)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    own = []
    for turn in range(repeats + 1):
        for enabled in (False, True) if turn % 2 else (True, False):
            start = time.process_time()
            measured = ways[enabled].measure(vector, full=full, references=references)
            if turn:  # the first turn finds cold caches
                seconds[enabled].append(time.process_time() - start)
            assert ("ruler_gap" in measured.metrics) == enabled
            own += [measured.report.seconds["ruler"]] if enabled else []
    return seconds, statistics.median(own)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status is 1 where RULER takes more than its share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a run of the embedded default (default: the untrained model)")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    run = None if options.run is None else artifact_binding.opened(options.run)
    assembled, ways = assessors(run)
    vector = assembled.flat.numpy() if run is None else run.load_checkpoint("finetune").vector
    worst = 0.0
    for profile, full in (("light", False), ("full", True)):
        seconds, own = measure(ways, vector, full, options.repeats)
        without, with_ruler = (statistics.median(seconds[enabled]) for enabled in (False, True))
        differences = [b - a for a, b in zip(seconds[False], seconds[True], strict=True)]
        added, spread = statistics.median(differences), statistics.stdev(differences) / len(differences) ** 0.5
        worst = max(worst, added / with_ruler)
        print(
            f"{profile:<6} without {without:6.3f} s, with {with_ruler:6.3f} s: "
            f"{added * 1000:+7.1f} ± {spread * 1000:.1f} ms, "
            f"{added / with_ruler:+.1%} of the evaluation; the evaluator alone {own * 1000:.1f} ms",
            flush=True,
        )
    print(f"wanted: at most {WANTED:.0%}")
    return 0 if worst <= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
