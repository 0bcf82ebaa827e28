"""Several models that differ in the same few weights, as one that gives the mean of their log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from evaluation.engine.models import base_model


class Ensemble(nn.Module):
    """The modules of one model, and the weights that its members put into them in turn.

    The engine runs it by `evaluation.engine.backends.together.EnsembleBackend`; it has no forward pass of its own.

    Parameters
    ----------
    model : nn.Module
    load : callable (array (n,)) -> None
        Puts weights into `model`.
    """

    def __init__(self, model: nn.Module, load: Callable[[np.ndarray], None]) -> None:
        super().__init__()
        self.model, self._load = model, load
        self._members: Sequence[np.ndarray] = ()
        self._chosen: int | None = None

    def hold(self, members: Sequence[np.ndarray]) -> None:
        """Replace the members.

        Parameters
        ----------
        members : sequence of S arrays (n,)
            The weights of each, at least one.
        """
        self._members, self._chosen = members, None

    @property
    def size(self) -> int:
        """Number of members S."""
        return len(self._members)

    def choose(self, member: int) -> nn.Module:
        """The model with the weights of a member, until another one is chosen.

        Parameters
        ----------
        member : int

        Returns
        -------
        nn.Module
        """
        if member != self._chosen:
            self._load(self._members[member])
            self._chosen = member
        return self.model

    def get_base_model(self) -> nn.Module:
        """The Hugging Face model, without the adapters of peft."""
        return base_model(self.model)


def mean_of_log_probs(logits: Iterable[Tensor]) -> Tensor:
    """Logits of the members' mixture: log of the mean of their probabilities.

    Parameters
    ----------
    logits : iterable of S tensors (n, V), at least one
        One is taken after the other, and none is kept.

    Returns
    -------
    tensor (n, V), float32
        log (1/S) Σ softmax(logits_k); its exponentials sum to 1.
    """
    members = iter(logits)
    total, count = next(members).float().log_softmax(-1), 1
    for more in members:
        total, count = torch.logaddexp(total, more.float().log_softmax(-1)), count + 1
    return total - math.log(count)
