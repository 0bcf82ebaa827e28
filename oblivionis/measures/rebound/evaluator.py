"""Rebound: does what a request forgot come back while the others train on?

It compares rounds, so that nothing of it runs in the hook: `measures.rebound.tracker` writes its rows and its summary.
"""

from __future__ import annotations

from evaluation.metrics.catalogue import Direction, Metric
from oblivionis.measures.base import Measure

MEASURES = {"prob": "forget_prob", "rouge": "forget_rouge"}
"""What is followed of each request's records, and the metric of TOFU that it is called after."""


def summary_key(measure: str, name: str) -> str:
    """The key of a number of `evaluation.metrics.rebound` over a stage; that of Prob has no prefix."""
    return name if measure == "prob" else f"{measure}_{name}"


def _of_measure(measure: str, called: str) -> list[Metric]:
    words = f" ({called})" if measure != "prob" else ""
    texts: dict[str, tuple[str, Direction | None, str]] = {
        "requests": ("Requests that forgot", None, f"Requests whose records' {called} fell by at least 0.01."),
        "forgotten": (
            "Forgotten",
            None,
            f"By how much their records' {called} fell, mean over those requests.",
        ),
        "share_back_at_end": (
            "Share back at the end",
            "lower",
            "How much of what a request forgot is back at the last round, mean over the requests. 0: nothing, 1: all.",
        ),
        "censored_share": (
            "Requests that stayed forgotten",
            "higher",
            "Share of the requests of which less than half came back within the measured rounds.",
        ),
        "half_life_median": (
            "Median half-life",
            "higher",
            "Rounds until half of what a request forgot is back, (lower) median; left out where most stay forgotten.",
        ),
    }
    return [
        Metric(summary_key(measure, name), f"Rebound: {label}{words}", direction, None, meaning)
        for name, (label, direction, meaning) in texts.items()
    ]


class Rebound(Measure):
    """How much of what requests forgot is back after the rounds that follow, by Prob and ROUGE-L recall."""

    order = 80
    metrics = (*_of_measure("prob", "Prob"), *_of_measure("rouge", "ROUGE-L recall"))
