"""UNDIAL: the target by hand, the cross-entropy of the paper, a slow loop, and what it does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_llama
from support.slow_unlearning import FORGET, RETAIN, SEED, SETTINGS, nll, rows, trajectory
from torch import Tensor

from clients.batch_quantities import BatchQuantities, ReferenceModels
from clients.distributions import row_statistics, statistics
from clients.flat_parameters import FlatParameters
from clients.losses.undial import undial
from clients.reference_models import Received
from clients.training import TrainSettings
from clients.unlearning import unlearn
from evaluation.engine.forward import AnswerRows
from evaluation.engine.sequences import TokenSequence

LN2, LN3 = math.log(2), math.log(3)


def target(log_q: Tensor, token: int, strength: float) -> Tensor:
    """The adjusted distribution: the true token's odds against every other token divided by e^strength."""
    q = log_q.exp()
    weights = torch.stack([p * math.exp(-strength) if i == token else p for i, p in enumerate(q)])
    return weights / weights.sum()


def cross_entropy(model: Any, received: Any, record: TokenSequence, strength: float) -> tuple[Tensor, Tensor]:
    """The paper's loss, a mean over the answer tokens, and the entropy of its targets."""
    with torch.no_grad():
        log_q = rows(received, record)
    log_p = rows(model, record)
    targets = [target(row, token, strength) for row, token in zip(log_q, record.answer, strict=True)]
    losses = [-(q * row).sum() for q, row in zip(targets, log_p, strict=True)]
    entropies = [-(q * q.log()).sum() for q in targets]
    return torch.stack(losses).mean(), torch.stack(entropies).mean()


def test_by_hand() -> None:
    kl = torch.tensor([LN2, LN3], dtype=torch.float64)
    assert undial(kl).item() == pytest.approx((LN2 + LN3) / 2)
    assert undial(kl, kl[:1], alpha=0.5).item() == pytest.approx((LN2 + LN3) / 2 + LN2 / 2)


def test_a_lowered_logit_by_hand() -> None:
    """Reference (3/4, 1/4) with log 3 less of the first is (1/2, 1/2); KL to (1/4, 3/4) is log 2 − (log 3)/2."""
    logits = torch.tensor([[0.0, LN3]], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([[LN3, 0.0]], dtype=torch.float64)
    kl = statistics(logits, torch.tensor([0]), reference, lowered=LN3).kl
    assert kl is not None and kl.item() == pytest.approx(LN2 - LN3 / 2)
    kl.sum().backward()
    assert logits.grad is not None
    np.testing.assert_allclose(logits.grad, [[-0.25, 0.25]], rtol=0, atol=1e-12)
    np.testing.assert_array_equal(reference, [[LN3, 0.0]])


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_lowered_logits_by_finite_differences_and_against_torch(temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(5, 7, generator=generator, dtype=torch.float64)).requires_grad_()
    reference = 3 * torch.randn(5, 7, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 3, 6, 6, 2])
    assert torch.autograd.gradcheck(lambda x: tuple(statistics(x, labels, reference, temperature, 1.5)), (logits,))
    lowered = reference.clone()
    for row, label in enumerate(labels):
        lowered[row, label] -= 1.5
    log_p, log_q = (x.div(temperature).log_softmax(-1) for x in (logits, lowered))
    expected = torch.nn.functional.kl_div(log_p, log_q, log_target=True, reduction="none").sum(-1) * temperature**2
    found = statistics(logits, labels, reference, temperature, 1.5)
    assert found.kl is not None
    torch.testing.assert_close(found.kl, expected, rtol=1e-12, atol=1e-12)


