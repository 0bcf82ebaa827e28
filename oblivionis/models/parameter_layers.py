"""Which layer each trainable number belongs to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clients.flat_parameters import FlatParameters
from oblivionis.models.parameter_roles import module_of


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
