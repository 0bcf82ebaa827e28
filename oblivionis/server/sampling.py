"""How the configuration has the clients of a round drawn."""

from __future__ import annotations

from collections.abc import Callable

from oblivionis.config.schema import Federation
from strategies.sampling import Available, BySize, PowerOfChoice, Sampling


def sampling_of(federation: Federation, size: Callable[[int], int]) -> Sampling | None:
    """None for `uniform`, which is Flower's own. `size`: the records that a client may train on, above 0."""
    if federation.sampling == "by_size":
        return BySize(size)
    if federation.sampling == "power_of_choice":
        sampled = max(int(federation.clients * federation.fraction_train), federation.min_clients)
        return PowerOfChoice(federation.candidates or 2 * sampled, size)
    return Available() if federation.sampling == "available" else None
