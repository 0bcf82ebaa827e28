"""FedMedian, FedTrimmedMean, Krum and Multi-Krum against numpy, scipy, brute force and Flower's own strategies."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import scipy.stats
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.exception import AggregationError
from support.aggregators import run
from support.fedtu_clients import SIZE, Recorder, adapter, content, federation, flat, honest, noise, request

from strategies import message_keys
from strategies.arrays import BLOCK
from strategies.client_update import ClientUpdate
from strategies.flower_internals import identify_process
from strategies.protocols.base import ByUnlearning
from strategies.protocols.update_history import MemoryHistory
from strategies.rounds.fedtu import FedTU, RequestList
from strategies.rules.factory import build
from strategies.rules.fedtrimmedmean import trimmed_mean
from strategies.rules.lora_product import ProductMean
from strategies.rules.multikrum import krum_scores

ROBUST = {"fedmedian": {}, "fedtrimmedmean": {"beta": 0.25}, "krum": {}, "multikrum": {"num_nodes_to_select": 3}}


def models(clients: int, size: int = 30, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, clients, size)).normal(size=(clients, size)).astype(np.float32)


def aggregated(name: str, vectors, start=None, weights=None, **settings) -> np.ndarray:
    """One round."""
    start = np.zeros(vectors[0].size, np.float32) if start is None else start
    weights = weights or [1] * len(vectors)
    updates = [ClientUpdate(k, w, adapter(v)) for k, (w, v) in enumerate(zip(weights, vectors, strict=True))]
    return flat(build(name, **settings).aggregate(adapter(start), updates))


def by_brute_force(vectors, f: int, m: int) -> list[int]:
    """The m clients of least score, best first; number by number in Python floats (Blanchard et al., section 4)."""
    rows = [[float(x) for x in v] for v in vectors]
    scores = []
    for i, one in enumerate(rows):
        others = [sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) for j, other in enumerate(rows) if j != i]
        scores.append(sum(sorted(others)[: max(1, len(rows) - f - 2)]))
    return sorted(range(len(rows)), key=lambda i: scores[i])[:m]


def by_flower(strategy: flower.Strategy, vectors, weights=None) -> np.ndarray:
    """What a strategy of Flower's makes of the clients' models (K, n)."""
    identify_process()
    replies = []
    for client, (vector, weight) in enumerate(zip(vectors, weights or [1] * len(vectors), strict=True)):
        metrics = MetricRecord({"num-examples": weight})
        content = RecordDict({"arrays": ArrayRecord({"adapter": Array(vector)}), "metrics": metrics})
        asked = Message(RecordDict(), dst_node_id=client + 1, message_type=message_keys.TRAIN)
        replies.append(Message(content, reply_to=asked))
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    return arrays["adapter"].numpy()


def ours(name: str, vectors, weights=None, **settings) -> np.ndarray:
    """The same of one here, in float64."""
    updates = [
        ClientUpdate(k, 1 if weights is None else weights[k], ArrayRecord({"adapter": Array(v)}))
        for k, v in enumerate(vectors)
    ]
    sent = ArrayRecord({"adapter": Array(np.zeros_like(vectors[0]))})
    return flat(build(name, **settings).aggregate(sent, updates))


@pytest.mark.parametrize("clients", [1, 2, 5, 8, 11])
def test_median_and_trimmed_mean_are_flower_s_to_the_last_bit(clients):
    vectors = models(clients).astype(np.float64)
    assert np.array_equal(ours("fedmedian", vectors), by_flower(flower.FedMedian(), vectors))
    for beta in (0, 0.125, 0.25, 0.45):
        theirs = by_flower(flower.FedTrimmedAvg(beta=beta), vectors)
        assert np.array_equal(ours("fedtrimmedmean", vectors, beta=beta), theirs)


@pytest.mark.parametrize(("clients", "f", "m"), [(5, 1, 1), (7, 2, 3), (9, 0, 4), (12, 3, 6)])
def test_krum_and_multikrum_are_flower_s(clients, f, m):
    for seed in range(5):
        vectors, weights = models(clients, seed=seed).astype(np.float64), list(range(1, clients + 1))
        settings = {"num_malicious_nodes": f}
        theirs = by_flower(flower.Krum(**settings), vectors, weights)
        assert np.array_equal(ours("krum", vectors, weights, **settings), theirs)
        settings["num_nodes_to_select"] = m
        theirs = by_flower(flower.MultiKrum(**settings), vectors, weights)
        np.testing.assert_allclose(ours("multikrum", vectors, weights, **settings), theirs, rtol=1e-12, atol=1e-14)


def test_scores_by_hand():
    """Clients at 0, 1, 3 and 7 on a line: with f = 1 the nearest other one counts, with f = 0 the nearest two."""
    places = np.array([0.0, 1.0, 3.0, 7.0])
    distances = (places[:, None] - places) ** 2
    assert krum_scores(distances, 1).tolist() == [1, 1, 4, 16]
    assert krum_scores(distances, 0).tolist() == [10, 5, 13, 52]
    assert krum_scores(np.zeros((1, 1)), 0).tolist() == [0]


def test_a_liar_whose_numbers_have_no_square_is_not_chosen():
    vectors = models(5).astype(np.float64)
    vectors[3] = 1e200
    left = np.delete(vectors, 3, axis=0)
    got = ours("krum", vectors, num_malicious_nodes=1)
    assert np.array_equal(got, left[by_brute_force(left, 0, 1)[0]])
    assert np.abs(ours("multikrum", vectors, num_malicious_nodes=1, num_nodes_to_select=4)).max() < 10


@pytest.mark.parametrize(("clients", "beta"), [(2, 0.5), (4, 0.75), (3, -0.5), (0, 0.0)])
def test_a_cut_that_leaves_nothing_is_refused(clients, beta):
    with pytest.raises(ValueError, match="updates leaves none"):
        trimmed_mean(list(models(clients)), beta)


@pytest.mark.parametrize("clients", range(1, 10))
def test_median(clients):
    vectors = models(clients)
    expected = np.median(vectors.astype(np.float64), axis=0).astype(np.float32)
    assert np.array_equal(aggregated("fedmedian", vectors, weights=list(range(1, clients + 1))), expected)


@pytest.mark.parametrize("beta", [0, 0.1, 0.2, 0.34, 0.49])
@pytest.mark.parametrize("clients", [1, 2, 3, 5, 10, 11])
def test_trimmed_mean(clients, beta):
    vectors = models(clients)
    expected = scipy.stats.trim_mean(vectors.astype(np.float64), beta, axis=0)
    got = aggregated("fedtrimmedmean", vectors, weights=list(range(1, clients + 1)), beta=beta)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("clients", "f"), [(k, f) for k in (3, 5, 6, 7, 9, 12) for f in (0, 1, 2) if k >= 2 * f + 3])
def test_krum(clients, f):
    for seed in range(5):
        vectors = models(clients, seed=seed)
        (best,) = by_brute_force(vectors, f, 1)
        got = aggregated("krum", vectors, start=noise("x")[:1].repeat(30), num_malicious_nodes=f)
        assert got.tobytes() == vectors[best].tobytes(), "the model of one client, bit for bit"


@pytest.mark.parametrize(("clients", "f", "m"), [(5, 1, 2), (7, 2, 1), (7, 2, 5), (9, 0, 4), (12, 3, 6)])
def test_multikrum(clients, f, m):
    for seed in range(5):
        vectors, weights = models(clients, seed=seed), list(range(1, clients + 1))
        chosen = by_brute_force(vectors, f, m)
        expected = np.average(vectors[chosen].astype(np.float64), axis=0, weights=[weights[i] for i in chosen])
        got = aggregated("multikrum", vectors, weights=weights, num_malicious_nodes=f, num_nodes_to_select=m)
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)


def test_krum_over_several_arrays_is_over_all_together():
    one, two = models(7, 12), models(7, 6, seed=3)
    records = [
        ArrayRecord({"a": Array(a.reshape(3, 4)), "b": Array(np.asfortranarray(b.reshape(2, 3)))})
        for a, b in zip(one, two, strict=True)
    ]
    sent = ArrayRecord({"a": Array(np.zeros((3, 4), np.float32)), "b": Array(np.zeros((2, 3), np.float32))})
    got = build("krum", num_malicious_nodes=1).aggregate(sent, [ClientUpdate(k, 1, r) for k, r in enumerate(records)])
    (best,) = by_brute_force(np.concatenate([one, two], axis=1), 1, 1)
    assert np.array_equal(got["a"].numpy(), records[best]["a"].numpy())
    assert np.array_equal(got["b"].numpy(), records[best]["b"].numpy())


def test_krum_tells_models_apart_that_differ_by_little():
    """Late in training: a model of norm 3000, updates of norm 0.3. In float32 Flower's distances are rounding."""
    start = (models(1, 1000)[0] * 100).astype(np.float32)
    vectors = [(start.astype(np.float64) + 0.01 * v).astype(np.float32) for v in models(7, 1000, seed=1)]
    vectors[2] = start + np.float32(0.05)
    vectors[5] = start - np.float32(0.05)
    (best,) = by_brute_force(vectors, 2, 1)
    assert aggregated("krum", vectors, start=start, num_malicious_nodes=2).tobytes() == vectors[best].tobytes()
    norms = np.array([v @ v for v in vectors])
    distances = norms[:, None] + norms[None, :] - 2 * np.stack(vectors) @ np.stack(vectors).T
    exact = np.array([[np.sum((a.astype(np.float64) - b) ** 2) for b in vectors] for a in vectors])
    assert np.abs(distances - exact).max() > exact.max() / 10, "float32 would do, too: hand Flower the models"


