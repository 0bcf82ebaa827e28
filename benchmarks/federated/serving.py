"""What serving each demand of a run cost: seconds and bytes of its round, and the disk that the method needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from benchmarks.federated.identity import UNLEARN
from oblivionis.erasure.verification_records import EVALUATOR
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.failed_evaluators import END
from oblivionis.runs.updates import kept_on_disk

SECONDS, PROCESSOR = "serving_seconds", "serving_processor_seconds"
BYTES, TRAINED, DISK = "serving_bytes", "serving_updates", "stored_bytes"
EQUAL = "equal_to_never_saw"
"""How many demands left the model of a federation that never had the records, where all of them did."""


def of_demands(run: RunDirectory) -> dict[str, float]:
    """Figures of the rounds of unlearn in which a run served demands, and of its disk.

    Parameters
    ----------
    run : RunDirectory

    Returns
    -------
    dict of float
        `serving_seconds` by the clock, `serving_processor_seconds` of server and clients together where these are
        processes of one machine, and `serving_bytes` (both ways) of a round with a demand, its ordinary training
        included, what is measured left out; `serving_updates`, those that other clients trained for it; each as the
        mean, and with `_worst` the largest.
        `stored_bytes`: checkpoints and the clients' updates on the server, a file with several names once. Empty for a
        run that served no demand.
    """
    served = run.lines("served")
    rounds = {line["round"] for line in served}
    inside = [r for r in run.metrics() if (r["stage"], r["moment"] == END) == (UNLEARN, False) and r["round"] in rounds]
    rounds_held = [row for row in inside if row["evaluator"] == "federation"]
    if not rounds_held:
        return {}
    rows, measuring = [row["metrics"] for row in rounds_held], _measuring(inside)
    trained = {number: [0.0] for number in rounds}
    for line in served:
        trained[line["round"]].append(line.get("calibrated-updates", 0.0))
    found = {
        SECONDS: [row["metrics"]["seconds"] - measuring.get(row["round"], 0.0) for row in rounds_held],
        PROCESSOR: [row["processor_seconds"] for row in rows if "processor_seconds" in row],
        BYTES: [row["bytes_sent"] + row["bytes_received"] for row in rows],
        TRAINED: [max(counts) for counts in trained.values()],
    }
    found = {name: values for name, values in found.items() if values}
    figures = {name: fmean(values) for name, values in found.items()}
    figures |= {f"{name}_worst": max(values) for name, values in found.items()}
    checkpoints = sum(file.stat().st_size for file in (run.path / "checkpoints").rglob("*.safetensors"))
    return {**figures, DISK: float(checkpoints + kept_on_disk(run.path)[1])}


def _measuring(rows: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Seconds of each round in which models were measured; all evaluators of a moment have those of all together."""
    spans = {(r["round"], r["moment"], r["evaluator"] == EVALUATOR): r["seconds"] for r in rows if "seconds" in r}
    found: dict[int, float] = {}
    for (number, _, _), seconds in spans.items():
        found[number] = found.get(number, 0.0) + seconds
    return found
