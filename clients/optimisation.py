"""What one parameter update is: settings, learning-rate schedule, proximal term, clipping, optimiser."""

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
    """How the parameters are updated.

    `epochs`: passes over the records. `batch_size`: sequences in one forward pass; an update takes `batch_size` times
    `gradient_accumulation` records. The learning rate rises over `warmup_epochs` passes (or over the fraction
    `warmup_ratio` of all updates), then follows `schedule`: constant, linear or cosine down to zero. `max_grad_norm`:
    clip the gradient to this norm, None for no clipping. `optimizer`: adamw, or paged_adamw_32bit (bitsandbytes, on
    CUDA). `gradient_checkpointing`: keep only what enters each layer and compute the rest again in the backward pass.
    Weight decay spares biases and norm weights. Raises ValueError for a value out of range.
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
        """Records that one update takes, the last one of an epoch excepted."""
        return self.batch_size * self.gradient_accumulation


class Prox(NamedTuple):
    """FedProx: (μ/2)‖φ − φ_global‖² is added to the loss (Oblivionis eq. 35). μ ≥ 0; `reference` φ_global (size,)."""

    mu: float
    reference: np.ndarray | Tensor


class Ball(NamedTuple):
    """The parameters stay within this L2 distance of `center` (size,). `radius` > 0."""

    center: np.ndarray | Tensor
    radius: float


def learning_rate_factor(step: int, total: int, warmup: int, schedule: str) -> float:
    """Factor in [0, 1] on the learning rate of update `step` (0-based) of `total`, `warmup` of them warm-up.

    The decay is that of transformers' schedules. Its warm-up starts at 0 and wastes the first update, which is the only
    one of a client with few records; this one starts at 1/(warmup + 1).
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
    """Turns gradients in `flat.grad` into updates of `flat`; lives for one exchange and leaves no state behind.

    `updates`: how many there will be, for the schedule. `moving` (size,), bool: the numbers of the vector that may
    change, None for all of them; the others do not even decay.
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
        """Add the gradient of `loss` to that of the update. Raises NonFiniteError if the loss is not finite."""
        if not torch.isfinite(loss):
            raise NonFiniteError(f"the loss is {loss.item()} at update {self.steps + 1}")
        self._scaler.scale(loss).backward()

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradient gathered since the last update, then forget it."""
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
        """Add μ(φ − φ_global), a block at a time. Adding μφ and subtracting μφ_global would leave rounding in place of
        what `grad` has of small numbers.
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
        """Raises NonFiniteError if a parameter is not finite."""
        if not bool(torch.isfinite(self._flat.vector).all()):
            raise NonFiniteError(f"a parameter is not finite after {self.steps} updates")


def _optimiser(flat: FlatParameters, settings: TrainSettings) -> torch.optim.Optimizer:
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
    """transformers' gradient checkpointing, which torch.utils.checkpoint does without reentering autograd.

    Unlike the older kind it needs no gradient of the embeddings: transformers' hook for that, which would stay for
    good, is removed.
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
    """The surroundings of one exchange: training mode, own random state, autocast for half precision on CUDA; `merged`:
    LoRA layers may run as one product (`fused_lora`), in which no factor is a layer of its own.

    The model's mode and the random state of the process are as before afterwards, and there is no checkpointing any
    more. Raises ValueError if the model cannot checkpoint.
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
