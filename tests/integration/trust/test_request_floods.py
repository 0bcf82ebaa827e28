"""Clients that demand thousands of things in every round: what the others, the files and the messages notice of it.

One run of `oblivionis simulate`. Client 0 is honest, and thousands of requests lie in its folder. Client 1 is hostile:
whenever it is asked it has as many new requests, and it confirms nothing that it is told. Client 2 asks for two records
and is away when its first request is to be served. Client 3 asks in round 2; it asked before for a record that was
deleted since.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Error, Message
from support.commands import call
from support.inprocess import InProcessGrid
from support.nodes import write_nodes

from oblivionis.chain import check_chain
from oblivionis.client.app import app
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.query_schema import Answer, Reported, write_answer
from oblivionis.erasure.request import COVERED, PENDING
from oblivionis.runs.directory import RunDirectory
from oblivionis.server import simulation
from oblivionis.server.app import serve
from strategies import message_keys

CLIENTS, FLOOD, MOST, BATCH, ROUNDS = 4, 1000, 5, 4, 3
REASON = "because " * 250
SETTINGS = (
    "data=node",
    f"federation.clients={CLIENTS}",
    "federation.fraction_train=1.0",
    "federation.rounds.finetune=1",
    f"federation.rounds.unlearn={ROUNDS}",
    "stages=[finetune,unlearn]",
    "evaluation.every=0",
    "evaluation.at_start=false",
    "evaluation.full.questions_per_set=1",
    "evaluation.ruler.enabled=false",
    "evaluation.rebound.enabled=false",
    "unlearning.requests.policy=nodes",
    f"unlearning.requests.max_per_round={MOST}",
    f"unlearning.requests.per_round={BATCH}",
    "unlearning.requests.extra_rounds=0",
)


def pile_up(folder):
    """Thousands of lines by one who writes into the folder: each asks for the same record, with a long reason."""
    line = {"event": "submitted", "scope": "records", "record_ids": ["p0-home"], "count": 1, "already": 0}
    lines = [{**line, "id": f"pile-{n:04d}", "reason": REASON} for n in range(FLOOD)]
    NodeLedger(folder).extend(lambda _: lines)


def submit(folder, record, identifier):
    done = call("request", "submit", "--node-dir", folder, "--ids", record, "--id", identifier, "--reason", "by letter")
    assert done.code == 0, done.err


@dataclass
class Flood:
    """What the messages of a run say, and what client 1 makes of its answers; `longest`: bytes of any, by sender."""

    nodes: Path
    longest: dict[str, int] = field(default_factory=dict)
    told: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    away: bool = True
    words: str = ""

    def __call__(self, client, message, reply):
        kind = message.metadata.message_type
        config = message.content.config_records.get(message_keys.CONFIG, {})
        if kind == message_keys.QUERY and message_keys.LEDGER in config:
            self._asked(client, config, reply)
        for who, said in (("server", message), (f"client {client}", reply)):
            words = str(dict(said.content.config_records)) if said.has_content() else said.error.reason
            self.longest[who] = max(self.longest.get(who, 0), len(words))
            self.words += words if "because" in words else ""
        if client == 2 and kind == message_keys.UNLEARN and self.away:
            self.away = False
            return Message(Error(code=5, reason="node unavailable"), reply_to=message)
        return reply

    def _asked(self, client, config, reply):
        server_round = config[message_keys.SERVER_ROUND]
        if client == 1:
            self.rounds.append(server_round)
            self.told.append(len(config[message_keys.OUTCOMES]))
            head = reply.content.config_records[message_keys.REQUESTS][message_keys.LEDGER_HEAD]
            made = [Reported(f"r{len(self.told)}-{n}", "records", (f"x{len(self.told)}-{n}",)) for n in range(FLOOD)]
            answer = {**write_answer(Answer(tuple(made), head, ())), "reason": "long " * 20_000}
            if server_round == 2:
                answer[message_keys.REQUEST_IDS] = ["twice"] * FLOOD
            reply.content[message_keys.REQUESTS] = ConfigRecord(answer)
        if client == 3 and server_round == 1:
            submit(self.nodes / "node3", "p3-home", "late")


@pytest.fixture(scope="module")
def flooded(tmp_path_factory):
    """The exit code and words of the command, the run, the folder of the nodes, and the messages."""
    home = tmp_path_factory.mktemp("flood")
    nodes = write_nodes(home / "nodes", CLIENTS)
    pile_up(nodes / "node0")
    for record, name in (("p2-home", "first"), ("p2-job", "second")):
        submit(nodes / "node2", record, name)
    submit(nodes / "node3", "p7-home", "gone")
    file = nodes / "node3" / "data" / "second.jsonl"
    file.write_text("".join(line for line in file.read_text().splitlines(True) if "p7-home" not in line))
    flood = Flood(nodes)

    def simulate(config, run, events, forks=None):
        serve(config, InProcessGrid(app, CLIENTS, flood), run, events, simulation.Stop())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "simulate", simulate)
        done = call("simulate", "smoke", *SETTINGS, f"data.nodes={nodes}", f"output={home}", "name=run")
    return done, RunDirectory.open(home / "run"), nodes, flood


def ledger_of(flooded):
    return Ledger(flooded[1].ledger_path)


def test_the_command_ends_with_what_the_hostile_client_did_not_measure_and_nothing_else(flooded):
    """A measurement that fails is exit code 1; the requests of all others have theirs."""
    done, run, *_ = flooded
    assert done.code == 1 and "Traceback" not in done.err + done.out
    failed = [row["error"] for row in run.metrics() if "error" in row]
    assert failed and not any(f"client {other}" in text for text in failed for other in (0, 2, 3))
    assert f"client 1 made {FLOOD} requests at once: {MOST} are taken up, {FLOOD - MOST} wait" in done.out


def test_no_round_serves_or_takes_up_more_than_is_allowed(flooded):
    taken = Counter((r.client, r.round) for r in ledger_of(flooded))
    assert max(taken.values()) == MOST
    lines = check_chain(flooded[1].ledger_path).entries
    asked = Counter(line["round"] for line in lines if line["event"] in ("served", "failed"))
    assert max(asked.values()) == BATCH


def test_the_flood_keeps_no_request_of_another_client_waiting(flooded):
    """Nor the one whose client was away when it was its turn."""
    served = {r.told: r.served_round for r in ledger_of(flooded) if r.client != 1 and r.state != COVERED}
    assert served == {"pile-0000": 1, "first": 3, "second": 2, "late": 2}
    assert ledger_of(flooded).get("first").attempts == 1
    gone, late = NodeLedger(flooded[2] / "node3").requests()
    assert (gone.state, late.served_round) == ("open", 2) and "does not hold record 'p7-home' any more" in gone.note
    assert all(r.state == PENDING for r in ledger_of(flooded) if r.client == 1), "it holds none of these records"


def test_what_asks_for_the_same_again_is_covered_and_waits_like_all_else(flooded):
    piled = [r for r in ledger_of(flooded) if r.client == 0]
    assert [r.told for r in piled] == [f"pile-{n:04d}" for n in range(MOST * ROUNDS)]
    assert [r.state == COVERED for r in piled] == [False, *[True] * (MOST * ROUNDS - 1)]
    told = NodeLedger(flooded[2] / "node0").requests()
    assert len(told) == FLOOD and sum(r.state == "covered" for r in told) == MOST * ROUNDS - 1


def test_files_and_messages_stay_small(flooded):
    """The ledger has no more than what was taken up; no reason travels, and none of a client's own fields is kept."""
    _, run, nodes, flood = flooded
    lines = check_chain(run.ledger_path).entries
    assert len(lines) < 200 and max(len(line) for line in run.ledger_path.read_text().splitlines()) < 4000
    assert "because" not in run.ledger_path.read_text() and "long long" not in run.ledger_path.read_text()
    assert not flood.words, "what is told is ids"
    assert flood.longest["client 0"] < 60 * FLOOD and flood.longest["server"] < 20_000
    assert max(flood.told) < 5 * MOST * ROUNDS, "what it does not confirm is told again, and grows by what is taken up"
    added = len(NodeLedger(nodes / "node0").lines()) - FLOOD
    assert added < 100


def test_names_that_are_told_twice_are_no_answer(flooded):
    done, *_ = flooded
    assert "what client 1 says of its requests is set aside: request twice is told twice" in done.out
    assert not any(r.client == 1 and r.round == 2 for r in ledger_of(flooded))


def test_the_ledgers_are_whole(flooded):
    _, run, nodes, _ = flooded
    folders = [argument for node in (0, 2, 3) for argument in ("--node-dir", nodes / f"node{node}")]
    done = call("request", "verify", run.path, *folders)
    assert done.code == 0 and done.out.count("unbroken") == 4
