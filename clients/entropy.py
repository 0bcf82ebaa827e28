"""Entropy optimisation: a term beside any unlearning loss that makes the model sure of what it forgets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ROWS = 128


@dataclass(frozen=True, slots=True)
class Entropy:
    """λ_f E_forget H̄ + λ_r E_retain H̄, added to the loss (Scholten et al. 2025, eq. of section 5).

    H̄: mean over a record's answer tokens of the entropy, in nats, of the distribution that predicts them. `forget`
    (λ_f ≥ 0) lowers it on the forget records, so that sampling does not bring back what the likeliest answer no longer
    says; `retain` (λ_r ≤ 0) keeps it up on the retain records, as far as there are any. Raises ValueError for a wrong
    sign or a weight that is no finite number.
    """

    forget: float = 0.0
    retain: float = 0.0

    def __post_init__(self) -> None:
        for name, sign in (("forget", 1), ("retain", -1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"entropy: {name} must be a finite number, got {value!r}")
            if value * sign < 0:
                raise ValueError(f"entropy: {name} must be {'>=' if sign > 0 else '<='} 0, got {value}")

    def term(self, forget: Tensor, retain: Tensor | None) -> Tensor:
        """The term, a scalar, of the records' H̄: `forget` (B,), `retain` (B',) or None, which leaves its part out."""
        value = self.forget * forget.mean()
        return value if retain is None else value + self.retain * retain.mean()


class LogProbAndEntropy(torch.autograd.Function):
    """log softmax(z)[label] (M,) and −Σ p log p (M,), p = softmax(z), of logits z (M, V) and labels (M,).

    At least float32, in nats. Keeps nothing of the size of the logits but these themselves: with the upstream
    gradients g and h of a row, the gradient of z is g · (onehot − p) + h · (−p log p − p H).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        logp, entropy = (logits.new_empty(logits.shape[0], dtype=dtype) for _ in range(2))
        for start in range(0, logits.shape[0], _ROWS):
            rows = slice(start, start + _ROWS)
            log_q = torch.log_softmax(logits[rows], -1, dtype=dtype)
            logp[rows] = log_q.gather(1, labels[rows, None]).squeeze(1)
            entropy[rows] = torch.special.entr(log_q.exp_()).sum(-1)
        ctx.save_for_backward(logits, labels, entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        logits, labels, entropy = ctx.saved_tensors
        grad = torch.empty_like(logits)
        for start in range(0, logits.shape[0], _ROWS):
            rows = slice(start, start + _ROWS)
            g, h = (x[rows, None] for x in grads)
            p = torch.softmax(logits[rows], -1, dtype=entropy.dtype)
            part = torch.special.entr(p).mul_(h).addcmul_(p, g + h * entropy[rows, None], value=-1)
            grad[rows] = part.scatter_add_(1, labels[rows, None], g)
        return grad, None


def log_probs_and_entropies(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of each label and entropy of its distribution, (M,) each, nats; logits (M, V), labels (M,)."""
    return LogProbAndEntropy.apply(logits, labels)  # type: ignore[return-value]
