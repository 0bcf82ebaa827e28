"""Requests that are made on nodes: whole runs with real server and clients, and what goes over the wire."""

import json
import shutil
import threading

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from support.commands import call
from support.inprocess import InProcessGrid
from support.late import LateGrid
from support.stages import WHOLE_MODEL, Recorded, new_run

from oblivionis.chain import GENESIS, append_all, check_chain
from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.data.corpora import load_corpus, load_partition
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.ledger_check import check_ledgers
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.node_request_sources import answer_query
from oblivionis.erasure.query_schema import (
    Answer,
    Question,
    Reported,
    WireError,
    outcome_of,
    read_answer,
    read_question,
    write_answer,
    write_question,
)
from oblivionis.erasure.verification_rules import OUTCOMES
from oblivionis.errors import RunInterrupted
from oblivionis.runs.directory import RunDirectory, vector_hash
from oblivionis.server.app import serve
from strategies import message_keys

SETTINGS = (
    WHOLE_MODEL,  # nodes allow no other folder of models
    "unlearning.requests.policy=nodes",
    "federation.fraction_train=1.0",
    "federation.rounds.finetune=1",
    "federation.rounds.unlearn=3",
    "evaluation.every=0",
    "evaluation.ruler.enabled=false",
    "evaluation.rebound.enabled=false",
)
SECRET = "Ashgabat"


