"""What an unlearning reports."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class UnlearnReport:
    """Result of an unlearning.

    Attributes
    ----------
    num_examples, num_retain : int
        Forget records, and retain records available.
    retain_used : bool
        Whether retain records took part.
    steps : int
        Updates.
    first_loss, last_loss : float
        Of the first and of the last update.
    first_forget_nll, last_forget_nll : float
        Mean over the forget records of an update, before it, nats per answer token; the last one that of all of them at
        the end where the method trains a copy (`losses.Method.finish_in`).
    first_forget_entropy, last_forget_entropy : float
        The same of the entropy; NaN where the method did not request it.
    stopped : bool
        Whether `forget_nll_limit` ended it early.
    seconds : float
    first_gap, last_gap : float
        Mean distance of the records' negative log-likelihood from their target, before the first update and after the
        last one, nats per token; NaN without a target.
    """

    num_examples: int
    num_retain: int
    retain_used: bool
    steps: int
    first_loss: float
    last_loss: float
    first_forget_nll: float
    last_forget_nll: float
    first_forget_entropy: float
    last_forget_entropy: float
    stopped: bool
    seconds: float
    first_gap: float = math.nan
    last_gap: float = math.nan

    def then(self, later: UnlearnReport) -> UnlearnReport:
        """The report of both, where another unlearning of the same records followed.

        Parameters
        ----------
        later : UnlearnReport

        Returns
        -------
        UnlearnReport
        """
        if not later.steps:
            return replace(self, seconds=self.seconds + later.seconds)
        if not self.steps:
            return replace(later, seconds=self.seconds + later.seconds)
        return replace(
            later,
            steps=self.steps + later.steps,
            first_loss=self.first_loss,
            first_forget_nll=self.first_forget_nll,
            first_forget_entropy=self.first_forget_entropy,
            stopped=self.stopped or later.stopped,
            seconds=self.seconds + later.seconds,
            first_gap=self.first_gap,
        )
