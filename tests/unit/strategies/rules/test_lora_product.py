"""The mean of LoRA updates as products, against the singular value decomposition of the averaged matrix."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.aggregators import SETTINGS, oracle, run
from support.fedtu_clients import Recorder, adapter, federation, flat, honest, request

from strategies.protocols.base import ByUnlearning
from strategies.rounds.fedtu import FedTU, RequestList
from strategies.rules.factory import build
from strategies.rules.lora_product import Pair, ProductMean, product_mean

WEIGHTS = [0.2, 0.3, 0.5]
PAIRS = (Pair(a=3, b=15, rank=2, inputs=6, outputs=5), Pair(a=27, b=41, rank=3, inputs=4, outputs=2))
"""Two modules in a vector of 50: B of the first lies right behind its A, that of the second two numbers later."""
MEAN = ProductMean(50, PAIRS)


def factors(rank, inputs, outputs, clients=3, seed=0):
    rng = np.random.default_rng(seed)
    return (
        [rng.normal(size=(rank, inputs)) for _ in range(clients)],
        [rng.normal(size=(outputs, rank)) for _ in range(clients)],
    )


def averaged(a, b, weights):
    return sum(w * y @ x for w, x, y in zip(weights, a, b, strict=True))


def truncated(matrix, rank):
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ vt[:rank]


def weakest_direction(a):
    return np.linalg.svd(a, compute_uv=False)[-1]


def typical_strength(a, weights):
    """The root of the mean squared singular value of the clients' A."""
    return np.sqrt(sum(w * np.linalg.norm(x) ** 2 for w, x in zip(weights, a, strict=True)) / min(a[0].shape))


def modules(vector):
    return [
        (vector[p.a : p.a + p.rank * p.inputs].reshape(p.rank, p.inputs).astype(np.float64),
         vector[p.b : p.b + p.outputs * p.rank].reshape(p.outputs, p.rank).astype(np.float64))
        for p in PAIRS
    ]  # fmt: skip


def vectors(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=50).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("clients", [2, 3, 7])
@pytest.mark.parametrize(
    ("rank", "inputs", "outputs"),
    [
        (4, 10, 7),
        (4, 7, 10),
        (4, 40, 30),
        (1, 1, 1),
        (1, 9, 9),
        (8, 3, 5),
        (8, 5, 3),
        (8, 3, 20),
        (4, 20, 3),
        (6, 6, 6),
    ],
)
def test_it_is_the_truncated_svd_of_the_averaged_product(rank, inputs, outputs, clients):
    a, b = factors(rank, inputs, outputs, clients)
    weights = np.arange(1, clients + 1) / np.arange(1, clients + 1).sum()
    new_a, new_b = product_mean(a, b, weights)
    assert new_a.shape == (rank, inputs) and new_b.shape == (outputs, rank)
    np.testing.assert_allclose(new_b @ new_a, truncated(averaged(a, b, weights), rank), atol=1e-12)


def test_weights_count():
    a, b = factors(2, 6, 5)
    for weights in ([1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.9, 0.05, 0.05]):
        new_a, new_b = product_mean(a, b, weights)
        np.testing.assert_allclose(new_b @ new_a, truncated(averaged(a, b, weights), 2), atol=1e-12)


def test_equal_a_stay_and_b_is_averaged():
    """The averaged product has rank r then: nothing is cut, and both factors are the plain means."""
    (a, *_), b = factors(4, 10, 7)
    new_a, new_b = product_mean([a] * 3, b, WEIGHTS)
    np.testing.assert_allclose(new_a, a, atol=1e-13)
    np.testing.assert_allclose(new_b, sum(w * y for w, y in zip(WEIGHTS, b, strict=True)), atol=1e-12)


@pytest.mark.parametrize("used", [0, 1, 3])
def test_directions_that_b_does_not_use_keep_their_a(used):
    """B zero (the first round) or of low rank: A stays as it is, not only where the product can see it."""
    (a, *_), b = factors(4, 10, 7)
    for y in b:
        y[:, used:] = 0
    new_a, new_b = product_mean([a] * 3, b, WEIGHTS)
    np.testing.assert_allclose(new_a, a, atol=1e-13)
    np.testing.assert_allclose(new_b, sum(w * y for w, y in zip(WEIGHTS, b, strict=True)), atol=1e-12)


def test_a_product_of_one_direction_leaves_a_at_the_mean_of_the_clients():
    """B uses the first row of A alone, which all share: what rounding leaves of other directions is none."""
    rng = np.random.default_rng(3)
    shared, b = rng.normal(size=(1, 9)), np.zeros((5, 2))
    b[:, 0] = rng.normal(size=5)
    a = [np.concatenate([shared, rng.normal(size=(1, 9))]) for _ in range(3)]
    new_a, new_b = product_mean(a, [b] * 3, WEIGHTS)
    np.testing.assert_allclose(new_a, sum(w * x for w, x in zip(WEIGHTS, a, strict=True)), atol=1e-12)
    np.testing.assert_allclose(new_b @ new_a, b @ a[0], atol=1e-12)


