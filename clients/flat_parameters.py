"""The trainable parameters of a model as one vector."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn


class FlatParameters:
    """All trainable parameters of a model as views into one contiguous float32 vector.

    After construction every trainable parameter is a view into `vector` and its gradient a view into `vector.grad`,
    into which autograd adds in place. So an optimiser given `[flat.vector]` works in one fused kernel, and to load or
    to save an adapter is one copy. A tied weight occurs once. Matrices come first, then vectors (biases, norms),
    each in the order of `model.named_parameters()`; `manifest` has names and shapes. Parameters in half precision
    become float32: `compute_dtype` remembers what the model computes in. Of a model without trainable parameters the
    vector is empty.

    Parameters
    ----------
    model : nn.Module

    Raises
    ------
    ValueError
        If the trainable parameters are on several devices.
    """

    def __init__(self, model: nn.Module) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        devices = {p.device for _, p in named} or {next(model.parameters()).device}
        if len(devices) > 1:
            raise ValueError(f"trainable parameters lie on several devices: {sorted(map(str, devices))}")
        named.sort(key=lambda item: item[1].ndim < 2)
        self.compute_dtype = _main_dtype(model)
        self.manifest: list[tuple[str, tuple[int, ...]]] = [(name, tuple(p.shape)) for name, p in named]
        self.size = sum(p.numel() for _, p in named)
        self._matrices = sum(p.numel() for _, p in named if p.ndim >= 2)
        self._parameters = [p for _, p in named]
        storage = torch.empty(self.size, dtype=torch.float32, device=devices.pop())
        self.vector = nn.Parameter(storage)
        self.vector.grad = torch.zeros_like(storage)
        self._views: list[torch.Tensor] = []
        offset = 0
        for p in self._parameters:
            part = slice(offset, offset + p.numel())
            storage[part].copy_(p.detach().reshape(-1))
            p.grad = None
            p.data = storage[part].view(p.shape)
            self._views.append(self.grad[part].view(p.shape))
            offset += p.numel()
        self.zero_grad()

    @property
    def names(self) -> list[str]:
        """Parameter names in the order of the vector."""
        return [name for name, _ in self.manifest]

    @property
    def device(self) -> torch.device:
        """Device of the vector."""
        return self.vector.device

    @property
    def grad(self) -> torch.Tensor:
        """The gradient (size,), of which the parameters' gradients are views."""
        grad = self.vector.grad
        assert grad is not None
        return grad

    def zero_grad(self) -> None:
        """Set the gradient to zero and restore the parameters' views into it, also after `model.zero_grad()`."""
        self.grad.zero_()
        for p, view in zip(self._parameters, self._views, strict=True):
            if p.grad is not view:
                p.grad = view

    def parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Groups for a torch optimiser: `weight_decay` for matrices, none for biases and norm weights."""
        if self._matrices in (0, self.size):
            return [{"params": [self.vector], "weight_decay": weight_decay if self._matrices else 0.0}]
        groups = []
        for part, decay in ((slice(0, self._matrices), weight_decay), (slice(self._matrices, None), 0.0)):
            leaf = nn.Parameter(self.vector.detach()[part])
            leaf.grad = self.grad[part]
            groups.append({"params": [leaf], "weight_decay": decay})
        return groups

    def mask(self, parts: Iterable[str]) -> torch.Tensor:
        """Mask of the numbers that belong to parameters with one of `parts` in their name.

        Parameters
        ----------
        parts : iterable of str

        Returns
        -------
        tensor (size,), bool
        """
        parts = tuple(parts)
        mask = torch.zeros(self.size, dtype=torch.bool, device=self.device)
        offset = 0
        for name, shape in self.manifest:
            end = offset + math.prod(shape)
            mask[offset:end] = any(part in f".{name}" for part in parts)
            offset = end
        return mask

    def load(self, values: np.ndarray) -> None:
        """Copy values into the model.

        Parameters
        ----------
        values : array (size,), any float type

        Raises
        ------
        ValueError
            For another shape or type.
        RuntimeError
            If the model's parameters were replaced (by `model.to(...)`, say) since this object was made.
        """
        values = np.asarray(values)
        if values.shape != (self.size,):
            raise ValueError(f"expected an array of shape ({self.size},), got {values.shape}")
        if not np.issubdtype(values.dtype, np.floating):
            raise ValueError(f"expected floating-point values, got {values.dtype}")
        self._check_attached()
        with torch.no_grad():
            self.vector.copy_(torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)))

    def numpy(self) -> np.ndarray:
        """A float32 copy (size,) of the trainable parameters; RuntimeError as `load`."""
        self._check_attached()
        return self.vector.detach().cpu().numpy().copy()

    def _check_attached(self) -> None:
        """Raise RuntimeError if a parameter is no longer a view into the vector."""
        pointer = self.vector.data_ptr()
        for name, p in zip(self.names, self._parameters, strict=True):
            if p.data_ptr() != pointer:
                raise RuntimeError(f"parameter {name} no longer belongs to the flat vector; build FlatParameters anew")
            pointer += 4 * p.numel()


def _main_dtype(model: nn.Module) -> torch.dtype:
    """The floating dtype that most weights of the model have; of the frozen ones where there are any."""
    counts: dict[torch.dtype, int] = {}
    floating = [p for p in model.parameters() if p.is_floating_point()]
    for p in [p for p in floating if not p.requires_grad] or floating:
        counts[p.dtype] = counts.get(p.dtype, 0) + p.numel()
    return max(counts, key=lambda dtype: counts[dtype])
