"""Which trainable numbers NoT negates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import nn

from clients.flat_parameters import FlatParameters
from evaluation.engine.models import decoder_layers
from oblivionis.models.parameter_roles import Role, role


def negated_numbers(model: nn.Module, flat: FlatParameters, mode: str, layers: int) -> NDArray[np.bool_]:
    """Which numbers of the flat vector (n,), bool, are weights of the first `layers` decoder layers.

    mode lora: LoRA's B, so that B·A, what training added to the layer, is negated (with A as well it would stay as it
    is); full: all of a layer's weight matrices, no biases and norm weights. Raises ValueError if the model has fewer
    layers, or nothing trainable in these.
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
