"""Which layer each trainable number belongs to."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from clients.flat import FlatParameters

_FACTOR = re.compile(r"\.lora_[AB]\..*$")
_PARAMETER = re.compile(r"\.(weight|bias)$")


def layers_of(flat: FlatParameters) -> NDArray[np.int64]:
    """The layer of each number of the vector (n,), from 0 in the order of first occurrence.

    A layer is a module with its matrix and its bias; with LoRA the two factors of a matrix together.
    """
    known: dict[str, int] = {}
    parts = []
    for name, shape in flat.manifest:
        module = _PARAMETER.sub("", _FACTOR.sub("", name))
        parts.append(np.full(int(np.prod(shape)), known.setdefault(module, len(known)), dtype=np.int64))
    return np.concatenate(parts)
