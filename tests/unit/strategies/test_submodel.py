"""Messages and answers of clients that receive a model in a form of their own."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from strategies.flower_internals import identify_process
from strategies.replies import ReplyCheck
from strategies.submodel import fitted_messages, join, read_answers


def numbers(*values):
    return ArrayRecord({"adapter": Array(np.array(values))})


def of(record):
    return record["adapter"].numpy().tolist()


@dataclass
class Half:
    """The first half of the numbers; what is joined is that half and zeros. An empty answer has no form."""

    sent: ArrayRecord
    settings: dict = field(default_factory=lambda: {"rank": 1, "own": "yes"})

    def joined(self, answer):
        if not of(answer):
            raise ValueError("no numbers")
        return numbers(*of(answer), 0.0)


def message(node):
    identify_process()
    content = RecordDict({"arrays": numbers(1.0, 2.0), "config": ConfigRecord({"rank": 2, "round": 3})})
    return Message(content, dst_node_id=node, message_type="train")


def test_a_client_gets_its_own_model_and_settings_in_the_place_of_the_others():
    messages = [message(7), message(8)]
    first, second = fitted_messages(messages, [0, 1], {1: Half(numbers(1.0))}, "arrays", "config")
    assert first is messages[0]
    assert of(second.content["arrays"]) == [1.0]
    assert dict(second.content["config"]) == {"rank": 1, "own": "yes", "round": 3}
    assert (second.metadata.dst_node_id, second.metadata.message_type) == (8, "train")
    assert dict(messages[1].content["config"]) == {"rank": 2, "round": 3}, "the others' message stays"


def reply(record):
    return Message(RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message(7))


def test_answers_become_models_of_the_global_form():
    verdicts = [
        ReplyCheck(0, reply(numbers(5.0, 6.0))),
        ReplyCheck(1, reply(numbers(7.0))),
        ReplyCheck(2, None, "lost"),
        ReplyCheck(3, reply(numbers())),
    ]
    own = {1: Half(numbers(1.0)), 2: Half(numbers(1.0)), 3: Half(numbers(1.0))}
    whole, joined, lost, refused = join(verdicts, own, "arrays")
    assert of(whole.reply.content["arrays"]) == [5.0, 6.0] and of(joined.reply.content["arrays"]) == [7.0, 0.0]
    assert lost == verdicts[2] and (refused.reply, refused.reason) == (None, "no numbers")


def test_a_packed_answer_that_cannot_be_read_is_a_fault_of_its_client():
    def read(sent, answer):
        if of(answer) == [0.0]:
            raise ValueError("nonsense\nof two lines")
        return numbers(*(a + b for a, b in zip(of(sent), of(answer), strict=True)))

    good, bad = reply(numbers(0.5)), reply(numbers(0.0))
    received = [(0, good), (1, bad), (2, None)]
    faults = read_answers(received, lambda client: numbers(10.0 + client), read, "arrays")
    assert of(good.content["arrays"]) == [10.5]
    assert faults == {1: "its update cannot be read: nonsense of two lines"}


def test_an_answer_without_a_model_is_left_to_the_judge():
    answer = Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message(7))
    assert read_answers([(0, answer)], lambda client: numbers(1.0), lambda sent, told: told, "arrays") == {}
