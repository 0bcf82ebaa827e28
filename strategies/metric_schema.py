"""Metrics that a client may report with a reply: names, types and ranges. Metrics of other names are dropped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from strategies import message_keys

if TYPE_CHECKING:
    from flwr.app import MetricRecord


class Number(NamedTuple):
    """Type and range of one metric.

    Attributes
    ----------
    low, high : float
        Inclusive range.
    whole : bool
        Whether it is an integer.
    required : bool
        Whether every reply must report it.
    """

    low: float
    high: float
    whole: bool = False
    required: bool = False

    @property
    def expected(self) -> str:
        """What is expected, in words for an error message."""
        return f"a {'whole ' if self.whole else ''}number from {self.low:g} to {self.high:g}"

    def fits(self, value: object) -> bool:
        """Whether `value` is a number of this type and range."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return math.isfinite(value) and self.low <= value <= self.high


Numbers = Mapping[str, Number]
"""Numbers by metric name."""

MOST = 2.0**53
_COUNT, _SECONDS, _LOSS, _NATS = Number(0, MOST, whole=True), Number(0, 1e9), Number(-1e12, 1e12), Number(0, 1e9)
_WEIGHT = Number(1, MOST, whole=True, required=True)

TRAIN: Numbers = {
    message_keys.NUM_EXAMPLES: _WEIGHT,
    "train-loss": _LOSS._replace(required=True),
    "train-seconds": _SECONDS._replace(required=True),
    message_keys.TRAIN_STEPS: _COUNT,
}
UNLEARN: Numbers = {
    message_keys.NUM_EXAMPLES: _WEIGHT,
    "unlearn-loss": _LOSS,
    "unlearn-seconds": _SECONDS,
    "unlearn-steps": _COUNT,
    "forget-nll-before": _NATS,
    "forget-nll-after": _NATS,
    "forget-entropy-before": _NATS,
    "forget-entropy-after": _NATS,
    "forget-gap-before": _NATS,
    "forget-gap-after": _NATS,
    message_keys.LIVE_RECORDS: _COUNT,
}
REPLAY: Numbers = {**TRAIN, **dict.fromkeys(message_keys.REPLAYED, _COUNT)}
NUMBERS: Mapping[str, Numbers] = {"train": TRAIN, "calibrate": TRAIN, "replay": REPLAY, "unlearn": UNLEARN}
"""By the kind of exchange, as `Listener.exchange_started` names it."""


COUNTS: Mapping[str, Numbers] = {
    kind: {n: number for n, number in numbers.items() if number.whole or n.endswith("-seconds")}
    for kind, numbers in NUMBERS.items()
}
"""Those of them that count work and not its results, for clients that hide their records."""


def fault(metrics: Mapping[str, object], numbers: Numbers) -> str:
    """Check the reported metrics that `numbers` names.

    Parameters
    ----------
    metrics : mapping
        Value by name.
    numbers : Numbers

    Returns
    -------
    str
        What is wrong with the first one that is missing or does not fit; empty if nothing is.
    """
    for name, number in numbers.items():
        if name not in metrics:
            if number.required:
                return f"metric {name!r} is missing"
        elif not number.fits(metrics[name]):
            return f"metric {name!r} is {metrics[name]!r}, expected {number.expected}"
    return ""


def known(metrics: MetricRecord, numbers: Numbers) -> MetricRecord:
    """Drop the metrics of unknown names.

    Parameters
    ----------
    metrics : MetricRecord
    numbers : Numbers

    Returns
    -------
    MetricRecord
        A new one with the metrics that `numbers` names, and the partition id.
    """
    from flwr.app import MetricRecord

    return MetricRecord({k: v for k, v in metrics.items() if k in numbers or k == message_keys.PARTITION_ID})
