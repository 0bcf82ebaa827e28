"""Which layer each trainable number belongs to, and which are those of the first layers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import nn

from clients.flat_parameters import FlatParameters
from evaluation.engine.models import decoder_layers
from oblivionis.models.parameter_roles import Role, module_of, role


def layers_of(flat: FlatParameters) -> NDArray[np.int64]:
    """The layer of each number of the vector (n,), from 0 in the order of first occurrence.

    A layer is a module with its matrix and its bias; with LoRA all that adapts a matrix together.
    """
    known: dict[str, int] = {}
    parts = []
    for name, shape in flat.manifest:
        module = module_of(name)
        parts.append(np.full(int(np.prod(shape)), known.setdefault(module, len(known)), dtype=np.int64))
    return np.concatenate(parts)


def learned_by_first_layers(model: nn.Module, flat: FlatParameters, mode: str, layers: int) -> NDArray[np.bool_]:
    """Which numbers of the flat vector (n,), bool, are weights of the first `layers` decoder layers.

    mode lora: LoRA's B alone, with whose sign that of B·A changes, what training added to the layer (with A's as well
    it would stay); full: all of a layer's weight matrices, no biases and norm weights. Raises ValueError if the model
    has fewer layers, or nothing trainable in these.
    """
    name, modules = decoder_layers(model)
    if layers > len(modules):
        raise ValueError(f"layers is {layers}, and the model has {len(modules)}")
    parts = tuple(f".{name}.{layer}." for layer in range(layers))
    found = []
    for parameter, shape in flat.manifest:
        chosen = len(shape) >= 2 and any(part in f".{parameter}" for part in parts)
        chosen = chosen and (mode == "full" or role(parameter) is Role.B)
        found.append(np.full(int(np.prod(shape)), chosen))
    where = np.concatenate(found)
    if not where.any():
        raise ValueError(f"nothing is trainable in the first {layers} layers")
    return where
