"""A server that holds a round of secure aggregation twice, among other clients: what it learns of one of them.

The clients are real ones with folders of their own; the server is honest in its first round, whose messages it then
sends again, as it likes, in sessions of its own.
"""

import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from support.inprocess import InProcessGrid
from support.nodes import PATIENTS, write_nodes
from support.stages import Recorded

from oblivionis.client import exchange
from oblivionis.client.app import app
from oblivionis.client.single_participation import MOST_TIMES, Turn
from oblivionis.client.worker import Worker
from oblivionis.config import compose as configuration
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.runs.directory import RunDirectory
from oblivionis.server.app import serve
from strategies import message_keys
from strategies.secure import stage_keys
from strategies.secure.agreed_parameters import SecureSettings
from strategies.secure.server import SecureSum

CLIENTS, VICTIM = 4, 0
EVERYBODY, OTHERS = tuple(range(CLIENTS)), (1, 2, 3)
SETTINGS = SecureSettings(clipping=1.0)
OVERRIDES = (
    "data=node",
    f"federation.clients={CLIENTS}",
    "federation.fraction_train=1.0",
    "federation.min_clients=3",
    "federation.secure_aggregation.enabled=true",
    "federation.rounds.finetune=1",
    "evaluation.light.questions_per_set=1",
    "evaluation.full.questions_per_set=1",
    "stages=[finetune]",
)
assert len(PATIENTS) >= 2 * CLIENTS


@dataclass
class Server:
    """Who has the messages of an honest round, by client, and sends them again; `updates`: what clients computed."""

    grid: InProcessGrid
    messages: dict[int, Message]
    updates: list[tuple[int, np.ndarray]]
    home: Path
    run: RunDirectory
    sums: list[np.ndarray] = field(default_factory=list)

    def hold(self, clients, **changes):
        """The sum of what these clients answer to the messages of the round, with some keys of them changed."""
        messages = {c: self._again(self.messages[c], changes) for c in clients}
        numbers = self.messages[VICTIM].content.array_records[message_keys.ARRAYS][message_keys.ADAPTER].numpy().size
        terms = SETTINGS.terms("train", len(clients), (), numbers)
        who = {m.metadata.dst_node_id: c for c, m in messages.items()}
        session = SecureSum(self.grid, lambda m: who[m.metadata.dst_node_id], terms, 60.0)
        found = session.hold(list(messages.values()), numbers, 600.0)
        self.sums.append(found.update)
        return found

    @staticmethod
    def _again(message, changes):
        asked = message.content
        config = ConfigRecord({**asked.config_records[message_keys.CONFIG], **changes})
        content = RecordDict(
            {message_keys.ARRAYS: asked.array_records[message_keys.ARRAYS], message_keys.CONFIG: config}
        )
        kind = message.metadata.message_type
        return Message(content, dst_node_id=message.metadata.dst_node_id, message_type=kind)

    def error_of(self, difference):
        """How far a difference of sums is from the victim's update, in lengths of that."""
        true = next(update for client, update in self.updates if client == VICTIM)
        return float(np.linalg.norm(difference - true) / np.linalg.norm(true))

    def lines(self, client=VICTIM):
        return NodeLedger(self.home / f"node{client}").lines("took_part")


def federation(home, patch, *overrides):
    """An honest round of four clients, after which the server has its messages."""
    write_nodes(home, CLIENTS)
    messages, updates = {}, []
    finetune = Worker.finetune

    def watched(self, client, vector, **rest):
        found, report = finetune(self, client, vector, **rest)
        updates.append((client, report.num_examples * (found.astype(np.float64) - vector)))
        return found, report

    def keep(client, message, reply):
        if message.metadata.message_type == message_keys.TRAIN and stage_keys.RECORD in message.content.config_records:
            messages.setdefault(client, message)
        return reply

    patch.setattr(Worker, "finetune", watched)
    config = configuration.compose("smoke", [*OVERRIDES, f"output={home}", "name=run", *overrides])
    run = RunDirectory.create(home, "run")
    run.write_config(configuration.to_yaml(config))
    grid = InProcessGrid(app, CLIENTS, keep)
    for context in grid.contexts.values():
        context.node_config["node-dir"] = str(home / f"node{context.node_config['partition-id']}")
    serve(config, grid, run, events := Recorded(), threading.Event())
    assert not events.left_out and sorted(messages) == list(EVERYBODY)
    return Server(grid, messages, updates, home, run)


