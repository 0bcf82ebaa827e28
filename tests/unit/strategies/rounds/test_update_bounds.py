"""No client counts for more than its records, its share, and what its optimiser can do."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from support.fedtu_clients import SIZE, Recorder, adapter, content, federation, flat, noise, request

from strategies import message_keys
from strategies.client_update import ClientUpdate, shares
from strategies.metric_schema import NUMBERS
from strategies.replies import ReplyCheck
from strategies.rounds.fedtu import FedTU, Options, RequestList
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rounds.update_bounds import Bounds
from strategies.rules.factory import build

LONGEST = {"longest": lambda kind, client, length: 40.0}


def train(grid, bounds=None, requests=None, rounds=1, inner="fedavg"):
    recorder, cuts = Recorder(), []
    recorder.cut = lambda *cut: cuts.append(cut)
    options = Options(bounds=bounds)
    fedtu = FedTU(build(inner), requests=requests, listener=recorder, options=options)
    result = fedtu.start(grid, adapter(np.zeros(SIZE)), num_rounds=rounds)
    return flat(result.arrays), recorder, cuts


def sends(values, examples=2, on=message_keys.TRAIN):
    return lambda m: content(values if m.metadata.message_type == on else flat(m.content["arrays"]), examples)


def unit(place, length=1.0):
    values = np.zeros(SIZE, np.float32)
    values[place] = length
    return values


def test_honest_replies_stay_as_they_are_to_the_last_bit():
    free, _, none = train(federation(5), rounds=3)
    bound, _, cuts = train(
        federation(5), Bounds(lambda c: 10, lambda *_: 1e3, max_update_norm=10.0, max_weight_share=0.9), rounds=3
    )
    assert free.tobytes() == bound.tobytes() and none == cuts == []


def test_an_update_far_longer_than_the_median_is_shortened():
    grid = MemoryGrid({p: sends(unit(p, 30.0 if p == 2 else 1.0)) for p in range(3)})
    new, _, cuts = train(grid, Bounds(max_update_norm=10.0, **LONGEST))
    np.testing.assert_allclose(new[:3], np.array([1, 1, 10]) / 3, rtol=1e-6)
    assert cuts == [(2, "norm", 30.0, 10.0)]
    new, _, cuts = train(grid, Bounds(max_update_norm=10.0, free_share=0.5, **LONGEST))
    np.testing.assert_allclose(new[:3], np.array([1, 1, 20]) / 3, rtol=1e-6)
    assert cuts == [(2, "norm", 30.0, 20.0)], "never below the free share of the longest"


@pytest.mark.parametrize(
    ("inner", "settings"),
    [
        ("fedavg", {}),
        ("fedmedian", {}),
        ("fedtrimmedmean", {"beta": 0.3}),
        ("krum", {"num_malicious_nodes": 3}),
        ("multikrum", {"num_malicious_nodes": 3, "num_nodes_to_select": 5}),
    ],
)
def test_three_of_ten_within_the_bounds_turn_a_mean_round_and_no_robust_aggregator(inner, settings):
    grid = MemoryGrid({p: sends(unit(0, -9.9 if p < 3 else 1 + p / 100)) for p in range(10)})
    recorder, cuts = Recorder(), []
    recorder.cut = lambda *cut: cuts.append(cut)
    options = Options(bounds=Bounds(max_update_norm=10.0, **LONGEST))
    fedtu = FedTU(build(inner, **settings), listener=recorder, options=options)
    moved = flat(fedtu.start(grid, adapter(np.zeros(SIZE)), num_rounds=1).arrays)[0]
    assert cuts == [] and all(reply[2] for reply in recorder.of("reply"))
    assert moved == pytest.approx((7.42 - 3 * 9.9) / 10, rel=1e-5) if inner == "fedavg" else 1 <= moved < 1.1


def test_a_client_without_known_records_counts_as_one_record():
    """A weight of nothing would leave an exchange without any."""
    bounds = Bounds(records=lambda client: {0: 0, 1: 5, 2: None}[client])
    assert bounds.weights({0: 7.0, 1: 7.0, 2: 7.0}, shared=False) == {0: 1.0, 1: 5.0, 2: 7.0}


def test_of_two_updates_the_shorter_one_is_usual_and_of_one_it_is_itself():
    bounds = Bounds(max_update_norm=2.0, **LONGEST)
    _, _, cuts = train(MemoryGrid({p: sends(unit(p, 5.0 ** (p + 1))) for p in range(2)}), bounds)
    assert [cut[:2] for cut in cuts] == [(1, "norm")] and cuts[0][2:] == (pytest.approx(25.0), pytest.approx(10.0))
    assert train(MemoryGrid({0: sends(unit(0, 25.0))}), bounds)[2] == []


def test_an_update_as_long_as_one_can_be_is_none_too_long():
    bounds = Bounds(max_update_norm=2.0, longest=lambda kind, client, length: 5.0)
    new, recorder, _ = train(MemoryGrid({0: sends([3.0, 4.0, *[0.0] * (SIZE - 2)])}), bounds)
    assert new[:2].tolist() == [3.0, 4.0] and ("reply", 0, True, "") in recorder.events


def test_of_an_even_number_of_updates_the_shorter_middle_one_is_usual():
    """Two of four that lie together cannot make their own length usual."""
    grid = MemoryGrid({p: sends(unit(p, 30.0 if p > 1 else 1.0)) for p in range(4)})
    new, _, cuts = train(grid, Bounds(max_update_norm=10.0, **LONGEST))
    np.testing.assert_allclose(new[:4], np.array([1, 1, 10, 10]) / 4, rtol=1e-6)
    assert cuts == [(2, "norm", 30.0, 10.0), (3, "norm", 30.0, 10.0)]


@pytest.mark.parametrize("share", [1.0, 0.35])
@pytest.mark.parametrize("most", [None, 1.0, 3.0])
@pytest.mark.parametrize("kind", ["train", "replay"])
def test_what_counts_of_updates_is_what_counts_of_the_replies_with_them(kind, most, share):
    bounds = Bounds(lambda c: 9, lambda *_: 6.0, max_weight_share=share, max_update_norm=most, free_share=0.1)
    rng, sent = np.random.default_rng(3), adapter(np.ones(SIZE))
    lengths = [0.5, 1.0, 2.0, 5.9, 6.1]
    models = [np.ones(SIZE) + unit(0, far) + unit(1, 0.01 * rng.random()) for far in lengths]
    checks = [ReplyCheck(p, replied(model, 2 + 3 * p)) for p, model in enumerate(models)]
    updates = [ClientUpdate(p, 2 + 3 * p, adapter(model), 4.0) for p, model in enumerate(models)]
    applied, cut = bounds.apply(kind, checks, sent, "arrays", "num-examples")
    expected = [
        ClientUpdate.of(check.reply.content, "num-examples", check.partition) for check in applied if check.reply
    ]
    used = bounds.of_training(updates, sent)
    assert [(u.partition, u.weight, flat(u.arrays).tobytes()) for u in used] == [
        (u.partition, u.weight, flat(u.arrays).tobytes()) for u in expected
    ]
    assert (len(used), any(one.what == "norm" for one in cut)) == ((5, False) if most is None else (4, True))


def replied(model, examples):
    return Message(content(model, examples), dst_node_id=0, message_type=message_keys.TRAIN)


@pytest.mark.parametrize("length", [41.0, 1e30, 3e38])
@pytest.mark.parametrize("kind", [message_keys.TRAIN, message_keys.UNLEARN])
def test_an_impossible_update_is_refused(length, kind):
    nodes = {p: sends(unit(p)) for p in range(2)}
    nodes[2] = sends(unit(2, length), on=kind)
    requests = RequestList([(1, request(2))])
    new, recorder, _ = train(MemoryGrid(nodes), Bounds(max_update_norm=10.0, **LONGEST), requests)
    refused = [e for e in recorder.of("reply") if not e[2]]
    assert len(refused) == 1 and f"the length {length:.3g}; no training here can give one above 40" in refused[0][3]
    assert np.abs(new).max() <= 1
    if kind == message_keys.UNLEARN:
        assert requests.served_in == {} and requests.attempts == {"r2": 1}


@pytest.mark.parametrize("value", [1.7e308, -1.7e308, 3e38])
@pytest.mark.parametrize("inner", ["fedavg", "fedmedian", "fedtrimmedmean", "krum", "multikrum", "fednova", "fedavgm"])
def test_numbers_at_the_end_of_the_range_reach_no_model(value, inner):
    """In float64, where their squares and their sums are infinite."""

    def double(values):
        return ArrayRecord({"adapter": Array(np.asarray(values, np.float64))})

    def client(values):
        metrics = {"num-examples": 2, "train-steps": 3}
        return lambda m: RecordDict({"arrays": double(values), "metrics": MetricRecord(metrics)})

    grid = MemoryGrid({p: client(np.full(SIZE, value) if p < 2 else unit(p)) for p in range(6)})
    recorder = Recorder()
    fedtu = FedTU(build(inner), listener=recorder, options=Options(bounds=Bounds(max_update_norm=10.0, **LONGEST)))
    result = fedtu.start(grid, double(np.zeros(SIZE)), num_rounds=1)
    assert [e[1] for e in recorder.of("reply") if not e[2]] == [0, 1]
    assert 0 < np.linalg.norm(flat(result.arrays)) <= 1 or inner == "fedmedian"
    assert np.isfinite(flat(result.arrays)).all()


def test_weights_that_sum_to_more_than_a_number_holds_still_average():
    updates = [ClientUpdate(p, w, adapter([1.0])) for p, w in enumerate((1.7e308, 1.7e308, 1.7e307))]
    assert shares(updates) == pytest.approx([10 / 21, 10 / 21, 1 / 21])
    plain = [ClientUpdate(p, w, adapter([1.0])) for p, w in enumerate((3.0, 4.0, 5.0))]
    assert shares(plain) == [3 / 12, 4 / 12, 5 / 12]


def test_a_weight_is_at_most_the_client_s_records():
    grid = MemoryGrid({p: sends(unit(p), examples=10**18 if p == 1 else 4) for p in range(3)})
    new, _, cuts = train(grid, Bounds(records=lambda client: 6))
    np.testing.assert_allclose(new[:3], np.array([4, 6, 4]) / 14, rtol=1e-6)
    assert cuts == [(1, "weight", 1e18, 6)]


def test_a_share_is_at_most_the_configured_one():
    grid = MemoryGrid({p: sends(unit(p), examples=10**18 if p == 1 else 4) for p in range(3)})
    new, _, cuts = train(grid, Bounds(max_weight_share=0.5))
    np.testing.assert_allclose(new[:3], [0.25, 0.5, 0.25], rtol=1e-6)
    assert [c[:2] for c in cuts] == [(1, "weight")]


@given(
    st.lists(st.floats(1, 1e18), min_size=2, max_size=8),
    st.floats(0.05, 1.0),
)
def test_shares_are_bounded_and_weights_never_grow(told, most):
    weights = dict(enumerate(told))
    used = Bounds(max_weight_share=most).weights(weights)
    total = sum(used.values())
    assert all(used[c] <= weights[c] for c in weights)
    assert all(w / total <= max(most, 1 / len(told)) * (1 + 1e-9) for w in used.values())
    if all(w <= most * sum(told) * (1 - 1e-9) for w in told):
        assert used == weights, "nothing is touched where nothing is too much"


@pytest.mark.parametrize("wrong", [{"max_weight_share": 0.0}, {"max_weight_share": 1.5}, {"max_update_norm": 0.5}])
def test_bounds_out_of_range(wrong):
    with pytest.raises(ValueError, match="expected"):
        Bounds(**wrong)


def known(**metrics):
    told = {"num-examples": 2, "train-loss": 0.5, "train-seconds": 1.0, "train-steps": 3, **metrics}
    return {k: v for k, v in told.items() if v is not None}


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        (known(**{"num-examples": 2.5}), "'num-examples' is 2.5, expected a whole number"),
        (known(**{"num-examples": 2**60}), "'num-examples'"),
        (known(**{"train-loss": 1e300}), "'train-loss' is 1e+300"),
        (known(**{"train-seconds": -1.0}), "'train-seconds' is -1.0"),
        (known(**{"train-steps": [1, 2]}), "'train-steps' is [1, 2]"),
        (known(**{"train-loss": None}), "'train-loss' is missing"),
    ],
)
def test_known_numbers_out_of_range_are_a_fault_of_their_client_alone(metrics, reason):
    nodes = {p: lambda m: RecordDict({"arrays": m.content["arrays"], "metrics": MetricRecord(known())}) for p in (1, 2)}
    nodes[0] = lambda m: RecordDict({"arrays": m.content["arrays"], "metrics": MetricRecord(metrics)})
    recorder = Recorder()
    fedtu = FedTU(build("fedavg"), listener=recorder, options=Options(numbers=NUMBERS))
    fedtu.start(MemoryGrid(nodes), adapter(noise("s")), num_rounds=1)
    replies = recorder.of("reply")
    assert [e[1] for e in replies if not e[2]] == [0] and reason in replies[0][3]


def test_unknown_numbers_are_dropped_and_what_one_does_not_tell_none_does():
    told = {0: known(id=1.0, round=7.0, surprise=3.0, **{"train-steps": None}), 1: known(), 2: known(seconds=1e9)}
    nodes = {
        p: lambda m, t=t: RecordDict({"arrays": m.content["arrays"], "metrics": MetricRecord(t)})
        for p, t in told.items()
    }
    recorder = Recorder()
    fedtu = FedTU(build("fedavg"), listener=recorder, options=Options(numbers=NUMBERS))
    fedtu.start(MemoryGrid(nodes), adapter(noise("s")), num_rounds=1)
    assert all(e[2] for e in recorder.of("reply"))
    assert recorder.of("round_completed")[0][2] == pytest.approx({"train-loss": 0.5, "train-seconds": 1.0})


def answer(client, values, weight):
    metrics = MetricRecord({"num-examples": weight, "loss": 0.5})
    asked = Message(RecordDict(), dst_node_id=1000 + client, message_type=message_keys.TRAIN)
    return ReplyCheck(client, Message(RecordDict({"arrays": adapter(values), "metrics": metrics}), reply_to=asked))


@pytest.mark.parametrize(
    ("kind", "shared", "shortened"), [("train", True, True), ("evaluate", True, False), ("unlearn", False, False)]
)
def test_weights_are_shared_where_replies_are_averaged_and_updates_shortened_in_training_alone(kind, shared, shortened):
    """Weights of 2, 2 and 12 with half at most, updates of 1, 1 and 30 with twice the median at most."""
    federation(1)
    asked = []

    def longest(*told):
        asked.append(told)
        return 40.0

    bounds = Bounds(longest=longest, max_weight_share=0.5, max_update_norm=2.0)
    verdicts = [answer(p, [3.0 + (30.0 if p == 2 else 1.0), 4.0], 12 if p == 2 else 2) for p in range(3)]
    found, cuts = bounds.apply(kind, verdicts, adapter([3.0, 4.0]), "arrays", "num-examples")
    assert [(cut.what, cut.reported, cut.used) for cut in cuts] == [
        *([("norm", 30.0, 2.0)] if shortened else []),
        *([("weight", 12.0, 4.0)] if shared else []),
    ]
    assert [flat(v.reply.content["arrays"])[0] for v in found] == [4, 4, 5 if shortened else 33]
    assert dict(found[2].reply.content["metrics"]) == {"num-examples": 4.0 if shared else 12, "loss": 0.5}
    assert asked == [(kind, p, 5.0) for p in range(3)], "by the length of the model that was sent"


def test_no_update_need_be_longer_than_the_median():
    assert Bounds(max_update_norm=1.0).max_update_norm == 1
