"""Local fine-tuning of a client, the inner loop of FedFT."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clients.flat_parameters import FlatParameters
from clients.optimisation import NonFiniteError, Prox, TrainSettings, Updater, local_work
from evaluation.engine.forward import packed_batch, token_log_probs
from evaluation.engine.sequences import TokenSequence

__all__ = ["NonFiniteError", "Prox", "TrainReport", "TrainSettings", "batches", "train"]


@dataclass(frozen=True, slots=True)
class TrainReport:
    """Result of a local training.

    Attributes
    ----------
    num_examples, steps : int
        Records and updates.
    first_loss, last_loss : float
        Loss of the first and of the last update, nats per answer token.
    seconds : float
    """

    num_examples: int
    steps: int
    first_loss: float
    last_loss: float
    seconds: float


def batches(count: int, size: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Batches of one epoch: a random permutation of the records, cut into pieces.

    The same as a DataLoader with batches of this size over that permutation.

    Parameters
    ----------
    count : int
        Number of records.
    size : int, at least 1
        Records in a batch; the last may have fewer.
    generator : torch.Generator, on the CPU

    Yields
    ------
    list of int
        Numbers below `count`.
    """
    order = torch.randperm(count, generator=generator).tolist()
    for start in range(0, count, size):
        yield order[start : start + size]


def train(
    model: nn.Module,
    flat: FlatParameters,
    sequences: Sequence[TokenSequence],
    settings: TrainSettings,
    *,
    prox: Prox | None = None,
    moving: Tensor | None = None,
    seed: int,
    on_step: Callable[[int, float], None] | None = None,
) -> TrainReport:
    """Train `flat`, the trainable parameters of `model`, on `sequences` for `settings.epochs` passes.

    The loss is the mean cross-entropy over the answer tokens of the records of an update (Oblivionis eq. 3, normalised
    by answer tokens). The optimiser is new in every call; the same seed gives the same result.

    Parameters
    ----------
    model : nn.Module
    flat : FlatParameters
    sequences : sequence of TokenSequence
        At least one.
    settings : TrainSettings
    prox : Prox, optional
    moving : tensor (size,), bool, optional
        The numbers that may change, None for all.
    seed : int
    on_step : callable (update from 1, loss), optional
        Called after each update.

    Returns
    -------
    TrainReport

    Raises
    ------
    ValueError
        Without sequences.
    NonFiniteError
        When the loss or a parameter is not finite.
    """
    if not sequences:
        raise ValueError("no sequence to train on")
    start = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    size = settings.records_per_update
    updater = Updater(flat, settings, settings.epochs * -(-len(sequences) // size), prox, moving)
    losses: list[float] = []
    with local_work(model, flat, seed, gradient_checkpointing=settings.gradient_checkpointing):
        for _ in range(settings.epochs):
            for chosen in batches(len(sequences), size, generator):
                records = [sequences[i] for i in chosen]
                losses.append(_accumulate(model, records, settings.batch_size, updater))
                updater.step()
                if on_step is not None:
                    on_step(updater.steps, losses[-1])
    updater.finish()
    return TrainReport(len(sequences), updater.steps, losses[0], losses[-1], time.perf_counter() - start)


def _accumulate(model: nn.Module, records: list[TokenSequence], batch_size: int, updater: Updater) -> float:
    """Add the gradient of the token-mean loss over all records, `batch_size` of them at a time; returns the loss."""
    tokens = sum(len(record.answer) for record in records)
    total = 0.0
    for start in range(0, len(records), batch_size):
        batch = packed_batch(model, records[start : start + batch_size])
        loss = -token_log_probs(model, batch).sum() / tokens
        updater.backward(loss)
        total += loss.item()
    return total
