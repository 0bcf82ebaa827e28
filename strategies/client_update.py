"""One client's update in a round of FedFT, as aggregators and update history see it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, MetricRecord, RecordDict

from strategies import message_keys
from strategies.arrays import first_record

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ClientUpdate:
    """One valid reply.

    Attributes
    ----------
    partition : int
        The client; -1 if unknown.
    weight : float above 0
        n_k (num-examples).
    arrays : ArrayRecord
        Its model φ_k.
    steps : float or None
        Its local optimiser steps; None if not reported.
    entry : str
        SHA-256 of the line of the client's ledger about it; empty if not reported.
    """

    partition: int
    weight: float
    arrays: ArrayRecord
    steps: float | None = None
    entry: str = ""

    @classmethod
    def of(cls, content: RecordDict, weight_key: str, partition: int | None = None) -> ClientUpdate:
        """Read the update from a checked reply.

        Parameters
        ----------
        content : RecordDict
            With one ArrayRecord and one MetricRecord.
        weight_key : str
            The metric that is the weight.
        partition : int, optional
            The client, if known.

        Returns
        -------
        ClientUpdate
            Its ArrayRecord is a copy that shares the numbers: some of Flower's strategies empty that of the reply.
        """
        arrays, metrics = first_record(content, ArrayRecord), first_record(content, MetricRecord)
        steps = metrics.get(message_keys.TRAIN_STEPS)
        claimed = metrics.get(message_keys.PARTITION_ID, -1) if partition is None else partition
        return cls(
            int(claimed),  # type: ignore[arg-type]
            float(metrics[weight_key]),  # type: ignore[arg-type]
            ArrayRecord(dict(arrays)),
            float(steps) if isinstance(steps, int | float) else None,
            _entry(content),
        )


def _entry(content: RecordDict) -> str:
    """The hash that a reply names as `message_keys.ENTRY`; empty for anything else."""
    proof = content.config_records.get(message_keys.PROOF, {})
    text = proof.get(message_keys.ENTRY)
    return text if isinstance(text, str) and _SHA256.fullmatch(text) else ""


def shares(updates: Sequence[ClientUpdate]) -> list[float]:
    """Aggregation weights α_k = n_k / Σ n_j in the order of `updates`.

    Parameters
    ----------
    updates : sequence of ClientUpdate

    Returns
    -------
    list of float
        They sum to 1, also where Σ n_j exceeds float64's range.
    """
    total = sum(update.weight for update in updates)
    if math.isfinite(total):
        return [update.weight / total for update in updates]
    largest = max(update.weight for update in updates)
    total = sum(update.weight / largest for update in updates)
    return [update.weight / largest / total for update in updates]
