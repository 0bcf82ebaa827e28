"""Checks of what does not go with a federation in shards (`federation.shards` above 1), each with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oblivionis.config.problems import Problem
from oblivionis.config.schema import Config

READS = ("federation", "model", "strategy", "stages", "privacy.level", "data.name", "evaluation.lm_eval")
ONE = "or set federation.shards=1"


def shards(config: Config, least: int) -> Iterator[Problem]:
    """What does not go with shards; the aggregator needs the answers of `least` clients in a round."""
    federation = config.federation
    count = federation.shards
    if count > federation.clients:
        message = f"{count} shards cannot share {federation.clients} clients"
        yield Problem("federation.shards", message, f"1 <= value <= {federation.clients}")
    yield from _likely_to_ask(config)
    if count == 1:
        return
    smallest = federation.clients // count
    if least > smallest >= 1:
        message = f"{config.strategy.name} needs the answers of {least} clients in a round, and a shard has {smallest}"
        yield Problem("federation.shards", message, f"1 <= value <= {max(1, federation.clients // least)}")
    for found, key, message in (*_rounds(config), *_served(config)):
        if found:
            yield Problem(key, f"{message} (federation.shards={count})", _EXPECTED[key], ONE)


def _rounds(config: Config) -> Sequence[tuple[bool, str, str]]:
    """How rounds are held that shards do not go with: whether it is so, the key, and why."""
    federation = config.federation
    return (
        (
            config.data.on_clients and federation.shard_placement == "by_size",
            "federation.shard_placement",
            "how many records a node holds is known only once it has answered",
        ),
        (
            config.data.on_clients and federation.shard_placement == "by_risk" and federation.likely_to_ask is None,
            "federation.likely_to_ask",
            "which records are marked to be forgotten only their nodes know",
        ),
        (federation.buffer.size > 0, "federation.buffer.size", "asynchronous rounds count the versions of one model"),
        (federation.compression.method != "none", "federation.compression.method", "updates travel whole"),
        (
            federation.secure_aggregation.enabled,
            "federation.secure_aggregation.enabled",
            "one sum over all clients is the sum of no shard",
        ),
        (config.model.lora.ranks is not None, "model.lora.ranks", "a shard's clients have the rank of its model"),
        (config.privacy.level == "client", "privacy.level", "one noised mean over all clients is that of no shard"),
        (
            federation.sampling in ("by_size", "power_of_choice"),
            "federation.sampling",
            "weights and losses of clients of several shards cannot be compared",
        ),
        (
            config.strategy.server_state_on_unlearn == "reset",
            "strategy.server_state_on_unlearn",
            "a request would drop the state of shards that it does not touch",
        ),
        ("local" in config.stages, "stages", "in the stage local each client is alone"),
    )


def _served(config: Config) -> Sequence[tuple[bool, str, str]]:
    """What cannot be made of the shards' models; as `_rounds`."""
    full, lora, merge = config.model.mode == "full", config.model.lora, config.federation.shard_merge
    product, stack = not full and merge in ("mean", "stack"), merge == "stack"
    return (
        (full and stack, "federation.shard_merge", "weights that are trained whole have no rank to stack"),
        (
            product and lora.use_dora,
            "model.lora.use_dora",
            "DoRA's magnitudes scale more than the product B·A, of which the served model is made",
        ),
        (
            product and bool(lora.target_parameters),
            "model.lora.target_parameters",
            "stacked experts have one B·A each, and the served model is made of one per layer",
        ),
        (
            not full and stack and lora.aggregation == "freeze_a",
            "federation.shard_merge",
            "with a frozen A, which all shards share, mean has no loss",
        ),
        (
            merge == "ensemble" and bool(config.evaluation.more["lm_eval"].get("tasks")),
            "evaluation.lm_eval.tasks",
            "the harness runs one model, and an ensemble is several",
        ),
    )


_EXPECTED = {
    "federation.shard_placement": "random or by_risk",
    "federation.likely_to_ask": "numbers of clients",
    "federation.buffer.size": "0",
    "federation.compression.method": "none",
    "federation.secure_aggregation.enabled": "false",
    "model.lora.ranks": "null",
    "privacy.level": "none or record",
    "federation.sampling": "uniform or available",
    "strategy.server_state_on_unlearn": "keep",
    "stages": "stages without local",
    "federation.shard_merge": "mean",
    "evaluation.lm_eval.tasks": "[]",
    "model.lora.use_dora": "false",
    "model.lora.target_parameters": "null",
}


def _likely_to_ask(config: Config) -> Iterator[Problem]:
    federation, key = config.federation, "federation.likely_to_ask"
    risky = federation.likely_to_ask
    if risky is None:
        return
    if federation.shards == 1 or federation.shard_placement != "by_risk":
        message = "who is likely to ask decides nothing without shards that are dealt by it"
        yield Problem(key, message, "null", "or set federation.shards and federation.shard_placement=by_risk")
    if wrong := [client for client in risky if not 0 <= client < federation.clients]:
        message = f"there is no client {', '.join(map(str, wrong))}"
        yield Problem(key, message, f"numbers from 0 to {federation.clients - 1}")
