"""Who belongs to which shard, and where a shard's numbers lie."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from strategies.shards import Shards, balanced, dealt, joined_states, state_of


def records_of(shards: Shards, records) -> list[int]:
    return [sum(records[c] for c, own in enumerate(shards.of_client) if own == k) for k in range(shards.count)]


@pytest.mark.parametrize("seed", range(20))
def test_dealt_shards_are_as_large_as_each_other_and_the_seed_decides(seed):
    rng = random.Random(seed)
    clients = rng.randint(2, 40)
    count = rng.randint(1, clients)
    shards = dealt(clients, count, seed)
    assert shards.count == count and len(shards.of_client) == clients
    assert max(shards.sizes) - min(shards.sizes) <= 1
    assert dealt(clients, count, seed) == shards
    assert len({dealt(40, 4, other).of_client for other in range(seed, seed + 5)}) == 5


@pytest.mark.parametrize("seed", range(20))
def test_risky_clients_lie_in_as_few_shards_as_hold_them(seed):
    rng = random.Random(seed)
    clients = rng.randint(2, 40)
    count, risky = rng.randint(1, clients), set(rng.sample(range(clients), rng.randint(0, clients)))
    shards = dealt(clients, count, seed, risky)
    assert max(shards.sizes) - min(shards.sizes) <= 1
    most = sorted(shards.sizes, reverse=True)
    fewest = next(n for n in range(count + 1) if sum(most[:n]) >= len(risky))
    assert len({shards.of_client[client] for client in risky}) == fewest


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_of_balanced_shards_is_near_the_least_that_can_be(seed):
    """Against all ways to deal a few clients, with Graham's bound 4/3 − 1/(3S)."""
    rng = random.Random(seed)
    records, count = [rng.randint(1, 40) for _ in range(rng.randint(3, 7))], rng.randint(2, 3)
    shards = balanced(records, count)
    ways = itertools.product(range(count), repeat=len(records))
    best = min(max(records_of(Shards(way), records)) for way in ways if len(set(way)) == count)
    assert max(records_of(shards, records)) <= best * (4 / 3 - 1 / (3 * count)) + 1e-9
    assert min(shards.sizes) >= 1


def test_balanced_shards_by_hand():
    assert balanced([9, 1, 5, 4, 3], 2).of_client == (0, 1, 1, 1, 0)
    assert balanced([1, 1, 1, 1], 2).sizes == [2, 2]
    assert balanced([5, 0, 0], 3).sizes == [1, 1, 1]


def test_a_shard_without_a_client_is_refused():
    with pytest.raises(ValueError, match="each of 3 shards needs a client"):
        Shards((0, 2, 2))


def model(*values) -> ArrayRecord:
    return ArrayRecord({"adapter": Array(np.array(values, np.float32)), "more": Array(np.array(values[::-1]))})


def test_parts_of_a_global_model_and_back():
    shards, whole = Shards((1, 0, 1, 2)), model(1, 2, 3, 4, 5, 6)
    assert shards.sizes == [1, 2, 1]
    assert shards.part(whole, 1)["adapter"].numpy().tolist() == [3, 4]
    assert shards.part(whole, 1)["more"].numpy().tolist() == [4, 3]
    changed = shards.changed(whole, {2: model(8, 9)})
    assert changed["adapter"].numpy().tolist() == [1, 2, 3, 4, 8, 9]
    assert shards.changed(whole, {}) is whole
    of_client = shards("train", whole)
    assert [of_client(c).sent["adapter"].numpy().tolist() for c in range(4)] == [[3, 4], [1, 2], [3, 4], [5, 6]]
    assert shards("replay", model(3, 4))(0) is None, "the model is the shard's already"


def test_groups_keep_the_order_of_what_is_given():
    assert Shards((1, 0, 1)).groups([2, 1, 0], lambda client: client) == {0: [1], 1: [2, 0]}


def test_states_of_shards_do_not_mix():
    states = [{"m/x": np.zeros(1)}, {}, {"m/x": np.ones(1)}, *[{} for _ in range(7)], {"m/x": np.full(1, 10)}]
    whole = joined_states(states)
    assert [state_of(whole, shard) for shard in range(len(states))] == states
