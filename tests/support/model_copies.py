"""Functions that make a model of random numbers make each but once, and give a copy of it in a tenth of the time."""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

P = ParamSpec("P")
M = TypeVar("M", bound=nn.Module)


def copied(make: Callable[P, M]) -> Callable[P, M]:
    """Each call returns a model of its own, and leaves torch's generator where making the model leaves it.

    `make` seeds it itself: what it makes may depend on its arguments alone.
    """
    kept: dict[str, tuple[bytes, list[torch.Tensor], torch.Tensor]] = {}

    @functools.wraps(make)
    def copy(*args: P.args, **options: P.kwargs) -> M:
        key = repr((args, sorted(options.items())))
        if key not in kept:
            kept[key] = (*_taken_apart(make(*args, **options)), torch.get_rng_state())
        structure, tensors, state = kept[key]
        torch.set_rng_state(state)
        return _Builder(io.BytesIO(structure), [_again(tensor) for tensor in tensors]).load()

    return copy


def _taken_apart(model: nn.Module) -> tuple[bytes, list[torch.Tensor]]:
    """All but the tensors, and these, each once."""
    file = io.BytesIO()
    pickler = _Apart(file)
    pickler.dump(model)
    return file.getvalue(), list(pickler.tensors.values())


class _Apart(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: dict[int, torch.Tensor] = {}
        self._places: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, torch.Tensor):
            return None
        self.tensors.setdefault(id(obj), obj)
        return self._places.setdefault(id(obj), len(self._places))


class _Builder(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, pid: int) -> torch.Tensor:
        return self._tensors[pid]


def _again(tensor: torch.Tensor) -> torch.Tensor:
    fresh = tensor.detach().clone()
    return nn.Parameter(fresh, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fresh
