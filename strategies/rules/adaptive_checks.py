"""Range checks of the settings that the adaptive aggregators (FedAdagrad, FedAdam, FedYogi) share."""

from __future__ import annotations


def check_adaptive(eta: float, tau: float, beta_1: float = 0.0, beta_2: float = 0.0) -> None:
    """Check the settings of an adaptive server optimiser.

    Parameters
    ----------
    eta : float above 0
        Server learning rate.
    tau : float above 0
        Adaptivity, added to the root of the second moment.
    beta_1, beta_2 : float in [0, 1)
        Decays of the first and the second moment.

    Raises
    ------
    ValueError
        If a value is out of range; the message names all of them.
    """
    problems = [f"{name} is {value}, expected above 0" for name, value in (("eta", eta), ("tau", tau)) if not value > 0]
    problems += [
        f"{name} is {value}, expected at least 0 and below 1"
        for name, value in (("beta_1", beta_1), ("beta_2", beta_2))
        if not 0 <= value < 1
    ]
    if problems:
        raise ValueError("; ".join(problems))