@pytest.mark.parametrize("lie", ["far", "opposite", "zero"])
@pytest.mark.parametrize("name", sorted(ROBUST))
def test_two_liars_of_nine_do_not_lead_the_model_away(name, lie):
    """FedAvg follows them; the robust ones stay where the honest are."""
    honest_ = 1 + 0.01 * models(9)
    vectors = honest_.copy()
    vectors[[1, 6]] = {"far": 1e6, "opposite": -50.0, "zero": 0.0}[lie]
    settings = {"num_malicious_nodes": 2} if "krum" in name else {}
    start = np.ones(30, np.float32)
    assert np.abs(aggregated(name, vectors, start, **{**ROBUST[name], **settings}) - 1).max() < 0.05
    assert np.abs(aggregated("fedavg", vectors, start) - 1).max() > 0.2


@pytest.mark.parametrize("name", sorted(ROBUST))
def test_blocks_do_not_show(name):
    """A vector longer than two blocks gives what its pieces give; Krum chooses once for all of it."""
    size = 2 * BLOCK + 5
    vectors, start = models(6, size), models(1, size, seed=8)[0]
    whole = aggregated(name, vectors, start, **ROBUST[name])
    if "krum" in name:
        exact = [np.sum((vectors.astype(np.float64) - v) ** 2, axis=1) for v in vectors]
        scores = [np.sort(row)[1:5].sum() for row in exact]
        chosen = np.argsort(scores)[: 3 if name == "multikrum" else 1]
        np.testing.assert_allclose(whole, vectors[chosen].astype(np.float64).mean(axis=0), rtol=1e-5, atol=1e-6)
        return
    for piece in (slice(0, 9), slice(BLOCK - 4, BLOCK + 4), slice(size - 9, size)):
        part = aggregated(name, np.ascontiguousarray(vectors[:, piece]), start[piece], **ROBUST[name])
        assert np.array_equal(whole[piece], part)


