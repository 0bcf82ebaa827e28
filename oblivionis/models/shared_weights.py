"""Frozen weights that the processes of a machine read from one place: the file itself, in the page cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn


def share(model: nn.Module, folder: Path) -> int:
    """Put what `folder`'s safetensors hold in place of weights that are equal to it; returns the bytes that are shared.

    The file is mapped, so that all processes that map it hold its pages once; one that writes to a weight gets pages of
    its own. Weights that were converted on their way into the model, by type or shape, stay where they are.
    """
    weights = dict(model.named_parameters())
    shared = 0
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt", device="cpu") as stored:
            for name in set(stored.keys()) & weights.keys():
                weight, mapped = weights[name], stored.get_tensor(name)
                if weight.device.type == "cpu" and weight.dtype == mapped.dtype and torch.equal(weight.data, mapped):
                    weight.data = mapped
                    shared += mapped.nbytes
    return shared


def shareable_bytes(folder: Path, dtype: torch.dtype) -> int:
    """At most so many bytes of the model in `folder` can be shared: its tensors that are stored as `dtype`."""
    return sum(size for kind, size in _tensors(folder) if kind == dtype)


def _tensors(folder: Path) -> Iterator[tuple[torch.dtype, int]]:
    """Type and bytes of each stored tensor, read from the files' heads alone."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt", device="cpu") as stored:
            for name in stored.keys():  # noqa: SIM118
                tensor = stored.get_tensor(name)
                yield tensor.dtype, tensor.nbytes
