"""Replies of clients that lie: each takes the message and the honest reply, and gives what is sent instead.

`REFUSED` must be left out, by name; `HARMLESS` may count, for nothing of what is false in them does.
"""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from strategies import message_keys

SEQUENCES = "\x1b]0;owned\x07\x1b[2J\x9b31m\x00\u202e\u2028"
ADAPTER = message_keys.ADAPTER


def error(code, reason):
    return lambda message, reply: Message(Error(code=code, reason=reason), reply_to=message)


def content(change):
    """The honest content after `change` (content)."""

    def sent(message, reply):
        metrics = MetricRecord(dict(reply.content[message_keys.METRICS]))
        new = RecordDict({message_keys.METRICS: metrics})
        if message_keys.ARRAYS in reply.content:
            new[message_keys.ARRAYS] = reply.content[message_keys.ARRAYS]
        change(new)
        return Message(new, reply_to=message)

    return sent


def told(**numbers):
    """Numbers told besides or instead, by name with - for _; None: not told."""

    def change(new):
        for name, value in numbers.items():
            name = name.replace("_", "-")
            new[message_keys.METRICS].pop(name, None)
            if value is not None:
                new[message_keys.METRICS][name] = value

    return content(change)


def named(**numbers):
    return content(lambda new: new[message_keys.METRICS].update(numbers))


def model(make):
    """Other numbers, `make` (honest numbers)."""

    def change(new):
        values = new[message_keys.ARRAYS][ADAPTER].numpy()
        new[message_keys.ARRAYS] = ArrayRecord({ADAPTER: Array(np.ascontiguousarray(make(values)))})

    return content(change)


def raw(data, shape=(4,), dtype="float32", stype="numpy.ndarray"):
    def change(new):
        new[message_keys.ARRAYS] = ArrayRecord({ADAPTER: Array(dtype, shape, stype, data)})

    return content(change)


def header(text):
    """An npy file of which only the header is there."""
    line = text.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line


def put(name, record):
    return content(lambda new: new.__setitem__(name, record))


def without(name):
    return content(lambda new: new.pop(name))


def foreign_answer(message, reply):
    """Answers for somebody else: another sender than the one that was asked."""
    sent = Message(reply.content, reply_to=message)
    sent.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id + 1
    return sent


REFUSED = {
    "no reply": lambda message, reply: None,
    "error 0": error(0, ""),
    "error 0 of a dead worker": error(0, "<class 'ray.exceptions.ActorDiedError'>:<'The actor died'>"),
    "error 2 of a dead worker": error(2, "ActorDiedError"),
    "error of a code that does not exist": error(2**31 - 1, "x"),
    "error of a negative code": error(-1, "x"),
    "error with escape sequences": error(2, SEQUENCES),
    "error of 2 MB": error(2, "x" * 2_000_000),
    "error with many lines": error(2, "Traceback\n" + "\n" * 100_000 + SEQUENCES),
    "error in another's name": foreign_answer,
    "nothing": lambda message, reply: Message(RecordDict(), reply_to=message),
    "no model": without(message_keys.ARRAYS),
    "no numbers": without(message_keys.METRICS),
    "two records of numbers": put("more", MetricRecord({"num-examples": 1})),
    "two models": put("more", ArrayRecord({"a": Array(np.zeros(3, np.float32))})),
    "no weight": told(num_examples=None),
    "weight 0": told(num_examples=0),
    "weight -1": told(num_examples=-1),
    "weight NaN": told(num_examples=float("nan")),
    "weight infinite": told(num_examples=float("inf")),
    "weight 1.7e308": told(num_examples=1.7e308),
    "weight 2.5": told(num_examples=2.5),
    "weight a list": told(num_examples=[1, 2]),
    "a number NaN": told(train_loss=float("nan"), unlearn_loss=float("nan")),
    "a number 1e308": told(train_loss=1e308, unlearn_loss=1e308),
    "negative seconds": told(train_seconds=-5.0, unlearn_seconds=-5.0),
    "steps a list": told(train_steps=[1, 2, 3], unlearn_steps=[1]),
    "half steps": told(train_steps=0.5, unlearn_steps=0.5),
    "the partition of another": told(partition_id=0),
    "model 1e30": model(lambda v: np.full_like(v, 1e30)),
    "model 3e38": model(lambda v: np.full_like(v, 3e38)),
    "model -3e38": model(lambda v: np.full_like(v, -3e38)),
    "one number 1e38": model(lambda v: np.concatenate([v[:-1], np.float32([1e38])])),
    "model a million times larger": model(lambda v: v * 1e6 + 1e3),
    "model NaN": model(lambda v: np.full_like(v, np.nan)),
    "one infinity": model(lambda v: np.concatenate([v[:-1], np.float32([np.inf])])),
    "model of float64, 1.7e308": model(lambda v: np.full(v.shape, 1.7e308)),
    "model of whole numbers": model(lambda v: v.astype(np.int32)),
    "model too short": model(lambda v: v[:-1]),
    "model of another shape": model(lambda v: v[None]),
    "model of the other byte order": model(lambda v: v.astype(">f4")),
    "empty bytes": raw(b""),
    "bytes at random": raw(bytes(range(256))),
    "a header without numbers": raw(header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }")),
    "a header of negative shape": raw(header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -4), }")),
    "a header of objects": raw(header("{'descr': '|O', 'fortran_order': False, 'shape': (4,), }")),
    "a header that is deep": raw(header("[" * 110)),
    "another serialisation": raw(b"cos\nsystem\n(S'true'\ntR.", stype="pickle"),
    "another name of the model": put(message_keys.ARRAYS, ArrayRecord({SEQUENCES: Array(np.zeros(3, np.float32))})),
}
HARMLESS = {
    "weight 1e15": told(num_examples=10**15),
    "id": named(id=1.0),
    "event": named(event=2.0),
    "round": named(round=1e9),
    "client": named(client=3.0),
    "time": named(time=0.0),
    "count and attempts": named(count=-7.0, attempts=99.0),
    "the chain": named(prev=0.0, hash=1.0),
    "scope and state": named(scope=1.0, state=2.0, record_ids=3.0, told=4.0),
    "a verification": named(rouge=0.0, limit=1.0, verified=1.0),
    "the round's line": named(seconds=1e6, replies=1e6, failures=-3.0),
    "an erasure": named(**{name: 1e6 for name in message_keys.ERASURE}),
    "names with escape sequences": named(**{SEQUENCES: 1.0}),
    "a name of 1 MB": named(**{"n" * 1_000_000: 1.0}),
    "ten thousand numbers": named(**{f"n{i}": float(i) for i in range(10_000)}),
    "another record of settings": put(SEQUENCES, ConfigRecord({"event": "verified", "id": "x"})),
    "records by another name": content(lambda new: new.__setitem__("other", new.pop(message_keys.METRICS))),
}
