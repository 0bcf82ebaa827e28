"""How far a model is from a randomly initialised one."""

from __future__ import annotations

import math

import numpy as np

from oblivionis.models.adapters import Manifest, unflatten
from oblivionis.models.parameter_roles import Role, role


def expected_distance(vector: np.ndarray, manifest: Manifest, mode: str, initializer_range: float) -> float:
    """√E‖φ − φ_random‖² over random initialisations of the trainable parameters, without drawing any.

    `lora`: A uniform in ±1/√in, so of variance 1/(3 in), and B zero, of an embedding A zero and B of variance 1, as in
    `lora.attach_lora`; magnitudes and saved modules do not start at random. `full`: matrices
    normal with deviation `initializer_range`, norm weights 1, biases 0, as transformers initialises. An independent
    draw adds its variance to the squared distance from its mean; with millions of parameters the distance itself
    hardly varies.
    """
    total = 0.0
    for name, array in unflatten(vector, manifest).items():
        mean = variance = 0.0
        if mode == "lora":
            drawn = {Role.A: 1 / (3 * math.prod(array.shape[1:])), Role.EMBEDDING_B: 1.0}
            variance = drawn.get(role(name), 0.0)  # type: ignore[arg-type]
        elif array.ndim >= 2:
            variance = initializer_range**2
        elif name.endswith("weight"):
            mean = 1.0
        total += float(np.square(array - mean, dtype=np.float64).sum()) + array.size * variance
    return math.sqrt(total)
