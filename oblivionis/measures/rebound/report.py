"""The rebound of a run in words, for the terminal and the report."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from evaluation.metrics.rebound import LEAST_FORGOTTEN, Curve, rebound_metrics
from oblivionis.measures import registry
from oblivionis.measures.rebound.evaluator import MEASURES
from oblivionis.measures.rebound.tracker import rebound_curves
from oblivionis.naming import counted
from oblivionis.runs.directory import RunDirectory

STAGE = "unlearn"


def sentences(run: RunDirectory) -> list[str]:
    """A line per measure on what came back while the others trained on; nothing where nothing was measured."""
    rows = run.metrics()
    return [sentence(name, curves) for name in MEASURES if (curves := rebound_curves(rows, STAGE, name))]


def sentence(measure: str, curves: Sequence[Curve]) -> str:
    """How soon and how far a measure comes back after requests."""
    found, name = rebound_metrics(curves), registry.catalogue()[MEASURES[measure]].title
    count = int(found["requests"])
    if not count:
        return f"Rebound of {name}: no request forgot anything (at least {LEAST_FORGOTTEN:g})."
    known = [c for c in curves if c.shares is not None and len(c.later)]
    after = statistics.median(len(c.later) - 1 for c in known)
    back = count - round(found["censored_share"] * count)
    life = found.get("half_life_median")
    text = (
        f"Rebound of {name}: {counted(count, 'request')} forgot {found['forgotten']:.3f} on average; "
        f"{found['share_back_at_end']:.0%} of it is back at the end (median {counted(after, 'round')} later); half of "
        f"it came back for {back} of {count}"
    )
    return text + (f", median half-life {counted(life, 'round')}." if life is not None else ".")
