"""Gradient checkpointing: the same gradients, less memory, and only while a client trains."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_llama
from torch import nn

from clients.flat_parameters import FlatParameters
from clients.optimisation import Ball, Prox, Updater, local_work
from clients.training import TrainSettings, train
from clients.unlearning import unlearn
from evaluation.engine import forward
from evaluation.engine.packing import PackedBatch

RECORDS = tiny_llama.sequences(8)


def gradient(model: Any, mode: str, checkpointing: bool) -> tuple[float, torch.Tensor, int]:
    """Loss, gradient, and how many times a layer's feed-forward block began."""
    flat = FlatParameters(model)
    calls: list[int] = []
    handle = model.get_submodule(layers(model)[0] + ".mlp").register_forward_pre_hook(lambda *_: calls.append(1))
    with local_work(model, flat, 7, gradient_checkpointing=checkpointing):
        loss = -forward.token_log_probs(model, PackedBatch.build(RECORDS), mode=mode).sum()
        loss.backward()
    handle.remove()
    return loss.item(), flat.grad.clone(), len(calls)


def layers(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if type(module).__name__ == "LlamaDecoderLayer"]


@pytest.mark.parametrize("mode", ["packed", "padded"])
@pytest.mark.parametrize(
    "options", [{}, {"dropout": 0.3}, {"dtype": torch.bfloat16}], ids=["plain", "dropout", "bfloat16"]
)
def test_gradients_equal_those_without(mode: str, options: dict) -> None:
    kept, again = (gradient(tiny_llama.lora(**options), mode, on) for on in (False, True))
    assert (kept[2], again[2]) == (1, 2), "the layer ran again in the backward pass"
    assert again[0] == kept[0]
    torch.testing.assert_close(again[1], kept[1], rtol=1e-5, atol=1e-6 * float(kept[1].abs().max()))
    assert kept[1].abs().max() > 0


def test_full_mode_and_the_fused_way_agree_with_it() -> None:
    flat, expected = (tiny_llama.base() for _ in range(2))
    _, plain, _ = gradient(expected, "packed", False)
    _, checkpointed, _ = gradient(flat, "auto", True)
    torch.testing.assert_close(checkpointed, plain, rtol=1e-4, atol=1e-5 * float(plain.abs().max()))


def test_training_and_unlearning_end_at_the_same_weights() -> None:
    results: list[list[np.ndarray]] = []
    for on in (False, True):
        settings = TrainSettings(epochs=2, batch_size=4, learning_rate=3e-3, warmup_epochs=0, gradient_checkpointing=on)
        model = tiny_llama.lora()
        flat = FlatParameters(model)
        train(model, flat, RECORDS, settings, seed=0)
        trained = flat.numpy()
        unlearn(model, flat, RECORDS[:3], RECORDS[3:], "npo", {}, settings, seed=0)
        results.append([trained, flat.numpy()])
        assert forward.resolve_mode(model, "auto", 30) == "fused", "nothing is left of it"
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)


def test_it_is_active_within_local_work_only() -> None:
    model = tiny_llama.lora().eval()
    flat = FlatParameters(model)

    def active() -> set[bool]:
        return {model.get_submodule(name).gradient_checkpointing for name in layers(model)}

    assert active() == {False}
    with pytest.raises(KeyError), local_work(model, flat, 0, gradient_checkpointing=True):
        assert active() == {True}
        raise KeyError
    assert active() == {False} and not model.training
    with local_work(model, flat, 0):
        assert active() == {False}


def test_chance_is_that_of_the_seed_within_local_work_and_as_before_after_it() -> None:
    model = tiny_llama.lora().eval()
    flat = FlatParameters(model)
    expected = {seed: torch.rand(3, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)}
    state = torch.get_rng_state()
    for seed, numbers in expected.items():
        with local_work(model, flat, seed):
            assert model.training and torch.equal(torch.rand(3), numbers)
        assert not model.training and torch.equal(torch.get_rng_state(), state)


def test_a_model_that_cannot_says_so() -> None:
    model = tiny_llama.lora().eval()
    model.get_base_model().supports_gradient_checkpointing = False
    with (
        pytest.raises(ValueError, match="LlamaForCausalLM does not support gradient checkpointing"),
        local_work(model, FlatParameters(model), 0, gradient_checkpointing=True),
    ):
        pass
    assert not model.training


@pytest.mark.parametrize("mode", ["packed", "padded"])
def test_what_is_kept_for_the_backward_pass_is_a_fraction(mode: str) -> None:
    """Bytes of everything that autograd holds after the forward pass, weights aside."""
    model = tiny_llama.lora(num_hidden_layers=6)
    flat = FlatParameters(model)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    batch = PackedBatch.build(RECORDS)

    def held(on: bool) -> int:
        sizes: dict[int, int] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with (
            local_work(model, flat, 0, gradient_checkpointing=on),
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        ):
            loss = forward.token_log_probs(model, batch, mode=mode).sum()
        assert loss.requires_grad
        return sum(size for pointer, size in sizes.items() if pointer not in weights)

    assert 0 < held(True) < 0.3 * held(False)


