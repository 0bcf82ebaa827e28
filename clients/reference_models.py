"""Models beside the one that unlearns: the model as received, and a teacher that knows nothing."""

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
    """The model as it was when this object was made: a copy of the trained parameters, no second base model.

    With `vector` (size,) it is the model with these parameters instead.
    """

    def __init__(self, model: nn.Module, flat: FlatParameters, vector: np.ndarray | None = None) -> None:
        self._model, self._flat = model, flat
        self._vector = flat.vector.detach().clone()
        if vector is not None:
            self._vector.copy_(torch.from_numpy(vector))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the context the model is the one as received, in evaluation mode and without gradients.

        A forward pass whose gradient is still needed must come after the context, not before it.
        """
        with torch.no_grad(), evaluation_mode(self._model):
            self._swap()
            try:
                yield
            finally:
                self._swap()

    def _swap(self) -> None:
        for start in range(0, self._vector.numel(), _SWAP):
            block = slice(start, start + _SWAP)
            kept = self._vector[block].clone()
            self._vector[block] = self._flat.vector[block]
            self._flat.vector[block] = kept


def incompetent_teacher(model: nn.Module, seed: int) -> nn.Module:
    """A small Llama with random weights and the vocabulary of `model`, on its device, in evaluation mode.

    The incompetent teacher of Chundawat et al. (2023) is a randomly initialised model. It need not have the size of the
    student: two layers of width 64 cost next to nothing, and their weights are scaled such that the logits scatter as
    those of the student's own architecture do before any training, by its `initializer_range` times √width. The same
    seed gives the same teacher; the global random state stays as it is.
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