@pytest.mark.parametrize("name", sorted(ROBUST))
def test_any_arrays(name):
    """Names, shapes and dtypes stay; integers are rounded."""

    def model(x):
        return ArrayRecord(
            {
                "w": Array(np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3) * x)),
                "half": Array(np.full(2, x, dtype=np.float16)),
                "count": Array(np.array([int(10 * x)])),
                "empty": Array(np.zeros((0, 4), dtype=np.float32)),
            }
        )

    initial = model(0.0)
    (got,) = run(build(name, **ROBUST[name]), initial, [[model(x) for x in (1.0, 1.0, 1.125, 1.25)]], [1] * 4, 1)
    assert {n: (a.dtype, tuple(a.shape)) for n, a in got.items()} == {
        n: (a.dtype, tuple(a.shape)) for n, a in initial.items()
    }
    middle = {"fedmedian": 1.0625, "fedtrimmedmean": 1.0625, "krum": 1.0, "multikrum": 3.125 / 3}[name]
    np.testing.assert_allclose(got["w"].numpy(), np.arange(6).reshape(2, 3) * middle)
    assert got["count"].numpy()[0] == 10


@pytest.mark.parametrize("name", sorted(ROBUST))
def test_one_client_is_that_client_bit_for_bit(name):
    model = noise("one")
    assert aggregated(name, [model], start=noise("start"), **ROBUST[name]).tobytes() == model.tobytes()


@pytest.mark.parametrize("name", sorted(ROBUST))
def test_there_is_no_state(name):
    strategy = build(name, **ROBUST[name])
    run(strategy, adapter(np.zeros(30)), [[adapter(v) for v in models(4)]], [1] * 4, 1)
    assert strategy.state_dict() == {}
    strategy.reset_state()
    strategy.load_state_dict({})
    with pytest.raises(ValueError, match="no accumulator"):
        strategy.load_state_dict({"m/adapter": np.zeros(30)})


@pytest.mark.parametrize("name", sorted(ROBUST))
def test_one_replying_client_under_fedtu(name):
    """All but one fail in the round in which another client is unlearned: the model is the one that answered."""
    grid, recorder = federation(4), Recorder()
    answering = honest(3)
    for p in (0, 2):
        grid.nodes[p] = lambda m: Error(code=2, reason="off")
    grid.nodes[1] = lambda m: content(noise("u")) if m.metadata.message_type == message_keys.UNLEARN else None
    grid.nodes[3] = answering
    requests = RequestList([(1, request(1))])
    result = FedTU(build(name, **ROBUST[name]), requests=requests, listener=recorder).start(
        grid, adapter(noise("start")), num_rounds=1
    )
    assert requests.served_in == {"r1": 1}
    assert np.array_equal(flat(result.arrays), noise("u") + noise(3, 1))


