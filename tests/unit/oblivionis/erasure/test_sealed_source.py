"""The server's side of sealed requests: what it tells, what its ledger says, and that no reply says who asked."""

import json

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from support.inprocess import InProcessGrid
from support.nodes import records, write_nodes

from oblivionis.chain import GENESIS, HASH, append_linked, check_chain
from oblivionis.client.app import app
from oblivionis.erasure.hidden_requests import join
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.ledger_check import check_ledgers
from oblivionis.erasure.ledger_repair import repair
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.node_request_sources import SealedRequests, unconfirmed_sessions
from oblivionis.erasure.query_schema import Question, SessionOutcome, WireError, read_question, write_question
from oblivionis.erasure.remote_record_holders import RemoteHoldings
from oblivionis.erasure.request import RequestError
from oblivionis.erasure.unlearn_messages import accept
from oblivionis.erasure.verification_rules import Thresholds
from strategies import message_keys
from strategies.rounds.nodes import NodeMap

RUN, CLIENTS, ASKS = "clinics", 3, 1
BEFORE, AFTER = "b" * 64, "c" * 64


class Federation:
    """Real ClientApps in sealed folders, and a server that holds cover exchanges without any model."""

    def __init__(self, home):
        self.home = home
        write_nodes(home / "nodes", CLIENTS)
        self.folders = [home / "nodes" / f"node{client}" for client in range(CLIENTS)]
        self.replies, self.warnings, self.silent = [], [], set()
        self.grid = InProcessGrid(app, CLIENTS, self._keep)
        for context in self.grid.contexts.values():
            folder = self.folders[int(context.node_config["partition-id"])]
            (folder / "node.toml").write_text("[requests]\nsealed = true\n")
            context.node_config["node-dir"] = str(folder)
        self.start()

    def start(self):
        """The server, anew: as it is after a restart."""
        self.nodes = NodeMap(expected=CLIENTS, config={"data": "node"})
        holdings = RemoteHoldings(CLIENTS, self.nodes)
        self.ledger = Ledger(self.home / "run" / "requests.jsonl")
        self.source = SealedRequests(
            self.ledger,
            Thresholds(0.5, 1.0, 0.5),
            last_round=3,
            run=RUN,
            nodes=self.nodes,
            grid=self.grid,
            settings={},
            live=lambda client: holdings.live(client, without_forget_split=False),
            warn=self.warnings.append,
        )

    def _keep(self, client, message, reply):
        self.replies.append((client, message, reply))
        return None if client in self.silent else reply

    def hold(self, server_round, survivors=range(CLIENTS), session=None):
        session = session or f"{RUN}/{server_round}"
        shares = {c: join(folder, RUN, session, c) for c, folder in enumerate(self.folders)}
        commitments = {c: share.commitment for c, share in shares.items()}
        for client, share in shares.items():
            if share.demands:
                held = [record["id"] for record in records(client)]
                accept(share.demands, held, NodeFolder(self.folders[client]))
        count = sum(len(d.record_ids) for c in survivors for d in shares[c].demands)
        self.source.covered(server_round, session, commitments, list(survivors), BEFORE, AFTER, count)
        return shares

    def ask(self, client, *ids, identifier="x", **more):
        return NodeLedger(self.folders[client]).submit(list(ids), reason="by letter", identifier=identifier, **more)

    def states(self, client=ASKS):
        return [r.state for r in NodeLedger(self.folders[client]).requests()]

    def told(self):
        """By client what the last queries said of exchanges."""
        found = {}
        for client, message, _ in self.replies[-CLIENTS:]:
            found[client] = read_question(message.content.config_records[message_keys.CONFIG]).sessions
        return found


@pytest.fixture
def federation(tmp_path):
    return Federation(tmp_path)


def said(reply):
    """All that a reply says, but for the client's own name and the hash of its newest line."""
    content = {
        **{n: dict(r) for n, r in reply.content.metric_records.items()},
        **{n: dict(r) for n, r in reply.content.config_records.items()},
        "arrays": len(reply.content.array_records),
    }
    content[message_keys.METRICS].pop(message_keys.PARTITION_ID)
    head = content.get(message_keys.REQUESTS, {}).pop(message_keys.LEDGER_HEAD, GENESIS)
    assert len(head) == 64
    return content