def test_weights_of_a_sum_raise_no_direction_that_is_strong_enough():
    """Two equal A with singular values 1 and 0.05: the sum has 2 and 0.1, above a tenth of the average, 0.071."""
    a = np.array([[1.0, 0.0, 0.0], [0.0, 0.05, 0.0]])
    b = [np.random.default_rng(seed).normal(size=(4, 2)) for seed in (1, 2)]
    new_a, new_b = product_mean([a, a], b, [1.0, 1.0])
    np.testing.assert_allclose(np.linalg.svd(new_a, compute_uv=False), [2.0, 0.1], atol=1e-12)
    np.testing.assert_allclose(new_b @ new_a, (b[0] + b[1]) @ a, atol=1e-12)


@pytest.mark.parametrize("rank", [1, 3])
def test_directions_that_cancel_get_a_tenth_of_what_the_clients_have_on_average(rank):
    """The mean of X and −X is zero; by the weights 1/4 and 3/4 so is that of 3X and −X; the average is Σ w ‖A‖²/r."""
    (x, _), b = factors(rank, 10, 7, 2)
    new_a, _ = product_mean([x, -x], b, [0.5, 0.5])
    np.testing.assert_allclose(np.linalg.svd(new_a, compute_uv=False), 0.1 * np.linalg.norm(x) / rank**0.5)
    new_a, _ = product_mean([3 * x, -x], b, [0.25, 0.75])
    expected = 0.1 * np.linalg.norm(x) * ((9 * 0.25 + 0.75) / rank) ** 0.5
    np.testing.assert_allclose(np.linalg.svd(new_a, compute_uv=False), expected)


def test_with_b_zero_a_is_the_mean():
    a, b = factors(4, 10, 7)
    new_a, new_b = product_mean(a, [0 * y for y in b], WEIGHTS)
    np.testing.assert_allclose(new_a, sum(w * x for w, x in zip(WEIGHTS, a, strict=True)), atol=1e-14)
    assert not new_b.any()


def test_factors_that_are_all_zero_stay_zero():
    a, b = factors(4, 10, 7)
    with np.errstate(all="raise"):
        new_a, new_b = product_mean([0 * x for x in a], b, WEIGHTS)
    assert not new_a.any() and not new_b.any()


def test_the_gauge_of_a_client_does_not_change_the_product():
    a, b = factors(4, 10, 7)
    plain_a, plain_b = product_mean(a, b, WEIGHTS)
    gauge = np.random.default_rng(5).normal(size=(4, 4))
    new_a, new_b = product_mean([np.linalg.solve(gauge, a[0]), *a[1:]], [b[0] @ gauge, *b[1:]], WEIGHTS)
    np.testing.assert_allclose(new_b @ new_a, plain_b @ plain_a, atol=1e-10)
    assert np.abs(new_a - plain_a).max() > 0.1, "the factors themselves do depend on it"


@pytest.mark.parametrize("sign", [1, -1])
def test_opposite_factors_of_equal_products(sign):
    """mean(A) = 0 tells nothing about a gauge; the product is exact and no direction of A is lost."""
    (a, _), (b, _) = factors(4, 10, 7, clients=2)
    new_a, new_b = product_mean([a, sign * a], [b, sign * b], [0.5, 0.5])
    np.testing.assert_allclose(new_b @ new_a, b @ a, atol=1e-12)
    assert weakest_direction(new_a) > 0.05 * typical_strength([a], [1])


def test_a_is_the_nearest_to_the_mean_of_all_with_that_product():
    rng = np.random.default_rng(2)
    base_a, base_b = rng.normal(size=(4, 12)), rng.normal(size=(9, 4))
    a = [base_a + 0.1 * rng.normal(size=base_a.shape) for _ in range(3)]
    b = [base_b + 0.1 * rng.normal(size=base_b.shape) for _ in range(3)]
    mean = sum(w * x for w, x in zip(WEIGHTS, a, strict=True))
    new_a, _ = product_mean(a, b, WEIGHTS)
    distance = np.linalg.norm(new_a - mean)
    assert 0 < distance < 0.1 * np.linalg.norm(mean)
    for size in (1e-3, 1e-2, 0.1):
        for _ in range(20):
            other = (np.eye(4) + size * rng.normal(size=(4, 4))) @ new_a
            assert np.linalg.norm(other - mean) > distance


