"""Attacks on rounds under masks with real SuperNodes: another client's partition claimed, a round held again.

One deployment of five SuperNodes and one run of two rounds. The fifth claims to be client 0. The ServerApp is not
honest: after round 1 it sends client 0 its message again; then client 0 goes, the SuperNode of client 1 is started
anew, and in the place of round 2 the ServerApp holds round 1 again.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.deployed import BRISK, Deployed
from support.processes import until

from oblivionis.erasure.node_ledger import TOOK_PART, NodeLedger
from oblivionis.runs.directory import RunDirectory
from strategies import message_keys
from strategies.secure import stage_keys

pytestmark = pytest.mark.slow

VICTIM, OTHERS, CLAIMER = 0, (1, 2, 3), 4
EVERYBODY, RESTARTED = (VICTIM, *OTHERS), 1
WAIT_S, DEADLINE_S = 240, 120
CLIENT = """\
import json, os, time
from flwr.clientapp import ClientApp

name, folder = os.environ.get("OBLIVIONIS_TEST_NAME", ""), os.path.dirname(__file__)
honest = ClientApp.__call__

def call(self, message, context):
    import numpy
    from strategies.secure.client import Participant

    masked = Participant.masked

    def watched(participant, asked, update, weight, *rest):
        numpy.savez(os.path.join(folder, f"{name}-{time.time_ns()}.npz"), update=numpy.asarray(update) * weight)
        return masked(participant, asked, update, weight, *rest)

    records = message.content.config_records if message.has_content() else {}
    told = {"kind": message.metadata.message_type, "records": {r: sorted(v) for r, v in records.items()}}
    told["arrays"] = sorted(message.content.array_records) if message.has_content() else []
    with open(os.path.join(folder, name + ".messages"), "a") as file:
        print(json.dumps(told), file=file)
    Participant.masked = watched
    try:
        return honest(self, message, context)
    finally:
        Participant.masked = masked

ClientApp.__call__ = call
"""
"""Runs first in the clients: which messages each was sent, and what it adds to sums, in files."""
SERVER = f"""\
import json, os, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

folder = os.path.dirname(__file__)
honest = ServerApp.__call__

def call(self, grid, context):
    import numpy
    from strategies import message_keys as protocol
    from strategies.secure import stage_keys as words
    from strategies.secure.server import SecureSum

    hold, exchange, first, sent, held = SecureSum.hold, SecureSum._exchange, {{}}, {{}}, []

    def copy(content, node):
        return Message(RecordDict(content), dst_node_id=node, message_type=protocol.TRAIN)

    def dishonest(session, messages, *rest, **more):
        nodes = {{session._partition(m): m.metadata.dst_node_id for m in messages}}
        if held:
            messages = [copy(first[client], node) for client, node in nodes.items()]
        first.update({{session._partition(m): dict(m.content.items()) for m in messages}})
        found = hold(session, messages, *rest, **more)
        held.append(found)
        numpy.savez(os.path.join(folder, f"sum-{{len(held)}}.npz"), update=found.update, weight=found.weight,
                    survivors=found.survivors)
        if len(held) == 1:
            try_again(nodes[{VICTIM}])
            open(os.path.join(folder, "restart"), "w").close()
            while not os.path.exists(os.path.join(folder, "restarted")):
                time.sleep(0.1)
        return found

    def try_again(node):
        bare, masked = first[{VICTIM}], {{**first[{VICTIM}], words.RECORD: sent[{VICTIM}]}}
        found = [list(grid.send_and_receive([copy(c, node)], timeout={DEADLINE_S}))[0] for c in (masked, bare)]
        with open(os.path.join(folder, "replies.json"), "w") as file:
            json.dump([m.error.reason if m.has_error() else "" for m in found], file)

    def watched(session, kind, contents, *rest):
        if kind is None:
            for client, content in contents.items():
                sent[client] = ConfigRecord({{words.SESSION: session._terms.session, **content}})
        return exchange(session, kind, contents, *rest)

    SecureSum.hold, SecureSum._exchange = dishonest, watched
    return honest(self, grid, context)

