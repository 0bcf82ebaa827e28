"""Task-vector negation: by hand, and beside a copy that `train` taught; what it does not go with."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from support import tiny_llama
from support.slow_unlearning import FORGET, RETAIN, SEED, SETTINGS, nll, trajectory

from clients.calibrated_forgetting import record_nll
from clients.entropy import Entropy
from clients.flat_parameters import FlatParameters
from clients.losses.task_vector import finish, task_vector
from clients.optimisation import Ball, NonFiniteError, TrainSettings
from clients.unlearning import UnlearnOptions, unlearn


def test_by_hand() -> None:
    assert task_vector(torch.tensor([1.0, 4.0])).item() == 2.5
    assert finish(torch.tensor([1.0, 2.0]), torch.tensor([1.5, 1.0]), alpha=3.0).tolist() == [-0.5, 5.0]


@pytest.mark.parametrize("alpha", [0.5, 4.0])
def test_it_ends_where_the_slow_loop_on_a_copy_says(alpha: float) -> None:
    _, trained = trajectory(lambda model, received, forget, retain: nll(model, forget))
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    start = flat.numpy()
    report = unlearn(model, flat, FORGET, RETAIN, "task_vector", {"alpha": alpha}, SETTINGS, seed=SEED)
    np.testing.assert_allclose(flat.numpy(), start - alpha * (trained - start), rtol=0, atol=alpha * 3e-4)
    assert not report.retain_used and report.steps == 4
    with torch.no_grad():
        assert report.last_forget_nll == pytest.approx(nll(model, FORGET).item(), rel=1e-3)


def test_the_forget_records_become_less_likely() -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    settings = TrainSettings(epochs=20, batch_size=8, learning_rate=1e-2, warmup_epochs=0)
    unlearn(model, flat, RETAIN, [*FORGET, *RETAIN], "fine_tune", {}, settings, seed=0)
    report = unlearn(model, flat, FORGET, RETAIN, "task_vector", {"alpha": 2.0}, SETTINGS, seed=SEED)
    assert report.last_forget_nll > report.first_forget_nll + 0.05


def test_an_end_that_overflows_is_noticed() -> None:
    model = tiny_llama.shallow()
    with pytest.raises(NonFiniteError, match="a parameter is not finite"):
        unlearn(model, FlatParameters(model), FORGET, [], "task_vector", {"alpha": 1e39}, SETTINGS, seed=SEED)


def test_the_change_of_the_product_is_exact_where_a_is_frozen() -> None:
    """ΔW = B·A: with A fixed the way of the product is that of the copy, times −α."""
    products = []
    for alpha in (1.0, 3.0):
        model = tiny_llama.shallow()
        for name, p in model.named_parameters():
            p.requires_grad_("lora_B" in name)
        before = copy.deepcopy(model.state_dict())
        unlearn(model, FlatParameters(model), FORGET, [], "task_vector", {"alpha": alpha}, SETTINGS, seed=SEED)
        after = model.state_dict()
        name = next(name for name in before if "lora_B" in name)
        other = name.replace("lora_B", "lora_A")
        products.append(after[name] @ after[other] - before[name] @ before[other])
    torch.testing.assert_close(products[1], 3 * products[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (UnlearnOptions(forget_nll_limit=3.0), "forget_nll_limit"),
        (UnlearnOptions(entropy=Entropy(1.0, 0.0)), "entropy"),
        (UnlearnOptions(entropy=Entropy(0.0, -1.0)), "entropy"),
        (UnlearnOptions(rectify=0.5), "rectify"),
        (UnlearnOptions(ball=Ball(np.zeros(1, dtype=np.float32), 1.0)), "ball"),
    ],
)
def test_options_that_go_by_the_updates(options: UnlearnOptions, what: str) -> None:
    model = tiny_llama.shallow()
    with pytest.raises(ValueError, match=f"trains a copy of the model and takes no {what}"):
        unlearn(model, FlatParameters(model), FORGET, RETAIN, "task_vector", {}, SETTINGS, seed=0, options=options)


def test_the_likelihood_in_the_end_is_that_of_the_model_in_the_end() -> None:
    """Not that of the copy, on which the updates were made and which knows the records better."""
    model = tiny_llama.shallow()
    report = unlearn(model, FlatParameters(model), FORGET, [], "task_vector", {}, SETTINGS, seed=SEED)
    assert report.last_forget_nll == pytest.approx(record_nll(model, FORGET, 3).mean().item(), rel=1e-5)
    assert report.last_forget_nll > report.first_forget_nll
