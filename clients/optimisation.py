"""One parameter update: settings, learning-rate schedule, proximal term, clipping, optimiser."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from clients.flat_parameters import FlatParameters
from evaluation.engine.fused_lora import fused_lora
from evaluation.engine.models import base_model, keep_freed_memory

SCHEDULES = ("constant", "linear", "cosine")
OPTIMISERS = ("adamw", "paged_adamw_32bit")
BETAS = (0.9, 0.999)
"""AdamW's default decays."""
PROX_BLOCK = 1 << 20


class NonFiniteError(FloatingPointError):
    """A loss or a parameter became infinite or NaN."""


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Settings of local training.

    Attributes
    ----------
    epochs : int, at least 1
        Passes over the records.
    batch_size : int, at least 1
        Sequences in one forward pass.
    learning_rate : float, at least 0
        It rises over the warm-up, then follows `schedule`.
    weight_decay : float, at least 0
        Not for biases and norm weights.
    warmup_epochs : float, at least 0
        Warm-up in passes over the records.
    warmup_ratio : float in [0, 1]
        Warm-up as a fraction of all updates; not together with `warmup_epochs`.
    schedule : {"constant", "linear", "cosine"}
        The latter two fall to zero.
    max_grad_norm : float above 0, optional
        Clip the gradient to this norm; None: no clipping.
    gradient_accumulation : int, at least 1
        An update takes `batch_size` times this many records.
    betas : (float, float) in [0, 1)
    eps : float, at least 0
    optimizer : {"adamw", "paged_adamw_32bit"}
        The latter of bitsandbytes, on CUDA.
    gradient_checkpointing : bool
        Keep only the input of each layer, and compute the rest again in the backward pass.

    Raises
    ------
    ValueError
        For a value out of range.
    """

    epochs: int = 5
    batch_size: int = 32
    learning_rate: float = 8e-5
    weight_decay: float = 0.01
    warmup_epochs: float = 1.0
    warmup_ratio: float = 0.0
    schedule: str = "constant"
    max_grad_norm: float | None = None
    gradient_accumulation: int = 1
    betas: tuple[float, float] = BETAS
    eps: float = 1e-8
    optimizer: str = "adamw"
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "gradient_accumulation"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "weight_decay", "warmup_epochs", "eps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {getattr(self, name)}")
        if not 0 <= self.warmup_ratio <= 1:
            raise ValueError(f"warmup_ratio must lie in [0, 1], got {self.warmup_ratio}")
        if self.warmup_ratio and self.warmup_epochs:
            raise ValueError("give warmup_epochs or warmup_ratio, not both")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ValueError(f"max_grad_norm must be positive or None, got {self.max_grad_norm}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must lie in [0, 1), got {self.betas}")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"unknown schedule {self.schedule!r}, expected one of {', '.join(SCHEDULES)}")
        if self.optimizer not in OPTIMISERS:
            raise ValueError(f"unknown optimizer {self.optimizer!r}, expected one of {', '.join(OPTIMISERS)}")

    @property
    def records_per_update(self) -> int:
        """Records of one update; the last one of an epoch may take fewer."""
        return self.batch_size * self.gradient_accumulation


class Prox(NamedTuple):
    """FedProx's proximal term (μ/2)‖φ − φ_global‖² in the loss (Oblivionis eq. 35).

    Attributes
    ----------
    mu : float, at least 0
        μ.
    reference : array (size,)
        φ_global.
    """

    mu: float
    reference: np.ndarray | Tensor


class Ball(NamedTuple):
    """Constraint: the parameters stay within an L2 distance of a center.

    Attributes
    ----------
    center : array (size,)
    radius : float above 0
    """

    center: np.ndarray | Tensor
    radius: float


def learning_rate_factor(step: int, total: int, warmup: int, schedule: str) -> float:
    """Factor on the learning rate of one update.

    The decay is that of transformers' schedules. Its warm-up starts at 0 and wastes the first update, which is the only
    one of a client with few records; this one starts at 1/(warmup + 1).

    Parameters
    ----------
    step : int, from 0
    total, warmup : int
        All updates, and those of the warm-up.
    schedule : {"constant", "linear", "cosine"}

    Returns
    -------
    float in [0, 1]
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    progress = (step - warmup) / max(1, total - warmup)
    if schedule == "linear":
        return 1.0 - progress
    return 0.5 * (1.0 + math.cos(math.pi * progress)) if schedule == "cosine" else 1.0