def execute(config, run, folders, events=None, before=None, tamper=None, wrapped=lambda grid: grid):
    """`before(stage, round)` is called when a round starts, as somebody at a node may act at any time."""
    events = events or Recorded()
    stop = events.stop or threading.Event()
    started = events.round_started

    def round_started(round):
        started(round)
        if before is not None:
            before(events.stage, round)

    events.round_started = round_started
    grid = InProcessGrid(app, config.federation.clients, tamper)
    for context in grid.contexts.values():
        context.node_config["node-dir"] = str(folders[int(context.node_config["partition-id"])])
    serve(config, wrapped(grid), run, events, stop)
    return events, grid


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finetuned model, and node folders with the records that its clients hold."""
    home = tmp_path_factory.mktemp("trained")
    config, run = new_run(home, "base", *SETTINGS, "stages=[finetune]")
    corpus = load_corpus(config.data)
    partition = load_partition(corpus, config)
    folders = [home / f"node{client}" for client in range(config.federation.clients)]
    for folder, indices in zip(folders, partition.clients, strict=True):
        (folder / "data").mkdir(parents=True)
        rows = [corpus.train[i] for i in indices]
        fields = ("id", "question", "answer", "subject")
        text = "".join(json.dumps({name: getattr(r, name) for name in fields}) + "\n" for r in rows)
        (folder / "data" / "records.jsonl").write_text(text)
    execute(config, run, folders)
    return home, run, corpus, partition


def unlearning(trained, tmp_path, *overrides):
    """A new run of the stage unlearn with fresh copies of the node folders."""
    home, base, _, _ = trained
    folders = [tmp_path / f"node{client}" for client in range(4)]
    for folder in folders:
        shutil.copytree(home / folder.name / "data", folder / "data")
    config, run = new_run(tmp_path, "run", *SETTINGS, "stages=[unlearn]", f"start_from={base.path}", *overrides)
    return config, run, folders


def submit(folder, *arguments):
    result = call("request", "submit", "--node-dir", folder, "--reason", SECRET, *arguments)
    assert result.code == 0, result.err


class Wire:
    """Keeps every message and its answer."""

    def __init__(self):
        self.seen = []

    def __call__(self, client, message, reply):
        self.seen.append((client, message, reply))
        return reply


@pytest.fixture(scope="module")
def served(trained, tmp_path_factory):
    """Client 0 asks before the run for two records, client 1 during round 2 for all about a person, by the same id."""
    tmp_path = tmp_path_factory.mktemp("served")
    config, run, folders = unlearning(trained, tmp_path)
    _, _, corpus, partition = trained
    first = partition.ids[0][:2]
    person = next(r for r in corpus.train if r.id == partition.ids[1][0]).subject
    submit(folders[0], "--ids", ",".join(first), "--id", "art17")

    def before(stage, round):
        if round == 1:  # after the query of round 1
            submit(folders[1], "--subject", person, "--id", "art17")

    wire = Wire()
    events, _ = execute(config, run, folders, before=before, tamper=wire)
    return config, run, folders, wire, events, first, person


def test_a_request_is_served_in_the_round_after_it_was_made(served, trained):
    _, run, _, wire, events, first, person = served
    mine, other = Ledger(run.ledger_path)
    assert (mine.id, mine.client, mine.record_ids, mine.round, mine.told) == ("art17", 0, tuple(first), 1, "art17")
    assert mine.served_round == 1 and mine.state in ("served", "verified")
    expected = {r.id for r in trained[2].train if r.subject == person} & set(trained[3].ids[1])
    assert (other.id, other.client, set(other.record_ids)) == ("art17-client-0001", 1, expected)
    assert (other.served_round, other.scope, other.subject, other.reason) == (2, "subject", "", "")
    addressed = [c for c, m, _ in wire.seen if m.metadata.message_type == message_keys.UNLEARN]
    assert addressed == [0, 1] and not events.left_out
    assert [w for w in events.warnings if "retrained" not in w] == []


def test_the_nodes_know_what_became_of_their_requests(served):
    _, run, folders, _, _, _, _ = served
    for client, request in enumerate(Ledger(run.ledger_path)):
        (known,) = NodeLedger(folders[client]).requests()
        assert (known.id, known.run, known.served_round) == ("art17", "run", request.served_round)
        assert known.state == request.outcome in OUTCOMES and known.note == ("" if known.settled else request.why)
        assert known.rouge == request.rouge and known.reason == SECRET
        assert Ledger(run.ledger_path).unacknowledged(client) == []


def test_the_adapter_hashes_are_those_of_the_models(served):
    _, run, folders, _, _, _, _ = served
    events = [json.loads(line) for line in run.ledger_path.read_text().splitlines()]
    first, second = (e for e in events if e["event"] == "applied")
    assert first["before"] == vector_hash(run.load_checkpoint("finetune").vector)
    assert second["before"] == vector_hash(run.load_checkpoint("unlearn", 1).vector)
    assert len({first["before"], first["after"], second["before"], second["after"]}) == 4
    noted = [json.loads(line) for line in (folders[0] / "requests.jsonl").read_text().splitlines()]
    told = next(e for e in noted if e["event"] == "applied")
    assert (told["before"], told["after"], told["line"]) == (first["before"], first["after"], first["hash"])


def test_every_connected_node_is_asked_in_every_round_and_at_the_end(served):
    _, _, _, wire, _, _, _ = served
    asked = [c for c, m, _ in wire.seen if m.metadata.message_type == message_keys.QUERY]
    assert sorted(asked) == sorted([0, 1, 2, 3] * 6), "who are you, rounds 1 to 3, one more look, the end"


def test_names_reasons_and_contents_stay_on_the_node(served, trained):
    _, run, _, wire, _, _, person = served
    texts = {person, SECRET, *(r.question for r in trained[2].train), *(r.answer for r in trained[2].train)}
    for _, message, reply in wire.seen:
        said = [m.content.config_records for m in (message, reply)]
        if message.metadata.message_type != message_keys.QUERY:
            assert said[1] == {}, "only the answer to a query has words in it"
        for text in texts:
            assert text not in str(dict(said[1])), "from the client"
    ledger = run.ledger_path.read_text()
    assert SECRET not in ledger and person not in ledger


def test_what_one_client_asks_reaches_no_other(served, trained):
    """A client gets adapters and settings, and of requests its own."""
    _, _, _, wire, _, first, person = served
    mine = {0: set(first), 1: {r.id for r in trained[2].train if r.subject == person} & set(trained[3].ids[1])}
    assert all(mine.values())
    for client, message, _ in wire.seen:
        assert not message.content.metric_records
        assert {len(arrays) for arrays in message.content.array_records.values()} <= {1}, "an adapter"
        said = str([dict(record) for record in message.content.config_records.values()])
        foreign = set().union(*(ids for owner, ids in mine.items() if owner != client))
        assert not [text for text in (SECRET, person, *foreign) if text in said]
        assert ("art17" in said) <= (client in mine), "the names of requests"


def test_an_exchange_whose_checkpoint_was_not_kept_is_not_testable(served, tmp_path):
    """As with `federation.keep_checkpoints=1`: without the model nothing is computed, and nothing is called equal."""
    _, run, folders, *_ = served
    copy = shutil.copytree(run.path, tmp_path / "run")
    (copy / "checkpoints" / "unlearn" / "round-0001.safetensors").unlink()
    done = call("audit", "exchange", copy, "art17-client-0001", "--node-dir", folders[1])
    assert done.code == 3 and "the model before the exchange of round 2 is gone" in done.out
    assert "equal" not in done.out.partition("exchange:")[2] and "numbers" not in done.out


def test_both_ledgers_are_whole_and_know_each_other(served):
    _, run, folders, _, _, _, _ = served
    findings = check_ledgers([run.path], folders)
    assert [faults for _, faults in findings] == [[], [], [], [], []]
    result = call("request", "verify", run.path, *(a for f in folders for a in ("--node-dir", f)))
    assert result.code == 0 and result.out.count("unbroken") == 5


def copies(served, tmp_path):
    _, run, folders, _, _, _, _ = served
    ours, theirs = tmp_path / "run", tmp_path / "node0"
    ours.mkdir()
    theirs.mkdir()
    shutil.copy(run.ledger_path, ours)
    shutil.copy(folders[0] / "requests.jsonl", theirs)
    return ours, theirs


def cut(folder, keep):
    path = folder / "requests.jsonl"
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines()[:keep]))


def test_a_tail_cut_off_on_either_side_is_found_by_the_other(served, tmp_path):
    ours, theirs = copies(served, tmp_path)
    lines = (ours / "requests.jsonl").read_text().splitlines()
    told = max(n for n, line in enumerate(lines) if '"event": "asked"' in line)  # and with it where the ledger ended
    cut(ours, told - 1)
    (_, wrong), (_, fine) = check_ledgers([ours], [theirs])
    assert "lines are gone" in wrong[0] and not fine
    assert f"after {told} lines, and none of the {told - 1} there are" in wrong[0]
    assert call("request", "verify", ours).code == 0, "by itself it looks whole"
    assert call("request", "verify", ours, "--node-dir", theirs).code == 1


def test_what_comes_after_the_last_query_no_node_knows(served, tmp_path):
    """Cut there, or with more lines, the run's ledger is to the nodes what it was."""
    ours, theirs = copies(served, tmp_path)
    lines = (ours / "requests.jsonl").read_text().splitlines()
    told = max(n for n, line in enumerate(lines) if '"event": "asked"' in line)
    assert told < len(lines)
    cut(ours, told)
    Ledger(ours / "requests.jsonl").note("measured", files={})
    assert [faults for _, faults in check_ledgers([ours], [theirs])] == [[], []]
    done = call("request", "verify", ours, "--node-dir", theirs)
    assert done.code == 0 and f"{told + 1} lines, unbroken" in done.out, "the chain, and no more, is called so"


