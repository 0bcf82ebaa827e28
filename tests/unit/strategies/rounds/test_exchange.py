"""What an exchange sends, how long it waits, and what it makes of answers and of a secure sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from support.fedtu_clients import Recorder, adapter, federation, flat, noise, request

from strategies import message_keys
from strategies.metric_schema import Number
from strategies.replies import ReplyCheck
from strategies.rounds.callbacks import Listener
from strategies.rounds.collection import AllAtOnce
from strategies.rounds.compression import Compression
from strategies.rounds.exchange import Exchange, Keys
from strategies.rounds.fedtu import FedTU, RequestList
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rounds.nodes import NodeMap
from strategies.secure.agreed_parameters import SecureSettings
from strategies.secure.masking import Masking
from strategies.secure.secure_exchange import SecureExchange
from strategies.secure.server import Summed


def exchange(grid, listener=None, **policies) -> Exchange:
    nodes = NodeMap()
    return Exchange(
        grid=grid,
        nodes=nodes,
        listener=listener or Listener(),
        keys=Keys("arrays", "config", "num-examples"),
        stage="tune",
        seed=9,
        timeout=7.0,
        **{"collection": AllAtOnce(grid=grid, client_of=nodes.client_of), **policies},
    )


class Known(Masking):
    """Whose next sum is known beforehand."""

    sums = True

    def __init__(self, summed: Summed) -> None:
        self.summed = summed

    def sum_up(self, *_: Any, **__: Any) -> Summed:
        return self.summed


@pytest.mark.parametrize(
    ("summed", "together"),
    [
        (Summed(update=np.array([2.0, 4.0]), weight=2, survivors=(1, 2), left_out={3: "late"}), [2.0, 3.0]),
        (Summed(update=np.array([0.0, 0.0]), weight=0, survivors=(1, 2), left_out={3: "late"}), None),
        (Summed(fault="too few", left_out={3: "late"}), None),
    ],
)
def test_a_sum_of_no_weight_is_no_answer_as_one_that_failed(summed, together):
    held = exchange(MemoryGrid({}), masking=Known(summed))
    message = Message(RecordDict(), dst_node_id=1000, message_type="train")
    *good, lost = held.hold("train", 1, [message], adapter([1.0, 1.0]))
    assert (lost.partition, lost.reply, lost.reason) == (3, None, "late")
    if together is None:
        assert good == []
    else:
        (verdict,) = good
        assert verdict.partition == message_keys.TOGETHER
        assert verdict.reply.content["arrays"]["adapter"].numpy().tolist() == together
        assert verdict.reply.content["metrics"]["num-examples"] == 2.0


def test_records_and_weights_have_the_names_that_the_strategy_gives_them():
    """In both exchanges, and in what is merged: two clients forget, of one and of three records."""
    start, grid = noise("start"), MemoryGrid({}, keep_log=True)

    def client(p):
        def answer(message):
            unlearning = message.metadata.message_type == message_keys.UNLEARN
            values = noise("unlearned", p) if unlearning else flat(message.content["model"]) + p
            assert message.content["setup"]["stage"] == "train"
            return RecordDict({"model": adapter(values), "metrics": MetricRecord({"n": p + 1})})

        return answer

    for p in range(3):
        grid.nodes[p], grid.node_ids[p] = client(p), 1000 + p
    names = {"arrayrecord_key": "model", "configrecord_key": "setup", "weighted_by_key": "n"}
    inner = flower.FedAvg(min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0, **names)
    requests = RequestList([(1, request(1)), (1, request(2, 3))])
    result = FedTU(inner, requests=requests).start(grid, adapter(start), num_rounds=1)
    merged = start + ((noise("unlearned", 1) - start) + 3 * (noise("unlearned", 2) - start)) / 4
    np.testing.assert_allclose(flat(result.arrays), merged + (1 * 0 + 2 * 1 + 3 * 2) / 6, atol=1e-5)


class Timed(MemoryGrid):
    """Writes down how long is waited for which kind of message."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.waited = {}

    def send_and_receive(self, messages, *, timeout=None):
        self.waited.update({message.metadata.message_type: timeout for message in messages})
        return super().send_and_receive(messages, timeout=timeout)


def test_a_nudge_reaches_those_that_are_there_within_its_own_time():
    nodes = {p: lambda message: RecordDict() for p in range(3)} | {3: lambda message: None}
    grid = Timed(nodes | {2: lambda message: Error(code=1, reason="off")}, keep_log=True)
    assert exchange(grid).reach(4, [3, 2, 1, 0, 8], within=2.5) == {0, 1}
    assert grid.waited[message_keys.NUDGE] == 2.5
    asked = [(client, dict(content["config"])) for kind, client, content in grid.log if kind == message_keys.NUDGE]
    config = {"server-round": 4, "stage": "tune", "run-seed": 9}
    assert asked == [(client, config) for client in (3, 2, 1, 0)]


