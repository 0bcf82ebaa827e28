"""PDU: flat logits on forget records, under a bound on the loss of retain records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

LABEL = "PDU"
LIMITS = {
    "dual": {"help": "Dual variable λ at first: weight of the retain records' excess.", "at_least": 0},
    "dual_step_size": {"help": "Step η of the dual ascent; 0: λ stays as it is.", "at_least": 0},
    "dual_warmup_epochs": {"help": "First epochs in which λ stays as it is.", "at_least": 0},
    "tolerance": {
        "help": "By which share the retain records' loss may exceed that of the model as received.",
        "at_least": 0,
    },
    "epsilon": {
        "help": "Bound ε on the retain records' loss instead of `tolerance`; null: by `tolerance`.",
        "unit": "nats per token",
        "above": 0,
    },
}


def pdu(
    forget_margin: Tensor,
    retain_nll: Tensor,
    retain_reference_nll: Tensor,
    *,
    dual: float = 100.0,
    dual_step_size: float = 5.0,
    dual_warmup_epochs: int = 2,
    tolerance: float = 0.1,
    epsilon: float | None = None,
) -> Tensor:
    """E_forget (1/|y|) Σ_t (max_k z_tk − mean_k z_tk)² + λ (E_retain ℓ(y|x) − ε): Entesari et al. 2025.

    The Lagrangian of min L_forget subject to L_retain ≤ ε.

    Parameters
    ----------
    forget_margin : tensor (B,)
        Mean squared margin of the logits z over the answer tokens of each forget record.
    retain_nll, retain_reference_nll : tensor (B,)
        ℓ, the mean negative log-likelihood over the answer tokens of each retain record, under the model and the model
        as received, nats.
    dual : float, at least 0
        λ, which `advance` moves.
    dual_step_size, dual_warmup_epochs
        See `advance`.
    tolerance : float, at least 0
        ε is (1 + tolerance) E_retain ℓ_ref(y|x) on the same records ...
    epsilon : float above 0, optional
        ... unless given here, nats per token.

    Returns
    -------
    tensor, scalar
    """
    excess = retain_nll.mean() - _bound(retain_reference_nll.mean(), tolerance, epsilon)
    return forget_margin.mean() + dual * excess


def advance(
    epoch: int,
    means: Mapping[str, float],
    *,
    dual: float,
    dual_step_size: float,
    dual_warmup_epochs: int,
    tolerance: float,
    epsilon: float | None,
) -> dict[str, Any]:
    """Dual ascent λ ← max(0, λ + η (E_retain ℓ − ε)) on the records of the last update, once the warm-up is over.

    Parameters
    ----------
    epoch : int, from 0
    means : mapping of float
        Mean of each quantity over the update's records.
    dual, dual_step_size : float
        λ and η.
    dual_warmup_epochs : int
        Epochs without ascent.
    tolerance, epsilon
        As in `pdu`.

    Returns
    -------
    dict
        The new `dual`; empty during the warm-up.
    """
    if epoch < dual_warmup_epochs:
        return {}
    excess = means["retain_nll"] - _bound(means["retain_reference_nll"], tolerance, epsilon)
    return {"dual": max(0.0, dual + dual_step_size * excess)}


def _bound(reference: Any, tolerance: float, epsilon: float | None) -> Any:
    """ε for retain records whose mean loss is `reference` under the model as received."""
    return (1 + tolerance) * reference if epsilon is None else epsilon
