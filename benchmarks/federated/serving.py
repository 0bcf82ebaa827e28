"""What serving each demand of a run cost: seconds and bytes of its round, and the disk that the method needs."""

from __future__ import annotations

from statistics import fmean

from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.updates import kept_on_disk

SECONDS, BYTES, TRAINED, DISK = "serving_seconds", "serving_bytes", "serving_updates", "stored_bytes"


def of_demands(run: RunDirectory) -> dict[str, float]:
    """Figures of the rounds of unlearn in which a run served demands, and of its disk.

    Parameters
    ----------
    run : RunDirectory

    Returns
    -------
    dict of float
        `serving_seconds` and `serving_bytes` (both ways) of a round with a demand, its ordinary training included, and
        `serving_updates`, those that other clients trained for it; each as the mean, and with `_worst` the largest.
        `stored_bytes`: checkpoints and the clients' updates on the server, a file with several names once. Empty for a
        run that served no demand.
    """
    served = run.lines("served")
    rounds = {line["round"] for line in served}
    rows = [
        row["metrics"]
        for row in run.metrics()
        if (row["stage"], row["evaluator"]) == ("unlearn", "federation") and row["round"] in rounds
    ]
    if not rows:
        return {}
    trained = {number: [0.0] for number in rounds}
    for line in served:
        trained[line["round"]].append(line.get("calibrated-updates", 0.0))
    found = {
        SECONDS: [row["seconds"] for row in rows],
        BYTES: [row["bytes_sent"] + row["bytes_received"] for row in rows],
        TRAINED: [max(counts) for counts in trained.values()],
    }
    figures = {name: fmean(values) for name, values in found.items()}
    figures |= {f"{name}_worst": max(values) for name, values in found.items()}
    checkpoints = sum(file.stat().st_size for file in (run.path / "checkpoints").rglob("*.safetensors"))
    return {**figures, DISK: float(checkpoints + kept_on_disk(run.path)[1])}