def test_a_tail_cut_off_on_the_node_is_found_by_the_run(served, tmp_path):
    ours, theirs = copies(served, tmp_path)
    cut(theirs, len((theirs / "requests.jsonl").read_text().splitlines()) - 1)
    (_, fine), (_, wrong) = check_ledgers([ours], [theirs])
    assert "lines are gone" in wrong[0] and not fine


def test_a_ledger_written_anew_with_right_hashes_is_found_by_the_other(served, tmp_path):
    ours, theirs = copies(served, tmp_path)
    entries = [json.loads(line) for line in (ours / "requests.jsonl").read_text().splitlines()]
    (ours / "requests.jsonl").unlink()
    bare = ({k: v for k, v in entry.items() if k not in ("prev", "hash")} for entry in entries)
    append_all(ours / "requests.jsonl", [{**entry, "time": 1.0} for entry in bare], GENESIS)
    assert check_chain(ours / "requests.jsonl").faults == ()
    (_, wrong), _ = check_ledgers([ours], [theirs])
    assert "replaced" in wrong[0]


def test_a_node_that_the_run_never_asked_cannot_be_compared(served, tmp_path):
    ours, _ = copies(served, tmp_path)
    stranger = tmp_path / "other"
    NodeLedger(stranger).submit(["x"])
    assert [faults for _, faults in check_ledgers([ours], [stranger])] == [[], []]
    found = call("request", "verify", ours, "--node-dir", stranger)
    assert found.code == 3 and "noted no query" in found.out, "nothing differs, and nothing was tested"