@pytest.mark.parametrize(
    ("settings", "updates", "expected"),
    [
        ({"warmup_epochs": 0, "warmup_ratio": 0.07}, 100, 7),
        ({"warmup_epochs": 0, "warmup_ratio": 0.071}, 100, 8),
        ({"warmup_epochs": 0.07, "epochs": 1}, 100, 7),
        ({"warmup_epochs": 1, "epochs": 5}, 15, 3),
        ({"warmup_epochs": 0}, 100, 0),
        ({"warmup_epochs": 3, "epochs": 2}, 10, 10),
    ],
)
def test_warm_up_takes_the_share_of_the_updates_that_is_written(settings: dict, updates: int, expected: int) -> None:
    """By the learning rates of the updates, which are smaller during the warm-up."""
    flat = FlatParameters(tiny_llama.lora())
    given = TrainSettings(
        **{"epochs": 1, "learning_rate": 1.0, "schedule": "constant", "max_grad_norm": None, **settings}
    )
    updater = Updater(flat, given, updates, None)
    rates = []
    for _ in range(updates):
        flat.zero_grad()
        updater.step()
        rates.append(updater.optimiser.param_groups[0]["lr"])
    assert sum(rate < 1 for rate in rates) == expected
    assert rates[:expected] == pytest.approx([(step + 1) / (expected + 1) for step in range(expected)])


@pytest.mark.parametrize(("limit", "length"), [(None, 5.0), (10.0, 5.0), (5.1, 5.0), (2.0, 2.0)])
def test_a_gradient_is_shortened_to_the_limit_and_never_stretched(
    limit: float | None, length: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = FlatParameters(tiny_llama.lora())
    updater = Updater(flat, TrainSettings(max_grad_norm=limit), 1, None)
    seen: list[float] = []
    monkeypatch.setattr(updater.optimiser, "step", lambda: seen.append(flat.grad.norm().item()))
    flat.grad[:2] = torch.tensor([3.0, 4.0])
    updater.step()
    assert seen == [pytest.approx(length, rel=1e-5)] and not flat.grad.any()


def test_what_is_not_said_of_training_is_as_documented() -> None:
    assert asdict(TrainSettings()) == {
        "epochs": 5,
        "batch_size": 32,
        "learning_rate": 8e-5,
        "weight_decay": 0.01,
        "warmup_epochs": 1.0,
        "warmup_ratio": 0.0,
        "schedule": "constant",
        "max_grad_norm": None,
        "gradient_accumulation": 1,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "optimizer": "adamw",
        "gradient_checkpointing": False,
    }
    assert TrainSettings(batch_size=3, gradient_accumulation=4).records_per_update == 12


@pytest.mark.parametrize("limit", [None, 0.5, 1e3])
def test_updates_are_adamw_s_with_all_that_was_set(limit: float | None) -> None:
    """By its definition in float64: decays, eps, weight decay of matrices alone, clipping, and FedProx's term."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    flat = FlatParameters(model)
    start = flat.numpy().astype(float)
    given = TrainSettings(
        epochs=1,
        learning_rate=0.1,
        weight_decay=0.3,
        warmup_epochs=0,
        schedule="linear",
        max_grad_norm=limit,
        betas=(0.5, 0.7),
        eps=1e-2,
    )
    anchor, decays = start + 0.2, np.arange(flat.size) < 6
    updater = Updater(flat, given, 4, Prox(0.25, anchor))
    x, m, v = start.copy(), np.zeros(flat.size), np.zeros(flat.size)
    for step in range(4):
        gradient = np.sin(np.arange(flat.size) + step)
        flat.grad.copy_(torch.from_numpy(gradient))
        updater.step()
        g = gradient + 0.25 * (x - anchor)
        if limit is not None:
            g *= min(1.0, limit / (np.linalg.norm(g) + 1e-6))
        rate = 0.1 * (1 - step / 4)
        m, v = 0.5 * m + 0.5 * g, 0.7 * v + 0.3 * g**2
        x = x - rate * 0.3 * decays * x
        x = x - rate * (m / (1 - 0.5 ** (step + 1))) / (np.sqrt(v / (1 - 0.7 ** (step + 1))) + 1e-2)
        np.testing.assert_allclose(flat.numpy(), x, rtol=1e-4, atol=1e-5)
    assert updater.steps == 4 and not flat.grad.any()


def test_the_nearest_point_of_a_ball_is_on_the_way_to_its_centre() -> None:
    """Of parameters 5 away with a radius of 2; those within stay where they are."""
    flat = FlatParameters(nn.Linear(2, 1, bias=False))
    for at, expected in (([4.0, 5.0], [2.2, 2.6]), ([1.5, 2.0], [1.5, 2.0])):
        flat.load(np.array(at))
        Updater(flat, TrainSettings(learning_rate=0.0, warmup_epochs=0), 1, None, None, Ball(np.ones(2), 2.0)).step()
        np.testing.assert_allclose(flat.numpy(), expected, rtol=1e-6)


def test_settings_at_the_end_of_their_range() -> None:
    assert TrainSettings(warmup_ratio=1.0, warmup_epochs=0.0, learning_rate=0.0, weight_decay=0.0).warmup_ratio == 1
    with pytest.raises(ValueError, match=r"max_grad_norm must be positive or None, got 0\.0"):
        TrainSettings(max_grad_norm=0.0)
