"""Statistics of next-token distributions for unlearning losses: likelihood, entropy, divergence from a reference."""

from __future__ import annotations

from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from evaluation.engine.forward import AnswerRows

ROWS = 128
"""Answer tokens whose probabilities are computed at once."""
LOGITS = 1 << 24
"""Logits made from states that exist at once; those of more tokens are computed again for the gradient, in pieces."""


class TokenStatistics(NamedTuple):
    """Statistics of M answer tokens, tensors (M,), nats.

    Attributes
    ----------
    log_p : tensor
        Log-probability of the token.
    entropy : tensor or None
        Where requested.
    kl : tensor or None
        T² KL(q‖p), where there is a reference q.
    """

    log_p: Tensor
    entropy: Tensor | None
    kl: Tensor | None


class _Statistics(torch.autograd.Function):
    """log softmax(z)[label], −Σ p log p and T² KL(q_T‖p_T) of logits z (M, V), labels (M,), reference logits (M, V).

    p = softmax(z); p_T = softmax(z/T), q_T = softmax(r/T) for the reference logits r, that of each label less `lowered`
    (M,), which may be None. At least float32. Keeps nothing of the size of the logits but these themselves: with the
    upstream gradients g, h, k of a row, the gradient of z is g (onehot − p) + h (−p log p − p H) + k T (p_T − q_T).
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        reference: Tensor | None,
        temperature: float,
        lowered: Tensor | None,
        entropies: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        logp, entropy, kl = (logits.new_zeros(logits.shape[0], dtype=dtype) for _ in range(3))
        for start in range(0, logits.shape[0], ROWS):
            rows = slice(start, start + ROWS)
            log_p = torch.log_softmax(logits[rows], -1, dtype=dtype)
            logp[rows] = log_p.gather(1, labels[rows, None]).squeeze(1)
            if reference is not None:
                other = _lowered(reference[rows].to(dtype), labels[rows], lowered, rows)
                log_q = torch.log_softmax(other / temperature, -1)
                log_p_t = log_p if temperature == 1 else torch.log_softmax(logits[rows].to(dtype) / temperature, -1)
                terms = (log_q - log_p_t).mul_(log_q.exp_())
                kl[rows] = temperature**2 * torch.nan_to_num_(terms, nan=0.0, posinf=torch.inf).sum(-1)
            if entropies:
                entropy[rows] = torch.special.entr(log_p.exp_()).sum(-1)
        ctx.save_for_backward(logits, labels, reference, entropy, lowered)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return logp, entropy if entropies else None, None if reference is None else kl

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, None, None, None, None, None]:
        logits, labels, reference, entropy, lowered = ctx.saved_tensors
        grad = torch.empty_like(logits)
        temperature = ctx.temperature
        for start in range(0, logits.shape[0], ROWS):
            rows = slice(start, start + ROWS)
            g, h, k = (None if x is None else x[rows, None] for x in grads)
            p = torch.softmax(logits[rows], -1, dtype=entropy.dtype)
            g = p.new_zeros(p.shape[0], 1) if g is None else g
            part = p * -g if h is None else torch.special.entr(p).mul_(h)
            if h is not None:
                part.addcmul_(p, g + h * entropy[rows, None], value=-1)
            part.scatter_add_(1, labels[rows, None], g)
            if k is not None:
                p_t = p if temperature == 1 else torch.softmax(logits[rows].to(p.dtype) / temperature, -1)
                other = _lowered(reference[rows].to(p.dtype), labels[rows], lowered, rows)
                q_t = torch.softmax(other / temperature, -1)
                part.addcmul_(p_t.sub_(q_t), k, value=temperature)
            grad[rows] = part
        return grad, None, None, None, None, None


def _lowered(logits: Tensor, labels: Tensor, by: Tensor | None, rows: slice) -> Tensor:
    """Logits (m, V) with those of the labels (m,) lowered by the `rows` of `by` (M,); unchanged for None."""
    return logits if by is None else logits.scatter_add(1, labels[:, None], -by[rows, None].to(logits))


def statistics(
    logits: Tensor,
    labels: Tensor,
    reference: Tensor | None = None,
    temperature: float = 1.0,
    lowered: float | Tensor = 0.0,
    entropies: bool = True,
) -> TokenStatistics:
    """Statistics of next-token distributions given as logits.

    Parameters
    ----------
    logits : tensor (M, V)
    labels : tensor (M,), int
        The true tokens.
    reference : tensor (M, V), optional
        Reference logits, which get no gradient.
    temperature : float
        T of the divergence.
    lowered : float or tensor (M,)
        Taken off the reference's logit of each label first.
    entropies : bool
        Whether to compute entropies; without them the rest is the same to the last bit.

    Returns
    -------
    TokenStatistics
    """
    by = lowered if isinstance(lowered, Tensor) else logits.new_full((labels.numel(),), lowered) if lowered else None
    return TokenStatistics(*_Statistics.apply(logits, labels, reference, temperature, by, entropies))  # type: ignore[misc]


def row_statistics(
    rows: AnswerRows,
    labels: Tensor,
    reference: AnswerRows | None = None,
    temperature: float = 1.0,
    lowered: float | Tensor = 0.0,
    entropies: bool = True,
) -> TokenStatistics:
    """`statistics` of M answer tokens; logits made from states exist a few rows at a time, and again in backward.

    Parameters
    ----------
    rows : AnswerRows
    labels : tensor (M,), int
    reference : AnswerRows, optional
    temperature, lowered, entropies
        As in `statistics`.

    Returns
    -------
    TokenStatistics
    """

    def piece(values: Tensor, part: slice) -> TokenStatistics:
        other = None if reference is None else reference.logits(reference.values[part])
        less = lowered[part] if isinstance(lowered, Tensor) else lowered
        return statistics(rows.logits(values), labels[part], other, temperature, less, entropies)

    count = labels.numel()
    size = _piece(rows)
    if count <= size:
        return piece(rows.values, slice(0, count))
    pieces: list[TokenStatistics] = []
    for start in range(0, count, size):
        part = slice(start, start + size)
        pieces.append(checkpoint(piece, rows.values[part], part, use_reentrant=False))  # type: ignore[arg-type]
    log_p, entropy, kl = zip(*pieces, strict=True)
    return TokenStatistics(
        torch.cat(log_p), torch.cat(entropy) if entropies else None, None if reference is None else torch.cat(kl)
    )


@torch.no_grad()
def mean_entropy(rows: AnswerRows) -> tuple[float, float]:
    """Mean entropy of next-token distributions, and its slope when their logits are multiplied by β.

    Parameters
    ----------
    rows : AnswerRows
        Of M answer tokens.

    Returns
    -------
    entropy : float, nats
    slope : float
        dH/d ln β = −Var(log p), at most 0 but for rounding.
    """
    total, slope = 0.0, 0.0
    for values in rows.values.split(min(ROWS, _piece(rows))):
        logits = rows.logits(values)
        log_p = torch.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
        p = log_p.exp()
        terms = p.mul_(log_p.clamp_(min=torch.finfo(log_p.dtype).min))
        entropy = -terms.sum(-1)
        total += entropy.sum().item()
        slope -= (terms.mul_(log_p).sum(-1) - entropy.square()).sum().item()
    count = rows.values.shape[0]
    return total / count, slope / count


def row_margins(rows: AnswerRows) -> Tensor:
    """Squared margins (max_k z_k − mean_k z_k)² of the logits z that predict M answer tokens.

    No softmax: a margin is 0 where the distribution is uniform, and does not change by a shift of the logits.

    Parameters
    ----------
    rows : AnswerRows

    Returns
    -------
    tensor (M,), at least float32
    """
    pieces = []
    for values in rows.values.split(_piece(rows)):
        logits = rows.logits(values)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        pieces.append((logits.max(-1).values.to(dtype) - logits.mean(-1, dtype=dtype)).square())
    return torch.cat(pieces)


def row_leads(rows: AnswerRows, labels: Tensor, lowered: Tensor | None = None) -> Tensor:
    """p(label) − max_{v ≠ label} p(v) of M answer tokens.

    Logits that can be made from states exist a few rows at a time, and again in the backward pass.

    Parameters
    ----------
    rows : AnswerRows
    labels : tensor (M,), int
    lowered : tensor (M,), optional
        Taken off the logit of each label first.

    Returns
    -------
    tensor (M,), at least float32, from −1 to 1
    """

    def piece(values: Tensor, labels: Tensor, by: Tensor | None) -> Tensor:
        logits = _lowered(rows.logits(values), labels, by, slice(None))
        p = torch.softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
        true = p.gather(1, labels[:, None]).squeeze(1)
        return true - p.scatter(1, labels[:, None], -1.0).max(-1).values

    size = _piece(rows)
    if labels.numel() <= size:
        return piece(rows.values, labels, lowered)
    by = repeat(None) if lowered is None else lowered.split(size)
    pieces = zip(rows.values.split(size), labels.split(size), by, strict=False)
    return torch.cat([checkpoint(piece, *part, use_reentrant=False) for part in pieces])  # type: ignore[arg-type]


def _piece(rows: AnswerRows) -> int:
    """For how many answer tokens logits are kept at once: all where they exist anyway."""
    return rows.values.shape[0] if rows.head is None else max(ROWS // 2, LOGITS // rows.head.shape[0])
