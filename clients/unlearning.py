"""Targeted unlearning on a client: the operator U of FedTU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from clients import losses
from clients.entropy import Entropy
from clients.flat import FlatParameters
from clients.optimisation import Prox, TrainSettings, Updater, local_work
from clients.step import QUANTITIES, Step, log_likelihoods
from clients.training import batches
from evaluation.packing import Sequence


@dataclass(frozen=True, slots=True)
class UnlearnReport:
    """What an unlearning did.

    num_examples: forget records; num_retain: retain records at hand; retain_used: whether the loss had a retain term;
    first_forget_nll, last_forget_nll: mean over the forget records of an update, before it, nats per answer token;
    first_forget_entropy, last_forget_entropy: the same of the entropy, nan where it was not asked for;
    stopped: whether `forget_nll_limit` ended it early.
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


def unlearn(
    model: nn.Module,
    flat: FlatParameters,
    forget: Seq[Sequence],
    retain: Seq[Sequence],
    method: str,
    parameters: Mapping[str, Any],
    settings: TrainSettings,
    *,
    seed: int,
    prox: Prox | None = None,
    entropy: Entropy | None = None,
    forget_nll_limit: float | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> UnlearnReport:
    """Unlearn `forget` with the loss `method` and its hyperparameters, preserving `retain` (Oblivionis eq. 6).

    An epoch is one pass over the forget set. Each batch of it is paired with as many retain records, drawn without
    replacement from a reshuffled cycle. What the loss asks of the model as received is computed once, before the first
    update. Without retain records (or with alpha = 0) an optional retain term is absent, and the report says so. With a
    retain term, half of `settings.batch_size` in a forward pass are retain records: the same memory as training, the
    same gradient as all at once. `entropy` adds its term to the loss of any method: with a weight for them, retain
    records take part whatever the method; weights of zero change nothing. `forget_nll_limit`: stop before the update at
    which the forget records' mean negative log-likelihood exceeds it (gradient ascent is unbounded). Raises ValueError
    without forget records, for an unknown method or hyperparameter, or if the method cannot do without retain records;
    NonFiniteError as `train`.
    """
    if not forget:
        raise ValueError("no sequence to forget")
    if forget_nll_limit is not None and not forget_nll_limit > 0:
        raise ValueError(f"forget_nll_limit must be positive or None, got {forget_nll_limit}")
    loss = losses.get(method)
    values = loss.parameters(parameters)
    entropy = entropy or Entropy()
    paired = _uses_retain(loss, values, bool(retain)) or (entropy.retain != 0 and bool(retain))
    regularised = entropy.forget != 0 or (entropy.retain != 0 and paired)
    with_entropies = regularised or any(name.endswith("_entropy") for name in loss.required + loss.optional)
    start = time.perf_counter()
    forget_order = torch.Generator().manual_seed(seed)
    cycle = _Cycle(len(retain), torch.Generator().manual_seed(seed + 1))
    size = settings.records_per_update
    per_pass = max(1, settings.batch_size // 2) if paired else settings.batch_size
    history: list[tuple[float, float, float]] = []
    stopped = False
    with local_work(model, flat, seed, gradient_checkpointing=settings.gradient_checkpointing):
        reference = None
        if "forget_reference_log_p" in loss.required + loss.optional:
            reference = log_likelihoods(model, forget, settings.batch_size)
        updater = Updater(flat, settings, -(-len(forget) // size), prox)
        for chosen in (c for _ in range(settings.epochs) for c in batches(len(forget), size, forget_order)):
            partners = [retain[i] for i in cycle.draw(len(chosen))] if paired else []
            total = nll = 0.0
            spread = 0.0 if with_entropies else math.nan
            for first in range(0, len(chosen), per_pass):
                part = chosen[first : first + per_pass]
                step = Step(
                    model,
                    [forget[i] for i in part],
                    partners[first : first + per_pass],
                    number=updater.steps,
                    forget_reference_log_p=None if reference is None else reference[part],
                    entropies=with_entropies,
                )
                share = len(part) / len(chosen)
                value = step.loss(loss, values)
                if regularised:
                    value = value + entropy.term(step.forget_entropy, step.retain_entropy)
                value = value * share
                updater.backward(value)
                total += value.item()
                nll += step.forget_nll.mean().item() * share
                if with_entropies:
                    spread += step.forget_entropy.mean().item() * share
            if forget_nll_limit is not None and nll > forget_nll_limit:
                stopped = True
                flat.zero_grad()
                break
            history.append((total, nll, spread))
            updater.step()
            if on_step is not None:
                on_step(updater.steps, total)
        updater.finish()
    first_loss, first_nll, first_entropy = history[0] if history else (math.nan,) * 3
    last_loss, last_nll, last_entropy = history[-1] if history else (math.nan,) * 3
    return UnlearnReport(
        num_examples=len(forget),
        num_retain=len(retain),
        retain_used=paired,
        steps=updater.steps,
        first_loss=first_loss,
        last_loss=last_loss,
        first_forget_nll=first_nll,
        last_forget_nll=last_nll,
        first_forget_entropy=first_entropy,
        last_forget_entropy=last_entropy,
        stopped=stopped,
        seconds=time.perf_counter() - start,
    )


def _uses_retain(loss: losses.Method, values: Mapping[str, Any], available: bool) -> bool:
    """Whether retain records take part. Raises ValueError if the method needs them and there are none."""
    unknown = [name for name in loss.required + loss.optional if name not in QUANTITIES]
    if unknown:
        raise ValueError(f"{loss.name} asks for {unknown[0]!r}, which is none of {', '.join(sorted(QUANTITIES))}")
    if any(name.startswith("retain") for name in loss.required):
        if not available:
            raise ValueError(f"{loss.name} needs retain records and the client has none")
        return True
    optional = any(name.startswith("retain") for name in loss.optional)
    return optional and available and values.get("alpha") != 0


class _Cycle:
    """Endless draws from range(count) without replacement, reshuffled when used up."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self._count, self._generator = count, generator
        self._left: list[int] = []

    def draw(self, number: int) -> list[int]:
        drawn: list[int] = []
        while len(drawn) < number:
            if not self._left:
                self._left = torch.randperm(self._count, generator=self._generator).tolist()
            take = number - len(drawn)
            drawn += self._left[:take]
            self._left = self._left[take:]
        return drawn
