"""Whom rounds wait for, and by which clock, as the configuration says."""

from __future__ import annotations

from typing import Any

from oblivionis.config.schema import Config
from oblivionis.models.machine import participants
from strategies.durations import Durations
from strategies.versions import Buffer


def timing(config: Config) -> dict[str, Any]:
    """What `strategies.options.Options` calls `deadline`, `oversample`, `durations` and `buffer`."""
    federation, simulated = config.federation, config.federation.simulated_seconds
    times = {"median": simulated.median, "spread": simulated.spread, "persistence": simulated.persistence}
    distribution = simulated.distribution
    buffer = federation.buffer
    return {
        "deadline": federation.deadline,
        "oversample": federation.oversample,
        "durations": None if distribution == "none" else Durations(distribution, **times, seed=config.seed),
        "buffer": Buffer(buffer.size, participants(config), buffer.staleness_exponent) if buffer.size else None,
    }
