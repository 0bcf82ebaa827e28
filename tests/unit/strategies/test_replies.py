"""Bad, missing and contradictory replies: none reaches a model, none stops a run without need."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.exception import AggregationError
from support.fedtu_clients import (
    SIZE,
    Recorder,
    adapter,
    content,
    federation,
    flat,
    honest,
    inners,
    label,
    noise,
    request,
)

from strategies import message_keys, metric_schema
from strategies.replies import answers, judge, metrics_of
from strategies.rounds.fedtu import FedTU, Options, RequestList
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rules.factory import build


def broken(kind: str):
    """A client whose reply has one fault."""

    def answer(message: Message):
        good = content(flat(message.content["arrays"]) + 1000, train_loss=0.0)
        values = flat(good["arrays"])
        metrics = good["metrics"]
        match kind:
            case "error":
                return Error(code=2, reason="cannot")
            case "unavailable":
                return Error(code=5)
            case "silent":
                return None
            case "empty":
                return RecordDict()
            case "no arrays":
                del good["arrays"]
            case "renamed record":
                good["weights"] = good.array_records["arrays"]
                del good["arrays"]
            case "two records":
                good["more"] = adapter([1])
            case "missing array":
                good["arrays"] = ArrayRecord()
            case "extra array":
                good["arrays"]["more"] = Array(values)
            case "renamed array":
                good["arrays"] = ArrayRecord({"other": Array(values)})
            case "shape":
                good["arrays"] = adapter(values[:-1])
            case "reshaped":
                good["arrays"] = adapter(values.reshape(2, -1))
            case "dtype":
                good["arrays"] = ArrayRecord({"adapter": Array(values.astype(np.float64))})
            case "nan" | "inf" | "-inf":
                values[-1] = float(kind)
                good["arrays"] = adapter(values)
            case "garbage":
                good["arrays"] = ArrayRecord({"adapter": Array("float32", (SIZE,), "numpy.ndarray", b"garbage")})
            case "no metrics":
                del good["metrics"]
            case "two metric records":
                good["more"] = MetricRecord({"num-examples": 1})
            case "no weight":
                del metrics["num-examples"]
            case "zero weight":
                metrics["num-examples"] = 0
            case "negative weight":
                metrics["num-examples"] = -3
            case "list weight":
                metrics["num-examples"] = [1, 2]
            case "nan weight":
                metrics["num-examples"] = float("nan")
            case "inf metric":
                metrics["train_loss"] = float("inf")
            case "nan in list metric":
                metrics["train_loss"] = [0.0, float("nan")]
            case "other metrics":
                metrics["surprise"] = 1.0
            case "list metric":
                metrics["train_loss"] = [0.0, 1.0]
            case "foreign":
                metrics["partition-id"] = 4711
            case _:
                raise AssertionError(kind)
        return good

    return answer


FAULTS = {
    "error": "error 2: cannot",
    "unavailable": "error 5",
    "silent": "no reply within 60 s",
    "empty": "expected one ArrayRecord 'arrays', got none",
    "no arrays": "got none",
    "renamed record": "got ['weights']",
    "two records": "got ['arrays', 'more']",
    "missing array": "missing ['adapter']",
    "extra array": "unknown ['more']",
    "renamed array": "missing ['adapter'], unknown ['other']",
    "shape": "shape (11,), expected (12,)",
    "reshaped": "shape (2, 6), expected (12,)",
    "dtype": "dtype float64, expected float32",
    "nan": "NaN or infinite",
    "inf": "NaN or infinite",
    "-inf": "NaN or infinite",
    "garbage": "cannot be read",
    "no metrics": "expected one MetricRecord, got 0",
    "two metric records": "expected one MetricRecord, got 2",
    "no weight": "'num-examples' is missing",
    "zero weight": "'num-examples' is 0",
    "negative weight": "'num-examples' is -3",
    "list weight": "'num-examples' is [1, 2]",
    "nan weight": "'num-examples' is nan",
    "inf metric": "'train_loss' is inf",
    "nan in list metric": "'train_loss' is [0.0, nan]",
    "other metrics": "differ from those of the other replies",
    "list metric": "differ from those of the other replies",
    "foreign": "signed by client 4711",
}


def expected_without(bad: set[int], count: int) -> np.ndarray:
    """FedAvg over the honest clients only."""
    start = noise("start").astype(np.float64)
    good = [p for p in range(count) if p not in bad]
    total = sum(p + 1 for p in good)
    return sum((p + 1) / total * (start.astype(np.float32) + noise(p, 1)).astype(np.float64) for p in good)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_bad_training_reply_is_left_out(kind):
    grid, recorder = federation(4), Recorder()
    grid.nodes[2] = broken(kind)
    result = FedTU(build("fedavg"), listener=recorder).start(grid, adapter(noise("start")), num_rounds=1, timeout=60)
    np.testing.assert_allclose(flat(result.arrays), expected_without({2}, 4), rtol=1e-6, atol=1e-7)
    replies = recorder.of("reply")
    assert [e[1:3] for e in replies] == [(0, True), (1, True), (2, False), (3, True)]
    assert FAULTS[kind] in replies[2][3]
    assert recorder.of("exchange_ended") == [("exchange_ended", "train", 3, 1)]


def test_many_faults_at_once():
    kinds = list(FAULTS)
    grid, recorder = federation(len(kinds) + 3), Recorder()
    for p, kind in enumerate(kinds):
        grid.nodes[p] = broken(kind)
    result = FedTU(build("fedavg"), listener=recorder).start(grid, adapter(noise("start")), num_rounds=1, timeout=60)
    bad = set(range(len(kinds)))
    np.testing.assert_allclose(flat(result.arrays), expected_without(bad, len(kinds) + 3), rtol=1e-6, atol=1e-6)
    reasons = {e[1]: e[3] for e in recorder.of("reply") if not e[2]}
    assert reasons.keys() == bad
    assert all(FAULTS[kind] in reasons[p] for p, kind in enumerate(kinds))


@pytest.mark.parametrize("inner", inners(), ids=label)
def test_a_round_without_valid_replies_changes_nothing(inner):
    """Not the model, not the moments, and not the rounds that follow."""

    def run(bad_round: int | None) -> tuple[list[np.ndarray], Recorder]:
        recorder, models = Recorder(), []
        grid = federation(3)
        for p in grid.nodes:
            good, bad = honest(p), broken("nan")

            def answer(message, good=good, bad=bad):
                round_ = message.content["config"]["server-round"]
                return bad(message) if round_ == bad_round else good(message)

            grid.nodes[p] = answer
        inner_ = next(i for i in inners() if label(i) == label(inner))
        fedtu = FedTU(inner_, listener=recorder)
        fedtu.start(grid, adapter(noise("start")), 3, evaluate_fn=lambda r, a: models.append(flat(a).copy()))
        return models, recorder

    models, recorder = run(bad_round=2)
    assert np.array_equal(models[2], models[1])
    assert not np.array_equal(models[3], models[2])
    before, after = recorder.checkpoints[1, "round"][1], recorder.checkpoints[2, "round"][1]
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[k], after[k]) for k in before)
    assert recorder.of("round_completed")[1] == ("round_completed", 2, {})


@pytest.mark.parametrize("kind", [k for k in FAULTS if k not in ("other metrics", "list metric")])
def test_a_bad_unlearning_reply_leaves_the_request_pending(kind):
    """The model of the round starts where it was; a later good reply serves the request."""
    grid, recorder = federation(2), Recorder()
    good, bad = honest(1), broken(kind)

    def answer(message):
        first = message.metadata.message_type == message_keys.UNLEARN and message.content["config"]["server-round"] < 3
        return bad(message) if first else good(message)

    grid.nodes[1] = answer
    requests = RequestList([(1, request(1))])
    FedTU(build("fedavg"), requests=requests, listener=recorder).start(grid, adapter(noise("start")), 4, timeout=60)
    assert requests.attempts == {"r1": 2}
    assert FAULTS[kind] in requests.reasons["r1"]
    assert requests.served_in == {"r1": 3}
    assert [k for k in recorder.checkpoints if k[1] == "after_unlearn"] == [(3, "after_unlearn")]
    sent = [flat(c["arrays"]) for k, _, c in grid.log if k == "train" and c["config"]["server-round"] == 1]
    assert all(np.array_equal(s, noise("start")) for s in sent)


def test_of_several_requests_only_the_failed_stay():
    grid, recorder = federation(3), Recorder()
    grid.nodes[0] = broken("nan")
    grid.nodes[2] = honest(2, unlearned=noise("two"))
    requests = RequestList([(1, request(0)), (1, request(2)), (1, request(9))])
    FedTU(build("fedavg"), requests=requests, listener=recorder).start(grid, adapter(noise("start")), num_rounds=1)
    assert requests.served_in == {"r2": 1}
    assert requests.reasons.keys() == {"r0", "r9"}
    assert requests.reasons["r9"] == "not connected"
    assert np.array_equal(recorder.checkpoints[1, "after_unlearn"][0], noise("two"))


def test_extra_rounds_while_requests_are_pending():
    def run(extra: int, serve_in: int) -> tuple[int, RequestList]:
        grid, recorder = federation(2), Recorder()
        good = honest(1)
        grid.nodes[1] = lambda m: (
            Error(code=2)
            if m.metadata.message_type == message_keys.UNLEARN and m.content["config"]["server-round"] < serve_in
            else good(m)
        )
        requests = RequestList([(1, request(1))])
        FedTU(build("fedavg"), requests=requests, listener=recorder, options=Options(extra_rounds=extra)).start(
            grid, adapter(noise("start")), num_rounds=2
        )
        return len(recorder.of("round_completed")), requests

    assert run(extra=0, serve_in=4)[0] == 2
    rounds, requests = run(extra=5, serve_in=4)
    assert (rounds, requests.served_in) == (4, {"r1": 4})
    rounds, requests = run(extra=5, serve_in=99)
    assert (rounds, requests.served_in) == (7, {})


@pytest.mark.parametrize("message_type", [message_keys.TRAIN, message_keys.UNLEARN])
def test_a_client_that_says_that_a_worker_died_is_left_out(message_type):
    grid, recorder = federation(3), Recorder()
    good = honest(1)
    dead = Error(code=0, reason="<class 'ray.exceptions.ActorDiedError'>")
    grid.nodes[1] = lambda m: dead if m.metadata.message_type == message_type else good(m)
    requests = RequestList([(1, request(1))])
    fedtu = FedTU(build("fedavg"), requests=requests, listener=recorder)
    fedtu.start(grid, adapter(noise("start")), num_rounds=2)
    assert len(recorder.of("round_completed")) == 2
    assert {e[1]: e[3] for e in recorder.of("reply") if not e[2]} == {1: f"error 0: {dead.reason}"}


def test_a_diverged_aggregate_ends_the_run():
    class Diverging(flower.FedAvg):
        def aggregate_train(self, server_round, replies):
            _, metrics = super().aggregate_train(server_round, replies)
            return adapter(np.full(SIZE, np.nan)), metrics

    with pytest.raises(AggregationError, match=r"round 1: .*not finite"):
        FedTU(Diverging()).start(federation(2), adapter(np.zeros(SIZE)), num_rounds=1)


@pytest.mark.parametrize(
    ("odd", "accepted"), [({4}, {0, 1, 2, 3}), ({0}, {1, 2, 3, 4}), ({0, 1, 2}, {0, 1, 2}), ({0, 4}, {1, 2, 3})]
)
def test_the_metrics_of_most_replies_count(odd, accepted):
    grid, recorder = federation(5), Recorder()
    for p in odd:
        grid.nodes[p] = broken("other metrics")
    FedTU(build("fedavg"), listener=recorder).start(grid, adapter(noise("start")), num_rounds=1)
    assert {e[1] for e in recorder.of("reply") if e[2]} == accepted


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (None, "error 2"),
        ("", "error 2"),
        ("out of memory", "error 2: out of memory"),
        ("two\nlines\n", "error 2: two; lines"),
        (
            "\x1b[36mray::run\x1b[39m\nTraceback (most recent call last):\n  x\nValueError: b\n\n",
            "error 2: ValueError: b",
        ),
        ("ray.exceptions.RayTaskError: ray::run()\n  x\nKeyError: 'c'", "error 2: KeyError: 'c'"),
        ("x" * 5000, "error 2: " + "x" * 499 + "…"),
    ],
)
def test_error_reasons_fit_into_one_line(reason, expected):
    grid, recorder = federation(2), Recorder()
    grid.nodes[1] = lambda m: Error(code=2, reason=reason)
    FedTU(build("fedavg"), listener=recorder).start(grid, adapter(noise("start")), num_rounds=1)
    assert recorder.of("reply")[1][3] == expected


def test_a_tie_of_metrics_goes_to_the_lowest_partition():
    for odd in (0, 1):
        grid, recorder = federation(2), Recorder()
        grid.nodes[odd] = broken("other metrics")
        FedTU(build("fedavg"), listener=recorder).start(grid, adapter(noise("start")), num_rounds=1)
        assert [e[1:3] for e in recorder.of("reply")] == [(0, True), (1, False)]


def test_the_first_of_two_answers_counts_and_foreign_ones_do_not():
    grid = MemoryGrid({p: lambda m: content([9.0]) for p in range(2)})
    messages = [Message(content([float(p)]), dst_node_id=1000 + p, message_type="train") for p in range(2)]
    replies = grid.send_and_receive(messages)
    again = Message(content([7.0]), reply_to=messages[0])
    stranger = Message(content([8.0]), dst_node_id=1000, message_type="train")
    matched = answers(messages, [stranger, *replies, again])
    assert [(m, r) for m, r in matched] == list(zip(messages, replies, strict=True))
    assert answers(messages, [stranger, again]) == [(messages[0], again), (messages[1], None)]


def test_of_two_that_a_sender_says_to_no_message_here_the_first_counts():
    """Then the sender alone tells whose they are."""
    grid = MemoryGrid({p: lambda m: content([9.0]) for p in range(2)})
    asked, before = ([Message(content([0.0]), dst_node_id=1000, message_type="train")] for _ in range(2))
    grid.send_and_receive(asked)
    grid.send_and_receive(before)
    first, second = (Message(content([value]), reply_to=before[0]) for value in (1.0, 2.0))
    assert answers(asked, [first, second]) == [(asked[0], first)]
    assert answers(asked, [second, first]) == [(asked[0], second)]


def test_nobody_answers_for_another():
    grid = MemoryGrid({p: lambda m: content([9.0]) for p in range(2)})
    messages = [Message(content([float(p)]), dst_node_id=1000 + p, message_type="train") for p in range(2)]
    replies = grid.send_and_receive(messages)
    forged = Message(content([7.0]), reply_to=messages[1])
    forged.metadata.__dict__["_src_node_id"] = 1000
    lost = Message(Error(code=5), reply_to=messages[1])
    lost.metadata.__dict__["_src_node_id"] = 1
    assert answers(messages, [forged, *replies]) == list(zip(messages, replies, strict=True))
    assert answers(messages, [forged, replies[0]]) == [(messages[0], replies[0]), (messages[1], None)]
    assert answers(messages, [replies[0], lost]) == [(messages[0], replies[0]), (messages[1], lost)]
    forged.metadata.__dict__["_src_node_id"] = 1  # the SuperLink answers with errors alone
    assert answers(messages, [replies[0], forged]) == [(messages[0], replies[0]), (messages[1], None)]


def test_what_a_client_says_is_one_plain_line():
    hostile = (
        "\x1b]0;title\x07\x1b[31mred\x1b[0m \x9b2J\x1bPq\x1b\\ a\tb\r\x00\x85\u2028\u202eevil\ud800" + "x" * 2_000_000
    )
    grid, recorder = federation(2), Recorder()
    grid.nodes[1] = lambda m: Error(code=2, reason=hostile)
    FedTU(build("fedavg"), listener=recorder).start(grid, adapter(noise("start")), num_rounds=1)
    reason = recorder.of("reply")[1][3]
    assert reason.isprintable() and len(reason) <= 520
    metrics = MetricRecord({"num-examples": 1, hostile[:3000]: float("nan")})
    grid.nodes[1] = lambda m: RecordDict({"arrays": m.content["arrays"], "metrics": metrics})
    FedTU(build("fedavg"), listener=recorder).start(grid, adapter(noise("start")), num_rounds=1)
    assert recorder.of("reply")[-1][3].isprintable() and len(recorder.of("reply")[-1][3]) <= 520


def test_no_client_says_that_another_one_failed():
    """Flower's own errors come from the SuperLink, or from the node itself."""
    grid = MemoryGrid({p: lambda m: content([9.0]) for p in range(2)})
    messages = [Message(content([float(p)]), dst_node_id=1000 + p, message_type="train") for p in range(2)]
    replies = grid.send_and_receive(messages)
    for sender, believed in ((1, True), (1001, True), (1000, False)):
        error = Message(Error(code=5), reply_to=messages[1])
        error.metadata.__dict__["_src_node_id"] = sender
        found = answers(messages, [error, *replies])
        assert found == [(messages[0], replies[0]), (messages[1], error if believed else replies[1])]


