"""FedTU ∘ differential privacy ∘ aggregator under masks: the noise comes from the clients, in shares."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from scipy.stats import chi2
from support.fedtu_clients import adapter, flat
from support.secure import SecureClient, vanishing

from strategies import build, message_keys
from strategies.privacy.private_mean import PrivateMean
from strategies.rounds.fedtu import FedTU, Options, RequestList, UnlearnRequest
from strategies.rounds.memory_grid import MemoryGrid
from strategies.secure.agreed_parameters import SecureSettings

SIZE, CLIENTS, THRESHOLD = 4000, 5, 4
START = np.zeros(SIZE, np.float32)


def _client(me: int, length: float, **more) -> SecureClient:
    """Its update has this length and points along its own axis; it asks to forget what the message names."""
    update = np.zeros(SIZE)
    update[me] = length

    def weight(message):
        config = message.content.config_records[message_keys.CONFIG]
        named = len(config.get(message_keys.RECORD_IDS, []))
        return named if message.metadata.message_type == message_keys.UNLEARN else 7 * (me + 1)

    return SecureClient(me, lambda _: update, weight, random=np.random.default_rng(100 + me), **more)


def _run(multiplier: float, norm: float, length: float, due=(), strategy="fedavg", spoil=None):
    releases = []
    private = PrivateMean(multiplier, norm, seed=0, on_release=releases.append)
    settings = SecureSettings(clipping=50.0, threshold=THRESHOLD, patience=1.0, private=private.shared, tell=False)
    options = Options(secure=settings, private_mean=private, cover=CLIENTS if due else 0, stage="unlearn")
    clients = {c: _client(c, length, **({"spoil": spoil} if spoil and c == 1 else {})) for c in range(CLIENTS)}
    grid = MemoryGrid(clients, keep_log=True)
    fedtu = FedTU(build(strategy), requests=RequestList(due) if due else None, options=options)
    result = fedtu.start(grid, adapter(START), num_rounds=1, timeout=1.0)
    return flat(result.arrays), releases, grid


@pytest.mark.parametrize("spoil", [None, vanishing("vectors")], ids=["all", "one dropped out"])
def test_the_sum_has_at_least_the_noise_that_is_accounted_for(spoil):
    """Variance of the mean of n survivors by the formula, (z·C)²/t · n / n², within what 4000 numbers tell."""
    multiplier, norm = 0.7, 2.0
    model, releases, _ = _run(multiplier, norm, 0.0, spoil=spoil)
    survivors = CLIENTS - (spoil is not None)
    deviation = multiplier * norm * math.sqrt(survivors / THRESHOLD) / survivors
    low, high = (np.sqrt(q / SIZE) for q in chi2.ppf([1e-4, 1 - 1e-4], SIZE))
    assert low < model.std() / deviation < high
    assert [(r.kind, r.clients, r.population, r.noise_multiplier, r.clipping_norm) for r in releases] == [
        ("train", CLIENTS, None, multiplier, norm)
    ]


def test_every_client_counts_alike_and_no_longer_than_the_norm():
    """Lengths of 30 and weights from 7 to 35: each moves the mean by C/n along its axis."""
    model, _, _ = _run(1e-3, 2.0, 30.0)
    np.testing.assert_allclose(model[:CLIENTS], 2.0 / CLIENTS, atol=0.01)


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "fedadam"])
def test_a_request_is_one_more_release(strategy):
    due = [(1, UnlearnRequest("one", 3, ("a", "b")))]
    _, releases, grid = _run(1e-3, 2.0, 30.0, due, strategy)
    told = [(r.kind, r.server_round, r.clients, r.population) for r in releases]
    assert told == [("unlearn", 1, CLIENTS, None), ("train", 1, CLIENTS, None)], "one asks, all of them are in the sum"
    sent = next(flat(content["arrays"]) for kind, _, content in grid.log if kind == message_keys.TRAIN)
    expected = np.zeros(CLIENTS)
    expected[3] = 2.0
    np.testing.assert_allclose(sent[:CLIENTS], expected, atol=0.02)


@pytest.mark.slow
def test_the_norm_follows_the_median_length_under_masks():
    """Lengths of 1 to 5: the median is 3, from below and from above, with little noise, all of it the clients'."""
    for first in (1.6, 5.0):
        private = PrivateMean(0.02, first, adaptive=True, seed=0)
        told = {"private": private.shared, "follow": private.follow, "patience": 1.0, "tell": False}
        options = Options(secure=SecureSettings(clipping=50.0, **told), private_mean=private)
        grid = MemoryGrid({c: _client(c, c + 1.0) for c in range(CLIENTS)})
        FedTU(build("fedavg"), options=options).start(grid, adapter(START), num_rounds=18, timeout=1.0)
        assert 2.4 <= private.clipping_norm <= 3.6


