"""What the configuration says of rounds, as `strategies` takes it: who averages, who is drawn, who is waited for."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from oblivionis.config.schema import Config, Federation
from oblivionis.erasure.record_holders import Holdings
from oblivionis.erasure.remote_record_holders import RemoteHoldings
from oblivionis.models.hardware import participants
from strategies.rounds.client_sampling import Available, BySize, PowerOfChoice, Sampling
from strategies.rounds.compression import Compression
from strategies.rounds.model_versions import Buffer
from strategies.rounds.simulated_durations import Durations
from strategies.shards import Shards, balanced, dealt


def sampling_of(
    federation: Federation, live: Callable[[int], int], declared: Callable[[int], int | None]
) -> Sampling | None:
    """None for `uniform`, which is Flower's own. `live`: the records that a client may train on, above 0; `declared`:
    those that it had when it was first asked, None where nobody knows. Its size is the smaller number, so that no
    client is drawn more often by telling more later.
    """

    def size(client: int) -> int:
        first = declared(client)
        return live(client) if first is None else min(live(client), first)

    if federation.sampling == "by_size":
        return BySize(size)
    if federation.sampling == "power_of_choice":
        sampled = federation.per_round
        return PowerOfChoice(federation.candidates or 2 * sampled, size)
    return Available() if federation.sampling == "available" else None


def shards_of(config: Config, holdings: Holdings | RemoteHoldings) -> Shards | None:
    """Who belongs to which shard; None where there is one, with all clients."""
    federation = config.federation
    clients, count = federation.clients, federation.shards
    if count == 1:
        return None
    if federation.shard_placement == "by_size":
        return balanced([holdings.count(client) for client in range(clients)], count)
    risky: Collection[int] = ()
    if federation.shard_placement == "by_risk":
        risky = holdings.forget if federation.likely_to_ask is None else federation.likely_to_ask
    return dealt(clients, count, config.seed, risky)


def shards_in_words(shards: Shards, config: Config) -> str:
    """How many shards of how many clients there are, and what is served of them."""
    sizes = sorted(set(shards.sizes))
    clients = (
        f"{sizes[0]} client{'' if sizes[-1] == 1 else 's'}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} clients"
    )
    return f"{shards.count} shards of {clients}, merged by {config.federation.shard_merge}"


def waiting(config: Config) -> dict[str, Any]:
    """Whom rounds wait for, by which clock, and for what: of `strategies.rounds.options.Options`."""
    federation, simulated = config.federation, config.federation.simulated_seconds
    times = {"median": simulated.median, "spread": simulated.spread, "persistence": simulated.persistence}
    distribution = simulated.distribution
    buffer, how = federation.buffer, federation.compression
    return {
        "deadline": federation.deadline,
        "oversample": federation.oversample,
        "durations": None if distribution == "none" else Durations(distribution, **times, seed=config.seed),
        "buffer": Buffer(buffer.size, participants(config), buffer.staleness_exponent) if buffer.size else None,
        "compression": None if how.method == "none" else Compression(how.method, how.keep, how.block),
        "available_within": federation.available_within,
    }
