"""How long a run that goes on will still take, by the times in its rows: what its console says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oblivionis.config.schema import Config
from oblivionis.runs.duration_forecast import Forecast, plan
from oblivionis.runs.run_status import Progress

FULL, INSIDE = "end", ("round", "after_unlearn")
"""Moments at which everything is measured, and which lie within a round."""


def time_left(config: Config, stages: Sequence[Progress], rows: Sequence[Mapping[str, Any]], now: float) -> str:
    """What the rest will take, in words; empty before the first round.

    stages: of the run, as far as they are; rows: of its metrics.jsonl; now: in seconds since the epoch.
    """
    measured = any("seconds" in row for row in rows)
    evaluation = config.evaluation
    sizes = [(p.questions_per_set or 0) * p.max_new_tokens for p in (evaluation.light, evaluation.full)]
    light, full = sizes if measured and all(sizes) else (int(measured), int(measured))
    forecast = Forecast(plan(config, {stage.stage: stage.total for stage in stages}, light, full))
    before: tuple[Any, ...] = ()
    for row in rows:
        evaluator, moment = row.get("evaluator"), row.get("moment", "")
        if evaluator == "federation":
            forecast.round(row["stage"], row["metrics"].get("seconds") or 0.0)
            continue
        this = row["stage"], row["round"], moment
        if "seconds" in row and this != before and evaluator not in ("requests", "rebound"):
            forecast.evaluation(row["stage"], row["seconds"], full=moment == FULL, inside=moment in INSIDE)
            before = this
    for stage in stages:
        if stage.finished:
            forecast.finished(stage.stage)
    last = max((row["time"] for row in rows if "time" in row), default=now)
    return forecast.sentence(max(0.0, now - last))
