"""What stays the same during one run of FedTU's rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from strategies.exchange import Exchanges
from strategies.nodes import OrderedGrid

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass
class Run:
    """What stays the same during one `start`, and who is connected in the present round."""

    exchanges: Exchanges
    eligible: OrderedGrid
    train_config: dict[str, Any]
    evaluate_config: dict[str, Any]
    evaluate_fn: Evaluate | None
    num_rounds: int
    result: Result
    partition_to_node: Mapping[int, int] = field(default_factory=dict)
    drawn_from: int = 0
    """Of how many clients those were drawn that train in the present round, at least."""
