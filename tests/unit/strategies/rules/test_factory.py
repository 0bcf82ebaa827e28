"""The six aggregators against the equations, written down a second time in plain float64 numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from support.aggregators import SETTINGS, oracle, reply, run

from strategies.arrays import BLOCK, finite, view
from strategies.client_update import ClientUpdate
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rules.factory import build, names
from strategies.rules.fedavgm import FedAvgM


def adapter(values) -> ArrayRecord:
    return ArrayRecord({"adapter": Array(np.asarray(values, dtype=np.float32))})


def flat(arrays: ArrayRecord) -> np.ndarray:
    return arrays["adapter"].numpy()


def test_names_are_those_of_the_files():
    assert names() == sorted([*SETTINGS, "fedmedian", "fednova", "fedtrimmedmean", "krum", "multikrum"])


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_trajectory_follows_the_equations(name):
    rng = np.random.default_rng(3)
    size, counts, rounds = 40, [1, 5, 30], 6
    start = rng.normal(size=size).astype(np.float32)
    models = [[rng.normal(scale=0.3, size=size).astype(np.float32) for _ in counts] for _ in range(rounds)]
    expected = oracle(name, start, models, counts, SETTINGS[name])
    records = [[adapter(m) for m in clients] for clients in models]
    got = run(build(name, **SETTINGS[name]), adapter(start), records, counts, rounds)
    for arrays, values in zip(got, expected, strict=True):
        assert flat(arrays).dtype == np.float32
        np.testing.assert_allclose(flat(arrays), values, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "settings", "answers", "expected"),
    [
        ("fedavg", {}, [1, 4], [1, 4]),
        # m = 1, then 0.5 · 1 + 3 = 3.5
        ("fedavgm", {"server_momentum": 0.5}, [1, 4], [1, 4.5]),
        # v = 1 + 1, then 2 + (3 − φ)²
        (
            "fedadagrad",
            {"eta": 1, "tau": 1},
            [1, math.sqrt(2) - 1 + 3],
            [math.sqrt(2) - 1, math.sqrt(2) - 1 + 3 / (math.sqrt(11) + 1)],
        ),
        # m = Δ_0 = 1 and v = (1 + 1)/2, so φ = 1/2; then Δ = 3: m = 2, v = (1 + 9)/2
        (
            "fedadam",
            {"eta": 1, "tau": 1, "beta_1": 0.5, "beta_2": 0.5},
            [1, 3.5],
            [0.5, 0.5 + 2 / (math.sqrt(5) + 1)],
        ),
        # v = 1 − 0.5 · 1 · sign(0) = 1, then 1 − 0.5 · 9 · sign(1 − 9) = 5.5
        (
            "fedyogi",
            {"eta": 1, "tau": 1, "beta_1": 0.5, "beta_2": 0.5},
            [1, 3.5],
            [0.5, 0.5 + 2 / (math.sqrt(5.5) + 1)],
        ),
    ],
)
def test_numbers_worked_out_by_hand(name, settings, answers, expected):
    got = run(build(name, **settings), adapter([0]), [[adapter([a])] for a in answers], [7], len(answers))
    np.testing.assert_allclose([flat(a)[0] for a in got], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "kept"), [(np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64)]
)
@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
def test_moments_have_single_precision_at_least(name, dtype, kept):
    """Δ = 2⁻¹² twice: its square is less than the least number of half precision above 0."""
    settings, delta = {"eta": 1.0, "tau": 2.0**-12}, 2.0**-12
    strategy = build(name, **settings)
    sent, answer = (ArrayRecord({"adapter": Array(np.array([x], dtype))}) for x in (0.0, delta))
    run(strategy, sent, [[answer]], [1], 1)
    found = {key: values for key, values in strategy.state_dict().items() if key.startswith("v/")}
    assert {values.dtype for values in found.values()} == {np.dtype(kept)}
    expected = 2 * delta**2 if name == "fedadagrad" else delta**2
    np.testing.assert_allclose(found["v/adapter"], expected, rtol=1e-6)


def test_published_defaults():
    adam, yogi, adagrad = build("fedadam"), build("fedyogi"), build("fedadagrad")
    for strategy in (adam, yogi):
        assert (strategy.eta, strategy.beta_1, strategy.beta_2, strategy.tau) == (1e-3, 0.9, 0.99, 1e-3)
    assert (adagrad.eta, adagrad.tau) == (1e-3, 1e-3)
    assert (build("fedavgm").server_learning_rate, build("fedavgm").server_momentum) == (1.0, 0.9)
    assert build("fedprox").proximal_mu == 0.01


def test_fedprox_tells_the_clients_mu():
    grid = MemoryGrid({0: lambda m: reply(adapter([1]))}, keep_log=True)
    build("fedprox", proximal_mu=0.25).start(grid, adapter([0]), num_rounds=1)
    assert grid.log[-1][2]["config"]["proximal-mu"] == 0.25


def test_fedavg_agrees_with_flower():
    rng = np.random.default_rng(5)
    models = [[adapter(rng.normal(size=100)) for _ in range(3)]]
    ours = run(build("fedavg"), adapter(np.zeros(100)), models, [1, 2, 3], 1)
    flower = run(FlowerFedAvg(fraction_evaluate=0.0), adapter(np.zeros(100)), models, [1, 2, 3], 1)
    np.testing.assert_allclose(flat(ours[0]), flat(flower[0]), rtol=1e-5, atol=1e-7)


def test_means_are_taken_in_float64():
    """(1e8 + 1 + … + 1 − 1e8)/n loses every 1 in float32."""
    clients = [adapter([1e8]), *[adapter([1.0])] * 8, adapter([-1e8])]
    (got,) = run(build("fedavg"), adapter([0]), [clients], [1] * 10, 1)
    assert flat(got)[0] == pytest.approx(0.8, rel=1e-6)


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_blocks_do_not_show(name):
    """An array longer than two blocks gives what its pieces give one by one."""
    rng = np.random.default_rng(1)
    size, counts = 2 * BLOCK + 5, [2, 3]
    start = rng.normal(size=size).astype(np.float32)
    models = [[rng.normal(size=size).astype(np.float32) for _ in counts] for _ in range(2)]
    whole = run(build(name, **SETTINGS[name]), adapter(start), [[adapter(m) for m in c] for c in models], counts, 2)
    for piece in (slice(0, 9), slice(BLOCK - 4, BLOCK + 4), slice(size - 9, size)):
        part = [[adapter(m[piece]) for m in c] for c in models]
        got = run(build(name, **SETTINGS[name]), adapter(start[piece]), part, counts, 2)
        assert np.array_equal(flat(whole[-1])[piece], flat(got[-1]))


def test_any_arrays():
    """Several arrays of several shapes and dtypes keep names, shapes and dtypes; integers are rounded."""
    initial = ArrayRecord(
        {
            "w": Array(np.zeros((2, 3), dtype=np.float64)),
            "half": Array(np.zeros(2, dtype=np.float16)),
            "count": Array(np.zeros(1, dtype=np.int64)),
            "empty": Array(np.zeros((0, 4), dtype=np.float32)),
        }
    )

    def model(x):
        return ArrayRecord(
            {
                "w": Array(np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3) * x)),
                "half": Array(np.full(2, x, dtype=np.float16)),
                "count": Array(np.array([int(10 * x)])),
                "empty": Array(np.zeros((0, 4), dtype=np.float32)),
            }
        )

    (got,) = run(build("fedavg"), initial, [[model(1.0), model(2.0)]], [1, 2], 1)
    np.testing.assert_allclose(got["w"].numpy(), np.arange(6).reshape(2, 3) * 5 / 3)
    assert {n: a.dtype for n, a in got.items()} == {n: a.dtype for n, a in initial.items()}
    assert got["count"].numpy()[0] == 17
    assert got["empty"].numpy().shape == (0, 4)


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_state_continues_a_run_bit_for_bit(name):
    rng = np.random.default_rng(9)
    models = [[adapter(rng.normal(size=20)) for _ in range(2)] for _ in range(6)]
    whole = run(build(name, **SETTINGS[name]), adapter(np.zeros(20)), models, [1, 2], 6)
    first = build(name, **SETTINGS[name])
    middle = run(first, adapter(np.zeros(20)), models, [1, 2], 3)[-1]
    second = build(name, **SETTINGS[name])
    second.load_state_dict({k: v.copy() for k, v in first.state_dict().items()})
    rest = run(second, middle, models[3:], [1, 2], 3)
    for a, b in zip(whole[3:], rest, strict=True):
        assert np.array_equal(flat(a), flat(b))
    if first.moments:
        fresh = run(build(name, **SETTINGS[name]), middle, models[3:], [1, 2], 3)
        assert not np.array_equal(flat(fresh[-1]), flat(whole[-1])), "the state makes no difference"


def test_state_holds_float32_moments_by_name():
    strategy = build("fedadam")
    assert strategy.state_dict() == {}
    run(strategy, adapter([0, 0]), [[adapter([1, 2])]], [1], 1)
    state = strategy.state_dict()
    assert set(state) == {"m/adapter", "v/adapter"}
    np.testing.assert_allclose(state["m/adapter"], [1, 2])
    np.testing.assert_allclose(state["v/adapter"], [0.99e-6 + 0.01, 0.99e-6 + 0.04], rtol=1e-6)
    assert {a.dtype for a in state.values()} == {np.dtype(np.float32)}
    strategy.reset_state()
    assert strategy.state_dict() == {}


@pytest.mark.parametrize("state", [{"v/adapter": [1.0]}, {"m/adapter": [1.0], "x": [1.0]}])
def test_state_of_another_strategy_is_refused(state):
    with pytest.raises(ValueError, match="accumulator"):
        FedAvgM().load_state_dict({k: np.array(v) for k, v in state.items()})


@pytest.mark.parametrize("state", [{"m/adapter": np.zeros(3)}, {"m/other": np.zeros(2)}])
def test_state_of_another_model_is_refused(state):
    strategy = FedAvgM()
    strategy.load_state_dict(state)
    with pytest.raises(AggregationError, match="moments"):
        run(strategy, adapter([0, 0]), [[adapter([1, 2])]], [1], 1)


def test_divergence_is_an_error_and_keeps_the_moments():
    strategy = build("fedavgm", server_learning_rate=1e38)
    run(strategy, adapter([0]), [[adapter([0.5])]], [1], 1)
    before = strategy.state_dict()["m/adapter"].copy()
    with pytest.raises(AggregationError, match="not finite"):
        run(strategy, adapter([0]), [[adapter([1e6])]], [1], 1)
    assert np.array_equal(strategy.state_dict()["m/adapter"], before)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedavgm", {"server_momentum": 1.0}),
        ("fedavgm", {"server_learning_rate": 0.0}),
        ("fedadam", {"beta_2": 1.0}),
        ("fedadam", {"tau": 0.0}),
        ("fedyogi", {"beta_1": -0.1}),
        ("fedadagrad", {"eta": math.nan}),
        ("fedprox", {"proximal_mu": -1.0}),
        ("fedprox", {"proximal_mu": math.nan}),
    ],
)
def test_settings_out_of_range(name, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        build(name, **settings)


def test_a_moment_that_its_number_format_cannot_hold_is_an_error_though_the_model_is_finite():
    """Δ = 1e30, whose square is no float32."""
    strategy = build("fedadam")
    run(strategy, adapter([0]), [[adapter([0.5])]], [1], 1)
    before = {name: array.copy() for name, array in strategy.state_dict().items()}
    with pytest.raises(AggregationError, match="FedAdam: the new global 'adapter' is not finite"):
        run(strategy, adapter([0]), [[adapter([1e30])]], [1], 1)
    assert {n: a.tolist() for n, a in strategy.state_dict().items()} == {n: a.tolist() for n, a in before.items()}


def test_a_loaded_state_is_the_strategys_own():
    strategy, moments = build("fedavgm"), np.array([1.0, 2.0], dtype=np.float32)
    strategy.load_state_dict({"m/adapter": moments})
    moments[:] = 9
    assert strategy.state_dict()["m/adapter"].tolist() == [1, 2]


def test_one_reply_of_another_shape_ends_the_aggregation():
    updates = [ClientUpdate(0, 1.0, adapter([1.0, 2.0])), ClientUpdate(1, 1.0, adapter([1.0]))]
    with pytest.raises(AggregationError, match=r"array 'adapter': the replies do not all have shape \(2,\)"):
        build("fedavg").aggregate(adapter([0.0, 0.0]), updates)


def test_no_steps_at_all_are_none_to_divide_by():
    updates = [ClientUpdate(p, 1.0, adapter([1.0]), steps) for p, steps in ((3, 2.0), (5, 0.0), (8, math.nan))]
    with pytest.raises(AggregationError, match=r"missing from 2 of 3 \(clients \[5, 8\]\)"):
        build("fednova").aggregate(adapter([0.0]), updates)


def test_unknown_names():
    with pytest.raises(ValueError, match=r"unknown aggregator 'fedsgd'; expected one of fedadagrad, .*fedyogi"):
        build("fedsgd")
    with pytest.raises(ValueError, match="unknown aggregator 'fedtu'"):
        build("fedtu")
    with pytest.raises(TypeError, match="etaa"):
        build("fedadam", etaa=1.0)


@pytest.mark.parametrize(
    ("fraction", "nodes", "expected"), [(0.1, 30, 3), (0.1, 5, 1), (0.5, 5, 2), (1.0, 4, 4), (0.29, 100, 29)]
)
def test_sampled_fraction(fraction, nodes, expected):
    grid = MemoryGrid({k: lambda m: None for k in range(nodes)})
    messages = build("fedavg", fraction_train=fraction).configure_train(1, adapter([0]), ConfigRecord(), grid)
    assert len(list(messages)) == expected


def test_aggregating_before_configuring_is_an_error():
    grid = MemoryGrid({0: lambda m: reply(adapter([1]))})
    messages = list(build("fedavg").configure_train(1, adapter([0]), ConfigRecord(), grid))
    with pytest.raises(AggregationError, match="before configure_train"):
        build("fedavg").aggregate_train(1, grid.send_and_receive(messages))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_view_reads_what_numpy_reads(dtype):
    for array in (np.arange(12).astype(dtype), np.asfortranarray(np.arange(12).astype(dtype).reshape(3, 4))):
        assert np.array_equal(view(Array(array)), Array(array).numpy())


@pytest.mark.parametrize(
    "array",
    [
        Array(dtype="float32", shape=(2,), stype="numpy.ndarray", data=b"nonsense"),
        Array(dtype="float32", shape=(2,), stype="numpy.ndarray", data=b""),
        Array(dtype="float32", shape=(2,), stype="pickle", data=Array(np.zeros(2)).data),
        Array(dtype="float64", shape=(2,), stype="numpy.ndarray", data=Array(np.zeros(2)).data[:-1]),
        Array(dtype="float64", shape=(2,), stype="numpy.ndarray", data=Array(np.zeros(2)).data + b"x"),
        Array(np.array(["a"])),
    ],
)
def test_view_refuses_bytes_that_are_no_numbers(array):
    with pytest.raises(ValueError):
        view(array)


def test_finite():
    big = np.full(10, 3e38, dtype=np.float32)
    assert finite(big), "a sum that overflows is not an infinite number"
    for bad in (np.nan, np.inf, -np.inf):
        for place in (0, 9):
            array = big.copy()
            array[place] = bad
            assert not finite(array)
    assert not finite(np.array([np.inf, -np.inf], dtype=np.float32))