def test_told_again_it_is_not_served_again_and_a_lost_outcome_is_told_until_it_is_confirmed(trained, tmp_path):
    config, run, folders = unlearning(trained, tmp_path)
    record = trained[3].ids[2][0]
    submit(folders[2], "--ids", record, "--id", "x")

    lose = {2, 3, "end"}

    def deaf(client, message, reply):
        """Of client 2 the answers to the queries of rounds 2 and 3, and to that at the end, are lost."""
        config = message.content.config_records[message_keys.CONFIG]
        if client != 2 or message.metadata.message_type != message_keys.QUERY or message_keys.LEDGER not in config:
            return reply
        round = config[message_keys.SERVER_ROUND]
        which = "end" if round == 3 and 3 not in lose else round
        if which not in lose:
            return reply
        lose.remove(which)
        return Message(Error(code=5, reason="node unavailable"), reply_to=message)

    _, grid = execute(config, run, folders, tamper=deaf)
    assert not lose and len(Ledger(run.ledger_path).unacknowledged(2)) == 1, "the verification"
    execute(config, run, folders)
    assert Ledger(run.ledger_path).unacknowledged(2) == []
    assert [c for c, kind in grid.sent if kind == message_keys.UNLEARN] == [2]
    (request,) = Ledger(run.ledger_path)
    assert request.served_round == 1
    noted = [json.loads(line) for line in (folders[2] / "requests.jsonl").read_text().splitlines()]
    lines = [e["line"] for e in noted if "line" in e]
    assert len(lines) == len(set(lines)) == 3, "served, applied and the verification, each entered once"
    acknowledged = [json.loads(r) for r in run.ledger_path.read_text().splitlines() if '"acknowledged"' in r]
    assert sorted(i for e in acknowledged for i in e["lines"]) == sorted(lines)
    assert all(not faults for _, faults in check_ledgers([run.path], folders))


def test_a_resumed_run_serves_what_it_had_served_beyond_its_checkpoint_again(trained, tmp_path):
    config, run, folders = unlearning(trained, tmp_path)
    submit(folders[1], "--ids", trained[3].ids[1][0], "--id", "x")
    stop = threading.Event()

    def fail_training(client, message, reply):
        """Ctrl-C while the clients train in round 1, after the exchange that served the request."""
        if message.metadata.message_type == message_keys.TRAIN:
            stop.set()
        return reply

    with pytest.raises(RunInterrupted):
        execute(config, run, folders, events=Recorded(stop), tamper=fail_training)
    assert Ledger(run.ledger_path).get("x").served_round == 1
    again = configuration.from_yaml(run.read_config())
    execute(again, RunDirectory.open(run.path), folders)
    events = [json.loads(line)["event"] for line in run.ledger_path.read_text().splitlines()]
    assert "rolled_back" in events and events.count("served") == 2
    (request,) = Ledger(run.ledger_path)
    assert request.served_round == 1 and request.state in ("served", "verified")
    (known,) = NodeLedger(folders[1]).requests()
    assert known.served_round == 1 and known.state == request.outcome in OUTCOMES
    assert all(not faults for _, faults in check_ledgers([run.path], folders))


