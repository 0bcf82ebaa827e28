"""Which layer each number of the flat vector belongs to."""

from __future__ import annotations

import numpy as np
import pytest
from support import tiny_llama

from clients.flat_parameters import FlatParameters
from oblivionis.models.parameter_layers import layers_of


@pytest.mark.parametrize("model", ["lora", "full"])
def test_a_layer_is_a_matrix_with_its_factors(model: str) -> None:
    network = tiny_llama.lora() if model == "lora" else tiny_llama.base()
    vector = FlatParameters(network)
    layer_of, start = layers_of(vector), 0
    of_name: dict[str, int] = {}
    for name, shape in vector.manifest:
        part = layer_of[start : start + int(np.prod(shape))]
        start += part.size
        assert len(set(part.tolist())) == 1
        of_name[name] = int(part[0])
    assert start == layer_of.size and sorted(set(of_name.values())) == list(range(max(of_name.values()) + 1))
    if model == "lora":
        assert all(of_name[n] == of_name[n.replace("lora_A", "lora_B")] for n in of_name if "lora_A" in n)
        assert len(set(of_name.values())) == len(of_name) / 2
    else:
        assert len(set(of_name.values())) == len(of_name), "without biases each matrix and each norm is one"
