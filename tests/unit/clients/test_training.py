"""Local training against a slow loop: padded batches, plain torch AdamW, one parameter at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_llama
from torch.utils.data import DataLoader, Sampler
from transformers import get_scheduler

from clients import optimisation
from clients.flat_parameters import FlatParameters
from clients.optimisation import Updater, learning_rate_factor
from clients.training import NonFiniteError, TrainSettings, train

RECORDS = tiny_llama.sequences(14)


def settings(**changes: Any) -> TrainSettings:
    return TrainSettings(**{"epochs": 2, "batch_size": 4, "learning_rate": 3e-3, "warmup_epochs": 0, **changes})


def fast(
    model: Any, seed: int = 5, prox: Any = None, moving: Any = None, **changes: Any
) -> tuple[list[float], np.ndarray]:
    flat = FlatParameters(model)
    losses: list[float] = []
    options = {"seed": seed, "prox": prox, "moving": moving, "on_step": lambda _, x: losses.append(x)}
    train(model, flat, RECORDS, settings(**changes), **options)
    return losses, flat.numpy()


class Shuffled(Sampler[int]):
    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __iter__(self) -> Any:
        return iter(torch.randperm(len(RECORDS), generator=self._generator).tolist())

    def __len__(self) -> int:
        return len(RECORDS)


def slow(
    model: Any,
    *,
    batch: int = 4,
    schedule: str = "constant",
    clip: float | None = None,
    mu: float = 0.0,
    moving: torch.Tensor | None = None,
) -> tuple[list[float], np.ndarray]:
    """The same updates with a DataLoader, the model's own forward pass and torch's unfused AdamW."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    named.sort(key=lambda item: item[1].ndim < 2)
    start = [p.detach().clone() for _, p in named]
    everywhere = torch.ones(sum(p.numel() for p in start), dtype=torch.bool)
    cut = (everywhere if moving is None else moving).split([p.numel() for p in start])
    masks = [mask.view(p.shape) for mask, p in zip(cut, start, strict=True)]
    optimiser = torch.optim.AdamW(
        [
            {"params": [p for _, p in named if p.ndim >= 2], "weight_decay": 0.01},
            {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=3e-3,
        foreach=False,
    )
    sampler = Shuffled(torch.Generator().manual_seed(5))
    loader: Any = DataLoader(RECORDS, batch_size=batch, sampler=sampler, collate_fn=list)  # type: ignore[arg-type]
    scheduler = get_scheduler(schedule, optimiser, num_warmup_steps=0, num_training_steps=2 * len(loader))
    losses = []
    for _ in range(2):
        for chosen in loader:
            loss = -torch.cat(tiny_llama.padded_log_probs(model, chosen)).mean()
            losses.append(loss.item())
            total = loss + mu / 2 * sum((p - q).square().sum() for (_, p), q in zip(named, start, strict=True))
            optimiser.zero_grad()
            total.backward()
            for (_, p), mask in zip(named, masks, strict=True):
                p.grad.mul_(mask)
            if clip is not None:
                torch.nn.utils.clip_grad_norm_([p for _, p in named], clip)
            optimiser.step()
            for (_, p), q, mask in zip(named, start, masks, strict=True):
                p.data = torch.where(mask, p.data, q)
            scheduler.step()
    return losses, torch.cat([p.detach().reshape(-1) for _, p in named]).numpy()


def check(a: tuple[list[float], np.ndarray], b: tuple[list[float], np.ndarray]) -> None:
    assert len(a[0]) == len(b[0])
    np.testing.assert_allclose(a[0], b[0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(a[1], b[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("build", [tiny_llama.lora, tiny_llama.base, lambda: tiny_llama.base(hidden_act="gelu")])
def test_trajectory_equals_the_slow_loop(build: Callable[[], Any]) -> None:
    losses, weights = fast(build())
    assert losses[-1] < losses[0] and len(losses) == 8
    check((losses, weights), slow(build()))


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_schedules_equal_those_of_transformers(schedule: str) -> None:
    check(fast(tiny_llama.shallow(), schedule=schedule), slow(tiny_llama.shallow(), schedule=schedule))


def test_a_gradient_within_the_norm_stays_as_it_is() -> None:
    (losses, weights), (expected, wanted) = (fast(tiny_llama.shallow(), max_grad_norm=limit) for limit in (1e6, None))
    assert losses == expected
    np.testing.assert_array_equal(weights, wanted)


def test_gradient_clipping_equals_torch() -> None:
    result = fast(tiny_llama.shallow(), max_grad_norm=0.05)
    check(result, slow(tiny_llama.shallow(), clip=0.05))
    assert np.abs(result[1] - fast(tiny_llama.shallow())[1]).max() > 1e-3


@pytest.mark.parametrize(("batch_size", "accumulation"), [(2, 3), (1, 6), (6, 1)])
def test_accumulation_is_the_large_batch(batch_size: int, accumulation: int) -> None:
    result = fast(tiny_llama.shallow(), batch_size=batch_size, gradient_accumulation=accumulation)
    check(result, slow(tiny_llama.shallow(), batch=6))


@pytest.mark.parametrize("clip", [None, 0.02])
def test_a_part_of_the_numbers_moves_as_if_the_others_were_constants(clip: float | None) -> None:
    model = tiny_llama.shallow()
    start = FlatParameters(model).numpy()
    moving = torch.rand(start.size, generator=torch.Generator().manual_seed(1)) < 0.2
    result = fast(model, moving=moving, max_grad_norm=clip)
    check(result, slow(tiny_llama.shallow(), moving=moving, clip=clip))
    assert np.array_equal(result[1][~moving], start[~moving]) and (result[1] != start)[moving].mean() > 0.9
    whole = fast(tiny_llama.shallow(), moving=torch.ones_like(moving))
    assert np.array_equal(whole[1], fast(tiny_llama.shallow())[1])


def test_fedprox_equals_the_added_term() -> None:
    model = tiny_llama.shallow()
    start = FlatParameters(model).numpy()
    result = fast(model, prox=(5.0, start))
    check(result, slow(tiny_llama.shallow(), mu=5.0))
    assert np.linalg.norm(result[1] - start) < np.linalg.norm(fast(tiny_llama.shallow())[1] - start)


@pytest.mark.parametrize("mode", ["lora", "full"])
@pytest.mark.parametrize("mu", [0.01, 0.5, 5.0])
def test_the_first_update_of_fedprox_is_that_of_fedavg_to_the_last_bit(mode: str, mu: float) -> None:
    """φ is φ_global then, so the term's gradient is 0, whatever the size of the parameters."""
    results = []
    for prox in (False, True):
        model = tiny_llama.shallow() if mode == "lora" else tiny_llama.base()
        start = FlatParameters(model).numpy()
        many = {"epochs": 1, "batch_size": len(RECORDS)}
        results.append(fast(model, prox=(mu, start) if prox else None, **many)[1])
    assert results[0].tobytes() == results[1].tobytes() != start.tobytes()


def test_the_proximal_gradient_is_exact_and_takes_the_memory_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """μ(φ − φ_global) in float64, to float32's rounding of this small term, not of the large parameters."""
    monkeypatch.setattr(optimisation, "PROX_BLOCK", 64)
    flat = FlatParameters(tiny_llama.shallow())
    generator = np.random.default_rng(0)
    reference = (1000 + generator.normal(size=flat.size)).astype(np.float32)
    moved = (reference + generator.normal(size=flat.size) * 1e-2).astype(np.float32)
    flat.load(moved)
    updater = optimisation.Updater(flat, settings(), 1, optimisation.Prox(0.5, reference))
    gradient = generator.normal(size=flat.size).astype(np.float32) * 1e-6
    flat.grad.copy_(torch.from_numpy(gradient))
    updater.add_prox(flat.grad)
    exact = gradient.astype(np.float64) + 0.5 * (moved.astype(np.float64) - reference.astype(np.float64))
    np.testing.assert_allclose(flat.grad.numpy(), exact, rtol=3e-7, atol=1e-13)


def test_bad_prox() -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    for prox, what in (((-1.0, flat.numpy()), "mu"), ((math.nan, flat.numpy()), "mu"), ((1.0, np.zeros(3)), "shape")):
        with pytest.raises(ValueError, match=what):
            train(model, flat, RECORDS, settings(), seed=0, prox=prox)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_same_seed_same_result_and_no_state_between_calls(dropout: float) -> None:
    model = tiny_llama.shallow(dropout=dropout)
    model.eval()
    flat = FlatParameters(model)
    start, state = flat.numpy(), torch.random.get_rng_state()
    results = []
    for seed in (1, 1, 2):
        flat.load(start)
        report = train(model, flat, RECORDS, settings(), seed=seed)
        results.append(flat.numpy())
        assert (report.num_examples, report.steps) == (14, 8) and 0 < report.seconds < 60
        torch.rand(3)
    np.testing.assert_array_equal(results[0], results[1])
    assert np.abs(results[0] - results[2]).max() > 0
    assert not model.training
    torch.random.set_rng_state(state)
    train(model, flat, RECORDS, settings(), seed=3)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_dropout_is_honoured() -> None:
    plain, dropped = fast(tiny_llama.shallow()), fast(tiny_llama.shallow(dropout=0.5))
    assert abs(plain[0][0] - dropped[0][0]) > 1e-3


def test_half_precision_base_with_float32_adapter() -> None:
    model = tiny_llama.shallow(dtype=torch.bfloat16)
    losses, weights = fast(model)
    assert weights.dtype == np.float32
    np.testing.assert_allclose(losses, fast(tiny_llama.shallow())[0], rtol=0.03)
    assert losses[-1] < losses[0]


def test_other_architectures_train_too() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    shape: Any = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": tiny_llama.VOCABULARY, "n_positions": 64}
    dropout: Any = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    state = GPT2LMHeadModel(GPT2Config(**shape, **dropout)).state_dict()

    def build() -> GPT2LMHeadModel:
        model = GPT2LMHeadModel(GPT2Config(**shape, **dropout))
        model.load_state_dict(state)
        return model

    check(fast(build()), slow(build()))


def test_learning_rate_factors_by_hand() -> None:
    constant = [learning_rate_factor(i, 6, 3, "constant") for i in range(6)]
    assert constant == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])
    linear = [learning_rate_factor(i, 6, 2, "linear") for i in range(6)]
    assert linear == pytest.approx([1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25])
    cosine = [learning_rate_factor(i, 4, 0, "cosine") for i in range(4)]
    assert cosine == pytest.approx([1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2])


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 4])
def test_factors_are_those_of_transformers_but_for_the_wasted_first_update(schedule: str, warmup: int) -> None:
    """Their warm-up begins at 0, ours one step later on a rise to the same peak."""
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    name = "constant_with_warmup" if schedule == "constant" else schedule
    scheduler: Any = get_scheduler(name, optimiser, num_warmup_steps=warmup, num_training_steps=11)
    theirs = []
    for _ in range(11):
        theirs.append(scheduler.get_last_lr()[0])
        optimiser.step()
        scheduler.step()
    ours = [learning_rate_factor(i, 11, warmup, schedule) for i in range(11)]
    assert ours[warmup:] == pytest.approx(theirs[warmup:], abs=1e-12) and ours[warmup] == 1
    assert theirs[:warmup] == pytest.approx([i / warmup for i in range(warmup)])
    assert ours[:warmup] == pytest.approx([(i + 1) / (warmup + 1) for i in range(warmup)])


@pytest.mark.parametrize(
    ("options", "warmup"),
    [
        ({"warmup_epochs": 1.0}, 4),
        ({"warmup_epochs": 0.4}, 2),
        ({"warmup_epochs": 0, "warmup_ratio": 0.25}, 2),
        ({"warmup_epochs": 0, "warmup_ratio": 0.3}, 3),
        ({"warmup_epochs": 0}, 0),
    ],
)
def test_updates_follow_the_schedule_after_a_warm_up_by_epochs_or_ratio(options: dict, warmup: int) -> None:
    """Under a constant gradient Adam moves every parameter by the learning rate."""
    flat = FlatParameters(tiny_llama.shallow())
    chosen = settings(schedule="linear", learning_rate=1e-2, weight_decay=0, **options)
    updater = Updater(flat, chosen, updates=4 * chosen.epochs, prox=None)
    moved = []
    for _ in range(8):
        before = flat.numpy()
        flat.grad.fill_(1.0)
        updater.step()
        moved.append(float((before - flat.numpy()).mean()))
    rise = [(i + 1) / (warmup + 1) for i in range(warmup)]
    fall = [1 - i / (8 - warmup) for i in range(8 - warmup)]
    assert moved == pytest.approx([1e-2 * factor for factor in rise + fall], rel=1e-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_paged_optimiser_needs_cuda() -> None:
    model = tiny_llama.shallow()
    with pytest.raises(ValueError, match="paged_adamw_32bit needs CUDA; use optimizer adamw"):
        train(model, FlatParameters(model), RECORDS, settings(optimizer="paged_adamw_32bit"), seed=0)


def test_first_update_of_the_warm_up_moves_the_parameters() -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    start = flat.numpy()
    train(model, flat, RECORDS[:3], settings(epochs=1, warmup_epochs=1), seed=0)
    moved = np.abs(flat.numpy() - start).max()
    assert moved == pytest.approx(1.5e-3, rel=0.02)


def test_a_loss_that_is_not_finite_stops_the_training() -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    broken = flat.numpy()
    broken[0] = np.nan
    flat.load(broken)
    with pytest.raises(NonFiniteError, match="update 1"):
        train(model, flat, RECORDS, settings(), seed=0)
    assert isinstance(NonFiniteError(), FloatingPointError)


def test_an_update_that_overflows_is_noticed() -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    with pytest.raises(NonFiniteError):
        train(model, flat, RECORDS[:2], settings(epochs=1, learning_rate=1e38, weight_decay=1e38), seed=0)


def test_nothing_to_train_on() -> None:
    model = tiny_llama.shallow()
    with pytest.raises(ValueError, match="no sequence"):
        train(model, FlatParameters(model), [], settings(), seed=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("batch_size", 0),
        ("gradient_accumulation", 0),
        ("learning_rate", -1.0),
        ("learning_rate", math.inf),
        ("weight_decay", math.nan),
        ("warmup_ratio", 1.5),
        ("max_grad_norm", 0.0),
        ("betas", (0.9, 1.0)),
        ("schedule", "cubic"),
        ("optimizer", "sgd"),
    ],
)
def test_bad_settings(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        settings(**{name: value})


def test_two_warm_ups_are_refused() -> None:
    with pytest.raises(ValueError, match="not both"):
        settings(warmup_epochs=1, warmup_ratio=0.1)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_loss_that_is_not_finite_is_refused(value: float) -> None:
    flat = FlatParameters(tiny_llama.shallow())
    with pytest.raises(NonFiniteError, match=r"the loss is (-?inf|nan) at update 1"):
        Updater(flat, settings(), 1, None).backward(flat.vector.sum() * value)