def test_rows_in_pieces_equal_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    head, labels = torch.randn(11, 6, generator=generator), torch.randint(11, (25,), generator=generator)
    reference = AnswerRows(torch.randn(25, 6, generator=generator), head)
    results = []
    for size in (128, 4):
        monkeypatch.setattr("clients.distributions.ROWS", 2 * size)
        monkeypatch.setattr("clients.distributions.LOGITS", 0)
        states = torch.randn(25, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
        kl = row_statistics(AnswerRows(states, head), labels, reference, lowered=4.0).kl
        assert kl is not None
        kl.square().sum().backward()
        results.append((kl.detach(), states.grad))
    for whole, pieces in zip(*results, strict=True):
        torch.testing.assert_close(pieces, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("strength", "alpha", "mode"), [(4.0, 0.0, ""), (2.0, 0.7, ""), (2.0, 0.7, "padded")])
def test_trajectory_equals_the_slow_loop(
    strength: float, alpha: float, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parameters go the way of the paper's cross-entropy; the loss is less by the entropy of the targets."""
    entropies = []

    def loss(model: Any, received: Any, forget: list[TokenSequence], retain: list[TokenSequence]) -> Tensor:
        both = [cross_entropy(model, received, record, strength) for record in forget]
        entropies.append(torch.stack([entropy for _, entropy in both]).mean().item())
        value = torch.stack([ce for ce, _ in both]).mean()
        return value + alpha * nll(model, retain) if alpha else value

    expected_history, expected = trajectory(loss)
    if mode:
        monkeypatch.setattr("evaluation.engine.forward.resolve_mode", lambda *_: "padded")
    model = tiny_llama.shallow()
    flat, history = FlatParameters(model), []
    report = unlearn(
        model, flat, FORGET, RETAIN, "undial", {"strength": strength, "alpha": alpha}, SETTINGS, seed=SEED,
        on_step=lambda _, value: history.append(value),
    )  # fmt: skip
    np.testing.assert_allclose(history, np.subtract(expected_history, entropies), rtol=0, atol=2e-4)
    np.testing.assert_allclose(flat.numpy(), expected, rtol=0, atol=3e-4)
    assert report.retain_used == (alpha > 0) and report.steps == len(history) == 4


@pytest.mark.slow
def test_it_settles_at_the_target_and_not_below() -> None:
    """Followed for long, the answers' tokens have the adjusted probability: bounded, unlike gradient ascent."""
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    forget = FORGET[:3]
    known = TrainSettings(epochs=60, batch_size=4, learning_rate=1e-2, warmup_epochs=0)
    unlearn(model, flat, forget, forget, "fine_tune", {}, known, seed=0)
    tokens = [(record, i) for record in forget for i in range(len(record.answer))]

    def likelihoods() -> list[Tensor]:
        with torch.no_grad():
            found = {id(record): rows(model, record) for record in forget}
        return [found[id(record)][i] for record, i in tokens]

    before = [row[r.answer[i]].exp() for row, (r, i) in zip(likelihoods(), tokens, strict=True)]
    wanted = [target(row, r.answer[i], 2.0)[r.answer[i]] for row, (r, i) in zip(likelihoods(), tokens, strict=True)]
    settings = TrainSettings(epochs=150, batch_size=4, learning_rate=1e-2, warmup_epochs=0, weight_decay=0.0)
    report = unlearn(model, flat, forget, [], "undial", {"strength": 2.0}, settings, seed=0)
    found = [row[r.answer[i]].exp() for row, (r, i) in zip(likelihoods(), tokens, strict=True)]
    assert report.last_loss < 0.2 * report.first_loss
    assert torch.stack(before).mean() > 0.2
    np.testing.assert_allclose(torch.stack(found), torch.stack(wanted), rtol=0, atol=0.04)


def test_strength_zero_is_the_divergence_from_the_model_as_received() -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    around = ReferenceModels(received=Received(model, flat), strength=0.0)
    flat.load(flat.numpy() + 0.02)
    step = BatchQuantities(model, FORGET, [], wanted=("forget_adjusted_kl", "forget_reference_kl"), around=around)
    assert (step.forget_adjusted_kl > 1e-3).all()
    assert torch.equal(step.forget_adjusted_kl, step.forget_reference_kl)
