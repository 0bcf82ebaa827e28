"""IHL: numbers by hand, leads by brute force, a slow loop, and what it does to a memorised answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_llama
from support.slow_unlearning import FORGET, RETAIN, SEED, fast, nll, rows, trajectory
from torch import Tensor

from clients.batch_quantities import BatchQuantities
from clients.distributions import row_leads
from clients.flat_parameters import FlatParameters
from clients.losses.ihl import ihl
from clients.training import TrainSettings
from clients.unlearning import unlearn
from evaluation.engine.forward import AnswerRows


def hinge(model: Any, records: list[Any]) -> Tensor:
    """Mean over records of the mean over answer tokens of 1 + p(true) − the largest other p, token by token."""
    means = []
    for record in records:
        p = rows(model, record).exp()
        terms = []
        for i, token in enumerate(record.answer):
            others = [p[i, v] for v in range(p.shape[1]) if v != token]
            terms.append(1 + p[i, token] - max(others))
        means.append(torch.stack(terms).mean())
    return torch.stack(means).mean()


def test_by_hand() -> None:
    """Leads ½ and −¼ on average: (1.5 + 0.75)/2; a retain loss of 2."""
    assert ihl(torch.tensor([0.5, -0.25])).item() == 1.125
    assert ihl(torch.tensor([0.5, -0.25]), torch.tensor([1.0, 3.0]), gamma=2.0, alpha=0.5).item() == 3.25


def test_leads_of_known_probabilities() -> None:
    """Of (½, ⅓, ⅙): ½ − ⅓, ⅓ − ½, ⅙ − ½; certain: 1 and −1."""
    p = torch.tensor([[1 / 2, 1 / 3, 1 / 6]] * 3 + [[1.0, 0.0, 0.0]] * 2)
    found = row_leads(AnswerRows(p.log(), None), torch.tensor([0, 1, 2, 0, 1]))
    torch.testing.assert_close(found, torch.tensor([1 / 6, -1 / 6, -1 / 3, 1.0, -1.0]))


@pytest.mark.parametrize("head", [False, True])
def test_leads_in_pieces_and_by_finite_differences(head: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clients.distributions.ROWS", 4)
    monkeypatch.setattr("clients.distributions.LOGITS", 0)
    generator = torch.Generator().manual_seed(0)
    values = (2 * torch.randn(7, 5, generator=generator, dtype=torch.float64)).requires_grad_()
    matrix = torch.randn(11, 5, generator=generator, dtype=torch.float64) if head else None
    labels = torch.randint(11 if head else 5, (7,), generator=generator)
    logits = values.detach() @ matrix.T if matrix is not None else values.detach()
    expected = []
    for row, label in zip(logits.softmax(-1).tolist(), labels.tolist(), strict=True):
        true = row.pop(label)
        expected.append(true - max(row))
    np.testing.assert_allclose(row_leads(AnswerRows(values, matrix), labels).detach(), expected, rtol=1e-12)
    assert torch.autograd.gradcheck(lambda x: row_leads(AnswerRows(x, matrix), labels), (values,))


def test_the_quantity_is_only_there_where_it_is_wanted() -> None:
    model = tiny_llama.shallow()
    step = BatchQuantities(model, FORGET, RETAIN, wanted=("forget_lead",))
    with torch.no_grad():
        assert (1 + step.forget_lead).mean().item() == pytest.approx(hinge(model, FORGET).item(), rel=1e-4)
    with pytest.raises(ValueError, match="forget_lead was not computed"):
        _ = BatchQuantities(model, FORGET, RETAIN).forget_lead


@pytest.mark.parametrize("padded", [False, True])
def test_trajectory_equals_the_slow_loop(padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected_history, expected = trajectory(
        lambda model, received, forget, retain: 2.0 * hinge(model, forget) + 0.5 * nll(model, retain)
    )
    if padded:
        monkeypatch.setattr("evaluation.engine.forward.resolve_mode", lambda *_: "padded")
    history, found = fast("ihl", {"gamma": 2.0, "alpha": 0.5})
    np.testing.assert_allclose(history, expected_history, rtol=1e-4, atol=2e-4)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-4)


@pytest.mark.slow
def test_what_was_memorised_gives_way_to_another_token_and_the_loss_ends() -> None:
    model = tiny_llama.lora()
    flat = FlatParameters(model)
    known = TrainSettings(epochs=30, batch_size=8, learning_rate=1e-2, warmup_epochs=0)
    settings = TrainSettings(epochs=20, batch_size=8, learning_rate=3e-3, warmup_epochs=0)
    unlearn(model, flat, RETAIN, [*FORGET, *RETAIN], "fine_tune", {}, known, seed=0)
    before = hinge(model, FORGET).item(), nll(model, RETAIN).item()
    unlearn(model, flat, FORGET, RETAIN, "ihl", {}, settings, seed=SEED)
    after = hinge(model, FORGET).item(), nll(model, RETAIN).item()
    assert before[0] > 1.1 and after[0] < 0.95 and after[1] < before[1] + 0.5, (before, after)