@pytest.mark.parametrize("lengths", [(2, 2, 3), (3, 2, 3)])
def test_lists_of_another_length_than_most_are_other_metrics(lengths):
    grid, recorder = federation(3), Recorder()
    for p, length in enumerate(lengths):
        grid.nodes[p] = lambda m, p=p, length=length: content(flat(m.content["arrays"]), losses=[0.5] * length)
    FedTU(build("fedavg"), listener=recorder).start(grid, adapter(noise("start")), num_rounds=1)
    odd = 2 if lengths[1] == lengths[0] else 1
    assert [event[1] for event in recorder.of("reply") if not event[2]] == [odd]


def test_a_record_of_another_name_than_that_of_most_is_another_layout():
    grid, recorder = federation(3), Recorder()
    for p in range(3):
        name = "mine" if p == 1 else "metrics"
        grid.nodes[p] = lambda m, name=name: RecordDict(
            {"arrays": m.content["arrays"], name: MetricRecord({"num-examples": 2})}
        )
    FedTU(build("fedavg"), listener=recorder).start(grid, adapter(noise("start")), num_rounds=1)
    assert [event[1] for event in recorder.of("reply") if not event[2]] == [1]


@pytest.mark.parametrize("same", [True, False])
def test_a_number_that_one_reply_lacks_is_dropped_where_replies_are_averaged_alone(same):
    """The replies to an unlearning are each for themselves: what one does not tell is no loss to the others."""
    grid = MemoryGrid({p: lambda m: content([9.0]) for p in range(2)})
    asked = [Message(content([0.0]), dst_node_id=1000 + p, message_type="train") for p in range(2)]
    grid.send_and_receive(asked)
    more = {"unlearn-steps": 3, "unknown": 7}
    replies = [Message(content([1.0], **extra), reply_to=m) for m, extra in zip(asked, (more, {}), strict=True)]
    found = judge(enumerate(replies), reference=None, same_metrics=same, numbers=metric_schema.UNLEARN)
    first, second = (metrics_of(v.reply).keys() for v in found if v.reply is not None)
    assert first - second == (set() if same else {"unlearn-steps"}) and "num-examples" in second
