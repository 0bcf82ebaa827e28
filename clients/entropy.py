"""Entropy regularisation: a term added to any unlearning loss that makes the model certain on forget records."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Entropy:
    """Entropy term λ_f E_forget H̄ + λ_r E_retain H̄ of a loss (Scholten et al. 2025, eq. of section 5).

    H̄ is the mean over a record's answer tokens of the entropy, in nats, of the distribution that predicts them.

    Attributes
    ----------
    forget : float, at least 0
        λ_f, lowers the entropy on forget records, so that sampling does not bring back what the likeliest answer no
        longer says.
    retain : float, at most 0
        λ_r, keeps it up on retain records, as far as there are any.

    Raises
    ------
    ValueError
        For a wrong sign, or a weight that is no finite number.
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
        """Value of the term.

        Parameters
        ----------
        forget : tensor (B,)
            H̄ of the forget records.
        retain : tensor (B',) or None
            H̄ of the retain records; None leaves their part out.

        Returns
        -------
        tensor, scalar
        """
        value = self.forget * forget.mean()
        return value if retain is None else value + self.retain * retain.mean()