def _written(number: float) -> Fraction:
    """The shortest decimal that is read as this float: 0.07 of 100 updates are 7, not 8 for 7.000000000000001."""
    return Fraction(repr(float(number)))


class Updater:
    """Turns gradients in `flat.grad` into updates of `flat`; for one exchange, with fresh optimiser state.

    Parameters
    ----------
    flat : FlatParameters
    settings : TrainSettings
    updates : int
        How many there will be, for the schedule.
    prox : Prox or None
    moving : tensor (size,), bool, optional
        Numbers of the vector that may change, None for all; the others do not even decay.
    ball : Ball, optional
        After each update the parameters are projected to it.

    Raises
    ------
    ValueError
        For a proximal term or ball out of range or of another shape, or an optimiser that is not available.
    """

    def __init__(
        self,
        flat: FlatParameters,
        settings: TrainSettings,
        updates: int,
        prox: Prox | None,
        moving: Tensor | None = None,
        ball: Ball | None = None,
    ) -> None:
        self._flat, self._settings = flat, settings
        self._total = updates
        share = _written(settings.warmup_epochs) / settings.epochs or _written(settings.warmup_ratio)
        self._warmup = min(math.ceil(share * updates), self._total)
        self.optimiser = _optimiser(flat, settings)
        self._scaler = torch.amp.GradScaler(
            flat.device.type, enabled=flat.device.type == "cuda" and flat.compute_dtype == torch.float16
        )
        self._mu = 0.0
        if prox is not None:
            self._mu, reference = prox
            if not 0 <= self._mu < math.inf:
                raise ValueError(f"mu must be finite and not negative, got {self._mu}")
            self._reference = torch.as_tensor(reference, dtype=torch.float32, device=flat.device)
            if self._reference.shape != (flat.size,):
                raise ValueError(f"φ_global must have shape ({flat.size},), got {tuple(self._reference.shape)}")
        self._fixed = None if moving is None else (~moving, flat.vector.detach()[~moving])
        self._radius = math.inf
        if ball is not None:
            center, self._radius = ball
            if not 0 < self._radius < math.inf:
                raise ValueError(f"radius must be positive and finite, got {self._radius}")
            self._center = torch.as_tensor(center, dtype=torch.float32, device=flat.device)
            if self._center.shape != (flat.size,):
                raise ValueError(f"the center must have shape ({flat.size},), got {tuple(self._center.shape)}")
        self.steps = 0
        flat.zero_grad()

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of `loss` to that of the update; NonFiniteError if the loss is not finite."""
        if not torch.isfinite(loss):
            raise NonFiniteError(f"the loss is {loss.item()} at update {self.steps + 1}")
        self._scaler.scale(loss).backward()

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradient gathered since the last update, then reset it to zero."""
        self._scaler.unscale_(self.optimiser)
        grad = self._flat.grad
        if self._mu > 0:
            self.add_prox(grad)
        if self._fixed is not None:
            grad[self._fixed[0]] = 0.0
        limit = self._settings.max_grad_norm
        if limit is not None:
            grad.mul_((limit / (torch.linalg.vector_norm(grad) + 1e-6)).clamp(max=1.0))
        factor = learning_rate_factor(self.steps, self._total, self._warmup, self._settings.schedule)
        for group in self.optimiser.param_groups:
            group["lr"] = self._settings.learning_rate * factor
        self._scaler.step(self.optimiser)
        self._scaler.update()
        if self._fixed is not None:
            where, values = self._fixed
            self._flat.vector[where] = values
        if self._radius < math.inf:
            self._project()
        self._flat.zero_grad()
        self.steps += 1

    def add_prox(self, grad: Tensor) -> None:
        """Add μ(φ − φ_global) to `grad` (size,), a block at a time.

        The difference comes first: adding μφ and subtracting μφ_global would lose small numbers of `grad` to rounding.
        """
        for start in range(0, self._flat.size, PROX_BLOCK):
            block = slice(start, start + PROX_BLOCK)
            grad[block].add_(self._flat.vector.detach()[block] - self._reference[block], alpha=self._mu)

    def _project(self) -> None:
        """Move the parameters to the nearest point of the ball."""
        difference = self._flat.vector - self._center
        distance = torch.linalg.vector_norm(difference)
        if distance > self._radius:
            torch.add(self._center, difference.mul_(self._radius / distance), out=self._flat.vector)

    def finish(self) -> None:
        """Raise NonFiniteError if a parameter is not finite."""
        if not bool(torch.isfinite(self._flat.vector).all()):
            raise NonFiniteError(f"a parameter is not finite after {self.steps} updates")


