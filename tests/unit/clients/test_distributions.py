"""Statistics of next-token distributions, a few rows at a time, against all of them at once in float64."""

from __future__ import annotations

import pytest
import torch

from clients.distributions import mean_entropy, row_leads, row_margins, row_statistics
from evaluation.engine.forward import AnswerRows

TOKENS, WIDTH, VOCABULARY = 150, 4, 16_384
"""More tokens than one piece holds, 64 for so many words."""


@pytest.fixture(scope="module")
def given():
    generator = torch.Generator().manual_seed(3)
    head = torch.randn(VOCABULARY, WIDTH, generator=generator)
    states, others = (torch.randn(TOKENS, WIDTH, generator=generator) for _ in range(2))
    labels = (others @ head.T).argmax(-1)
    lowered = 5 * torch.rand(TOKENS, generator=generator)
    return head, states, others, labels, lowered


def expected(logits, labels, reference, lowered, temperature):
    """log p of the labels, entropies, and T² KL of softened distributions."""
    log_p = logits.log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    reference = reference.clone()
    reference[torch.arange(len(labels)), labels] -= lowered
    log_q, soft = (reference / temperature).log_softmax(-1), (logits / temperature).log_softmax(-1)
    return log_p.gather(1, labels[:, None])[:, 0], entropy, temperature**2 * (log_q.exp() * (log_q - soft)).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("per_token", [False, True])
def test_pieces_do_not_show_in_values_and_gradients(given, temperature, per_token):
    head, states, others, labels, lowered = given
    less = lowered if per_token else 3.0
    mine, double = states.clone().requires_grad_(), states.double().requires_grad_()
    found = row_statistics(AnswerRows(mine, head), labels, AnswerRows(others, head), temperature, less)
    wide = head.double()
    wanted = expected(double @ wide.T, labels, others.double() @ wide.T, less, temperature)
    weights = torch.randn(3, TOKENS, generator=torch.Generator().manual_seed(4))
    for value, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(value.double(), exact, rtol=1e-4, atol=1e-4)
    sum((w * value).sum() for w, value in zip(weights, found, strict=True)).backward()
    sum((w.double() * value).sum() for w, value in zip(weights, wanted, strict=True)).backward()
    torch.testing.assert_close(mine.grad.double(), double.grad, rtol=1e-3, atol=1e-3)


def test_margins_leads_and_entropies_are_those_of_all_rows(given):
    head, states, _, labels, lowered = given
    rows, logits = AnswerRows(states, head), states.double() @ head.double().T
    margins = (logits.max(-1).values - logits.mean(-1)).square()
    torch.testing.assert_close(row_margins(rows).double(), margins, rtol=1e-4, atol=1e-4)
    p = logits.softmax(-1)
    others = p.clone()
    others[torch.arange(TOKENS), labels] = -1
    leads = p.gather(1, labels[:, None])[:, 0] - others.max(-1).values
    torch.testing.assert_close(row_leads(rows, labels).double(), leads, rtol=1e-4, atol=1e-6)
    less = logits.clone()
    less[torch.arange(TOKENS), labels] -= lowered.double()
    others = less.softmax(-1)
    leads = others.gather(1, labels[:, None])[:, 0] - others.scatter(1, labels[:, None], -1.0).max(-1).values
    torch.testing.assert_close(row_leads(rows, labels, lowered).double(), leads, rtol=1e-4, atol=1e-6)
    log_p = logits.log_softmax(-1)
    entropy = -(p * log_p).sum(-1)
    slope = -((p * log_p.square()).sum(-1) - entropy.square())
    assert mean_entropy(rows) == pytest.approx((entropy.mean().item(), slope.mean().item()), rel=1e-4)