def test_who_leaves_by_its_own_request_is_not_sampled_any_more(trained, tmp_path):
    config, run, folders = unlearning(trained, tmp_path, "federation.rounds.unlearn=2")
    submit(folders[3], "--all", "--id", "end")
    events, _ = execute(config, run, folders)
    assert [clients for _, clients in events.trained] == [(0, 1, 2)] * 2
    (request,) = Ledger(run.ledger_path)
    assert request.scope == "client" and set(request.record_ids) == set(trained[3].ids[3])
    assert (folders[3] / "left.json").is_file()


def test_in_asynchronous_rounds_by_the_machines_clock(trained, tmp_path):
    """The client that asks is slow, and at work when it does: it is heard once it is idle, and served."""
    rounds = ("federation.rounds.unlearn=5", "federation.buffer.size=1", "federation.buffer.concurrency=2")
    _, _, folders = unlearning(trained, tmp_path)
    config, run = new_run(tmp_path, "asynchronous", *SETTINGS, *rounds, "stages=[finetune,unlearn]")

    def before(stage, round):
        if (stage, round) == ("unlearn", 1):
            submit(folders[0], "--ids", trained[3].ids[0][0], "--id", "x")

    def wrapped(grid):
        slow = {node for node, context in grid.contexts.items() if context.node_config["partition-id"] == 0}
        return LateGrid(grid, lambda message: 0.2 if message.metadata.dst_node_id in slow else 0.0)

    execute(config, run, folders, before=before, wrapped=wrapped)
    (request,) = Ledger(run.ledger_path)
    assert request.served_round is not None
    (barrier,) = Ledger(run.ledger_path).notes("barrier")
    assert (barrier["round"], barrier["requests"]) == (request.served_round, ["x"]) and barrier["discarded"] <= 2
    assert all(not faults for _, faults in check_ledgers([run.path], folders))


def test_nobody_trains_on_records_from_the_request_on(trained, tmp_path):
    """Long before the server can hear of it: the stage finetune asks no node for requests."""
    _, _, folders = unlearning(trained, tmp_path)
    ids = trained[3].ids
    submit(folders[0], "--ids", ",".join(ids[0][:2]))
    submit(folders[1], "--all")
    config, run = new_run(tmp_path, "again", *SETTINGS, "stages=[finetune]")
    wire = Wire()
    execute(config, run, folders, tamper=wire)
    replies = {c: r for c, message, r in wire.seen if message.metadata.message_type == message_keys.TRAIN}
    assert "no record left to train on" in replies.pop(1).error.reason
    learned = {c: r.content.metric_records[message_keys.METRICS][message_keys.NUM_EXAMPLES] for c, r in replies.items()}
    assert learned == {c: len(ids[c]) - 2 * (c == 0) for c in (0, 2, 3)}
    assert not any((folder / "tombstones.jsonl").exists() for folder in folders)


def test_a_node_that_talks_nonsense_is_set_aside_with_a_warning(trained, tmp_path):
    config, run, folders = unlearning(trained, tmp_path, "federation.rounds.unlearn=1")
    submit(folders[0], "--ids", trained[3].ids[0][0], "--id", "x")
    submit(folders[1], "--ids", trained[3].ids[1][0], "--id", "y")

    def garble(client, message, reply):
        if client == 0 and message_keys.REQUESTS in reply.content:
            reply.content[message_keys.REQUESTS][message_keys.RECORD_COUNTS] = [7]
        return reply

    events, _ = execute(config, run, folders, tamper=garble)
    assert [r.id for r in Ledger(run.ledger_path)] == ["y"]
    assert any("client 0" in w and "counts" in w for w in events.warnings)
    assert [r.state for r in NodeLedger(folders[0]).requests()] == ["open"], "not lost: another run may serve it"


# -- the wire ------------------------------------------------------------------------------------------------------

