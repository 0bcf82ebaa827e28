"""What this package takes of Flower beyond its public interface: each test says what a new Flower changed."""

from __future__ import annotations

import dataclasses
import inspect
import random
import threading
import time
from functools import partial
from queue import Queue

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.fleet.vce import vce_api
from flwr.server.superlink.fleet.vce.backend.raybackend import RayBackend
from flwr.server.superlink.linkstate import InMemoryLinkState, LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
from flwr.simulation.ray_transport import ray_actor
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.superlink.federation import NoOpFederationManager

from oblivionis.flower import fair_scheduling, grids, names, superexec
from strategies.flower_internals import identify_process
from strategies.rounds.memory_grid import MemoryGrid


def simulation(nodes: int, before=None) -> tuple[grids.InMemoryGrid, dict[int, int]]:
    """A grid as Flower's simulation makes it, and the partition of each node as it deals them out.

    before: what is called with the grid while no node has registered, as a server may begin.
    """
    identify_process()
    factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
    state = factory.state()
    assert isinstance(state, InMemoryLinkState), "a simulation keeps its messages elsewhere"
    run = Run.create_empty(run_id=1)
    run.primary_task_id, run.federation_id = 1, NOOP_FEDERATION_ID
    state.run_ids[1], state.task_store[1] = RunRecord(run=run), Task(task_id=1, run_id=1)
    grid = grids.InMemoryGrid(factory)
    grid.set_run(run)
    if before is not None:
        before(grid)
    return grid, vce_api._register_nodes(nodes, factory)


def to(node: int) -> Message:
    return Message(RecordDict(), dst_node_id=node, message_type="query")


def test_partitions_are_dealt_out_in_the_order_of_registration() -> None:
    grid, dealt = simulation(40)
    assert grids.partitions(grid) == dealt, "Flower numbers partitions in another order, or keeps nodes elsewhere"
    assert grids.partitions(MemoryGrid({})) == {}


def test_delivery_by_node_delivers_what_flower_delivers() -> None:
    """The same traffic through both: sends, looks at nodes in turn, with limits, answers taken back."""
    seen = []
    for quick in (False, True):
        grid, dealt = simulation(8)
        nodes, rng = list(dealt), random.Random(4)
        numbers: dict[str, int] = {}
        grid.push_messages([to(nodes[0])])
        numbers |= {i: 0 for i in grid.state.message_ins_store}
        if quick:
            grids.deliver_by_node(grid, patience=0.0)
        delivered = []
        for step in range(120):
            node = nodes[rng.randrange(8)]
            if rng.random() < 0.5:
                (identifier,) = grid.push_messages([to(node)])
                numbers[identifier] = len(numbers)
            found = grid.state.get_message_ins(node_id=node, limit=rng.choice((1, 1, None)))
            delivered.append([numbers[m.metadata.message_id] for m in found])
            assert all(m.metadata.delivered_at for m in found)
            if found and step % 3 == 0:
                grid.state.delete_messages({found[0].metadata.message_id})
        seen.append(delivered)
    assert seen[0] == seen[1] and sum(map(len, seen[0])) > 40


def test_messages_are_delivered_in_the_order_in_which_they_were_sent() -> None:
    """At the first node those of all, one of each; Flower goes by the message, not by where it was found."""
    grid, dealt = simulation(5)
    nodes = list(dealt)
    grids.deliver_by_node(grid, patience=0.0)
    order = [nodes[3], nodes[0], nodes[4], nodes[1], nodes[3]]
    grid.push_messages([to(node) for node in order])
    delivered = [[m.metadata.dst_node_id for m in grid.state.get_message_ins(node_id=n, limit=1)] for n in nodes]
    assert delivered == [order[:4], [], [], [nodes[3]], []]
    assert "node_id = message.metadata.dst_node_id" in inspect.getsource(vce_api.worker)


