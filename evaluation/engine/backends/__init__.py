"""The ways of running a causal language model, beside each other."""

from __future__ import annotations

from torch import nn

from evaluation.engine.backends.base import AnswerRows, Backend
from evaluation.engine.backends.fused import FusedBackend
from evaluation.engine.backends.packed import PackedBackend
from evaluation.engine.backends.padded import PaddedBackend
from evaluation.engine.backends.plain import PlainBackend

_BACKENDS: tuple[type[Backend], ...] = (PackedBackend, PaddedBackend, PlainBackend)

__all__ = ["AnswerRows", "Backend", "backend"]


def backend(model: nn.Module, name: str, *, passes: str = "one") -> Backend:
    """The way `name` of running the model. passes: one or many, for what the fused way prepares ahead."""
    if name == FusedBackend.name:
        return FusedBackend(model, passes)
    return next(each for each in _BACKENDS if each.name == name)(model)
