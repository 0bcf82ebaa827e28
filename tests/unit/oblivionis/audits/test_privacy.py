"""The certified ε lies above what canaries prove, in each of hundreds of seeded runs of the mechanisms themselves.

Each client (each record) of a run is a canary with a direction of its own, in which nobody else moves: what is released
in that direction is one independent trial of whether it took part.
"""

from __future__ import annotations

import functools
import logging
import math

import numpy as np
import pytest
import torch
from scipy import stats
from support.fedtu_clients import adapter, flat
from torch import nn

from clients.flat_parameters import FlatParameters
from clients.optimisation import TrainSettings, Updater
from clients.record_level_dp import Privacy, Work, drawn
from evaluation.engine.sequences import TokenSequence
from oblivionis.audits.privacy import epsilon_lower_bound
from oblivionis.runs.epsilon import Event, epsilon
from strategies.privacy.private_mean import PrivateMean

RUNS, CANARIES, DELTA = 200, 20, 1e-3
CONFIDENCE, Z = 0.999, 3.0


@pytest.fixture(autouse=True)
def quiet():
    """Flower logs a line for each reply."""
    logging.disable(logging.INFO)
    yield
    logging.disable(logging.NOTSET)


@functools.cache
def client_run(
    seed: int, z: float, drawn_clients: int, adaptive: bool = False, canaries: int = CANARIES
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the canaries, and which took part: two rounds, and an exchange of unlearning with all of them.

    A client's data are replaced by such that move it the other way: the worst that a neighbour can be.
    """
    rng = np.random.default_rng([9, seed])
    inside = rng.random(canaries) < 0.5
    zeros = adapter(np.zeros(canaries))
    signs = np.where(inside, 1.0, -1.0)
    private = PrivateMean(z, 1.0, adaptive=adaptive, seed=seed)
    scores = np.zeros(canaries)

    def updates(clients):
        return [adapter(np.eye(canaries)[c] * signs[c] * 50) for c in clients]

    for server_round in (1, 2):
        norm = private.clipping_norm
        clients = rng.choice(canaries, drawn_clients, replace=False)
        told = {"clients": drawn_clients, "population": canaries}
        scores += flat(private.train(server_round, zeros, updates(clients), **told)) * drawn_clients / norm
    scores += flat(private.unlearn(2, zeros, updates(range(canaries)), clients=canaries)) / private.clipping_norm
    return scores, inside


def client_events(z: float, drawn_clients: int) -> dict[Event, int]:
    return {Event.of_clients(z, drawn_clients, CANARIES): 2, Event.of_clients(z): 1}


@functools.cache
def record_run(seed: int, z: float, rate: float, steps: int, canaries: int = CANARIES) -> tuple[np.ndarray, np.ndarray]:
    """The same of records: the sum of all noised gradients, which is more than anybody sees of the model."""
    inside = np.random.default_rng([8, seed]).random(canaries) < 0.5
    present = torch.tensor(inside, dtype=torch.float32)
    model = nn.Sequential(nn.Linear(canaries, 1, bias=False))
    flat_parameters = FlatParameters(model)
    scores = torch.zeros(canaries)

    def seen(updater):
        scores.sub_(flat_parameters.grad)
        flat_parameters.zero_grad()

    work = Work(model, flat_parameters, TrainSettings(epochs=1, warmup_epochs=0), Privacy(z, 1.0, seed), seed, False)
    record = TokenSequence((1,), (1,))

    def gradient(generator):
        chosen = drawn(canaries, rate, generator)

        def losses(numbers):
            mine = torch.tensor([chosen[i] for i in numbers])
            return -50 * present[mine] * model(torch.eye(canaries)[mine][:, None])[:, 0, 0]

        work.add([record] * len(chosen), losses)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Updater, "step", seen)
        work.run(steps, 1, gradient, None, None)
    return scores.numpy(), inside


def audited(scores: np.ndarray, inside: np.ndarray, **settings) -> float:
    return epsilon_lower_bound(scores[inside], scores[~inside], DELTA, confidence=CONFIDENCE, **settings)


def together(runs) -> float:
    """Of all runs' canaries."""
    scores, inside = (np.concatenate(parts) for parts in zip(*runs, strict=True))
    return audited(scores, inside)


@pytest.mark.parametrize(("drawn_clients", "adaptive"), [(CANARIES, False), (8, False), (CANARIES, True)])
@pytest.mark.slow
def test_no_audit_of_clients_exceeds_the_certified_bound(drawn_clients, adaptive):
    certified = epsilon(client_events(Z, drawn_clients), DELTA)
    runs = [client_run(seed, Z, drawn_clients, adaptive) for seed in range(RUNS)]
    assert max(audited(*run, threshold=0.0) for run in runs) < certified
    assert certified / 12 < together(runs) < certified, "all of them together see a part of it"


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.slow
def test_no_audit_of_records_exceeds_the_certified_bound(rate):
    z, steps = 1.5, 5
    certified = epsilon({Event.of_records(z, rate): steps}, DELTA)
    runs = [record_run(seed, z, rate, steps, canaries=100) for seed in range(RUNS)]
    found = [audited(*run, threshold=rate * steps / 2) for run in runs]
    assert max(found) < certified
    assert max(found) > 0 and certified / 4 < together(runs) < certified


def test_the_audit_breaks_a_claim_whose_noise_was_left_out():
    """A claim of a third, by mechanisms without the noise that it rests on: every run contradicts it."""
    for seed in range(5):
        assert audited(*client_run(seed, 1e-3, 60, canaries=60), threshold=0.0) > 1 / 3
        assert audited(*record_run(seed, 1e-3, 1.0, 5, canaries=60), threshold=2.5) > 1 / 3


@pytest.mark.slow
def test_the_audit_breaks_a_claim_of_four_times_the_noise():
    claimed = epsilon(client_events(4 * Z, CANARIES), DELTA)
    assert together([client_run(seed, Z, CANARIES) for seed in range(RUNS)]) > claimed
    claimed = epsilon({Event.of_records(6.0, 1.0): 5}, DELTA)
    assert together([record_run(seed, 1.5, 1.0, 5, canaries=100) for seed in range(RUNS)]) > claimed


# -- the bound itself ----------------------------------------------------------------------------------------------


def test_the_bound_by_hand():
    """40 of 40 inside and 0 of 40 outside: each rate is bounded by (α/4)^(1/40) or 1 minus that."""
    rate = (0.05 / 4) ** (1 / 40)
    found = epsilon_lower_bound(np.ones(40), np.zeros(40), 1e-3, threshold=0.5)
    assert found == pytest.approx(math.log((rate - 1e-3) / (1 - rate)))


def test_the_mirror_image_shows_the_same():
    """Nobody inside is missed, but half of those outside are taken for them: it is the other error that tells."""
    inside, outside = np.ones(400), np.tile([0.0, 1.0], 200)
    low = stats.binomtest(200, 400, alternative="greater").proportion_ci(1 - 0.05 / 4).low
    high = 1 - (0.05 / 4) ** (1 / 400)
    assert epsilon_lower_bound(inside, outside, 0.0, threshold=0.5) == pytest.approx(math.log(low / high))


def test_scores_that_tell_nothing_show_nothing():
    rng = np.random.default_rng(0)
    assert epsilon_lower_bound(rng.normal(size=500), rng.normal(size=500), 1e-5) == 0.0
    assert epsilon_lower_bound(np.zeros(9), np.ones(9), 1e-5, threshold=5.0) == 0.0


def test_it_fails_as_seldom_as_it_says():
    """Of randomised response with ε = 1, which tests by one threshold, at most a share of 1 − confidence."""
    rng, truth = np.random.default_rng(1), math.e / (1 + math.e)
    found = [
        epsilon_lower_bound(rng.random(300) < truth, rng.random(300) > truth, 0.0, threshold=0.5, confidence=0.9)
        for _ in range(400)
    ]
    assert 0.4 < float(np.mean(found)) < 1.0
    assert np.mean([f > 1.0 for f in found]) <= 0.1


@pytest.mark.parametrize("bad", [{"delta": 1.0}, {"delta": -0.1}, {"delta": 0.0, "confidence": 1.0}])
def test_values_out_of_range(bad):
    with pytest.raises(ValueError, match="expected 0 <= delta"):
        epsilon_lower_bound([1.0], [0.0], bad.pop("delta"), threshold=0.5, **bad)


def test_too_few_scores_or_none():
    with pytest.raises(ValueError, match="too few"):
        epsilon_lower_bound([1.0], [0.0, 1.0], 0.0)
    with pytest.raises(ValueError, match="not all of them are numbers"):
        epsilon_lower_bound([1.0, math.nan], [0.0, 1.0], 0.0, threshold=0.5)
