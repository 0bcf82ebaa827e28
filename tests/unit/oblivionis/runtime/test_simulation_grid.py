"""A grid of simulated clients: order, limits, states, errors, deaths and the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from support.processes import until

from oblivionis.runtime.client_process import Raised
from oblivionis.runtime.simulation_grid import ClientProcess, ClientProcessDied, SimulationGrid, simulation_grid
from strategies import message_keys
from strategies.flower_internals import CLIENT_APP_RAISED, identify_process

UNLEARN = message_keys.UNLEARN
Answer = Callable[[Message, Context], Message | Raised]


class Process(ClientProcess):
    """Answers in this process."""

    def __init__(self, answer: Answer) -> None:
        self._answer, self.over = answer, threading.Event()

    def ready(self) -> None:
        """Nothing."""

    def answer(self, message: Message, context: Context) -> tuple[Message | Raised, Context]:
        return self._answer(message, context), context

    def end(self) -> None:
        self.over.set()


def echo(message: Message, context: Context) -> Message:
    return Message(message.content, reply_to=message)


@pytest.fixture
def grid_of() -> Iterator[Callable[..., SimulationGrid]]:
    """Makes grids, which end with the test."""
    with ExitStack() as inside:

        def made(answer: Answer, processes: int = 2, clients: int = 5, cores: int | None = None) -> SimulationGrid:
            return inside.enter_context(simulation_grid([Process(answer) for _ in range(processes)], clients, cores))

        yield made


def to(node: int, kind: str = "train") -> Message:
    identify_process()
    return Message(RecordDict({"n": ConfigRecord({"node": node})}), dst_node_id=node, message_type=kind)


def test_each_message_gets_its_reply(grid_of) -> None:
    grid = grid_of(echo)
    assert grid.partitions() == {1: 0, 2: 1, 3: 2, 4: 3, 5: 4} and list(grid.get_node_ids()) == [1, 2, 3, 4, 5]
    assert [node.node_id for node in grid.get_nodes()] == [1, 2, 3, 4, 5]
    replies = grid.send_and_receive([to(n) for n in (3, 1, 5, 1)], timeout=30)
    assert sorted(r.metadata.src_node_id for r in replies) == [1, 1, 3, 5]
    assert all(r.content.config_records["n"]["node"] == r.metadata.src_node_id for r in replies)


def test_messages_are_answered_in_the_order_in_which_they_were_sent(grid_of) -> None:
    seen = []

    def noted(message: Message, context: Context) -> Message:
        seen.append(message.metadata.dst_node_id)
        return echo(message, context)

    grid = grid_of(noted, processes=1)
    grid.send_and_receive([to(n) for n in (4, 2, 5, 1, 4)])
    assert seen == [4, 2, 5, 1, 4]


def test_no_more_than_so_many_unlearn_at_once_and_others_go_on(grid_of) -> None:
    lock, now, most, free = threading.Lock(), {UNLEARN: 0, "train": 0}, {UNLEARN: 0, "train": 0}, threading.Event()

    def slow(message: Message, context: Context) -> Message:
        kind = message.metadata.message_type
        with lock:
            now[kind] += 1
            most[kind] = max(most[kind], now[kind])
        free.wait(20)
        with lock:
            now[kind] -= 1
        return echo(message, context)

    grid = grid_of(slow, processes=4, cores=2)
    sent = grid.push_messages([to(n, UNLEARN) for n in (1, 2, 3)] + [to(n, "train") for n in (4, 5)])
    assert until(lambda: now == {UNLEARN: 2, "train": 2}, 20), now
    free.set()
    found = []
    assert until(lambda: (found.extend(grid.pull_messages(sent)), len(found) == 5)[1], 20)
    assert most == {UNLEARN: 2, "train": 2}


def test_what_a_client_keeps_stays_with_it(grid_of) -> None:
    def counted(message: Message, context: Context) -> Message:
        kept = context.state.config_records.setdefault("kept", ConfigRecord({"n": 0}))
        kept["n"] = int(kept["n"]) + 1  # type: ignore[arg-type]
        content = RecordDict({"c": ConfigRecord({"n": kept["n"], **context.node_config})})
        return Message(content, reply_to=message)

    grid = grid_of(counted, processes=3)
    for n in (1, 2, 3):
        for reply in grid.send_and_receive([to(2), to(4)]):
            partition = reply.metadata.src_node_id - 1
            assert reply.content.config_records["c"] == {"n": n, "partition-id": partition, "num-partitions": 5}


def test_an_exception_of_the_app_is_an_error_reply(grid_of, caplog: pytest.LogCaptureFixture) -> None:
    grid = grid_of(lambda message, context: Raised("ValueError: no", "Traceback: here"))
    (reply,) = grid.send_and_receive([to(1)])
    assert reply.has_error() and (reply.error.code, reply.error.reason) == (CLIENT_APP_RAISED, "ValueError: no")
    assert "client 0: ValueError: no" in caplog.text and "Traceback: here" in caplog.text
    assert grid.send_and_receive([to(1)]), "the process goes on"


def test_a_death_ends_the_run_and_names_the_client(grid_of) -> None:
    def dies(message: Message, context: Context) -> Message:
        if message.metadata.dst_node_id == 3:
            raise ClientProcessDied("it was killed")
        return echo(message, context)

    grid = grid_of(dies)
    with pytest.raises(ClientProcessDied, match=r"^the process of client 2 died: it was killed$"):
        grid.send_and_receive([to(n) for n in (1, 2, 3, 4, 5)])
    with pytest.raises(ClientProcessDied):
        grid.pull_messages([])


def test_what_cannot_be_sent_or_read_ends_the_run_too(grid_of, caplog: pytest.LogCaptureFixture) -> None:
    def unreadable(message: Message, context: Context) -> Message:
        raise ZeroDivisionError("of an object that is read")

    grid = grid_of(unreadable)
    with pytest.raises(ClientProcessDied, match=r"^the process of client 1 is lost: ZeroDivisionError: of an object"):
        grid.send_and_receive([to(2)], timeout=20)
    assert "in unreadable" in caplog.text, "the stack trace is in the log"


class Late(Process):
    """Has no place to run before its end."""

    def ready(self) -> None:
        assert self.over.wait(20)
        raise ClientProcessDied("never")


def test_a_process_without_a_place_to_run_gets_no_message() -> None:
    with simulation_grid([Late(echo), Process(echo)], 3, None) as grid:
        assert len(list(grid.send_and_receive([to(n) for n in (1, 2, 3)], timeout=20))) == 3


def test_a_process_that_never_runs_ends_the_run() -> None:
    late = Late(echo)
    with simulation_grid([late], 3, None) as grid:
        late.end()
        with pytest.raises(ClientProcessDied, match=r"^a client process did not start: never$"):
            grid.send_and_receive([to(1)], timeout=20)


def test_a_client_answers_one_message_at_a_time(grid_of) -> None:
    began, free = threading.Semaphore(0), threading.Event()

    def counted(message: Message, context: Context) -> Message:
        kept = context.state.config_records.setdefault("kept", ConfigRecord({"n": 0}))
        n = int(kept["n"]) + 1  # type: ignore[arg-type]
        began.release()
        free.wait(20)
        kept["n"] = n
        return Message(RecordDict({"c": ConfigRecord({"n": n})}), reply_to=message)

    grid = grid_of(counted, processes=3)
    sent = grid.push_messages([to(2), to(2), to(2), to(4)])
    assert began.acquire(timeout=20) and began.acquire(timeout=20), "another client's goes on beside it"
    assert not began.acquire(timeout=0.1)
    free.set()
    found: list[Message] = []
    assert until(lambda: (found.extend(grid.pull_messages(sent)), len(found) == 4)[1], 20)
    counts = [(r.metadata.src_node_id, r.content.config_records["c"]["n"]) for r in found]
    assert sorted(counts) == [(2, 1), (2, 2), (2, 3), (4, 1)]


def test_who_waits_no_longer_than_allowed_gets_what_has_come(grid_of) -> None:
    free = threading.Event()

    def slow(message: Message, context: Context) -> Message:
        if message.metadata.dst_node_id == 1:
            free.wait(20)
        return echo(message, context)

    grid = grid_of(slow)
    began = time.monotonic()
    replies = list(grid.send_and_receive([to(1), to(2)], timeout=0.3))
    assert [r.metadata.src_node_id for r in replies] == [2] and time.monotonic() - began < 15
    free.set()


def test_all_processes_end_with_the_grid() -> None:
    processes = [Process(echo) for _ in range(3)]
    before = threading.active_count()
    with simulation_grid(processes, 2, None) as grid:
        grid.send_and_receive([to(1)])
    assert all(process.over.is_set() for process in processes) and threading.active_count() == before
