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

from clients.training import TrainSettings
from evaluation.engine.sequences import TokenSequence

FORGET, RETAIN = tiny_llama.sequences(7, seed=1), tiny_llama.sequences(5, seed=2)
RATE, DECAY, SIZE, EPOCHS, SEED = 2e-3, 0.01, 4, 2, 9
SETTINGS = TrainSettings(
    epochs=EPOCHS, batch_size=SIZE, learning_rate=RATE, weight_decay=DECAY, warmup_epochs=0, max_grad_norm=None
)

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


def trajectory(loss: Batch) -> tuple[list[float], np.ndarray]:
    """The loss before each update, and the trainable parameters after the last one, flat."""
    model = tiny_llama.lora(num_hidden_layers=3)
    received = copy.deepcopy(model).eval()
    moving = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(moving, lr=RATE, weight_decay=DECAY, foreach=False)
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