def test_no_reply_tells_who_asked(federation):
    """Client 1 asks before, during and after; what it replies is what the two others reply, message by message."""
    ids = [record["id"] for record in records(ASKS)]
    for server_round in (1, 2, 3):
        federation.ask(ASKS, ids[server_round - 1], identifier=f"x{server_round}")
        assert federation.source.pending(server_round) == () and federation.source.cover_due(server_round)
        federation.hold(server_round, survivors=[0, 1] if server_round == 2 else range(CLIENTS))
    federation.ask(ASKS, *ids[3:], identifier="rest", scope="client")
    federation.source.pending(4)
    federation.hold(4)
    assert NodeFolder(federation.folders[ASKS]).left_by() == "rest" and not federation.source.cover_due(4)
    federation.source.close(4)
    by_client = [[said(r) for c, _, r in federation.replies if c == client] for client in range(CLIENTS)]
    assert len(by_client[0]) == 6, "one plain query, four rounds, one at the end"
    assert by_client[0] == by_client[1] == by_client[2]
    for reply in by_client[ASKS][1:]:
        assert (
            reply[message_keys.REQUESTS][message_keys.REQUEST_IDS]
            == reply[message_keys.REQUESTS][message_keys.RECORD_IDS]
            == []
        )
    assert federation.states() == ["served"] * 4
    assert [federation.source.live(c) for c in range(CLIENTS)] == [6, 6, 6]
    assert not any(federation.source.leaves(c) for c in range(CLIENTS)) and not federation.warnings
    text = federation.ledger.path.read_text()
    assert not any(i in text for i in [*ids, "x1", "rest", "by letter"])


def test_a_line_of_the_ledger_has_all_commitments(federation):
    federation.ask(ASKS, "p1-home", "p1-job")
    federation.source.pending(1)
    shares = federation.hold(1, survivors=[0, 1])
    (line,) = federation.ledger.notes("cover_exchange")
    assert line["commitments"] == {str(c): share.commitment for c, share in shares.items()}
    assert (line["session"], line["round"], line["survivors"], line["count"]) == (f"{RUN}/1", 1, [0, 1], 2)
    assert (line["before"], line["after"]) == (BEFORE, AFTER)
    assert check_chain(federation.ledger.path).faults == ()


def test_an_exchange_without_survivors_of_its_own_is_refused(federation):
    with pytest.raises(ValueError, match="client 2 is in the sum of session 's' without a commitment"):
        federation.source.covered(1, "s", {0: "a" * 64}, [0, 2], BEFORE, AFTER, 0)
    for wrong in ("a" * 63, "A" * 64, 5):
        with pytest.raises(ValueError, match="a SHA-256 by client"):
            federation.source.covered(1, "s", {0: wrong}, [0], BEFORE, AFTER, 0)
    assert not federation.ledger.path.exists()


def test_nodes_are_told_until_they_confirm_it_also_after_a_restart(federation):
    federation.ask(ASKS, "p1-home")
    federation.source.pending(1)
    federation.hold(1)
    federation.silent = {ASKS}
    federation.source.pending(2)
    assert federation.states() == ["served"], "the query reached it, and its answer was lost"
    federation.start()
    federation.source.roll_back(1)
    federation.silent = set()
    federation.source.pending(2)
    assert {c: len(sessions) for c, sessions in federation.told().items()} == {0: 0, 1: 1, 2: 0}
    assert len(NodeLedger(federation.folders[ASKS]).lines("served")) == 1, "entered once"
    federation.source.pending(3)
    assert not any(federation.told().values()) and federation.states() == ["served"]
    asked = len(federation.replies)
    federation.source.tell_again(3)
    assert len(federation.replies) == asked, "nothing is left to tell"


def test_who_dropped_out_asks_again(federation):
    federation.ask(ASKS, "p1-home")
    federation.source.pending(1)
    federation.hold(1, survivors=[0, 2])
    federation.source.pending(2)
    assert [s.outcome for s in federation.told()[ASKS]] == ["left_out"] and federation.states() == ["open"]
    shares = federation.hold(2)
    assert [d.record_ids for d in shares[ASKS].demands] == [("p1-home",)]
    federation.source.close(2)
    assert federation.states() == ["served"]


