"""What the clients of an exact erasure asked for, and hold: certificates are held against it, and records may go."""

import json
import shutil

import pytest
from support.commands import call
from support.stages import Recorded, execute, new_run

from oblivionis.audits.exchange_replay import replay_exchange
from oblivionis.audits.replay import DIFFERS, EQUAL
from oblivionis.chain import GENESIS, line_hash
from oblivionis.config import identity
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.verification_rules import ERASED, NOT_TESTABLE
from oblivionis.files import write_json
from oblivionis.reports.certificate import signing as certificates
from oblivionis.runs.directory import RunDirectory

ON_NODES = (
    *("unlearning=exact", "strategy=fedavg", "evaluation.every=0", "federation.clients=3", "stages=[finetune,unlearn]"),
    *("federation.rounds.finetune=2", "federation.rounds.unlearn=3", "federation.fraction_train=1"),
    *("data=node", "unlearning.requests.policy=nodes"),
)


class AtRounds(Recorded):
    """Does something at the beginning of rounds."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def round_started(self, round):
        super().round_started(round)
        self.at.get((self.stage, round), lambda: None)()


def records_of(nodes, client):
    return nodes / f"node{client}" / "data" / "records.jsonl"


def delete(nodes, client, record):
    file = records_of(nodes, client)
    rows = [line for line in file.read_text().splitlines(keepends=True) if json.loads(line)["id"] != record]
    file.write_text("".join(rows))


def made(home, at, *more):
    """A run whose clients keep four records each, and do what `at` gives for the folder of all of them."""
    nodes = home / "nodes"
    for client in range(3):
        records_of(nodes, client).parent.mkdir(parents=True)
        rows = [
            {"id": f"{client}-{i}", "question": f"Who is {client}-{i}?", "answer": f"Number {7 * client + i}."}
            for i in range(4)
        ]
        records_of(nodes, client).write_text("".join(json.dumps(row) + "\n" for row in rows))
    config, run = new_run(home, "run", *ON_NODES, f"data.nodes={nodes}", *more)
    events = AtRounds(at(nodes))
    execute(config, run, events=events)
    return run, nodes, events


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    file = tmp_path_factory.mktemp("keys") / "key"
    assert call("certificate", "keygen", "--out", file).code == 0
    return file


@pytest.fixture(scope="module")
def served_twice(tmp_path_factory):
    """Client 1 asks first, and its record is deleted before client 0 asks."""

    def at(nodes):
        def second():
            delete(nodes, 1, "1-0")
            NodeLedger(nodes / "node0").submit(["0-0"], identifier="second")

        return {
            ("finetune", 2): lambda: NodeLedger(nodes / "node1").submit(["1-0"], identifier="first"),
            ("unlearn", 2): second,
        }

    return made(tmp_path_factory.mktemp("twice"), at)


@pytest.fixture
def twice(served_twice, tmp_path):
    """A copy of the run, and of the folders of its clients."""
    run, nodes, _ = served_twice
    shutil.copytree(run.path, tmp_path / "run")
    shutil.copytree(nodes, tmp_path / "nodes")
    return RunDirectory.open(tmp_path / "run"), tmp_path / "nodes"


def folders(nodes, clients=range(3)):
    return [nodes / f"node{client}" for client in clients]


def replayed(folder, key, given):
    """Exit code, and the lines of what is not equal."""
    named = [argument for node in given for argument in ("--node-dir", node)]
    result = call("certificate", "verify", folder, "--public-key", f"{key}.pub", "--replay", *named)
    lines = [line for line in result.out.splitlines() if ": differs" in line or ": not testable" in line]
    return result.code, lines


def test_a_record_that_was_deleted_after_its_erasure_stands_in_the_way_of_no_other(served_twice):
    run, _, events = served_twice
    served = [(request.id, request.served_round, request.outcome) for request in Ledger(run.ledger_path)]
    assert served == [("first", 1, ERASED), ("second", 3, ERASED)], events.left_out


def test_replays_go_on_working_once_the_records_are_deleted(twice, key):
    run, nodes = twice
    delete(nodes, 0, "0-0")
    assert "0-0" not in records_of(nodes, 0).read_text()
    assert "1-0" not in records_of(nodes, 1).read_text()
    for request in ("first", "second"):
        folder, _ = certificates.create(run, request, key)
        assert replayed(folder, key, folders(nodes)) == (0, [])
        assert {finding.outcome for finding in replay_exchange(run.path, request, folders(nodes))} == {EQUAL}


@pytest.mark.parametrize("change", ["deleted", "added"])
def test_a_replay_needs_the_records_that_nobody_asked_for(twice, key, change):
    run, nodes = twice
    if change == "deleted":
        delete(nodes, 1, "1-3")
    else:
        with records_of(nodes, 1).open("a") as file:
            file.write('{"id": "new", "question": "Who is new?", "answer": "Nobody."}\n')
    code, lines = replayed(certificates.create(run, "first", key)[0], key, folders(nodes))
    assert code == 3
    assert "records of client 1: not testable (its ledger says that it worked with records of the hash" in lines[0]


def rechained(file, change):
    """Write a ledger anew, with right hashes, after a change of each line."""
    last, lines = GENESIS, []
    for line in map(json.loads, file.read_text().splitlines()):
        change(line)
        line["prev"] = last
        line["hash"] = last = line_hash(line)
        lines.append(json.dumps(line) + "\n")
    file.write_text("".join(lines))


@pytest.mark.parametrize("record", ["0-1", "nobody-has-this"])
def test_a_record_that_the_client_was_not_asked_for_is_not_erased(twice, key, record):
    run, nodes = twice

    def another(line):
        if (line["event"], line.get("id")) == ("submitted", "first"):
            line["record_ids"].append(record)
            line["count"] += 1

    rechained(run.ledger_path, another)
    text = f"by its client's folder it does not name {record!r} (1 of 2)"
    code, lines = replayed(certificates.create(run, "first", key)[0], key, folders(nodes))
    assert (code, lines) == (1, [f"request first of client 1: differs ({text})"])
    found = [f for f in replay_exchange(run.path, "first", folders(nodes)) if f.outcome != EQUAL]
    assert [(f.what, f.outcome, f.why) for f in found] == [("request first of client 1", DIFFERS, text)]


def test_a_request_that_names_less_than_its_client_asked_for_differs(twice, key):
    run, nodes = twice
    rechained(
        nodes / "node1" / "requests.jsonl",
        lambda line: line["record_ids"].append("1-1") if line["event"] == "submitted" else None,
    )
    _, lines = replayed(certificates.create(run, "first", key)[0], key, folders(nodes))
    assert "request first of client 1: differs (by its client's folder it names '1-1', too (1 more))" in lines


def test_a_request_that_its_client_never_made_differs(twice, key):
    run, nodes = twice

    def renamed(line):
        if line.get("id") == "first":
            line["id"] = "another"

    rechained(nodes / "node1" / "requests.jsonl", renamed)
    _, lines = replayed(certificates.create(run, "first", key)[0], key, folders(nodes))
    assert "request first of client 1: differs (the ledger of client 1 has no such request)" in lines


def signed_again(folder, certificate, key):
    """Whoever has the key may say anything."""
    certificate = {**certificate, certificates.SIGNATURE: None}
    signature = certificates.read_private_key(key).sign(certificates.signed_bytes(certificate)).hex()
    write_json(folder / certificates.JSON_FILE, {**certificate, certificates.SIGNATURE: signature})
    (folder / certificates.PAGE_FILE).unlink(missing_ok=True)


ALTERATIONS = {
    "ids": (lambda c: c["requests"][0]["request"].update(record_ids=["0-1"]), "other record_ids"),
    "client": (lambda c: c["requests"][0]["request"].update(client=2), "other client"),
    "round": (lambda c: c["requests"][0]["request"].update(served_round=2), "other served_round"),
    "before": (lambda c: c["requests"][0]["evidence"]["models"].update(before="0" * 64), "other models"),
    "events": (lambda c: c["requests"][0]["evidence"]["events"][0].update(hash="0" * 64), "other events"),
    "seed": (lambda c: c["exact"]["seeds"].update(run=7), "other run"),
    "name": (lambda c: c["run"].update(name="another"), "other name"),
}


@pytest.mark.parametrize("name", ALTERATIONS)
def test_what_a_certificate_says_of_its_run_and_requests_is_compared_with_the_run(twice, key, name):
    run, nodes = twice
    folder, certificate = certificates.create(run, "first", key)
    change, text = ALTERATIONS[name]
    change(certificate)
    signed_again(folder, certificate, key)
    code, lines = replayed(folder, key, folders(nodes))
    assert (code, f"differs ({text})" in lines[0]) == (1, True), lines


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda part: part["evidence"]["models"].update(final=None), "requests[0].evidence.models.final: expected"),
        (lambda part: part["request"].pop("client"), "requests[0].request"),
        (lambda part: part["request"].pop("record_ids"), "requests[0].request"),
    ],
)
def test_a_signed_certificate_of_another_shape_is_one_line(twice, key, change, text):
    run, _ = twice
    folder, certificate = certificates.create(run, "first", key)
    change(certificate["requests"][0])
    signed_again(folder, certificate, key)
    result = call("certificate", "verify", folder, "--public-key", f"{key}.pub", "--replay", "--run", run.path)
    assert (result.code, text in result.err, "Traceback" in result.err) == (2, True, False), result.err


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """A run that client 1 left with all its records."""

    def at(nodes):
        return {
            ("finetune", 2): lambda: call(
                "request", "submit", "--node-dir", nodes / "node1", "--all", "--reason", "x", "--id", "bye"
            )
        }

    return made(tmp_path_factory.mktemp("left"), at)


def test_the_folder_of_a_client_that_is_in_no_round_any_more_says_what_it_asked_for(left, key):
    run, nodes, _ = left
    folder, certificate = certificates.create(run, "bye", key)
    assert certificate["result"] == "PASS"
    assert replayed(folder, key, folders(nodes)) == (0, [])


def test_without_that_folder_the_request_is_not_testable(left, key, tmp_path):
    run, nodes, _ = left
    folder, _ = certificates.create(run, "bye", key)
    shutil.move(nodes, tmp_path / "kept")
    code, lines = replayed(folder, key, folders(tmp_path / "kept", [0, 2]))
    shutil.move(tmp_path / "kept", nodes)
    text = "whether its client made it only its folder tells: name it with --node-dir"
    assert (code, lines) == (3, [f"request bye of client 1: {NOT_TESTABLE} ({text})"])


def test_the_answer_in_json_and_the_last_line_say_what_came_out(twice, key):
    run, nodes = twice
    given = [argument for node in folders(nodes) for argument in ("--node-dir", node)]
    command = ("certificate", "verify", certificates.create(run, "first", key)[0], "--public-key", f"{key}.pub")
    result = call(*command, "--replay", "--pieces", 99, *given)
    assert ", of which 5 pieces of the rounds, all that are stored: " in result.out.splitlines()[-1]
    result = call(*command, "--replay", "--pieces", 1, *given)
    assert ", of which 1 piece of the rounds: " in result.out.splitlines()[-1]
    answer = json.loads(call(*command, "--replay", "--pieces", 1, "--json", *given).out)
    assert (answer["differs"], answer["untested"]) == (False, False)
    delete(nodes, 1, "1-3")
    answer = json.loads(call(*command, "--replay", "--pieces", 1, "--json", *given).out)
    assert (answer["differs"], answer["untested"]) == (False, True)


def test_a_later_version_whose_configuration_has_more_keys_is_no_other_configuration(twice, key, monkeypatch):
    run, nodes = twice
    folder, _ = certificates.create(run, "first", key)
    tree = identity.to_tree
    monkeypatch.setattr(identity, "to_tree", lambda config: {**tree(config), "later": 1})
    assert replayed(folder, key, folders(nodes)) == (0, [])