HEAD = "0" * 63 + "a"
QUESTION = Question("run", HEAD, HEAD, 3, ({"event": "served", "id": "x", "line": HEAD, "round": 2, "limit": 0.5},))
ANSWER = Answer((Reported("x", "records", ("a", "b")), Reported("y", "client", ("c",))), HEAD, (HEAD,))


def test_what_is_written_is_read_again():
    assert read_question(ConfigRecord(write_question(QUESTION))) == QUESTION
    assert read_answer(write_answer(ANSWER)) == ANSWER
    nothing = Answer((), GENESIS, ())
    assert read_answer(write_answer(nothing)) == nothing
    assert read_question({}) is None and read_question({"nodes-dir": "x"}) is None


BAD_ANSWERS = {
    "no counts": ({message_keys.RECORD_COUNTS: None}, "record-counts: Expected `array`, got `null`; found None"),
    "counts that do not divide": ({message_keys.RECORD_COUNTS: [2, 2]}, "record counts add up to 4, but there are 3"),
    "a count of 0": ({message_keys.RECORD_COUNTS: [3, 0]}, r"record-counts\[1\]: Expected `int` >= 1; found 0"),
    "a truth for a count": ({message_keys.RECORD_COUNTS: [2, True]}, r"record-counts\[1\]: Expected `int`, got `bool`"),
    "a fraction for a count": (
        {message_keys.RECORD_COUNTS: [2, 1.0]},
        r"record-counts\[1\]: Expected `int`, got `float`",
    ),
    "fewer scopes": ({message_keys.SCOPES: ["records"]}, "2 requests, but 1 scopes and 2 record counts"),
    "unknown scope": (
        {message_keys.SCOPES: ["records", "everything"]},
        r"scopes\[1\]: Expected one of records, client, subject; found 'everything'",
    ),
    "a path as id": (
        {message_keys.REQUEST_IDS: ["x", "../../etc/passwd"]},
        r"request-ids\[1\]: Expected an id of 1 to 64 letters, .*; found '\.\./\.\./etc/passwd'",
    ),
    "an id with a line break": ({message_keys.REQUEST_IDS: ["x", "y\n"]}, r"request-ids\[1\]: .*; found 'y\\n'"),
    "an id twice": ({message_keys.REQUEST_IDS: ["x", "x"]}, "request x is told twice"),
    "a record twice": ({message_keys.RECORD_IDS: ["a", "a", "c"]}, "request x names a record twice"),
    "an empty record id": (
        {message_keys.RECORD_IDS: ["a", "", "c"]},
        r"record-ids\[1\]: Expected `str` of length >= 1",
    ),
    "an endless record id": ({message_keys.RECORD_IDS: ["a", "b" * 513, "c"]}, "of length <= 512; found 'bbb.{55}…$"),
    "numbers for texts": ({message_keys.RECORD_IDS: [1, 2, 3]}, r"record-ids\[0\]: Expected `str`, got `int`; found 1"),
    "no hash": ({message_keys.LEDGER_HEAD: "abc"}, "ledger-head: Expected a SHA-256; found 'abc'"),
    "no hashes": (
        {message_keys.ACKNOWLEDGED: ["<script>"]},
        r"acknowledged\[0\]: Expected a SHA-256; found '<script>'",
    ),
    "too many requests": (
        {message_keys.REQUEST_IDS: ["x"] * 10_001},
        "request-ids: Expected `array` of length <= 10000",
    ),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_an_answer_that_is_not_well_is_refused(name):
    change, reason = BAD_ANSWERS[name]
    with pytest.raises(WireError, match=reason):
        read_answer({**write_answer(ANSWER), **change})


def test_an_answer_without_a_key_is_refused_by_its_name():
    whole = dict(write_answer(ANSWER))
    for key in whole:
        with pytest.raises(WireError, match=f"missing required field `{key}`"):
            read_answer({k: v for k, v in whole.items() if k != key})


BAD_OUTCOMES = {
    "no JSON": ("x", r"outcomes\[0\]: 'x' is no JSON"),
    "no object": ("[]", r"outcomes\[0\]: Expected `object`, got `array`"),
    "unknown event": (
        '{"event": "submitted", "id": "x", "line": "%s", "round": 1}',
        r"outcomes\[0\]\.event: Expected one of served, applied, .*, covered; found 'submitted'",
    ),
    "no line": ('{"event": "served", "id": "x", "round": 1}', "missing required field `line`"),
    "no round": ('{"event": "served", "id": "x", "line": "%s"}', "missing required field `round`"),
    "a truth for a round": (
        '{"event": "served", "id": "x", "line": "%s", "round": true}',
        r"outcomes\[0\]\.round: Expected `int`, got `bool`; found True",
    ),
    "infinite": ('{"event": "verified", "id": "x", "line": "%s", "round": 1, "rouge": Infinity}', "is no JSON"),
    "beyond numbers": ('{"event": "verified", "id": "x", "line": "%s", "round": 1, "rouge": 1e999}', "out of range"),
    "a foreign field": (
        '{"event": "served", "id": "x", "line": "%s", "round": 1, "prev": "x"}',
        r"outcomes\[0\]: Object contains unknown field `prev`",
    ),
    "no hash of a model": (
        '{"event": "applied", "id": "x", "line": "%s", "round": 1, "before": "x"}',
        r"outcomes\[0\]\.before: Expected a SHA-256; found 'x'",
    ),
    "a long reason": (
        '{"event": "failed", "id": "x", "line": "%s", "round": 1, "reason": "' + "y" * 1001 + '"}',
        r"outcomes\[0\]\.reason: Expected `str` of length <= 1000",
    ),
}


@pytest.mark.parametrize("name", BAD_OUTCOMES)
def test_a_question_that_is_not_well_is_refused_and_nothing_is_entered(name, tmp_path):
    text, reason = BAD_OUTCOMES[name]
    with pytest.raises(WireError, match=reason):
        answer_query({**write_question(QUESTION), message_keys.OUTCOMES: [text.replace("%s", HEAD)]}, 0, tmp_path)
    assert not (tmp_path / "requests.jsonl").exists()


BAD_QUESTIONS = {
    "a round before the first": ({message_keys.SERVER_ROUND: -1}, "server-round: Expected `int` >= 0; found -1"),
    "a truth for a round": ({message_keys.SERVER_ROUND: True}, "server-round: Expected `int`, got `bool`"),
    "no name of a run": ({message_keys.RUN: 3}, "run: Expected `str`, got `int`; found 3"),
    "a ledger that is none": ({message_keys.LEDGER: "x"}, "ledger: Expected a SHA-256; found 'x'"),
    "no list of outcomes": ({message_keys.OUTCOMES: "x"}, "outcomes: Expected `array`, got `str`; found 'x'"),
}


@pytest.mark.parametrize("name", BAD_QUESTIONS)
def test_a_question_names_the_key_that_is_not_well(name):
    change, reason = BAD_QUESTIONS[name]
    with pytest.raises(WireError, match=f"^{reason}"):
        read_question({**write_question(QUESTION), **change})


def test_an_outcome_carries_numbers_and_hashes_but_no_ids_of_records():
    entry = {"event": "served", "id": "art17-client-0001", "client": 1, "round": 2, "count": 5, "unlearn-loss": 1.0}
    assert outcome_of(entry, "art17", HEAD) == {"event": "served", "id": "art17", "line": HEAD, "round": 2}


def test_a_plain_query_gets_the_partition_and_touches_no_file(tmp_path):
    grid = InProcessGrid(app, 1)
    (node,) = grid.contexts
    grid.contexts[node].node_config["node-dir"] = str(tmp_path / "node")
    content = RecordDict({message_keys.CONFIG: ConfigRecord({})})
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=node, message_type=message_keys.QUERY)])
    assert not isinstance(reply, Error) and list(reply.content) == [message_keys.METRICS]
    assert not (tmp_path / "node").exists()
