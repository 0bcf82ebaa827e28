"""What one client may count in this run's exchanges, by what its configuration lets an honest client do."""

from __future__ import annotations

import math
from collections.abc import Callable

from clients.optimisation import BETAS
from oblivionis.config import method_traits
from oblivionis.config.schema import Config, Training
from strategies.rounds.compression import Compression
from strategies.rounds.update_bounds import Bounds

UPDATES_PER_BATCH = 4
"""A method of unlearning makes no more updates of one batch and epoch (SCRUB makes two)."""
MARGIN = 1.01


def longest_step(beta_1: float = BETAS[0]) -> float:
    """No step of Adam moves a number further than so many learning rates; 7.27 for β₁ = 0.9, `beta_1` at most 0.99.

    |m_t| ≤ (1 − β₁) √(Σ (β₁²/β₂)ʲ) √(v_t / (1 − β₂)) by Cauchy and Schwarz.
    """
    beta_2 = BETAS[1]
    return (1 - beta_1) / math.sqrt((1 - beta_2) * (1 - beta_1**2 / beta_2))


def bounds_of(config: Config, count: Callable[[int], int | None], size: int, *, reported: bool) -> Bounds:
    """The bounds for vectors of `size` numbers. `count`: a client's records, None where unknown; `reported`: it reports
    them itself, so that the share of an average is limited, too.
    """
    federation = config.federation
    share = federation.max_weight_share

    def longest(kind: str, client: int, length: float) -> float:
        records = count(client)
        return math.inf if records is None else longest_update(config, kind, records, size, length)

    return Bounds(
        records=count,
        longest=longest,
        max_weight_share=(0.5 if reported else 1.0) if share is None else share,
        max_update_norm=None if config.privacy.level == "client" else federation.max_update_norm,
        free_share=1 / longest_step(),
    )


def longest_update(config: Config, kind: str, records: int, size: int, length: float) -> float:
    """No client with so many records can change a vector of `size` numbers and norm `length` by more, as an L2 norm.

    Each of its updates moves every number by at most `longest_step` learning rates, and weight decay by the learning
    rate times the decay of what the number is: next to nothing compared with a step, as long as numbers are small.

    With error feedback what is sent of a training holds parts of earlier ones, see `Compression.longest`.
    """
    training, unlearning = config.training, config.unlearning
    found = _reach(
        training, training.learning_rate, training.weight_decay, config.federation.local_epochs, records, size
    )
    trained, how = _total(found, length), config.federation.compression
    if how.error_feedback and kind != "calibrate":
        trained *= Compression(how.method, how.keep, how.block).longest(size)
    if kind != "unlearn":
        return trained
    rate = unlearning.learning_rate or training.learning_rate
    decay = training.weight_decay if unlearning.weight_decay is None else unlearning.weight_decay
    epochs = UPDATES_PER_BATCH * unlearning.epochs
    batch, step = unlearning.batch_size, longest_step(unlearning.beta_1)
    steps, drift = _reach(training, rate, decay, epochs, records, size, batch, step)
    if method_traits.starts_from_others(unlearning.method):  # not from the model that was sent
        return _total((steps, drift), 2 * length + trained) + 2 * length + trained
    return method_traits.scale(unlearning.method, unlearning.params) * _total((steps, drift), length)


def _reach(
    training: Training,
    rate: float,
    decay: float,
    epochs: int,
    records: int,
    size: int,
    batch: int | None = None,
    step: float | None = None,
) -> tuple[float, float]:
    """How far the optimiser's steps lead at most, each of up to `step` rates, and by which share of itself weight decay
    changes the vector."""
    updates = epochs * math.ceil(max(records, 1) / ((batch or training.batch_size) * training.gradient_accumulation))
    return (step or longest_step()) * rate * updates * math.sqrt(size), rate * decay * updates


def _total(found: tuple[float, float], length: float) -> float:
    steps, drift = found
    return MARGIN * (steps + drift * (length + steps))