def test_training_again_has_its_own_settings_above_the_usual_ones():
    grid, recorder = federation(3), Recorder()
    held = exchange(grid, recorder)
    settings = {"epochs": 4, "server-round": 2, "stage": "calibrate/5/train"}
    verdicts = held.train_again(5, {"epochs": 1, "batch": 8}, [2, 7, 0], adapter(noise("model")), settings)
    assert [verdict.partition for verdict in verdicts] == [0, 2], "client 7 is not connected"
    assert all(verdict.reply is not None for verdict in verdicts)
    config = {"epochs": 4, "batch": 8, "server-round": 2, "stage": "calibrate/5/train", "run-seed": 9}
    sent = [(client, dict(content["config"])) for kind, client, content in grid.log if kind == message_keys.TRAIN]
    assert sent == [(2, config), (0, config)]
    assert recorder.events == [
        ("exchange_started", "calibrate", [0, 2]),
        ("reply", 0, True, ""),
        ("reply", 2, True, ""),
        ("exchange_ended", "calibrate", 2, 0),
    ]


@pytest.mark.parametrize(("kind", "judged"), [("train", False), ("calibrate", True), ("unlearn", True)])
def test_the_number_of_steps_is_asked_for_in_training_alone(kind, judged):
    """And of an unlearning the clients may measure different things."""
    grid = MemoryGrid({p: lambda m, p=p: answer(p) for p in range(2)})

    def answer(p):
        metrics = {"num-examples": 1, **({"more": 1.0} if p and kind == "unlearn" else {})}
        return RecordDict({"arrays": adapter([1.0]), "metrics": MetricRecord(metrics)})

    content = RecordDict({"arrays": adapter([0.0])})
    held = exchange(grid, needs_steps=True)
    held.nodes.refresh(grid)
    messages = [Message(content, dst_node_id=1000 + p, message_type=message_keys.TRAIN) for p in range(2)]
    verdicts = held.hold(kind, 1, messages, adapter([0.0]))
    assert [verdict.reply is not None for verdict in verdicts] == [judged] * 2


def messages_to(held: Exchange, *clients: int) -> list[Message]:
    held.nodes.refresh(held.grid)
    content = RecordDict({"arrays": adapter([0.0]), "config": held.config(1, {})})
    return [Message(content, dst_node_id=1000 + client, message_type=message_keys.EVALUATE) for client in clients]


def measured(**metrics) -> RecordDict:
    return RecordDict({"metrics": MetricRecord({"num-examples": 1, **metrics})})


def test_under_masks_too_an_answer_without_a_model_comes_by_itself():
    """And every answer is waited for as long as the stage says."""
    grid = Timed({p: lambda message: measured(loss=0.5) for p in range(2)})
    masked = SecureExchange(grid=grid, client_of=lambda message: 0, settings=SecureSettings(clipping=1.0))
    held = exchange(grid, masking=masked)
    verdicts = held.hold("evaluate", 1, messages_to(held, 1, 0), None)
    assert [(v.partition, v.reply is not None) for v in verdicts] == [(0, True), (1, True)]
    assert grid.waited[message_keys.EVALUATE] == 7.0


def test_numbers_are_those_of_the_kind_of_exchange_and_late_ones_come_in_their_place():
    grid = MemoryGrid({p: lambda message: measured(a=1.0, b=2.0) for p in range(4)})
    table = {"train": {"missing": Number(0, 1, required=True)}, "unlearn": {"num-examples": Number(0, 9), **A}}
    held = exchange(grid, numbers=table)
    (verdict,) = held.hold("unlearn", 1, messages_to(held, 3), None)
    assert verdict.reply is not None and dict(verdict.reply.content["metrics"]) == {"num-examples": 1, "a": 1.0}
    (verdict,) = held.hold("train", 1, messages_to(held, 3), None)
    assert verdict.reason == "metric 'missing' is missing"
    answer = Message(measured(), reply_to=messages_to(held, 2)[0])
    late = [ReplyCheck(3, None, "late", late=True), ReplyCheck(0, None, "late", late=True)]
    assert [v.partition for v in held.judged("unlearn", 1, [(2, answer)], None, late)] == [0, 2, 3]


A = {"a": Number(0, 1)}


def test_a_compressed_answer_is_read_beside_what_its_client_received():
    """Client 1 has a form of two numbers; its answer is that form, and then one of the global model."""

    class Short:
        sent, settings = adapter([1.0, 1.0]), {}

        def joined(self, answer):
            return adapter([*flat(answer), 9.0])

    how, rng = Compression("topk", 0.5), np.random.default_rng(0)
    held = exchange(MemoryGrid({p: lambda message: None for p in range(2)}), encoding=how)
    asked, received = messages_to(held, 0, 1), []
    for client, sent in enumerate((np.zeros(3, np.float32), np.ones(2, np.float32))):
        packed = how.sent("adapter", sent, sent + np.arange(sent.size, dtype=np.float32), None, rng).record
        content = RecordDict({"arrays": packed, "metrics": MetricRecord({"num-examples": 1})})
        received.append((client, Message(content, reply_to=asked[client])))
    verdicts = held.judged("train", 1, received, adapter(np.zeros(3)), submodels={1: Short()})
    assert [flat(v.reply.content["arrays"]).tolist() for v in verdicts] == [[0, 1, 2], [1, 2, 9]]
