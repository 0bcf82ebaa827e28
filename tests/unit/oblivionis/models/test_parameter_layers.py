"""Which layer each number of the flat vector belongs to, and what the first layers have learned."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import tiny_llama

from clients.flat_parameters import FlatParameters
from oblivionis.models.parameter_layers import layers_of, learned_by_first_layers


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


@pytest.mark.parametrize("layers", [1, 2])
def test_with_lora_the_change_of_the_first_layers_is_negated(layers: int) -> None:
    """W + s·BA becomes W − s·BA there, and nothing else changes: by the merged weights."""

    def changes(model: torch.nn.Module) -> dict[str, torch.Tensor]:
        known = {name: p.detach().clone() for name, p in model.named_parameters()}
        names = [name for name in known if ".lora_B." in name]
        return {name: known[name] @ known[name.replace("lora_B", "lora_A")] for name in names}

    model = tiny_llama.lora(num_hidden_layers=3)
    vector, before = FlatParameters(model), changes(model)
    where = learned_by_first_layers(model, vector, "lora", layers)
    vector.load(np.where(where, -vector.numpy(), vector.numpy()))
    after = changes(model)
    for name, product in before.items():
        sign = -1 if any(f".layers.{layer}." in name for layer in range(layers)) else 1
        torch.testing.assert_close(after[name], sign * product)


def test_in_full_mode_the_matrices_of_the_layer_are_negated() -> None:
    model = tiny_llama.base()
    vector = FlatParameters(model)
    where, start = learned_by_first_layers(model, vector, "full", 1), 0
    for name, shape in vector.manifest:
        part = where[start : start + int(np.prod(shape))]
        start += part.size
        assert part.all() == part.any() == (".layers.0." in name and "proj" in name), name
    with pytest.raises(ValueError, match="layers is 3, and the model has 2"):
        learned_by_first_layers(model, vector, "full", 3)
