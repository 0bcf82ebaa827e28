"""Entropy optimisation: a term beside any unlearning loss that makes the model sure of what it forgets."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


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
