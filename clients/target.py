"""Calibrated forgetting: how likely a model that never saw a record would find it, and unlearning up to that level.

Two things are known of a record that is to be forgotten: how the untouched base model finds its answer, and how
training has since changed what the model makes of records that nobody trains on, the reference records. A line fitted
to the latter, present against base negative log-likelihood, carries the former over to the present: an estimate of
what the model would make of the record had it never seen it. No oracle is asked and nothing leaves the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from clients.flat import FlatParameters
from clients.step import Step
from evaluation.engine.sequences import TokenSequence

LEAST_REFERENCES = 8
"""Fewest reference records that a line is fitted to."""


@dataclass(frozen=True, slots=True)
class Target:
    """Up to what each record is forgotten.

    nll (n,): mean negative log-likelihood of each forget record's answer under a model that never saw it, nats per
    token. tolerance: a record that lies no further from it is left alone, nats per token, positive. base (size,): the
    trainable parameters of the untouched base model.
    """

    nll: Tensor
    tolerance: float
    base: np.ndarray

    def __post_init__(self) -> None:
        if not self.tolerance > 0:
            raise ValueError(f"tolerance must be positive, got {self.tolerance}")


def never_seen_nll(reference_base: np.ndarray, reference_now: np.ndarray, record_base: np.ndarray) -> np.ndarray:
    """Estimated mean negative log-likelihood (n,) of records under a model that never saw them, nats per token, >= 0.

    reference_base, reference_now (m,): of records that nobody trains on, under the base model and under the present
    one; record_base (n,): of the records, under the base model. The least-squares line through the references, with a
    slope of at least 0. Raises ValueError for fewer than `LEAST_REFERENCES` references.
    """
    if reference_base.shape != reference_now.shape or reference_base.ndim != 1:
        raise ValueError(f"{reference_base.shape} base values do not fit {reference_now.shape} present ones")
    if len(reference_base) < LEAST_REFERENCES:
        raise ValueError(
            f"{len(reference_base)} records that nobody trains on are too few to judge by; expected at least "
            f"{LEAST_REFERENCES}"
        )
    middle = reference_base - reference_base.mean()
    spread = float(middle @ middle)
    slope = max(0.0, float(middle @ reference_now) / spread) if spread > 0 else 0.0
    return np.maximum(reference_now.mean() + slope * (record_base - reference_base.mean()), 0.0)


@torch.no_grad()
def record_nll(model: nn.Module, sequences: Sequence[TokenSequence], batch_size: int) -> Tensor:
    """(n,) mean negative log-likelihood of each sequence's answer tokens, nats, in evaluation mode."""
    training = model.training
    model.eval()
    try:
        parts = [
            Step(model, sequences[i : i + batch_size], []).forget_nll for i in range(0, len(sequences), batch_size)
        ]
    finally:
        model.train(training)
    return torch.cat(parts) if parts else torch.zeros(0)


def estimate_target(
    model: nn.Module,
    flat: FlatParameters,
    base: np.ndarray,
    references: Sequence[TokenSequence],
    records: Sequence[TokenSequence],
    batch_size: int,
    tolerance: float,
) -> Target:
    """The target of `records` from the present parameters in `flat`, which are there again afterwards.

    base (size,): the parameters of the untouched base model; references: records that nobody trains on. Raises
    ValueError as `never_seen_nll`.
    """
    present = flat.numpy()
    now = record_nll(model, references, batch_size)
    flat.load(base)
    try:
        before, own = (record_nll(model, part, batch_size) for part in (references, records))
    finally:
        flat.load(present)
    estimated = never_seen_nll(*(values.double().cpu().numpy() for values in (before, now, own)))
    return Target(torch.from_numpy(estimated).to(own), tolerance, base)