def test_no_direction_of_a_is_lost_when_the_clients_disagree():
    """The strongest product comes from a client of little weight whose A is orthogonal to mean(A)'s bulk."""
    rng = np.random.default_rng(4)
    q = np.linalg.qr(rng.normal(size=(20, 8)))[0].T
    a, b = [q[:4], q[4:]], [1e-3 * rng.normal(size=(9, 4)), 1e3 * rng.normal(size=(9, 4))]
    weights = [0.999, 0.001]
    new_a, new_b = product_mean(a, b, weights)
    np.testing.assert_allclose(new_b @ new_a, truncated(averaged(a, b, weights), 4), atol=1e-10)
    mean = sum(w * x for w, x in zip(weights, a, strict=True))
    least = max(0.1 * typical_strength(a, weights), weakest_direction(mean))
    assert weakest_direction(new_a) >= least * (1 - 1e-9)


@pytest.mark.parametrize("clients", [2, 3])
def test_no_direction_of_a_is_weaker_than_the_weakest_of_its_mean(clients):
    """Nor than a tenth of what is usual, which counts where the clients' A cancel."""
    weights = [1 / clients] * clients
    for seed in range(20):
        a, b = factors(3, 12, 9, clients, seed)
        mean = sum(w * x for w, x in zip(weights, a, strict=True))
        least = max(0.1 * typical_strength(a, weights), weakest_direction(mean))
        assert weakest_direction(product_mean(a, b, weights)[0]) >= least * (1 - 1e-9)


def test_a_vector_is_averaged_module_by_module_and_the_rest_as_it_is():
    rows = vectors(3)
    mean = MEAN(rows, WEIGHTS)
    assert mean.shape == (50,) and mean.dtype == np.float64
    clients = [modules(row) for row in rows]
    for i, ((new_a, new_b), pair) in enumerate(zip(modules(mean), PAIRS, strict=True)):
        expected = averaged([c[i][0] for c in clients], [c[i][1] for c in clients], WEIGHTS)
        np.testing.assert_allclose(new_b @ new_a, truncated(expected, pair.rank), atol=1e-12)
    plain = sum(w * row.astype(np.float64) for w, row in zip(WEIGHTS, rows, strict=True))
    outside = [0, 1, 2, 25, 26, 39, 40, 47, 48, 49]
    np.testing.assert_allclose(mean[outside], plain[outside], rtol=1e-14)
    inside = np.setdiff1d(np.arange(50), outside)
    assert np.abs(mean - plain)[inside].min() > 0


def test_one_client_comes_back_bit_for_bit():
    (row,) = vectors(1)
    assert np.array_equal(MEAN([row], [1.0]), row.astype(np.float64))


def test_vectors_of_another_length_are_refused():
    with pytest.raises(ValueError, match=r"shape \(50,\), got \[\(49,\)\]"):
        MEAN([np.zeros(49)] * 2, [0.5, 0.5])


def test_what_is_not_finite_is_left_to_the_caller():
    rows = vectors(2)
    rows[0][4] = np.inf
    assert not np.isfinite(MEAN(rows, [0.5, 0.5])[4])


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_aggregator_steps_towards_the_product_mean(name):
    """As if one client had answered the mean: the aggregator sees nothing else, its moments included."""
    start, *models = vectors(1 + 4 * 3)
    rounds, counts = [models[3 * t : 3 * t + 3] for t in range(4)], [2, 3, 5]
    got = run(
        build(name, mean=MEAN, **SETTINGS[name]), adapter(start), [[adapter(m) for m in c] for c in rounds], counts, 4
    )
    means = [[MEAN(clients, WEIGHTS)] for clients in rounds]
    for arrays, expected in zip(got, oracle(name, start, means, [1], SETTINGS[name]), strict=True):
        np.testing.assert_allclose(flat(arrays), expected, rtol=5e-6, atol=5e-6)


def test_fedadam_continues_from_its_state_bit_for_bit():
    start, *models = vectors(1 + 4 * 2)
    rounds = [[adapter(m) for m in models[2 * t : 2 * t + 2]] for t in range(4)]
    whole = run(build("fedadam", mean=MEAN, eta=0.1), adapter(start), rounds, [1, 2], 4)
    first, second = (build("fedadam", mean=MEAN, eta=0.1) for _ in range(2))
    middle = run(first, adapter(start), rounds[:2], [1, 2], 2)[-1]
    second.load_state_dict(first.state_dict())
    rest = run(second, middle, rounds[2:], [1, 2], 2)
    assert np.array_equal(flat(rest[-1]), flat(whole[-1]))


def test_the_model_moves_continuously():
    """Clients that change little change the global factors little: moments of one round fit the next."""
    (start,) = vectors(1)
    for size in (1e-4, 1e-3, 1e-2):
        clients = [start + size * v for v in vectors(3, seed=7)]
        moved = np.linalg.norm(MEAN(clients, WEIGHTS) - start)
        assert moved < 20 * size * np.sqrt(50)