def test_an_exchange_without_a_sum_serves_nobody(federation):
    federation.ask(ASKS, "p1-home")
    federation.source.pending(1)
    shares = {c: join(folder, RUN, "s", c) for c, folder in enumerate(federation.folders)}
    commitments = {c: share.commitment for c, share in shares.items()}
    federation.source.cover_failed(1, "s", commitments, "too few are left")
    federation.source.pending(2)
    assert [s.outcome for s in federation.told()[0]] == ["left_out"] and federation.states() == ["open"]


@pytest.mark.parametrize("confirmed", [True, False], ids=["told before", "never told"])
def test_a_resumed_run_undoes_what_came_after_its_checkpoint(federation, confirmed):
    federation.ask(ASKS, "p1-home")
    federation.source.pending(1)
    federation.hold(1)
    federation.hold(2)
    if confirmed:
        federation.source.pending(3)
        assert federation.states() == ["served"]
    federation.start()
    federation.source.roll_back(0)
    undone = federation.ledger.notes("cover_undone")
    assert [(e["session"], e["round"]) for e in undone] == [(f"{RUN}/1", 1), (f"{RUN}/2", 2)]
    assert [e["of"] for e in undone] == [e[HASH] for e in federation.ledger.notes("cover_exchange")]
    federation.source.roll_back(0)
    assert len(federation.ledger.notes("cover_undone")) == 2, "once"
    federation.source.pending(1)
    assert federation.states() == ["open"]
    assert [d.record_ids for d in federation.hold(1)[ASKS].demands] == [("p1-home",)]
    federation.source.pending(2)
    assert federation.states() == ["served"]


def test_a_sum_that_the_server_forgot_is_asked_for_again(federation):
    """It stopped after the sum and before its ledger's line."""
    federation.ask(ASKS, "p1-home")
    federation.source.pending(1)
    for client, folder in enumerate(federation.folders):
        join(folder, RUN, "s", client)
    assert federation.states() == ["sealed"]
    federation.start()
    federation.source.pending(1)
    assert federation.states() == ["open"]


def test_both_sides_ledgers_are_unbroken_and_know_each_other(federation):
    federation.ask(ASKS, "p1-home")
    for server_round in (1, 2):
        federation.source.pending(server_round)
        federation.hold(server_round)
    federation.source.close(2)
    assert not any(faults for _, faults in check_ledgers([federation.ledger.path], federation.folders))
    path = federation.ledger.path
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:2] + lines[3:]) + "\n")
    (_, wrong), *_ = check_ledgers([path], federation.folders)
    assert wrong


def ask_openly(federation, client, **more):
    """A curious server's query to one client: its record `requests`."""
    question = Question("curious", "1" * 64, "2" * 64, 1)
    config = {**write_question(question), "data": "node", **more}
    node = next(n for n, c in federation.grid.contexts.items() if c.node_config["partition-id"] == client)
    message = Message(
        RecordDict({message_keys.CONFIG: ConfigRecord(config)}), dst_node_id=node, message_type=message_keys.QUERY
    )
    (reply,) = federation.grid.send_and_receive([message])
    return said(reply)


def test_a_sealed_node_tells_a_server_that_asks_openly_no_more(federation):
    federation.ask(ASKS, "p1-home", identifier="art17")
    guess = {"event": "served", "id": "art17", "line": "3" * 64, "round": 1}
    for more in ({}, {message_keys.OUTCOMES: [json.dumps(guess)]}):
        silent, asks = ask_openly(federation, 0, **more), ask_openly(federation, ASKS, **more)
        assert silent == asks and asks[message_keys.REQUESTS][message_keys.ACKNOWLEDGED] == [], "no id can be guessed"
    assert federation.states() == ["open"]


def test_the_newest_hash_of_a_sealed_node_cannot_be_guessed(federation):
    for _ in range(2):
        ask_openly(federation, 0)
    nonces = [line["nonce"] for line in NodeLedger(federation.folders[0]).lines("queried")]
    assert len(set(nonces)) == 2 and all(len(bytes.fromhex(nonce)) == 16 for nonce in nonces)


