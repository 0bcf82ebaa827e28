"""State of one run of FedTU's rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from strategies import message_keys
from strategies.rounds.exchange import Exchange
from strategies.rounds.grids import OrderedGrid

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


def part_of(state: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The entries of a state whose names have a prefix.

    Parameters
    ----------
    state : mapping of arrays
    prefix : str

    Returns
    -------
    dict of arrays
        By the names without the prefix.
    """
    return {name.removeprefix(prefix): values for name, values in state.items() if name.startswith(prefix)}


def keep_metrics(metrics: MetricRecord | None, results: dict[int, MetricRecord], server_round: int) -> None:
    """Enter averaged metrics into the results, without the partition id.

    Parameters
    ----------
    metrics : MetricRecord or None
        None: nothing is entered.
    results : dict of MetricRecord
        By round; changed in place.
    server_round : int
    """
    if metrics is not None:
        metrics.pop(message_keys.PARTITION_ID, None)
        results[server_round] = metrics


@dataclass(kw_only=True)
class Run:
    """What stays the same during one `start`, and who is connected in the current round.

    Attributes
    ----------
    exchange : Exchange
    eligible : OrderedGrid
        The clients that may train.
    train_config, evaluate_config : dict
    evaluate_fn : callable or None
    num_rounds : int
    result : Result
    partition_to_node : mapping of int
        Node id by partition of the connected clients.
    drawn_from : int
    """

    exchange: Exchange
    eligible: OrderedGrid
    train_config: dict[str, Any]
    evaluate_config: dict[str, Any]
    evaluate_fn: Evaluate | None
    num_rounds: int
    result: Result
    partition_to_node: Mapping[int, int] = field(default_factory=dict)
    drawn_from: int = 0
    """Least number of clients from which those of the current round were sampled."""
