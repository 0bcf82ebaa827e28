"""SCRUB: away from the model as received on forget records, back to it on retain records, in turn."""

from __future__ import annotations

from typing import Any

from torch import Tensor

LABEL = "SCRUB"
LIMITS = {
    "alpha": {"help": "Weight of the divergence on retain records.", "at_least": 0},
    "gamma": {"help": "Weight of the likelihood of retain records.", "at_least": 0},
    "temperature": {
        "help": "Temperature T of the distributions in divergences, which count T² times.",
        "above": 0,
    },
    "msteps": {
        "help": "First epochs in which a step away from the model as received follows each step.",
        "at_least": 0,
    },
}
NEEDS_RETAIN = True


def scrub(
    retain_reference_kl: Tensor | None = None,
    retain_nll: Tensor | None = None,
    forget_reference_kl: Tensor | None = None,
    *,
    alpha: float = 0.5,
    gamma: float = 1.0,
    temperature: float = 2.0,
    msteps: int = 3,
) -> Tensor:
    """min-step: α E_retain KL(f_ref‖f) + γ E_retain ℓ; max-step: −E_forget KL(f_ref‖f). Kurmanji et al. 2023, eq. 3.

    An update has the quantities of its kind of step (`phases`); the others are None.

    Parameters
    ----------
    retain_reference_kl, forget_reference_kl : tensor (B,), optional
        Mean over the answer tokens of T² KL between distributions softened by the temperature T, nats.
    retain_nll : tensor (B,), optional
        Mean negative log-likelihood over the answer tokens, nats.
    alpha, gamma : float, at least 0
        α, γ.
    temperature : float above 0
        T; used where the divergences are computed.
    msteps : int
        See `phases`.

    Returns
    -------
    tensor, scalar

    Raises
    ------
    ValueError
        Without the quantities of either step.
    """
    if forget_reference_kl is not None:
        return -forget_reference_kl.mean()
    if retain_reference_kl is None or retain_nll is None:
        raise ValueError("scrub needs the quantities of a min-step or of a max-step")
    return alpha * retain_reference_kl.mean() + gamma * retain_nll.mean()


def phases(epoch: int, *, msteps: int, **_: Any) -> list[tuple[str, ...]]:
    """A min-step per batch; in the first `msteps` epochs, counted from 0, a max-step follows it.

    The min-step comes first because at the model as received the divergence has no gradient to ascend.

    Parameters
    ----------
    epoch : int, from 0
    msteps : int, at least 0

    Returns
    -------
    list of tuples of str
        The quantities of each update.
    """
    steps: list[tuple[str, ...]] = [("retain_reference_kl", "retain_nll")]
    return [*steps, ("forget_reference_kl",)] if epoch < msteps else steps
