"""Which LoRA rank each client has, and what its messages say of it."""

from __future__ import annotations

from collections.abc import Callable

from oblivionis.config.schema import Model
from oblivionis.models import adapters
from oblivionis.models.errors import ModelError
from strategies import message_keys
from strategies.rules.lora_ranks import Form, LoraRanks
from strategies.submodel import Fitting


def fitting(config: Model, manifest: adapters.Manifest, most: Callable[[int], int]) -> Fitting | None:
    """How clients of lower ranks receive models of that manifest; None where all clients have the run's rank.

    Client k has the rank at place k modulo the number of `model.lora.ranks`, or to unlearn the run's where
    `model.lora.unlearning_rank` is `full`, and no larger one than `most`, nor below the run's than the model's
    narrowest layer has inputs. Raises ModelError where a layer of the model is too narrow for a rank of the list.
    """
    ranks = config.lora.ranks
    if ranks is None:
        return None
    pairs = adapters.lora_pairs(manifest)
    narrowest = min(pair.inputs for pair in pairs)
    if wrong := [rank for rank in ranks if narrowest < rank < config.lora.rank]:
        raise ModelError(f"model.lora.ranks: the model has a layer of {narrowest} inputs, and {wrong[0]} is more")

    def rank_of(kind: str, client: int) -> int:
        full = kind == "unlearn" and config.lora.unlearning_rank == "full"
        rank = min(config.lora.rank if full else ranks[client % len(ranks)], most(client))
        return rank if rank >= config.lora.rank else min(rank, narrowest)

    return LoraRanks(adapters.size(manifest), pairs, rank_of, lambda rank: _form(manifest, rank))


def _form(manifest: adapters.Manifest, rank: int) -> Form:
    own = adapters.of_rank(manifest, rank)
    settings = {message_keys.LORA_RANK: rank, "manifest-hash": adapters.manifest_hash(own)}
    return Form(rank, adapters.size(own), adapters.lora_pairs(own), settings)
