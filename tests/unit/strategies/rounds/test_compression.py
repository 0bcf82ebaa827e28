"""Compressed updates by their definitions: bounds, unbiasedness, what is kept, what adds up, what cannot be read."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from support.fedtu_clients import Recorder, adapter, flat, request

from strategies import message_keys
from strategies.replies import LONGEST_REASON
from strategies.rounds.compression import METHODS, Compression, largest, quantised, restored
from strategies.rounds.fedtu import FedTU, Options, RequestList
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rules.factory import build
from strategies.secure.agreed_parameters import SecureSettings


def rng(seed=0):
    return np.random.default_rng(seed)


def vector(size=1000, seed=0, scale=1.0):
    return (scale * rng(seed).normal(size=size)).astype(np.float32)


@pytest.mark.parametrize("size", [1, 7, 256, 257, 1000])
def test_int8_is_off_by_less_than_a_127th_of_the_largest_of_its_block(size):
    values = rng(1).normal(size=size) * rng(2).lognormal(sigma=3, size=size)
    codes, scales = quantised(values, 256, rng(3))
    found = restored(codes, scales, 256, size)
    for start in range(0, size, 256):
        part = slice(start, start + 256)
        step = np.abs(values[part]).max() / 127
        assert np.abs(found[part] - values[part]).max() < step * (1 + 1e-6)
        assert step <= scales[start // 256] <= step * (1 + 2e-7)


def test_int8_is_unbiased():
    """The mean of many roundings lies within five standard errors of each value; none deviates by more than s/2."""
    values = np.append(rng(4).normal(size=300), [0.0, 1e-12, -1e-12])
    draws, generator = 4000, rng(5)
    total = np.zeros(values.size)
    for _ in range(draws):
        codes, scales = quantised(values, 64, generator)
        total += restored(codes, scales, 64, values.size)
    step = np.repeat(scales.astype(float), 64)[: values.size]
    assert (np.abs(total / draws - values) <= 5 * 0.5 * step / np.sqrt(draws)).all()


@pytest.mark.parametrize(
    "values", [np.zeros(10), np.full(10, -3.5), np.array([1e-46, -1e-46]), np.array([127.0, -127.0, 1])]
)
def test_int8_of_what_it_can_say_is_exact(values):
    codes, scales = quantised(values, 8, rng())
    np.testing.assert_allclose(restored(codes, scales, 8, values.size), values, rtol=2e-7, atol=2e-45)


@pytest.mark.parametrize("keep", [1e-9, 0.1, 0.5, 0.999, 1.0])
def test_topk_keeps_the_largest(keep):
    values = rng(6).normal(size=101)
    mask = largest(values, keep)
    count = max(1, round(keep * 101))
    assert mask.sum() == count
    assert set(np.flatnonzero(mask)) == set(np.argsort(-np.abs(values), kind="stable")[:count])


def test_of_equal_ones_topk_keeps_the_first():
    assert np.flatnonzero(largest(np.array([1.0, -2.0, 2.0, 2.0, 0.0]), 0.4)).tolist() == [1, 2]
    assert np.flatnonzero(largest(np.zeros(5), 0.4)).tolist() == [0, 1]


@pytest.mark.parametrize("method", METHODS)
def test_the_server_reads_the_model_that_the_client_says_it_sent(method):
    how, before, after = Compression(method, 0.2, 64), vector(seed=1), vector(seed=2)
    sent = how.sent("adapter", before, after, None, rng())
    read = flat(how.read(adapter(before), sent.record))
    assert read.dtype == np.float32 and np.array_equal(read, sent.model)
    np.testing.assert_allclose(sent.rest, after.astype(float) - sent.model, atol=1e-6)


@pytest.mark.parametrize("method", ["topk", "none"])
def test_all_of_the_numbers_are_the_model_itself(method):
    how, before, after = Compression(method, 1.0), vector(seed=1), vector(seed=2)
    sent = how.sent("adapter", before, after, None, rng())
    assert list(sent.record) == ["adapter"] and np.array_equal(flat(sent.record), after)
    assert np.array_equal(sent.model, after) and not sent.rest.any()


@pytest.mark.parametrize("method", ["int8", "topk", "topk_int8"])
def test_error_feedback_sums_to_the_whole(method):
    """Σ C(x_t) = Σ Δ_t − e_{T+1}: nothing is lost, only late."""
    how, generator = Compression(method, 0.05, 32), rng(7)
    kept, told, learned = None, np.zeros(500), np.zeros(500)
    for step in range(30):
        before = vector(500, seed=100 + step)
        after = before + vector(500, seed=200 + step, scale=0.1)
        sent = how.sent("adapter", before, after, kept, generator)
        told += sent.model.astype(float) - before
        learned += after.astype(float) - before
        kept = sent.rest
    np.testing.assert_allclose(told + kept, learned, atol=2e-5)
    without = how.sent("adapter", before, after, None, rng()).model
    assert method == "int8" or np.linalg.norm(sent.model - without) > 0.1, "what was kept back is sent later"


def test_what_is_kept_back_of_topk_stays_bounded():
    """‖e‖ ≤ √(1−δ) (‖e‖ + ‖Δ‖) with δ = keep at each step (Stich et al. 2018): at most √(1−δ)/(1−√(1−δ)) ‖Δ‖."""
    how, kept, rate = Compression("topk", 0.25), None, np.sqrt(0.75)
    for step in range(60):
        update = vector(400, seed=step)
        kept = how.sent("adapter", np.zeros(400, np.float32), update, kept, rng()).rest
    assert np.linalg.norm(kept) <= rate / (1 - rate) * 1.2 * np.sqrt(400)


@pytest.mark.parametrize(("method", "share"), [("int8", 0.254), ("topk", 0.1313), ("topk_int8", 0.0567)])
def test_bytes_on_the_wire(method, share):
    """int8: 1 + 4/256 bytes a number; topk: a bit and 0.1 · 4 bytes; both: a bit and 0.1 · (1 + 4/256) bytes; of 4."""
    size = 256_000
    sent = Compression(method, 0.1, 256).sent("adapter", np.zeros(size, np.float32), vector(size), None, rng())
    packed, whole = (sum(len(a.data) for a in r.values()) for r in (sent.record, adapter(vector(size))))
    assert packed / whole == pytest.approx(share, abs=2e-3)


@pytest.mark.parametrize("change", [{"method": "zip"}, {"keep": 0.0}, {"keep": 1.1}, {"block": 0}])
def test_values_out_of_range_are_refused(change):
    with pytest.raises(ValueError, match=r"expected"):
        Compression(**change)


def test_an_update_that_is_not_finite_is_refused_before_it_leaves():
    with pytest.raises(ValueError, match="not finite"):
        Compression("int8").sent("adapter", vector(4), np.array([1, np.nan, 1, 1], np.float32), None, rng())


def good(method):
    how = Compression(method, 0.1, 64)
    return how, dict(how.sent("adapter", vector(), vector(seed=9), None, rng()).record)


@pytest.mark.parametrize(
    ("method", "part", "array", "reason"),
    [
        ("int8", "codes", np.zeros(999, np.int8), "codes of int8 for 1000 numbers"),
        ("int8", "codes", np.zeros(1000, np.int16), "codes of int16"),
        ("int8", "scales", np.zeros(3, np.float32), "scales of float32 for 1000 numbers"),
        ("int8", "scales", np.zeros(16, np.float64), "scales of float64"),
        ("int8", "extra", np.zeros(3), "are no update by int8"),
        ("topk", "mask", np.zeros(124, np.uint8), "no bit for each of 1000 numbers"),
        ("topk", "mask", np.zeros(125, np.int8), "no bit for each"),
        ("topk", "values", np.zeros(99, np.float32), "values of float32 for 100 numbers"),
        ("topk", "values", np.zeros(100, np.float64), "values of float64"),
        ("topk_int8", "codes", np.zeros(1000, np.int8), "codes of int8 for 100 numbers"),
    ],
)
def test_what_is_no_update_cannot_be_read(method, part, array, reason):
    how, arrays = good(method)
    record = ArrayRecord({**arrays, part: Array(array)})
    with pytest.raises(ValueError, match=reason):
        how.read(adapter(vector()), record)


def test_a_mask_beyond_the_end_cannot_be_read():
    how = Compression("topk", 0.1)
    record = ArrayRecord({"mask": Array(np.full(2, 255, np.uint8)), "values": Array(np.zeros(16, np.float32))})
    with pytest.raises(ValueError, match="more than 12 numbers"):
        how.read(adapter(np.zeros(12)), record)


# -- in the exchanges ------------------------------------------------------------------------------------------------


def run(answer, compression, clients=3):
    recorder = Recorder()
    fedtu = FedTU(build("fedavg"), listener=recorder, options=Options(compression=compression))
    grid = MemoryGrid({p: (lambda m, p=p: answer(p, m)) for p in range(clients)})
    return flat(fedtu.start(grid, adapter(vector()), num_rounds=1).arrays), recorder


@pytest.mark.parametrize("method", ["int8", "topk", "topk_int8"])
def test_the_server_averages_what_it_reads(method):
    how, models = Compression(method, 0.1, 64), {}

    def answer(partition, message):
        received = flat(message.content["arrays"])
        sent = how.sent("adapter", received, received + vector(seed=partition), None, rng(partition))
        models[partition] = sent.model
        return RecordDict({"arrays": sent.record, "metrics": MetricRecord({"num-examples": partition + 1})})

    new, recorder = run(answer, how)
    assert all(ok for _, _, ok, _ in recorder.of("reply"))
    expected = sum((p + 1) / 6 * models[p].astype(float) for p in range(3))
    np.testing.assert_array_equal(new, expected.astype(np.float32))


def test_a_client_that_sends_its_whole_model_is_understood_and_one_that_sends_rubbish_left_out():
    def answer(partition, message):
        record = adapter(flat(message.content["arrays"])) if partition else ArrayRecord({"codes": Array(np.zeros(3))})
        return RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 1})})

    new, recorder = run(answer, Compression("int8"))
    assert np.array_equal(new, vector())
    replies = {node: (ok, why) for _, node, ok, why in recorder.of("reply")}
    assert replies[0] == (False, "its update cannot be read: arrays codes are no update by int8")
    assert replies[1][0] and replies[2][0]


def test_the_reason_why_an_answer_cannot_be_read_is_cleaned_and_short():
    name = "\x1b]0;owned\x07\x1b[2J" + "x" * 200_000

    def answer(partition, message):
        record = adapter(flat(message.content["arrays"])) if partition else ArrayRecord({name: Array(np.zeros(3))})
        return RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 1})})

    _, recorder = run(answer, Compression("int8"))
    ((_, _, _, reason),) = [event for event in recorder.of("reply") if not event[2]]
    assert reason.startswith("its update cannot be read: arrays x") and reason.isprintable()
    assert len(reason) <= LONGEST_REASON


def exchanges_with_requests(fedtu, sent, start_round=1, rounds=4):
    """`UNLEARNED_ROUND` in the messages to train of each round; client 0 asks in round 2."""

    def node(partition):
        def respond(message):
            if message.metadata.message_type == message_keys.TRAIN:
                config = message.content["config"]
                sent[config["server-round"]] = config.get(message_keys.UNLEARNED_ROUND)
            return RecordDict({"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})})

        return respond

    fedtu.start(MemoryGrid({p: node(p) for p in range(2)}), adapter(vector()), rounds, start_round=start_round)


def waiting_fedtu(compression, due=2):
    requests = RequestList([(due, request(0))])
    recorder = Recorder()
    return FedTU(
        build("fedavg"), requests=requests, listener=recorder, options=Options(compression=compression)
    ), recorder


def test_clients_are_told_when_something_was_unlearned_last_also_after_a_resume():
    sent, again, unknown, whole = {}, {}, {}, {}
    fedtu, recorder = waiting_fedtu(Compression("topk"))
    exchanges_with_requests(fedtu, sent)
    assert sent == {1: 1, 2: 2, 3: 2, 4: 2}
    _, state = recorder.checkpoints[2, "round"]
    resumed, _ = waiting_fedtu(Compression("topk"), due=9)
    resumed.load_state_dict(state)
    exchanges_with_requests(resumed, again, start_round=3)
    assert again == {3: 2, 4: 2}
    older, _ = waiting_fedtu(Compression("topk"), due=9)
    exchanges_with_requests(older, unknown, start_round=3)
    assert unknown == {3: 3, 4: 3}, "where no state says it nothing from before counts"
    plain, recorder = waiting_fedtu(None)
    exchanges_with_requests(plain, whole)
    assert set(whole.values()) == {None}
    assert not any("unlearned" in name for name in recorder.checkpoints[4, "round"][1])


@pytest.mark.parametrize(("method", "keep"), [("topk", 0.3), ("topk", 0.01), ("topk_int8", 0.1), ("int8", 1.0)])
def test_no_update_with_error_feedback_is_longer_than_the_bound(method, keep):
    """The worst: every number moves by 1 in each exchange. Against it honest noise, and steps that change sign."""
    size, how = 1000, Compression(method, keep, 64)
    steady = np.ones(size, np.float32)
    longest = 0.0
    for steps in ("steady", "noise", "late"):
        kept = None
        for at in range(250):
            update = {"steady": steady, "noise": rng(at).uniform(-1, 1, size), "late": steady * (at % 120 > 5)}[steps]
            sent = how.sent("adapter", np.zeros(size, np.float32), update.astype(np.float32), kept, rng(at))
            kept, longest = sent.rest, max(longest, float(np.linalg.norm(sent.model)))
    assert longest <= how.longest(size) * np.sqrt(size) * (1 + 1e-6)
    assert longest > 0.8 * how.longest(size) * np.sqrt(size), "the bound can be about reached"
    assert Compression("topk", 1.0).longest(size) == Compression().longest(size) == 1.0


def test_masks_and_compression_exclude_each_other():
    with pytest.raises(ValueError, match="no sum under masks"):
        Options(compression=Compression("int8"), secure=SecureSettings(clipping=1.0))


@pytest.mark.parametrize(
    ("method", "keep", "whole"),
    [("none", 0.1, True), ("topk", 1, True), ("topk", 0.9, False), ("topk_int8", 1, False), ("int8", 1, False)],
)
def test_models_travel_whole_where_nothing_is_left_out_or_rounded(method, keep, whole):
    assert Compression(method, keep).whole is whole


def test_bounds_of_what_error_feedback_makes_longer_by_hand():
    """int8 sends all numbers, whatever `keep` is; of 10 numbers 3 are sent, all in 4 exchanges."""
    assert Compression("int8", 0.1).longest(1000) == pytest.approx(127 / 126)
    assert Compression("topk", 0.3).longest(10) == pytest.approx(np.sqrt(0.3) * 4)
    assert Compression("topk_int8", 0.3).longest(10) == pytest.approx(np.sqrt(0.3) * 4 * 127 / 126)
    assert Compression("topk", 0.01).longest(10) == pytest.approx(np.sqrt(0.1) * 10), "one number at least"


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("method", ["int8", "topk", "topk_int8"])
def test_neither_infinite_numbers_nor_none_leave_a_client(method, value):
    after = np.array([1.0, value, 2.0], dtype=np.float32)
    with pytest.raises(ValueError, match="the update is not finite"):
        Compression(method).sent("adapter", np.zeros(3, np.float32), after, None, rng())


@pytest.mark.parametrize("count", [1, 3])
def test_as_many_values_as_the_mask_names_are_read(count):
    """Two bits are set; one value, or three, are no answer."""
    mask = np.packbits(np.array([1, 0, 1, 0], dtype=bool))
    values = np.ones(count, np.float32)
    answer = ArrayRecord({"mask": Array(mask), "values": Array(values)})
    with pytest.raises(ValueError, match=r"values of float32 for 2 numbers"):
        Compression("topk").read(adapter(np.zeros(4)), answer)
