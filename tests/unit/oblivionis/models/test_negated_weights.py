"""Which numbers NoT negates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import tiny_llama

from clients.flat_parameters import FlatParameters
from oblivionis.models.negated_weights import negated_numbers


@pytest.mark.parametrize("layers", [1, 2])
def test_with_lora_the_change_of_the_first_layers_is_negated(layers: int) -> None:
    """W + s·BA becomes W − s·BA there, and nothing else changes: by the merged weights."""

    def changes(model: torch.nn.Module) -> dict[str, torch.Tensor]:
        known = {name: p.detach().clone() for name, p in model.named_parameters()}
        names = [name for name in known if ".lora_B." in name]
        return {name: known[name] @ known[name.replace("lora_B", "lora_A")] for name in names}

    model = tiny_llama.lora(num_hidden_layers=3)
    vector, before = FlatParameters(model), changes(model)
    where = negated_numbers(model, vector, "lora", layers)
    vector.load(np.where(where, -vector.numpy(), vector.numpy()))
    after = changes(model)
    for name, product in before.items():
        sign = -1 if any(f".layers.{layer}." in name for layer in range(layers)) else 1
        torch.testing.assert_close(after[name], sign * product)


def test_in_full_mode_the_matrices_of_the_layer_are_negated() -> None:
    model = tiny_llama.base()
    vector = FlatParameters(model)
    where, start = negated_numbers(model, vector, "full", 1), 0
    for name, shape in vector.manifest:
        part = where[start : start + int(np.prod(shape))]
        start += part.size
        assert part.all() == part.any() == (".layers.0." in name and "proj" in name), name
    with pytest.raises(ValueError, match="layers is 3, and the model has 2"):
        negated_numbers(model, vector, "full", 3)
