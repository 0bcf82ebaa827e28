"""The flat vector of trainable parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import tiny_llama
from torch import nn

from clients.flat_parameters import FlatParameters


def test_parameters_and_gradients_are_views() -> None:
    model = tiny_llama.lora()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    flat = FlatParameters(model)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name], rtol=0, atol=0)
    assert flat.size == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert [np.prod(shape) for _, shape in flat.manifest] == [p.numel() for p in model.parameters() if p.requires_grad]
    ids = torch.arange(3, 11)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    expected = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.requires_grad])
    assert expected.abs().max() > 0
    torch.testing.assert_close(flat.grad, expected, rtol=0, atol=0)
    flat.zero_grad()
    assert all(not p.grad.any() for p in model.parameters() if p.requires_grad)
    with torch.no_grad():
        flat.vector.fill_(3.0)
    assert all((p == 3.0).all() for p in model.parameters() if p.requires_grad)


def test_load_and_numpy_round_trip() -> None:
    model = tiny_llama.lora()
    flat = FlatParameters(model)
    values = np.random.default_rng(0).normal(size=flat.size).astype(np.float32)
    flat.load(values)
    np.testing.assert_array_equal(flat.numpy(), values)
    copy = flat.numpy()
    copy[:] = 0
    np.testing.assert_array_equal(flat.numpy(), values)
    name, shape = flat.manifest[3]
    offset = sum(int(np.prod(s)) for _, s in flat.manifest[:3])
    parameter = dict(model.named_parameters())[name]
    np.testing.assert_array_equal(
        parameter.detach().numpy(), values[offset : offset + parameter.numel()].reshape(shape)
    )


def test_bad_arrays_are_refused() -> None:
    flat = FlatParameters(tiny_llama.lora())
    for bad in (np.zeros(flat.size + 1), np.zeros((1, flat.size)), np.zeros(flat.size, dtype=np.int64)):
        with pytest.raises(ValueError, match="expected"):
            flat.load(bad)


def test_views_survive_set_to_none() -> None:
    model = tiny_llama.lora()
    flat = FlatParameters(model)
    model.zero_grad(set_to_none=True)
    flat.zero_grad()
    ids = torch.arange(3, 11)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    assert flat.grad.abs().max() > 0


def test_replaced_parameters_are_noticed() -> None:
    model = tiny_llama.lora()
    flat = FlatParameters(model)
    model.double()
    with pytest.raises(RuntimeError, match="anew"):
        flat.load(np.zeros(flat.size, dtype=np.float32))
    with pytest.raises(RuntimeError, match="anew"):
        flat.numpy()


def test_tied_weights_occur_once_and_matrices_come_first() -> None:
    model = tiny_llama.base(tie_word_embeddings=True)
    flat = FlatParameters(model)
    assert flat.size == sum(p.numel() for p in model.parameters())
    assert "lm_head.weight" not in flat.names
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    dimensions = [len(shape) for _, shape in flat.manifest]
    assert dimensions == sorted(dimensions, reverse=True) and 1 in dimensions


def test_weight_decay_spares_vectors() -> None:
    flat = FlatParameters(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)))
    groups = flat.parameter_groups(0.1)
    assert [(sum(p.numel() for p in g["params"]), g["weight_decay"]) for g in groups] == [(6, 0.1), (9, 0.0)]
    groups[1]["params"][0].data.fill_(7.0)
    assert (flat.numpy()[6:] == 7).all() and not (flat.numpy()[:6] == 7).any()


def test_half_precision_parameters_become_float32() -> None:
    model = tiny_llama.base(dtype=torch.bfloat16)
    expected = model.lm_head.weight.detach().float().clone()
    flat = FlatParameters(model)
    assert flat.compute_dtype == torch.bfloat16 and flat.numpy().dtype == np.float32
    torch.testing.assert_close(model.lm_head.weight.detach(), expected, rtol=0, atol=0)


def test_a_model_that_is_only_evaluated_has_an_empty_vector() -> None:
    model = nn.Linear(2, 2).requires_grad_(False).to(torch.bfloat16)
    flat = FlatParameters(model)
    assert (flat.size, flat.manifest, flat.numpy().shape) == (0, [], (0,))
    flat.load(flat.numpy())
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(("trained", "decay"), [("weight", 0.1), ("bias", 0.0)])
def test_a_vector_of_one_kind_is_one_group_and_biases_do_not_decay(trained: str, decay: float) -> None:
    model = nn.Linear(3, 2)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == trained)
    flat = FlatParameters(model)
    (group,) = flat.parameter_groups(0.1)
    assert group["params"] == [flat.vector] and group["weight_decay"] == decay


@pytest.mark.parametrize("frozen", [True, False])
def test_a_model_computes_in_the_type_of_its_frozen_weights(frozen: bool) -> None:
    """Where there are any, however few they are."""
    small, large = nn.Linear(2, 2).bfloat16(), nn.Linear(9, 9)
    small.requires_grad_(not frozen)
    assert FlatParameters(nn.Sequential(small, large)).compute_dtype == (torch.bfloat16 if frozen else torch.float32)


def test_another_gradient_in_the_place_of_a_view_gives_way_to_it_again() -> None:
    model = nn.Linear(2, 2)
    flat = FlatParameters(model)
    model.weight.grad = torch.ones(2, 2)
    flat.zero_grad()
    model.weight.grad.fill_(3.0)
    assert flat.grad.tolist() == [3, 3, 3, 3, 0, 0]