def test_fedtu_merges_two_unlearned_models_by_their_products():
    one, three, start = vectors(3)
    grid = federation(4)
    for p, model in {1: one, 3: three}.items():
        grid.nodes[p] = honest(p, unlearned=model)
    grid.nodes[0] = grid.nodes[2] = lambda m: None
    recorder = Recorder()
    requests = RequestList([(1, request(1, 1)), (1, request(3, 3))])
    fedtu = FedTU(
        build("fedavg", mean=MEAN),
        requests=requests,
        serving=ByUnlearning(MEAN),
        listener=recorder,
        eligible=lambda p: p > 3,
    )
    result = fedtu.start(grid, adapter(start), num_rounds=1)
    after, _ = recorder.checkpoints[1, "after_unlearn"]
    assert np.array_equal(flat(result.arrays), after), "nobody trained"
    for i, (new_a, new_b) in enumerate(modules(after)):
        clients = [modules(one)[i], modules(three)[i]]
        expected = averaged([a for a, _ in clients], [b for _, b in clients], [0.25, 0.75])
        np.testing.assert_allclose(new_b @ new_a, truncated(expected, PAIRS[i].rank), atol=1e-5)
    assert after[0] == pytest.approx(0.25 * one[0] + 0.75 * three[0])


def summed_after(start, unlearned):
    """The model after one exchange in which the clients of `unlearned` forget, their updates summed."""
    grid = federation(4)
    for p, model in unlearned.items():
        grid.nodes[p] = honest(p, unlearned=model)
    recorder = Recorder()
    fedtu = FedTU(
        build("fedavg", mean=MEAN),
        requests=RequestList([(1, request(p, p)) for p in unlearned]),
        serving=ByUnlearning(MEAN, summed=True),
        listener=recorder,
        eligible=lambda p: p > 3,
    )
    fedtu.start(grid, adapter(start), num_rounds=1)
    return recorder.checkpoints[1, "after_unlearn"][0]


def test_summed_updates_are_those_of_the_products():
    """W + Σ (W_u − W) of each module's W = B·A, cut to its rank; the sum of the factors is another matrix."""
    one, three, start = vectors(3)
    after = summed_after(start, {1: one, 3: three})
    factors_too = start + (one - start) + (three - start)
    for i, (new_a, new_b) in enumerate(modules(after)):
        (a0, b0), (a1, b1), (a3, b3) = (modules(v)[i] for v in (start, one, three))
        expected = truncated(b1 @ a1 + b3 @ a3 - b0 @ a0, PAIRS[i].rank)
        np.testing.assert_allclose(new_b @ new_a, expected, atol=1e-4)
        a, b = modules(factors_too)[i]
        assert np.abs(b @ a - expected).max() > 0.1
    assert after[0] == pytest.approx(one[0] + three[0] - start[0], abs=1e-6)


def test_clients_that_change_nothing_add_nothing_to_a_sum_of_products():
    one, start = vectors(2)
    after = summed_after(start, {1: one, 2: start, 3: start})
    for (new_a, new_b), (a, b) in zip(modules(after), modules(one), strict=True):
        np.testing.assert_allclose(new_b @ new_a, b @ a, atol=1e-4)


def test_factors_that_cancel_in_a_sum_keep_directions_that_can_be_trained():
    """Nine updates that each shrink A by a ninth leave a sum of nearly nothing."""
    (start,) = vectors(1)
    shrunk = start.copy()
    for pair in PAIRS:
        shrunk[pair.a_part] *= 8 / 9
    rows, weights = [start, *[shrunk] * 9], [-8.0, *[1.0] * 9]
    mean = MEAN(rows, weights)
    for pair, (a, _) in zip(PAIRS, modules(mean), strict=True):
        assert np.isfinite(mean).all() and weakest_direction(a) > 0.05 * typical_strength([a for _ in rows], [0.1] * 10)
        assert weakest_direction(a) > 0.01 * np.linalg.norm(start[pair.a_part])


def test_the_size_of_a_negative_weight_counts_in_the_floor_of_the_new_a():
    """0.1 · √(Σ|w|·‖A‖² / Σ|w| / R) with R = 2: 0.1 · √((2 + 1.25 + 1.25) / 3 / 2) = 0.0866."""
    a = [np.hstack([np.diag([1.0, s]), np.zeros((2, 1))]).astype(np.float32) for s in (1.0, 0.5, 0.5)]
    b = [np.ones((4, 2), np.float32) * (n + 1) for n in range(3)]
    new_a, _ = product_mean(a, b, [-1.0, 1.0, 1.0])
    assert np.linalg.svd(new_a, compute_uv=False).min() == pytest.approx(0.1 * math.sqrt(0.75), rel=1e-6)