def test_too_few_answers_for_krum_leave_the_model_as_it_is(caplog, monkeypatch):
    """Of the 5 that f = 1 needs one fails in round 2: that round is lost, with a warning, and the run goes on."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    grid, recorder, seen = federation(5), Recorder(), []
    good = honest(4)
    grid.nodes[4] = lambda m: None if m.content["config"]["server-round"] == 2 else good(m)
    fedtu = FedTU(build("krum", num_malicious_nodes=1), listener=recorder)
    fedtu.start(grid, adapter(noise("start")), 3, evaluate_fn=lambda r, a: seen.append(flat(a).copy()))
    assert np.array_equal(seen[2], seen[1]) and not np.array_equal(seen[1], seen[0])
    assert not np.array_equal(seen[3], seen[2])
    assert "Krum needs 5 updates, got 4: the model stays as it is" in caplog.text
    assert recorder.of("round_completed")[1][2]["train_loss"] > 0, "the clients' metrics are told all the same"


@pytest.mark.parametrize(("f", "m", "least"), [(0, 4, 1), (1, 1, 5), (2, 1, 7), (2, 6, 8)])
def test_as_many_clients_are_sampled_as_the_rule_needs(f, m, least):
    grid = federation(30)
    strategy = build("multikrum", num_malicious_nodes=f, num_nodes_to_select=m, fraction_train=0.01)
    assert len(list(strategy.configure_train(1, adapter([0]), ConfigRecord(), grid))) == least
    strategy = build("multikrum", num_malicious_nodes=f, num_nodes_to_select=m, fraction_train=0.5)
    assert len(list(strategy.configure_train(1, adapter([0]), ConfigRecord(), grid))) == 15


def test_a_federation_too_small_for_krum_is_refused_before_anybody_trains():
    grid = federation(4)
    text = r"Krum with num_malicious_nodes 1 needs the updates of 5 clients in a round, and 4 can take part"
    with pytest.raises(AggregationError, match=text):
        FedTU(build("krum", num_malicious_nodes=1)).start(grid, adapter(np.zeros(SIZE)), num_rounds=1)
    assert grid.sent["train"] == 0


def test_too_few_eligible_clients_for_krum_do_not_stop_the_run():
    grid = federation(6)
    fedtu = FedTU(build("krum", num_malicious_nodes=1), eligible=lambda partition: partition < 4)
    result = fedtu.start(grid, adapter(noise("start")), num_rounds=2)
    assert grid.sent["train"] == 0 and np.array_equal(flat(result.arrays), noise("start"))


def test_a_trimmed_mean_that_trims_nothing_says_so(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    aggregated("fedtrimmedmean", models(4), beta=0.2)
    assert "of 4 updates beta 0.2 cuts off none: this round is not protected" in caplog.text
    caplog.clear()
    aggregated("fedtrimmedmean", models(5), beta=0.2)
    aggregated("fedtrimmedmean", models(5), beta=0)
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["fedmedian", "fedtrimmedmean"])
def test_what_is_no_mean_takes_no_other_mean(name):
    with pytest.raises(ValueError, match=r"combines the clients' numbers by a rule of its own: it takes no mean"):
        build(name, mean=ProductMean(1, ()))


def test_multikrum_averages_the_chosen_by_the_given_mean():
    vectors = models(6)

    def first(rows, weights):
        return rows[0].astype(np.float64)

    best = min(by_brute_force(vectors, 0, 3))
    assert np.array_equal(aggregated("multikrum", vectors, num_nodes_to_select=3, mean=first), vectors[best])


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedtrimmedmean", {"beta": 0.5}),
        ("fedtrimmedmean", {"beta": -0.1}),
        ("fedtrimmedmean", {"beta": float("nan")}),
        ("krum", {"num_malicious_nodes": -1}),
        ("multikrum", {"num_malicious_nodes": -1}),
        ("multikrum", {"num_nodes_to_select": 0}),
    ],
)
def test_settings_out_of_range(name, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        build(name, **settings)


@pytest.mark.parametrize("theirs", [flower.FedMedian, flower.FedTrimmedAvg, flower.Krum])
def test_flower_s_own_classes_do_not_empty_what_is_remembered(theirs):
    """Its FedMedian and FedTrimmedAvg take the arrays out of the replies."""
    history = MemoryHistory()
    inner = theirs(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    FedTU(inner, serving=ByUnlearning(history=history)).start(federation(4), adapter(noise("start")), num_rounds=2)
    stored = history.read(history.rounds()[0])
    for update in stored.clients:
        assert np.array_equal(flat(update.arrays), noise("start") + noise(update.partition, 1))
        assert (update.weight, update.steps) == (update.partition + 1, update.partition + 2)