def _optimiser(flat: FlatParameters, settings: TrainSettings) -> torch.optim.Optimizer:
    """The optimiser of these settings."""
    arguments: dict[str, Any] = {"lr": settings.learning_rate, "betas": settings.betas, "eps": settings.eps}
    groups = flat.parameter_groups(settings.weight_decay)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, fused=flat.device.type in ("cpu", "cuda"), **arguments)
    if flat.device.type != "cuda":
        raise ValueError("paged_adamw_32bit needs CUDA; use optimizer adamw")
    try:
        from bitsandbytes.optim import PagedAdamW32bit  # pyright: ignore[reportMissingImports, reportPrivateImportUsage]
    except ImportError as error:
        raise ValueError("paged_adamw_32bit needs the package bitsandbytes") from error
    return PagedAdamW32bit(groups, **arguments)


@contextmanager
def checkpointing(model: nn.Module) -> Iterator[None]:
    """Context with transformers' gradient checkpointing of the kind that does not reenter autograd.

    Unlike the older kind it needs no gradient of the embeddings: transformers' hook for that, which would stay for
    good, is removed.

    Parameters
    ----------
    model : nn.Module
        A transformers model, or one around it.

    Raises
    ------
    ValueError
        If the model cannot checkpoint.
    """
    base: Any = base_model(model)
    if not getattr(base, "supports_gradient_checkpointing", False):
        raise ValueError(f"{type(base).__name__} does not support gradient checkpointing")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the successor's name is not in every transformers 5
        base.gradient_checkpointing_enable({"use_reentrant": False})
    if hasattr(base, "_require_grads_hook"):
        base.disable_input_require_grads()
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            base.gradient_checkpointing_disable()


@contextmanager
def local_work(
    model: nn.Module, flat: FlatParameters, seed: int, *, gradient_checkpointing: bool = False, merged: bool = True
) -> Iterator[None]:
    """Context of one local exchange: training mode, own random state, autocast for half precision on CUDA.

    Afterwards the model's mode and the random state of the process are as before, and checkpointing is off.

    Parameters
    ----------
    model : nn.Module
    flat : FlatParameters
    seed : int
    gradient_checkpointing : bool
    merged : bool
        LoRA layers may run as one product (`fused_lora`), in which no factor is a layer of its own.

    Raises
    ------
    ValueError
        If the model cannot checkpoint.
    """
    device = flat.device
    half = device.type == "cuda" and flat.compute_dtype in (torch.bfloat16, torch.float16)
    training = model.training
    torch.set_flush_denormal(True)
    keep_freed_memory()
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
        stack.enter_context(torch.autocast(device.type, flat.compute_dtype, enabled=half))
        stack.callback(model.train, training)
        torch.manual_seed(seed)
        model.train()
        if gradient_checkpointing:
            stack.enter_context(checkpointing(model))
        if merged:
            stack.enter_context(fused_lora(model))
        yield
