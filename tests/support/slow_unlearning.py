"""The unlearning loop written out: one record at a time, whole distributions, AdamW of torch."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from support import tiny_llama
from torch import Tensor

from clients.flat_parameters import FlatParameters
from clients.training import TrainSettings
from clients.unlearning import unlearn
from evaluation.engine.sequences import TokenSequence

FORGET, RETAIN = tiny_llama.sequences(7, seed=1), tiny_llama.sequences(5, seed=2)
RATE, DECAY, SIZE, EPOCHS, SEED = 2e-3, 0.01, 4, 2, 9
EPS = 1e-6
"""AdamW's: with the usual 1e-8 a gradient of rounding alone, of a divergence from itself, moves like any other."""
SETTINGS = TrainSettings(
    epochs=EPOCHS, batch_size=SIZE, learning_rate=RATE, weight_decay=DECAY, warmup_epochs=0, eps=EPS
)

OTHERS = [
    [TokenSequence(record.prompt, other.answer) for other in tiny_llama.sequences(1 + i % 3, seed=30 + i)]
    for i, record in enumerate(FORGET)
]
"""Other answers to the question of each forget record: one, two or three."""

Batch = Callable[[Any, Any, list[TokenSequence], list[TokenSequence]], Tensor]
"""The loss of a batch: of the model, the model as received, forget records, retain records."""


def rows(model: Any, record: TokenSequence) -> Tensor:
    """(L, V) log-probabilities that predict each answer token of this record alone, float64."""
    logits = model(input_ids=torch.tensor([[*record.prompt, *record.answer]])).logits
    return logits[0, len(record.prompt) - 1 : -1].double().log_softmax(-1)


def nll(model: Any, records: list[TokenSequence]) -> Tensor:
    """Mean over the records of the mean negative log-likelihood of their answer tokens."""
    means = []
    for record in records:
        log_p = rows(model, record)
        means.append(-sum(log_p[i, token] for i, token in enumerate(record.answer)) / len(record.answer))
    return torch.stack(means).mean()


def in_turn() -> Callable[[list[TokenSequence]], list[TokenSequence]]:
    """Of the batches of a trajectory, in their order, to the other answers that their epoch takes."""
    calls, per_epoch = itertools.count(), -(-len(FORGET) // SIZE)

    def others(batch: list[TokenSequence]) -> list[TokenSequence]:
        epoch = next(calls) // per_epoch
        found = [OTHERS[FORGET.index(record)] for record in batch]
        return [answers[epoch % len(answers)] for answers in found]

    return others


def log_p(model: Any, record: TokenSequence) -> Tensor:
    """Log-likelihood of the whole answer."""
    return torch.stack([rows(model, record)[i, token] for i, token in enumerate(record.answer)]).sum()


def fast(method: str, values: dict[str, Any], **more: Any) -> tuple[list[float], np.ndarray]:
    """What `unlearn` makes of the same: the loss before each update, and the trainable parameters after the last."""
    model = tiny_llama.shallow()
    flat, history = FlatParameters(model), []
    settings = {"seed": SEED, "alternatives": OTHERS, "on_step": lambda _, value: history.append(value), **more}
    unlearn(model, flat, FORGET, RETAIN, method, values, SETTINGS, **settings)
    return history, flat.numpy()


def trajectory(loss: Batch) -> tuple[list[float], np.ndarray]:
    """The loss before each update, and the trainable parameters after the last one, flat."""
    model = tiny_llama.shallow()
    received = copy.deepcopy(model).eval()
    moving = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(moving, lr=RATE, eps=EPS, weight_decay=DECAY, foreach=False)
    order, draws = torch.Generator().manual_seed(SEED), torch.Generator().manual_seed(SEED + 1)
    count = len(RETAIN)
    cycle = itertools.chain.from_iterable(torch.randperm(count, generator=draws).tolist() for _ in itertools.count())
    history = []
    for _ in range(EPOCHS):
        permutation = torch.randperm(len(FORGET), generator=order).tolist()
        for start in range(0, len(FORGET), SIZE):
            chosen = permutation[start : start + SIZE]
            partners = [RETAIN[next(cycle)] for _ in chosen]
            value = loss(model, received, [FORGET[i] for i in chosen], partners)
            history.append(value.item())
            model.zero_grad()
            value.backward()
            optimiser.step()
    return history, torch.cat([p.detach().reshape(-1) for p in moving]).numpy()
