"""Relearning attack: fine-tune an unlearned model on a few records, and keep the parameters after some updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import nn

from clients.flat_parameters import FlatParameters
from clients.training import TrainSettings, train
from evaluation.engine.sequences import TokenSequence


def relearn(
    model: nn.Module,
    flat: FlatParameters,
    sequences: Sequence[TokenSequence],
    settings: TrainSettings,
    steps: Sequence[int],
    *,
    seed: int,
) -> dict[int, np.ndarray]:
    """Train on records and return the parameters after given numbers of updates.

    Epochs of `train` follow each other until the largest number is reached (`settings.epochs` is not used), at a
    constant learning rate: the parameters after s updates do not depend on the other numbers. Afterwards the model has
    the parameters that it had before.

    Parameters
    ----------
    model : nn.Module
    flat : FlatParameters
    sequences : sequence of TokenSequence
    settings : TrainSettings
    steps : sequence of int, at least 0
        Numbers of updates; 0: the parameters before.
    seed : int

    Returns
    -------
    dict of arrays (size,)
        By number of updates.

    Raises
    ------
    ValueError
        For a negative number, and as `train`.
    """
    if any(step < 0 for step in steps):
        raise ValueError(f"numbers of updates must not be negative, got {list(steps)}")
    start = flat.numpy()
    vectors = {0: start} if 0 in steps else {}
    last = max(steps, default=0)
    if last:
        per_epoch = -(-len(sequences) // settings.records_per_update) if sequences else 1
        plain = replace(
            settings, epochs=-(-last // per_epoch), schedule="constant", warmup_epochs=0.0, warmup_ratio=0.0
        )

        def keep(step: int, loss: float) -> None:
            if step in steps:
                vectors[step] = flat.numpy()

        try:
            train(model, flat, sequences, plain, seed=seed, on_step=keep)
        finally:
            flat.load(start)
    return {step: vectors[step] for step in steps}
