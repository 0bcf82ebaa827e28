"""The classifier, and how original models and oracles are trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.tabular.data import Records


class TabularMLP(nn.Module):
    """features → width → width → classes, with ReLU and dropout after each hidden layer (RULER §4.1)."""

    def __init__(self, features: int, classes: int, width: int, dropout: float) -> None:
        super().__init__()
        self.shape = {"features": features, "classes": classes, "width": width, "dropout": dropout}
        self.body = nn.Sequential(
            nn.Linear(features, width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.head = nn.Linear(width, classes)

    def embed(self, x: Tensor) -> Tensor:
        """(n, width): what the head reads; in evaluation mode, where nothing is dropped, the last ReLU's output."""
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes)."""
        return self.head(self.embed(x))


def initialised(shape: Mapping[str, Any], seed: int) -> TabularMLP:
    """A classifier of that shape with the seed's random weights, in evaluation mode.

    The global random state stays as it is.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TabularMLP(**shape).eval()


def train(
    records: Records, shape: Mapping[str, Any], epochs: int, learning_rate: float, seed: int, dropout_seed: int
) -> TabularMLP:
    """A classifier of the records: Adam on their mean cross-entropy, all of them in each of `epochs` updates.

    `seed` gives the initial weights, `dropout_seed` the dropout masks: models of one seed start equal, whatever their
    records. The global random state stays as it is.
    """
    model = initialised(shape, seed).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=learning_rate)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(dropout_seed)
        for _ in range(epochs):
            loss = nn.functional.cross_entropy(model(records.x), records.y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.eval()
