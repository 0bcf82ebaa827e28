"""Unlearning of a classifier by the losses that the clients use, `clients.losses`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.tabular.data import Records
from benchmarks.tabular.model import TabularMLP, initialised
from clients import losses
from clients.distributions import statistics
from oblivionis.config import method_traits

SETS = ("forget", "retain")
OTHERS = ("reference", "teacher")
KINDS = ("nll", "loss", "log_p", "reference_log_p", "reference_kl", "teacher_kl")
QUANTITIES = frozenset(f"{records}_{kind}" for records in SETS for kind in KINDS)
"""What a classifier can tell a loss: a record is one answer of one token, its class."""


@dataclass(frozen=True)
class Plan:
    """A method: the name of its loss, updates of the full batch, Adam's rate, all hyperparameters of the loss."""

    method: str
    epochs: int
    learning_rate: float
    parameters: Mapping[str, Any] = field(default_factory=dict)


def names() -> list[str]:
    """The methods that are a loss alone, which asks for nothing that a classifier cannot tell, sorted.

    One that goes by other clients' updates is more: PGA without its projection is gradient ascent. So is one that
    trains a copy.
    """
    plain = [n for n in losses.names() if method_traits.updates(n) is None and not method_traits.trains_copy(n)]
    return [name for name in plain if set(losses.get(name).names) <= QUANTITIES]


def unlearn(original: TabularMLP, forget: Records, retain: Records, plan: Plan, seed: int) -> TabularMLP:
    """A copy of `original` after the updates of `plan`, each on all forget and all retain records, with dropout.

    The model as received and a bad teacher, a classifier of the same shape with the random weights of `teacher_seed`,
    are asked without dropout. The seed gives the dropout masks; the global random state stays as it is.
    """
    method = losses.get(plan.method)
    sets = {"forget": forget, "retain": retain}
    temperature = plan.parameters.get("temperature", 1.0)
    others = _others(original, method, sets, plan.parameters)
    model = copy.deepcopy(original).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=plan.learning_rate)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for epoch in range(plan.epochs):
            for wanted in method.phases(epoch, plan.parameters):
                given = quantities(wanted, model, sets, others, temperature)
                loss = method.function(**given, **plan.parameters)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    return model.eval()


def quantities(
    wanted: tuple[str, ...],
    model: TabularMLP,
    sets: Mapping[str, Records],
    others: Mapping[tuple[str, str], Tensor],
    temperature: float,
) -> dict[str, Tensor]:
    """The `wanted` of `QUANTITIES`, (n,) each, nats. Each set goes through the model at most once.

    sets: the records by `SETS`; others: logits (n, classes) of another model by (set, one of `OTHERS`); temperature: T
    of the divergences, which are T² KL(other‖model).
    """
    logits = {name: model(records.x) for name, records in sets.items() if any(w.startswith(name) for w in wanted)}
    found = {}
    for name in wanted:
        records, _, kind = name.partition("_")
        labels = sets[records].y
        if kind == "reference_log_p":
            found[name] = statistics(others[records, "reference"], labels).log_p
        elif kind.endswith("_kl"):
            other = others[records, kind.removesuffix("_kl")]
            found[name] = statistics(logits[records], labels, other, temperature).kl
        else:
            log_p = statistics(logits[records], labels).log_p
            found[name] = log_p if kind == "log_p" else -log_p
    return found


@torch.no_grad()
def _others(
    original: TabularMLP, method: losses.Method, sets: Mapping[str, Records], parameters: Mapping[str, Any]
) -> dict[tuple[str, str], Tensor]:
    """The logits of the models other than the one that unlearns, for the quantities that the method may ask for."""
    found = {}
    for records in SETS:
        for other in OTHERS:
            if any(name.startswith(f"{records}_{other}_") for name in method.names):
                model = original if other == "reference" else initialised(original.shape, parameters["teacher_seed"])
                found[records, other] = model(sets[records].x)
    return found