def test_delivery_by_node_keeps_back_what_has_expired() -> None:
    grid, dealt = simulation(1)
    grids.deliver_by_node(grid, patience=0.0)
    message = to(next(iter(dealt)))
    grid.push_messages([message])
    message.metadata.ttl = 1e-9
    assert grid.state.get_message_ins(node_id=next(iter(dealt)), limit=1) == []


def test_a_look_at_a_node_without_messages_does_not_depend_on_the_others() -> None:
    grid, dealt = simulation(300)
    grids.deliver_by_node(grid, patience=0.0)
    nodes = list(dealt)
    grid.push_messages([to(node) for node in nodes[:100]])
    looks = 0
    check = grid.state._check_stored_messages

    def counted(*arguments):
        nonlocal looks
        looks += 1
        return check(*arguments)

    grid.state._check_stored_messages = counted  # type: ignore[method-assign]
    assert sum(len(grid.state.get_message_ins(node_id=node, limit=1)) for node in nodes) == 100
    assert looks <= 200, "Flower's own loop looks at every message for every node"


def test_messages_are_delivered_together_as_soon_as_they_are_sent() -> None:
    """Flower's own loop: what is sent while it waits goes out in one pass, before its pause of a tenth of a second."""
    grid, dealt = simulation(5, before=partial(grids.deliver_by_node, patience=60.0))
    nodes, queue, over, asked = list(dealt), Queue(), threading.Event(), []
    look = grid.state.get_message_ins

    def recorded(node_id: int, limit: int | None) -> list[Message]:
        asked.append(node_id)
        return look(node_id, limit)

    grid.state.get_message_ins = recorded  # type: ignore[method-assign, assignment]
    loop = threading.Thread(target=vce_api.add_messages_to_queue, args=(grid.state, queue, dealt, over), daemon=True)
    loop.start()
    time.sleep(0.4)
    assert asked == nodes[:1], "Flower's own looks at all nodes four times meanwhile"
    grid.push_messages([to(node) for node in nodes[3:]])
    delivered = [queue.get(timeout=30).metadata.dst_node_id for _ in nodes[3:]]
    assert delivered == nodes[3:]
    assert asked[:5] == nodes, "in one pass"
    over.set()
    grid.push_messages([to(nodes[0])])
    loop.join(30)
    assert not loop.is_alive(), "the loop hears of its end with the next message, or after its patience"


def test_messages_sent_between_two_passes_are_not_waited_for() -> None:
    grid, dealt = simulation(2)
    first, second = dealt
    grids.deliver_by_node(grid, patience=60.0)
    grid.push_messages([to(second)])
    assert len(grid.state.get_message_ins(node_id=second, limit=1)) == 1
    grid.push_messages([to(second)])
    assert len(grid.state.get_message_ins(node_id=first, limit=1)) == 1
    assert grid.state.get_message_ins(node_id=second, limit=1) == []


def test_what_delivery_by_node_replaces_has_its_signature() -> None:
    assert list(inspect.signature(InMemoryLinkState.store_message_ins).parameters) == ["self", "message"]
    looked = inspect.signature(InMemoryLinkState.get_message_ins).parameters
    assert list(looked) == ["self", "node_id", "limit", "run_id"] and looked["run_id"].kind.name == "KEYWORD_ONLY"


