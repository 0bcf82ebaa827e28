"""Options of an unlearning that go with any method."""

from __future__ import annotations

from dataclasses import dataclass, field

from clients.batch_quantities import RETAIN_LOSSES
from clients.calibrated_forgetting import Target
from clients.entropy import Entropy
from clients.optimisation import Ball, Prox


@dataclass(frozen=True, slots=True)
class UnlearnOptions:
    """Options of an unlearning that go with any method; by default none.

    Attributes
    ----------
    prox : Prox, optional
        FedProx's term.
    ball : Ball, optional
        After each update the parameters are projected to it (PGA).
    entropy : Entropy
        Adds its term to the loss; with a weight for them, retain records take part whatever the method.
    retain_loss : {"nll", "kl"}
        Retain term of a loss that leaves it open: negative log-likelihood, or KL(received‖model).
    held : int, at least 0
        So many of the last retain records are held to what the received model says of them: of these the retain term is
        KL(received‖model), and they are not learned.
    held_to_base : int, at least 0
        So many of the last held records are held to what the untouched base model says of them instead, KL(base‖model);
        it takes a target. Where their predictions are too large to be kept, to what the received model says.
    forget_nll_limit : float above 0, optional
        Stop before the update at which the forget records' mean negative log-likelihood exceeds it (gradient ascent is
        unbounded), also before the first one: then nothing changes. No limit where the method does not request
        likelihoods of forget records.
    target : Target, optional
        Level up to which each record is forgotten. A method that requests it (`forget_target_nll`) does nothing where
        all records are there already, and its learning rate and its epochs are scaled by the largest gap over
        `clients.forgetting_target.FULL_RATE_GAP`, if that is less than 1; the epochs to no fewer than
        `clients.forgetting_target.LEAST_EPOCHS`. Under any other method each epoch takes the records that are not
        there: of those known too well the method's loss, while those less likely than their target are pulled back, by
        their squared distance from it.
    rectify : float in (0, 1], optional
        γ of GRU (`clients.gradient_rectification.Rectifier`); None: no rectification. The gradient of each update that
        has forget records is projected against that of the mean negative log-likelihood of as many retain records,
        before clipping and the optimiser, so it takes a second pass.

    Raises
    ------
    ValueError
        For values out of range.
    """

    prox: Prox | None = None
    ball: Ball | None = None
    entropy: Entropy = field(default_factory=Entropy)
    retain_loss: str = "nll"
    held: int = 0
    held_to_base: int = 0
    forget_nll_limit: float | None = None
    target: Target | None = None
    rectify: float | None = None

    def __post_init__(self) -> None:
        if self.rectify is not None and not 0 < self.rectify <= 1:
            raise ValueError(f"rectify must lie in (0, 1] or be None, got {self.rectify}")
        if self.held < 0:
            raise ValueError(f"held must be at least 0, got {self.held}")
        if not 0 <= self.held_to_base <= self.held:
            raise ValueError(f"held_to_base must be from 0 to held={self.held}, got {self.held_to_base}")
        if self.held_to_base and self.target is None:
            raise ValueError("held_to_base takes a target, which has the base model")
        if self.forget_nll_limit is not None and not self.forget_nll_limit > 0:
            raise ValueError(f"forget_nll_limit must be positive or None, got {self.forget_nll_limit}")
        if self.retain_loss not in RETAIN_LOSSES:
            raise ValueError(f"unknown retain_loss {self.retain_loss!r}, expected one of {', '.join(RETAIN_LOSSES)}")

    def stop(self, nll: float) -> bool:
        """Whether the forget records' mean negative log-likelihood exceeds the limit, so that no update follows."""
        return self.forget_nll_limit is not None and nll > self.forget_nll_limit

    def more_than_a_loss(self) -> str | None:
        """The first option set that bounds or changes updates by more than a loss of single records does.

        Returns
        -------
        str or None
            Its name; None where no such option is set.
        """
        given = {
            "ball": self.ball is not None,
            "forget_nll_limit": self.forget_nll_limit is not None,
            "target": self.target is not None,
            "rectify": self.rectify is not None,
            "held": self.held > 0,
            "entropy": bool(self.entropy.forget or self.entropy.retain),
        }
        return next((name for name, is_set in given.items() if is_set), None)
