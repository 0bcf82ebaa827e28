"""Statistics from the logits that predict answer tokens: likelihoods, hits and moments of the distributions."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from evaluation.engine.kernels import HEAD_ROWS
from evaluation.engine.packing import PackedBatch

_LEAST = -1e4  # Below it a probability is 0 in float32, and a logit of -inf times 0 would be no number.


def read_answers(
    pieces: Iterator[Tensor], batch: PackedBatch, *, moments: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Likelihoods of answer tokens from the logits that predict them, a few rows at a time and in place.

    Parameters
    ----------
    pieces : iterator of tensors (·, V)
        Consecutive rows of the logits at `batch.keep`.
    batch : PackedBatch
    moments : bool
        Also the moments.

    Returns
    -------
    log_probs : tensor (M,), float32, at most 0
        Nats.
    correct : tensor (M,), bool
        Whether each answer token is the likeliest.
    moments : tensor (M, 2) or None
        Mean and standard deviation of log p(v) over all tokens v drawn from the distribution p that predicts each
        answer token; the mean is the negative entropy.
    """
    rows, order = batch.rows.sort()
    labels = batch.labels[order]
    logp, hits, spread = [], [], []
    start = 0
    for piece in pieces:
        logits = piece.float()
        stop = start + logits.shape[0]
        first, last = torch.searchsorted(rows, torch.tensor([start, stop], device=rows.device)).tolist()
        row, label = rows[first:last] - start, labels[first:last]
        chosen, largest = logits[row, label], logits.amax(-1)
        # Half precision has ties, of which a greedy decoder takes the first.
        ties = piece.dtype in (torch.float16, torch.bfloat16)
        hits.append(logits.argmax(-1)[row] == label if ties else chosen == largest[row])
        shifted = logits.sub_(largest[:, None])
        if moments:
            spread.append(torch.cat([_moments(part) for part in shifted.split(HEAD_ROWS)])[row])
        mass = shifted.exp_().sum(-1).log_().add_(largest)
        logp.append((chosen - mass[row]).clamp_max_(0.0))
        start = stop
    where = torch.empty_like(order)
    where[order] = torch.arange(order.numel(), device=order.device)
    return torch.cat(logp)[where], torch.cat(hits)[where], torch.cat(spread)[where] if moments else None


def _moments(shifted: Tensor) -> Tensor:
    """Logits (n, V) whose largest is 0 in each row -> mean and standard deviation of the log-probabilities (n, 2)."""
    values = shifted.clamp_min(_LEAST)
    weights = values.exp()
    mass = weights.sum(-1)
    mean = (weights * values).sum(-1) / mass
    variance = weights.mul_(values.sub_(mean[:, None]).square_()).sum(-1) / mass
    return torch.stack([mean - mass.log(), variance.sqrt()], -1)