def test_clients_that_unlearn_take_turns_at_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once, in the order in which they come; those that train do not wait. Afterwards all is as before."""
    identify_process()
    begun: Queue[int] = Queue()
    ends = [threading.Event() for _ in range(6)]

    def process(self: RayBackend, message: Message, context: Context) -> tuple[Message, Context]:
        begun.put(message.metadata.dst_node_id)
        assert ends[message.metadata.dst_node_id].wait(30)
        return message, context

    monkeypatch.setattr(RayBackend, "process_message", process)
    backend, context = RayBackend.__new__(RayBackend), Context(0, 0, {}, RecordDict(), {})
    kinds = ["train.unlearn"] * 4 + ["train"] * 2
    with fair_scheduling.unlearning_in_turns(2):
        threads = []
        for number, kind in enumerate(kinds):
            message = Message(RecordDict(), dst_node_id=number, message_type=kind)
            threads.append(threading.Thread(target=backend.process_message, args=(message, context), daemon=True))
            threads[-1].start()
            if number in (2, 3):
                time.sleep(0.1)  # it stands in line before the next one comes
            else:
                assert begun.get(timeout=30) == number
        assert begun.empty()
        ends[1].set()
        assert begun.get(timeout=30) == 2
        assert begun.empty()
        for end in ends:
            end.set()
        assert begun.get(timeout=30) == 3
        for thread in threads:
            thread.join(30)
    assert RayBackend.process_message is process


def test_who_waits_for_a_turn_is_not_overtaken() -> None:
    """Three workers, two turns, as Flower's threads: who has done its work comes back for the next at once."""
    waiting: Queue[int] = Queue()
    for number in range(60):
        waiting.put(number)
    taking, common, begun = threading.Lock(), fair_scheduling.Turns(2), []

    def work() -> None:
        while True:
            with taking:
                if waiting.empty():
                    return
                number = waiting.get()
            with common.turn():
                begun.append(number)
                time.sleep(0.001)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(begun) == list(range(60))
    away = max(abs(number - place) for place, number in enumerate(begun))
    assert away <= 10, "between taking a number and standing in line another may come, but nobody waits to the end"


def test_the_loop_that_delivers_asks_the_state_for_each_node() -> None:
    source = inspect.getsource(vce_api.add_messages_to_queue)
    assert "state.get_message_ins(node_id=node_id, limit=1)" in source, "the simulation delivers in another way"


def test_the_actor_has_its_name_and_a_dead_one_its_code() -> None:
    assert hasattr(ray_actor, names.ACTOR), "Flower's Ray actors have another name: dead ones are not found by it"
    assert grids.UNKNOWN_ERROR == 0


def test_flower_knows_the_variables_of_the_environment() -> None:
    from flwr.common import constant
    from flwr.supercore import constant as core
    from flwr.supercore import telemetry

    text = "".join(map(inspect.getsource, (constant, core, telemetry)))
    missing = [name for name in names.ENVIRONMENT if name not in text]
    assert missing == [], "Flower reads other names"


@pytest.mark.parametrize("name", sorted(superexec.__all__))
def test_all_names_of_the_superexec_are_there(name: str) -> None:
    assert getattr(superexec, name, None) is not None


def test_a_task_says_what_its_process_is_called_with() -> None:
    assert {f.name for f in dataclasses.fields(superexec.ExecutionSpec)} >= {
        *("task_type", "suppress_output", "runtime_api_address", "token", "insecure", "root_certificates_path"),
        *("parent_pid", "runtime_dependency_install"),
    }
    taken = inspect.signature(superexec.run_clientapp).parameters
    known = {"runtime_api_address", "token", "insecure", "certificates", "parent_pid", "runtime_dependency_install"}
    required = {n for n, p in taken.items() if p.default is inspect.Parameter.empty}
    assert required <= known <= set(taken), "run_clientapp takes other arguments"
    assert superexec.run_clientapp.__module__ == superexec.RUN_CLIENTAPP


def test_the_superexec_asks_for_its_executor_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore.superexec import run_superexec

    monkeypatch.setattr(run_superexec, "get_executor", run_superexec.get_executor)
    made = object()
    superexec.use_executor(lambda: made)  # type: ignore[arg-type, return-value]
    assert run_superexec.get_executor("any") is made
    assert "get_executor(" in inspect.getsource(run_superexec.run_superexec)
    assert list(inspect.signature(superexec.SubprocessExecutor.launch).parameters) == ["self", "spec"]
    assert superexec.LaunchResult.accepted() is not None
