"""Reference models for unlearning: the model as received, and a randomly initialised teacher."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from clients.flat_parameters import FlatParameters
from evaluation.engine.models import evaluation_mode, model_device, text_config, vocabulary_size

_SWAP = 1 << 20
_TEACHER_WIDTH = 64


class Received:
    """The model with fixed parameters, by default those at construction: a copy of these, no second base model.

    Parameters
    ----------
    model : nn.Module
    flat : FlatParameters
    vector : array (size,), optional
        The parameters; None: the present ones.
    """

    def __init__(self, model: nn.Module, flat: FlatParameters, vector: np.ndarray | None = None) -> None:
        self._model, self._flat = model, flat
        self._vector = flat.vector.detach().clone()
        if vector is not None:
            self._vector.copy_(torch.from_numpy(vector))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context in which the model has these parameters, in evaluation mode and without gradients.

        A forward pass whose gradient is still needed must come after the context, not before it.
        """
        with torch.no_grad(), evaluation_mode(self._model):
            self._swap()
            try:
                yield
            finally:
                self._swap()

    def _swap(self) -> None:
        """Exchange the model's parameters with these."""
        for start in range(0, self._vector.numel(), _SWAP):
            block = slice(start, start + _SWAP)
            kept = self._vector[block].clone()
            self._vector[block] = self._flat.vector[block]
            self._flat.vector[block] = kept


def incompetent_teacher(model: nn.Module, seed: int) -> nn.Module:
    """Randomly initialised small Llama with the vocabulary of a model, as incompetent teacher (Chundawat et al. 2023).

    It need not have the size of the student: two layers of width 64 cost next to nothing. Their weights are scaled such
    that the logits scatter as those of the student's own architecture do before any training, by its
    `initializer_range` times √width. The global random state stays as it is.

    Parameters
    ----------
    model : nn.Module
        The student.
    seed : int
        The same seed gives the same teacher.

    Returns
    -------
    nn.Module
        On the student's device, in evaluation mode, without gradients.
    """
    config = text_config(model)
    spread = getattr(config, "initializer_range", 0.02) * (config.hidden_size / _TEACHER_WIDTH) ** 0.5
    shape = LlamaConfig(
        vocab_size=vocabulary_size(model),
        hidden_size=_TEACHER_WIDTH,
        intermediate_size=2 * _TEACHER_WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=config.max_position_embeddings,
        initializer_range=spread,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        teacher = LlamaForCausalLM(shape)
    return teacher.to(model_device(model)).eval().requires_grad_(False)  # type: ignore[arg-type]