@pytest.fixture
def server(tmp_path, monkeypatch):
    return federation(tmp_path, monkeypatch)


def first_sum(server):
    """What the honest round told: the sum over everybody, from the model before it and after it."""
    sent = server.messages[VICTIM].content.array_records[message_keys.ARRAYS][message_keys.ADAPTER].numpy()
    weight = sum(_records(server, client) for client in EVERYBODY)
    return weight * (server.run.load_checkpoint("finetune").vector.astype(np.float64) - sent)


def _records(server, client):
    files = (server.home / f"node{client}" / "data").glob("*.jsonl")
    return sum(len(file.read_text().splitlines()) for file in files)


def test_without_the_guard_the_difference_of_two_sums_is_a_clients_exact_update(server, monkeypatch):
    monkeypatch.setattr(exchange, "take_part", lambda folder, seed, work, masked: Turn(seed))
    again = server.hold(OTHERS)
    assert not again.fault and again.survivors == OTHERS
    assert server.error_of(first_sum(server) - again.update) < 1e-3, "but for what rounding takes"


def test_with_it_the_round_can_be_held_again_and_the_difference_is_no_update(server):
    again = server.hold(OTHERS)
    assert not again.fault and again.survivors == OTHERS, "a run that is resumed goes on"
    assert server.error_of(first_sum(server) - again.update) > 0.3
    assert [line["times"] for line in server.lines(1)] == [1, 2] and len(server.lines()) == 1


def test_the_difference_still_points_where_the_clients_update_does(server):
    """It is that update, plus what the others' halves differ by: noise hides it, halves do not."""
    difference = first_sum(server) - server.hold(OTHERS).update
    true = next(update for client, update in server.updates if client == VICTIM)
    assert difference @ true / np.linalg.norm(difference) / np.linalg.norm(true) > 0.5


def test_another_seed_alone_would_not_do(server, monkeypatch):
    """These clients have one batch each: whatever its order, it is the same update."""
    monkeypatch.setattr(Turn, "left_out", lambda turn, live, least=0: set())
    again = server.hold(OTHERS)
    assert server.error_of(first_sum(server) - again.update) < 1e-3


@pytest.mark.parametrize(
    "changes", [{"run": "another"}, {"exclude": "forget-split"}, {"epochs": 3}], ids=["run", "exclude", "epochs"]
)
def test_another_name_for_the_same_round_makes_it_no_other(server, changes):
    assert not server.hold(OTHERS, **changes).fault
    assert [line["times"] for line in server.lines(1)] == [1, 2]
    assert server.error_of(first_sum(server) - server.sums[-1]) > 0.3


def test_no_client_does_the_same_work_for_ever(server):
    for _ in range(MOST_TIMES - 1):
        assert not server.hold(OTHERS).fault
    refused = server.hold(OTHERS)
    assert refused.fault and "was held 3 times with this client" in refused.left_out[1]


def test_what_is_kept_is_kept_in_the_folder(server):
    """A new process of the node, which has forgotten everything else, knows it."""
    for context in server.grid.contexts.values():
        context.state = RecordDict()
    again = server.hold(OTHERS)
    assert not again.fault and server.error_of(first_sum(server) - again.update) > 0.3


def test_a_run_that_is_resumed_ends(tmp_path, monkeypatch):
    """Killed after the sum and before its checkpoint: the round is held again with everybody."""
    server = federation(tmp_path, monkeypatch)
    again = server.hold(EVERYBODY)
    assert not again.fault and again.survivors == EVERYBODY
    for client in EVERYBODY:
        first, second = (update for who, update in server.updates if who == client)
        assert not np.array_equal(first, second)
