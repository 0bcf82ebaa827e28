"""Checks of what does not go with late clients: a deadline, over-sampling, asynchronous rounds, a simulated clock."""

from __future__ import annotations

from collections.abc import Iterator

from oblivionis.config import extension_traits, method_traits
from oblivionis.config.problems import Problem
from oblivionis.config.schema import Config

READS = ("federation", "unlearning", "strategy.name", "model.lora.aggregation", "stages", "privacy")


def late_clients(config: Config) -> Iterator[Problem]:
    """Rounds that do not wait for slow clients, where every client must take part or no other is left."""
    federation, secure = config.federation, config.federation.secure_aggregation.enabled
    given = {
        "deadline": (federation.deadline is not None, "null"),
        "oversample": (federation.oversample > 1, "1"),
        "simulated_seconds.distribution": (federation.simulated_seconds.distribution != "none", "none"),
        "buffer.size": (federation.buffer.size > 0, "0"),
    }
    for key in [key for key, (is_given, _) in given.items() if is_given and secure]:
        message = "the masks of a secure sum take rounds that wait for all their clients"
        yield Problem(f"federation.{key}", message, given[key][1], "or set federation.secure_aggregation.enabled=false")
    if federation.deadline is not None and federation.deadline >= federation.timeout:
        message = f"nobody is waited for so long: federation.timeout is {federation.timeout:g}"
        yield Problem("federation.deadline", message, f"0 < value < {federation.timeout:g}, or null")
    if federation.oversample > 1:
        drawn = federation.per_round
        if drawn >= federation.clients:
            message = f"all {federation.clients} clients are asked already (federation.fraction_train, min_clients)"
            yield Problem("federation.oversample", message, "1")
        if federation.sampling != "uniform":
            message = f"the further clients are drawn uniformly, which federation.sampling={federation.sampling} is not"
            yield Problem("federation.oversample", message, "1", "or set federation.sampling=uniform")
        if config.privacy.level == "client":
            message = "who is fast would decide whose updates count, and hide nobody (privacy.level=client)"
            yield Problem("federation.oversample", message, "1", "or set privacy=none")


def asynchronous(config: Config) -> Iterator[Problem]:
    """What needs rounds in which all start from the same model."""
    federation, unlearning, key = config.federation, config.unlearning, "federation.buffer.size"
    size, concurrency = federation.buffer.size, federation.buffer.concurrency
    if not size:
        if concurrency is not None:
            message = "rounds are synchronous: federation.buffer.size is 0"
            yield Problem("federation.buffer.concurrency", message, "null", "or give federation.buffer.size")
        return
    for name, value in (("size", size), ("concurrency", concurrency or 0)):
        if value > federation.clients:
            expected = f"value <= {federation.clients} (federation.clients)"
            yield Problem(f"federation.buffer.{name}", f"there are {federation.clients} clients", expected)
    for name, given, default in (("deadline", federation.deadline, None), ("oversample", federation.oversample, 1.0)):
        if given != default:
            message = f"asynchronous rounds wait for nobody ({key}={size})"
            yield Problem(f"federation.{name}", message, "null" if default is None else "1")
    off = f"or set {key}=0"
    if federation.sampling != "uniform":
        message = "asynchronous rounds draw from those that do nothing, uniformly"
        yield Problem("federation.sampling", message, "uniform", off)
    if extension_traits.code("strategy", config.strategy.name).literals.get("SINGLE_UPDATES"):
        message = f"{config.strategy.name} compares the updates of clients that started from one model"
        yield Problem("strategy.name", message, "fedavg, fedprox, fedavgm, fedadam, fedyogi or fedadagrad", off)
    if config.model.lora.aggregation == "product":
        message = "an update from an older model is a difference of A and of B, not of their product"
        yield Problem("model.lora.aggregation", message, "factors or freeze_a", off)
    if config.privacy.level != "none":
        message = "the account of ε goes by rounds of clients that were drawn together"
        yield Problem("privacy.level", message, "none", off)
    method, kept = unlearning.method, method_traits.updates(unlearning.method) is not None
    if "unlearn" in config.stages and (kept or method_traits.asks_others(method)):
        message = f"{method} goes by what clients make of one model in the same round"
        yield Problem("unlearning.method", message, "a loss that the asking clients minimise", off)
    elif unlearning.updates.keep:
        message = "the models of a round are kept beside the one that all started from, and there is none"
        yield Problem("unlearning.updates.keep", message, "0 or null", off)