def test_a_line_that_undoes_no_exchange_is_refused_with_its_place(federation):
    federation.source.pending(1)
    federation.hold(1)
    federation.ledger.note("cover_failed", round=1, session="s", commitments={})
    federation.start()
    with pytest.raises(RequestError, match="which is about no exchange"):
        federation.ledger.note("cover_undone", round=1, session="s", of="0" * 64)
    with pytest.raises(RequestError, match=r"requests\.jsonl: line 5: .*'cover_undone' names line 000000000000…"):
        Ledger(federation.ledger.path)


def test_a_repaired_ledger_undoes_what_it_undid(federation):
    federation.source.pending(1)
    append_linked(federation.ledger.path, {"event": "asked", "time": "never"}, federation.ledger.head)
    path = federation.ledger.path
    head = check_chain(path).head
    about = {"time": 1.0, "round": 1, "session": "s"}
    body = {"event": "cover_exchange", **about, "commitments": {"0": "a" * 64}, "survivors": [0]}
    line = append_linked(path, {**body, "before": BEFORE, "after": AFTER, "count": 0}, head)
    append_linked(path, {"event": "cover_undone", **about, "of": line[HASH]}, line[HASH])
    assert list(repair(path).aside) == [3] and check_chain(path).faults == ()
    (exchange,), (undone,) = (Ledger(path).notes(name) for name in ("cover_exchange", "cover_undone"))
    assert undone["of"] == exchange[HASH] != line[HASH]
    outcomes = unconfirmed_sessions(Ledger(path), RUN)[0]
    assert [outcome.outcome for outcome in outcomes] == ["counted", "rolled_back"]


def test_requests_that_a_node_tells_all_the_same_are_set_aside(federation):
    (federation.folders[ASKS] / "node.toml").unlink()
    federation.ask(ASKS, "p1-home")
    federation.source.pending(1)
    assert not federation.warnings, "a server that does not want to know is not told"
    _, _, reply = next(item for item in reversed(federation.replies) if item[0] == ASKS)
    told = reply.content.config_records[message_keys.REQUESTS]
    told[message_keys.REQUEST_IDS], told[message_keys.SCOPES] = ["x"], ["records"]
    told[message_keys.RECORD_COUNTS], told[message_keys.RECORD_IDS] = [1], ["p1-home"]
    federation.nodes.ask = lambda grid, settings: {ASKS: reply.content}
    assert federation.source.pending(2) == () and list(federation.ledger) == []
    assert federation.warnings == [
        "client 1 tells its requests although they are sealed, and they are set aside: its program is too old"
    ]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"outcome": "perhaps"}, r"sessions\[0\].outcome: .*counted, left_out, rolled_back"),
        ({"line": "x"}, r"sessions\[0\].line"),
        ({"commitment": 5}, r"sessions\[0\].commitment"),
        ({"round": -1}, r"sessions\[0\].round"),
        ({"more": 1}, r"more"),
    ],
)
def test_what_makes_no_sense_is_refused_on_the_wire(change, where):
    outcome = SessionOutcome("s", RUN, 1, "counted", "1" * 64, "2" * 64, BEFORE, AFTER)
    question = Question(RUN, "1" * 64, "2" * 64, 1, sealed=True, sessions=(outcome,))
    config = write_question(question)
    assert read_question(ConfigRecord(config)) == question
    body = json.loads(config[message_keys.SESSIONS][0]) | change
    with pytest.raises(WireError, match=where):
        read_question({**config, message_keys.SESSIONS: [json.dumps(body)]})
    with pytest.raises(WireError, match="is no JSON"):
        read_question({**config, message_keys.SESSIONS: ["{"]})


@pytest.mark.parametrize("lacking", ["commitments", "survivors", "before", "count"])
def test_a_line_about_an_exchange_without_a_field_is_none(tmp_path, lacking):
    line = {"event": "cover_exchange", "time": 1.0, "round": 1, "session": "s", "commitments": {}, "survivors": []}
    line |= {"before": BEFORE, "after": AFTER, "count": 0}
    del line[lacking]
    with pytest.raises(RequestError, match=f"{lacking} is missing"):
        Ledger(tmp_path / "requests.jsonl", [line])