ServerApp.__call__ = call
"""
"""Runs first in the ServerApp."""


@dataclass
class Attacked:
    """What came of the run; `seen`: the folder of what the processes wrote down; `said`: what the ServerApp said."""

    lab: Deployed
    run: RunDirectory
    seen: Path
    said: str

    def sum(self, round):
        """What the server learned in a round: the sum of the updates, of the weights, and over whom it goes."""
        found = np.load(self.seen / f"sum-{round}.npz")
        return found["update"], int(found["weight"]), found["survivors"].tolist()

    def updates(self, client):
        """What the client added to sums, weight times update each, in their order."""
        return [np.load(path)["update"] for path in sorted(self.seen.glob(f"node{client}-*.npz"))]

    def messages(self, client):
        return [json.loads(line) for line in (self.seen / f"node{client}.messages").read_text().splitlines()]


def error(found, true):
    """How far an update is from another, in lengths of that."""
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    seen = tmp_path_factory.mktemp("seen")
    patches = {}
    for name, text in (("client", CLIENT), ("server", SERVER)):
        (seen / f"{name}.py").write_text(text)
        patches[name] = {"OBLIVIONIS_TEST_PATCH": os.pathsep.join([str(BRISK), str(seen / f"{name}.py")])}
    with Deployed(tmp_path_factory.mktemp("masked") / "lab", clients=5) as lab:
        lab.start_superlink(**patches["server"])
        lab.register()
        script = lab.node(CLAIMER) / "start-supernode.sh"
        script.write_text(script.read_text().replace(f"partition-id={CLAIMER} ", f"partition-id={VICTIM} "))
        for node in range(5):
            lab.start_supernode(node, **patches["client"])
        lab.wait_online(5)
        settings = (
            "name=masked stages=[finetune] federation.clients=5 federation.min_clients=3 evaluation.every=0 "
            "federation.fraction_train=1.0 federation.rounds.finetune=2 federation.secure_aggregation.enabled=true "
            f"federation.timeout={DEADLINE_S} federation.wait_for_clients=5"
        )
        run = lab.submit("smoke", settings)
        assert until((seen / "restart").exists, WAIT_S, every=0.1), lab.everything_said()
        for node in (VICTIM, RESTARTED):
            lab.stop(f"node{node}")
        lab.start_supernode(RESTARTED, **patches["client"])
        lab.wait_online(4)
        (seen / "restarted").touch()
        assert lab.finish(run) == "finished:completed", lab.everything_said()
        found = RunDirectory(lab.server / "runs" / "masked")
        yield Attacked(lab, found, seen, lab.flwr("log", run, "lab", "--show"))


def test_who_claims_another_clients_partition_gets_no_part_of_a_sum(attacked):
    """Also while that client is away: neither the model, nor a key or a share of anybody."""
    said = f"says that it is client {VICTIM}, and is set aside"
    assert said in attacked.said
    sent = attacked.messages(CLAIMER)
    assert len(sent) > 1 and {m["kind"] for m in sent} == {message_keys.QUERY}, "asked anew when the other is away"
    assert not any(m["arrays"] or stage_keys.RECORD in m["records"] for m in sent)
    assert {m["kind"] for m in attacked.messages(VICTIM)} >= {
        stage_keys.SHARES_TYPE,
        stage_keys.UNMASK_TYPE,
        message_keys.TRAIN,
    }
    assert not attacked.updates(CLAIMER)


@pytest.mark.parametrize(("round", "clients"), [(1, EVERYBODY), (2, OTHERS)])
def test_the_sum_is_that_of_the_clients(attacked, round, clients):
    """A number is off by half a step of 4.8e-7 at most, times the weight."""
    found, weight, survivors = attacked.sum(round)
    assert survivors == list(clients)
    true = sum(attacked.updates(client)[round - 1] for client in clients)
    assert np.abs(found - true).max() < 2.4e-7 * weight * 1.01


def test_a_round_held_again_without_a_client_does_not_tell_its_update(attacked):
    """Each of the others does other work: those whose SuperNode ran on, and the one that was started anew."""
    first, again = attacked.sum(1)[0], attacked.sum(2)[0]
    assert error(first - again, attacked.updates(VICTIM)[0]) > 0.3
    for client in OTHERS:
        once, twice = attacked.updates(client)
        assert error(twice, once) > 0.3
        lines = NodeLedger(attacked.lab.node(client)).lines(TOOK_PART)
        assert [(line["round"], line["times"]) for line in lines] == [(1, 1), (1, 2)]
    assert len(NodeLedger(attacked.lab.node(VICTIM)).lines(TOOK_PART)) == 1


def test_a_message_that_is_sent_again_is_not_answered_again(attacked):
    """With its masks, and without them; what is wrong stays with the node."""
    masked, bare = json.loads((attacked.seen / "replies.json").read_text())
    assert masked.startswith("SecureError") and "the run's updates are summed under masks" in bare
    assert "a message out of turn" in attacked.lab.log(f"node{VICTIM}")
    assert len(attacked.updates(VICTIM)) == 1
