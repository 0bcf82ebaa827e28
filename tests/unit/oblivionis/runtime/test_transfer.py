"""What goes from one process to another arrives as it was, whatever its size."""

from __future__ import annotations

import os
import socket
import threading

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from oblivionis.runtime.transfer import Channel
from strategies.flower_internals import identify_process


@pytest.fixture
def ends():
    """The two ends of a channel."""
    ours, theirs = map(Channel, socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def through(ends: tuple[Channel, Channel], value: object) -> object:
    sender = threading.Thread(target=ends[0].send, args=(value,))
    sender.start()
    found = ends[1].receive()
    sender.join()
    return found


@pytest.mark.parametrize("numbers", [[0], [3], [1 << 15], [1 << 14, (1 << 20) + 1, 5, 1 << 18]])
def test_a_message_arrives_with_its_arrays(ends: tuple[Channel, Channel], numbers: list[int]) -> None:
    identify_process()
    draws = np.random.default_rng(0)
    arrays = {f"a{i}": draws.normal(size=n).astype(np.float32) for i, n in enumerate(numbers)}
    content = RecordDict(
        {"x": ArrayRecord({name: Array(a) for name, a in arrays.items()}), "y": ConfigRecord({"k": 1})}
    )
    found = through(ends, (Message(content, dst_node_id=7, message_type="train"), "beside"))
    assert isinstance(found, tuple) and found[1] == "beside"
    message = found[0]
    assert message.metadata.dst_node_id == 7 and message.content.config_records["y"] == {"k": 1}
    for name, array in arrays.items():
        np.testing.assert_array_equal(message.content.array_records["x"][name].numpy(), array)


def test_many_objects_arrive_one_after_another(ends: tuple[Channel, Channel]) -> None:
    for size in (0, 10, 1 << 17, 3, 1 << 21, 1):
        value = os.urandom(size)
        assert through(ends, {"bytes": value, "size": size}) == {"bytes": value, "size": size}


@pytest.mark.parametrize("number", [0, 5, 1 << 20])
def test_an_array_of_numpy_arrives_through_shared_memory(
    ends: tuple[Channel, Channel], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, create = [], os.memfd_create
    monkeypatch.setattr(os, "memfd_create", lambda name: made.append(create(name)) or made[-1])
    vector = np.random.default_rng(0).normal(size=number).astype(np.float32)
    matrix = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    fixed = vector.copy()
    fixed.flags.writeable = False
    found = through(ends, (1, vector, fixed, matrix, matrix[::2]))
    assert isinstance(found, tuple)
    for there, here in zip(found[1:], (vector, fixed, matrix, matrix[::2]), strict=True):
        np.testing.assert_array_equal(there, here)
    assert [a.flags.writeable for a in found[1:4]] == [True, False, True]
    assert len(made) == (number > 5)


def test_where_there_is_no_memory_nothing_is_sent(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    for name in ("memfd_create", "write"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(OSError, match=r"No space left"):
                ends[0].send(b"x" * (1 << 20))
    assert through(ends, "next") == "next"


def test_no_file_stays_open(ends: tuple[Channel, Channel]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        through(ends, b"x" * (1 << 17))
    assert len(os.listdir("/proc/self/fd")) == before


def test_who_waits_for_one_that_has_ended_is_told(ends: tuple[Channel, Channel]) -> None:
    ends[0].close()
    with pytest.raises(EOFError, match=r"the other process has ended"):
        ends[1].receive()
    with pytest.raises(OSError):
        ends[1].send(b"x" * (1 << 20))


def test_an_end_between_text_and_descriptor_is_an_end(ends: tuple[Channel, Channel], monkeypatch) -> None:
    monkeypatch.setattr(socket, "send_fds", lambda *_: None)
    ends[0].send(b"x" * (1 << 17))
    ends[0].close()
    with pytest.raises(EOFError, match="no descriptor left"):
        ends[1].receive()


def test_who_waits_is_told_of_an_end_that_somebody_else_holds_open(ends: tuple[Channel, Channel]) -> None:
    with socket.socket(fileno=os.dup(ends[0].fileno())):
        threading.Timer(0.1, ends[1].hang_up).start()
        with pytest.raises(EOFError):
            ends[1].receive()


def test_without_anonymous_memory_all_goes_through_the_socket(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oblivionis.runtime.transfer.SHARED", False)
    monkeypatch.delattr(os, "memfd_create", raising=False)
    value = os.urandom(1 << 21)
    assert through(ends, value) == value
