"""FedNova against its definition on clients whose every gradient is known, and what it asks of a reply."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.exception import AggregationError
from support.aggregators import run
from support.fedtu_clients import SIZE, Recorder, adapter, content, federation, flat, honest, noise

from strategies.client_update import ClientUpdate
from strategies.rounds.fedtu import FedTU
from strategies.rules.factory import build
from strategies.rules.lora_product import ProductMean


def descent(phi, target, curvature, steps, rate):
    """Plain SGD on ½ h (φ − c)²: the model, and the mean of the gradients on the way."""
    start, gradients = phi, []
    for _ in range(steps):
        gradients.append(curvature * (phi - target))
        phi = phi - rate * gradients[-1]
    assert np.allclose(start - phi, rate * np.sum(gradients, axis=0))
    return phi, np.mean(gradients, axis=0)


def test_it_steps_along_the_mean_gradients_of_the_clients():
    """φ ← φ − τ_eff η Σ p_k ḡ_k (Wang et al., eq. 11 with a_k = 1): the gradients themselves are averaged here."""
    rng = np.random.default_rng(0)
    counts, steps, rate = [3, 1, 8], [1, 7, 4], 0.05
    p = np.array(counts) / sum(counts)
    targets, curvatures = rng.normal(size=(3, 10)), rng.uniform(0.5, 2, size=(3, 10))
    phi = rng.normal(size=10).astype(np.float32).astype(np.float64)
    expected, start, rounds = [], adapter(phi), []
    for _ in range(5):
        done = [descent(phi, targets[k], curvatures[k], steps[k], rate) for k in range(3)]
        rounds.append([ArrayRecord({"adapter": Array(model)}) for model, _ in done])
        gradient = sum(p[k] * done[k][1] for k in range(3))
        phi = phi - (p @ steps) * rate * gradient
        expected.append(phi)
    start = ArrayRecord({"adapter": Array(flat(start).astype(np.float64))})
    got = run(build("fednova"), start, rounds, counts, 5, steps)
    for arrays, values in zip(got, expected, strict=True):
        np.testing.assert_allclose(flat(arrays), values, rtol=1e-12)


def test_the_busy_client_does_not_draw_the_model_to_itself():
    """Clients at 0 and 1 of equal weight: the optimum is ½. FedAvg ends where the one with 9 steps of 10 draws it."""
    ends = {}
    for name in ("fedavg", "fednova"):
        aggregator, phi = build(name), np.array([0.3])
        for _ in range(400):
            updates = [
                ClientUpdate(k, 1, adapter(descent(phi, k, 1.0, steps, 0.01)[0]), steps)
                for k, steps in ((0, 1), (1, 9))
            ]
            phi = flat(aggregator.aggregate(adapter(phi), updates)).astype(np.float64)
        ends[name] = phi[0]
    assert ends["fedavg"] == pytest.approx(0.9, abs=0.02)
    assert ends["fednova"] == pytest.approx(0.5, abs=0.02)


def test_numbers_worked_out_by_hand():
    """φ = 1, p = ¼ and ¾, τ = 1 and 4, φ_k = 4 and 5: d = −3 and −1, τ_eff = 3.25, φ = 1 + 3.25 · 1.5."""
    (got,) = run(build("fednova"), adapter([1]), [[adapter([4]), adapter([5])]], [1, 3], 1, [1, 4])
    assert flat(got)[0] == 5.875


@pytest.mark.parametrize("steps", [1, 3, 250])
def test_it_is_fedavg_when_all_take_as_many_steps(steps):
    rng = np.random.default_rng(steps)
    rounds = [[adapter(rng.normal(size=50)) for _ in range(4)] for _ in range(3)]
    counts, start = [5, 1, 9, 2], adapter(rng.normal(size=50))
    ours = run(build("fednova"), start, rounds, counts, 3, [steps] * 4)
    averaged = run(build("fedavg"), start, rounds, counts, 3)
    for a, b in zip(ours, averaged, strict=True):
        np.testing.assert_allclose(flat(a), flat(b), rtol=1e-6, atol=1e-7)


def test_one_client_is_that_client():
    model = noise("one")
    (got,) = run(build("fednova"), adapter(noise("start")), [[adapter(model)]], [3], 1, [7])
    assert np.array_equal(flat(got), model)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({}, "metric 'train-steps' is missing: the aggregator needs it; an older program does not tell it"),
        ({"train-steps": 0}, "metric 'train-steps' is 0, expected a number above 0"),
        ({"train-steps": -2.0}, "metric 'train-steps' is -2.0, expected"),
        ({"train-steps": [3]}, "metric 'train-steps' is [3], expected"),
        ({"train-steps": float("nan")}, "metric 'train-steps' is nan"),
    ],
)
def test_a_reply_without_steps_is_left_out_where_they_are_needed(told, reason):
    grid, recorder = federation(3), Recorder()
    grid.nodes[1] = lambda m: content(flat(m.content["arrays"]) + 1000, train_loss=0.0, **told)
    FedTU(build("fednova"), listener=recorder).start(grid, adapter(np.zeros(SIZE)), num_rounds=1)
    assert [e[1:3] for e in recorder.of("reply")] == [(0, True), (1, False), (2, True)]
    assert reason in recorder.of("reply")[1][3]


def test_most_replies_without_steps_do_not_outvote_those_with():
    grid, recorder = federation(4), Recorder()
    for p in (0, 1, 2):
        grid.nodes[p] = lambda m: content(flat(m.content["arrays"]), train_loss=0.0)
    result = FedTU(build("fednova"), listener=recorder).start(grid, adapter(noise("start")), num_rounds=1)
    assert [e[1] for e in recorder.of("reply") if e[2]] == [3]
    np.testing.assert_allclose(flat(result.arrays), noise("start") + noise(3, 1), rtol=1e-6)


def test_other_aggregators_take_replies_without_steps():
    grid, recorder = federation(3), Recorder()
    for p in grid.nodes:
        grid.nodes[p] = lambda m: content(flat(m.content["arrays"]) + 1)
    FedTU(build("fedadam"), listener=recorder).start(grid, adapter(np.zeros(SIZE)), num_rounds=1)
    assert all(e[2] for e in recorder.of("reply"))


def test_in_flower_s_own_loop_lacking_steps_end_the_run():
    with pytest.raises(AggregationError, match=r"FedNova needs the number of local steps.*missing from 1 of 1"):
        run(build("fednova"), adapter([0]), [[adapter([1])]], [1], 1)


def test_it_takes_no_other_mean():
    with pytest.raises(ValueError, match="FedNova combines the clients' numbers by a rule of its own"):
        build("fednova", mean=ProductMean(1, ()))


def test_an_aggregator_sees_client_weight_steps_and_model():
    seen = []

    class Looking(type(build("fedavg"))):
        def combine(self, sent, updates):
            seen.extend(updates)
            return super().combine(sent, updates)

    grid = federation(2)
    grid.nodes[1] = lambda m: content(np.ones(SIZE), examples=4, train_loss=0.0, **{"partition-id": 1})
    grid.nodes[0] = honest(0)
    FedTU(Looking()).start(grid, adapter(noise("start")), num_rounds=1)
    assert [(u.partition, u.weight, u.steps) for u in seen] == [(-1, 1.0, 2.0)]
    seen.clear()
    grid.nodes[0] = lambda m: content(np.zeros(SIZE), examples=3, train_loss=0.0, **{"partition-id": 0})
    FedTU(Looking()).start(grid, adapter(noise("start")), num_rounds=1)
    assert [(u.partition, u.weight, u.steps, flat(u.arrays)[0]) for u in seen] == [(0, 3.0, None, 0), (1, 4.0, None, 1)]
