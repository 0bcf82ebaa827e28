"""Direct preference optimisation (DPO), for losses that prefer another answer to the one to forget."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid


def preference(
    winner_log_p: Tensor, winner_reference: Tensor, loser_log_p: Tensor, loser_reference: Tensor, beta: float
) -> Tensor:
    """DPO loss −(2/β) E log σ(β log(p(y_w|x; f) / p(y_w|x; f_ref)) − β log(p(y_l|x; f) / p(y_l|x; f_ref))).

    Rafailov et al. 2023, eq. 7, times 2/β: for small β the gradient is that of ascent on y_l and descent on y_w, each
    at weight 1, as NPO's is that of ascent.

    Parameters
    ----------
    winner_log_p, winner_reference, loser_log_p, loser_reference : tensor (B,)
        Log-likelihoods of the complete answers y_w and y_l under f and f_ref, sums over their tokens, nats.
    beta : float above 0
        β.

    Returns
    -------
    tensor, scalar

    Raises
    ------
    ValueError
        Unless `beta` > 0.
    """
    if beta <= 0:
        raise ValueError(f"beta must be positive, got {beta}")
    margin = (winner_log_p - winner_reference) - (loser_log_p - loser_reference)
    return -(2.0 / beta) * logsigmoid(beta * margin).mean()