@pytest.mark.parametrize("spoil", [None, vanishing("vectors")], ids=["all", "one dropped out"])
@pytest.mark.slow
def test_a_norm_that_follows_has_the_noise_of_both(spoil):
    """σ_b = max(5/20, z): the updates get 1/√0.75 times the noise, the count z in units of clients."""
    multiplier, norm, moves, counted = 0.7, 2.0, [], set()

    def follow(halves, clients, private):
        counted.add(clients)
        private.follow(halves, clients)

    for seed in range(30):
        private = PrivateMean(multiplier, norm, adaptive=True, seed=seed)
        told = {"private": private.shared, "follow": partial(follow, private=private), "patience": 1.0, "tell": False}
        options = Options(secure=SecureSettings(clipping=50.0, threshold=THRESHOLD, **told), private_mean=private)
        random = {c: np.random.default_rng([seed, c]) for c in range(CLIENTS)}
        clients = {c: _client(c, 0.0, **({"spoil": spoil} if spoil and c == 1 else {})) for c in range(CLIENTS)}
        for c, client in clients.items():
            client.random = random[c]
        result = FedTU(build("fedavg"), options=options).start(
            MemoryGrid(clients), adapter(START), num_rounds=1, timeout=1.0
        )
        survivors = CLIENTS - (spoil is not None)
        deviation = multiplier * norm / math.sqrt(0.75) * math.sqrt(survivors / THRESHOLD) / survivors
        assert 0.93 < flat(result.arrays).std() / deviation < 1.07
        moves.append(survivors * (0.5 + math.log(private.clipping_norm / norm) / 0.2))
    assert counted == {survivors}
    expected = multiplier * math.sqrt(survivors / THRESHOLD)
    assert abs(np.mean(moves)) < 4 * expected / math.sqrt(30), "nobody was cut"
    low, high = (math.sqrt(q / 30) for q in chi2.ppf([1e-4, 1 - 1e-4], 30))
    assert low < np.sqrt(np.mean(np.square(moves))) / expected < high


def test_a_grid_too_coarse_for_the_noise_is_no_exchange():
    private = PrivateMean(1e-9, 1.0, seed=0)
    settings = SecureSettings(clipping=1.0, bits=8, patience=1.0, private=private.shared)
    fedtu = FedTU(build("fedavg"), options=Options(secure=settings, private_mean=private))
    grid = MemoryGrid({c: _client(c, 1.0) for c in range(3)})
    result = fedtu.start(grid, adapter(START), num_rounds=1, timeout=1.0)
    assert np.array_equal(flat(result.arrays), START)


def test_the_number_that_tells_who_was_cut_is_no_number_of_the_model():
    """With next to no noise: the mean of what is shorter than the norm, place by place, and its count at the end."""
    private, told = PrivateMean(1e-3, 4.0, adaptive=True, seed=0), []
    settings = SecureSettings(
        clipping=50.0, patience=1.0, tell=False, private=private.shared, follow=lambda *t: told.append(t)
    )
    update = np.zeros(SIZE)
    update[[0, 1, SIZE - 2, SIZE - 1]] = 1.0, 2.0, -1.5, 0.5
    clients = {c: SecureClient(c, lambda _, c=c: update * (9 if c == 1 else 1), lambda _: 3) for c in range(4)}
    options = Options(secure=settings, private_mean=private)
    result = FedTU(build("fedavg"), options=options).start(
        MemoryGrid(clients), adapter(START), num_rounds=1, timeout=1.0
    )
    cut = 9 * update * 4.0 / np.linalg.norm(9 * update)
    np.testing.assert_allclose(flat(result.arrays) - START, (3 * update + cut) / 4, atol=0.02)
    ((halves, count),) = told
    assert count == 4 and halves == pytest.approx((3 - 1) / 2, abs=0.8), (
        "one was longer; the noise on that is of 0.2 clients"
    )
