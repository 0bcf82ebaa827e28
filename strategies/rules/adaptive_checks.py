"""The checks that the adaptive aggregators share."""

from __future__ import annotations


def check_adaptive(eta: float, tau: float, beta_1: float = 0.0, beta_2: float = 0.0) -> None:
    """Raise ValueError unless `eta` and `tau` are above 0 and the decays are in [0, 1)."""
    problems = [f"{name} is {value}, expected above 0" for name, value in (("eta", eta), ("tau", tau)) if not value > 0]
    problems += [
        f"{name} is {value}, expected at least 0 and below 1"
        for name, value in (("beta_1", beta_1), ("beta_2", beta_2))
        if not 0 <= value < 1
    ]
    if problems:
        raise ValueError("; ".join(problems))
