"""Bad teacher: imitate a model that knows nothing on forget records, the model as received on retain records."""

from __future__ import annotations

from torch import Tensor

LABEL = "Bad teacher"
LIMITS = {
    "gamma": {"help": "Weight of the forget term.", "at_least": 0},
    "alpha": {"help": "Weight of the retain terms.", "at_least": 0},
    "temperature": {
        "help": "Temperature T of the distributions in divergences, which count T² times.",
        "above": 0,
    },
    "teacher_seed": {"help": "Seed of the randomly initialised teacher's weights.", "at_least": 0},
}


def bad_teacher(
    forget_teacher_kl: Tensor,
    retain_reference_kl: Tensor | None = None,
    retain_nll: Tensor | None = None,
    *,
    gamma: float = 1.0,
    alpha: float = 1.0,
    temperature: float = 1.0,
    teacher_seed: int = 0,
) -> Tensor:
    """γ E_forget KL(f_random‖f) + α E_retain [KL(f_ref‖f) + ℓ(y|x)]: Chundawat et al. 2023 with RULER's ℓ (0.A.11).

    Parameters
    ----------
    forget_teacher_kl : tensor (B,)
        Mean over the answer tokens of T² KL from the randomly initialised teacher, nats.
    retain_reference_kl : tensor (B,), optional
        The same from the model as received, on retain records.
    retain_nll : tensor (B,), optional
        Mean negative log-likelihood over the answer tokens of the retain records, nats.
    gamma, alpha : float, at least 0
        γ, α.
    temperature : float above 0
        T of the divergences; used where these are computed.
    teacher_seed : int
        Seed of the teacher's weights; used where it is made.

    Returns
    -------
    tensor, scalar
    """
    loss = gamma * forget_teacher_kl.mean()
    for term in (retain_reference_kl, retain_nll):
        if term is not None:
            loss = loss + alpha * term.mean()
    return loss
