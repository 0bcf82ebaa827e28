"""How far a random model is from a given one, against ten that are drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from clients.flat_parameters import FlatParameters
from oblivionis.config import compose as configuration
from oblivionis.models.assembly import assemble
from oblivionis.models.random_model import expected_distance


@pytest.mark.slow
def test_the_distance_to_random_adapters_against_ten_of_them() -> None:
    model = configuration.compose("smoke").model
    vectors = [assemble(model, seed).flat.numpy() for seed in range(11)]
    reference, manifest = vectors.pop(), assemble(model, 0).flat.manifest
    reference = reference + np.float32(0.01)
    distances = [np.linalg.norm(reference.astype(np.float64) - vector) for vector in vectors]
    assert np.ptp(distances) < 0.02 * np.mean(distances), "the distance hardly varies"
    assert expected_distance(reference, manifest, "lora", 0.02) == pytest.approx(np.mean(distances), rel=5e-3)


@pytest.mark.parametrize("deviation", [0.02, 0.3])
def test_the_distance_to_random_models_against_ten_of_them(deviation: float) -> None:
    """With biases, tied and untied weights as transformers initialises them."""
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    options = {"vocab_size": 97, "attention_bias": True, "initializer_range": deviation, **shape}

    def draw(seed: int) -> FlatParameters:
        torch.manual_seed(seed)
        return FlatParameters(LlamaForCausalLM(LlamaConfig(**options)))

    reference = draw(99)
    vector = reference.numpy() + np.float32(0.05)
    distances = [np.linalg.norm(vector.astype(np.float64) - draw(seed).numpy()) for seed in range(10)]
    found = expected_distance(vector, reference.manifest, "full", deviation)
    assert found == pytest.approx(np.mean(distances), rel=1e-2)
