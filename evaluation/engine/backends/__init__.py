"""The ways of running a causal language model."""

from __future__ import annotations

from torch import nn

from evaluation.engine.backends.base import AnswerRows, Backend
from evaluation.engine.backends.fused import FusedBackend
from evaluation.engine.backends.packed import PackedBackend
from evaluation.engine.backends.padded import PaddedBackend
from evaluation.engine.backends.plain import PlainBackend
from evaluation.engine.backends.together import EnsembleBackend
from evaluation.engine.ensemble import Ensemble

_BACKENDS: tuple[type[Backend], ...] = (PackedBackend, PaddedBackend, PlainBackend)

__all__ = ["AnswerRows", "Backend", "backend"]


def backend(model: nn.Module, name: str, *, passes: str = "one") -> Backend:
    """A way of running a causal language model.

    Parameters
    ----------
    model : nn.Module
        An `Ensemble` is run by this way member by member.
    name : {"fused", "packed", "padded", "plain"}
    passes : {"one", "many"}
        For how many passes the fused way may prepare copies of weights.

    Returns
    -------
    Backend
    """
    if isinstance(model, Ensemble):
        return EnsembleBackend(model, [backend(model.model, name, passes=passes) for _ in range(model.size)])
    if name == FusedBackend.name:
        return FusedBackend(model, passes)
    return next(each for each in _BACKENDS if each.name == name)(model)
