"""Auditors of somebody's run: nothing of it is executed, edits do not come out equal, and no word goes unproved."""

import hashlib
import json
import shutil
import threading

import pytest
import yaml
from flwr.app import ConfigRecord, Message, RecordDict
from support.commands import call
from support.inprocess import InProcessGrid
from support.nodes import write_nodes
from support.stages import Recorded

from clients import own_code
from oblivionis.chain import GENESIS, HASH, PREV, linked
from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.config.allowed_code import permit_named
from oblivionis.config.identity import text_hash
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.query_schema import Question, write_question
from oblivionis.measures.audit_numbers import audit_path
from oblivionis.runs.directory import RunDirectory
from oblivionis.server.app import serve
from strategies import message_keys

LOSS = '''"""Gradient ascent that leaves a mark in every process that runs it."""

from pathlib import Path

Path(__file__).with_name("executed").touch()


def marked(forget_nll):
    return -forget_nll.mean()
'''
SETTINGS = (
    "data=node",
    "federation.clients=2",
    "federation.fraction_train=1.0",
    "federation.local_epochs=1",
    "federation.rounds.finetune=1",
    "federation.rounds.unlearn=1",
    "evaluation.audit.profile=light",
    "evaluation.light.questions_per_set=1",
    "evaluation.full.questions_per_set=1",
    "evaluation.leakage.samples=2",
    "unlearning.requests.policy=nodes",
    "stages=[finetune,unlearn]",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of two clients by a loss of its own, in which client 0 asked; the folder that it lies in, with all else."""
    home = write_nodes(tmp_path_factory.mktemp("made"), 2)
    (home / "marked.py").write_text(LOSS)
    NodeLedger(home / "node0").submit(["p0-home"], reason="test", identifier="art17")
    overrides = [*SETTINGS, f"output={home}", "name=run", f"unlearning={home / 'marked.py'}"]
    config = configuration.compose("smoke", overrides)
    permit_named(config, overrides)
    run = RunDirectory.create(home, "run")
    run.write_config(configuration.to_yaml(config))
    # Nodes of their own would refuse the loss: these two are simulated, with folders of the server's choice.
    config.data.nodes = str(home)
    run.write_config(configuration.to_yaml(config))
    serve(config, InProcessGrid(app, 2), run, events := Recorded(), threading.Event())
    assert not events.left_out, events.left_out
    assert (home / "executed").exists(), "who makes a run by a loss of his own executes it"
    return home


@pytest.fixture
def home(made, tmp_path, monkeypatch):
    """A copy for an auditor, in whose process nobody permitted anything."""
    monkeypatch.setattr(own_code, "permitted", set())
    found = shutil.copytree(made, tmp_path / "home")
    (found / "executed").unlink(missing_ok=True)
    (made / "executed").unlink(missing_ok=True)
    yield found
    assert not (made / "executed").exists(), "the file that the run names was executed"


def exchange(home, *more, node_dir=None):
    folder = node_dir or home / "node0"
    return call("audit", "exchange", home / "run", "art17", "--node-dir", folder, *more)


def outcomes(done):
    return dict(line.split(": ", 1) for line in done.out.splitlines())


# -- whose code is executed --------------------------------------------------------------------------------------------


COMMANDS = {
    "exchange": ("audit", "exchange", "RUN", "art17", "--node-dir", "NODE"),
    "training": ("audit", "training", "RUN", "--client", 0, "--round", 1, "--node-dir", "NODE"),
    "leakage": ("audit", "leakage", "RUN", "--samples", 2, "--questions", 1),
    "evaluate": ("evaluate", "RUN", "evaluation=light"),
    "runs show": ("runs", "show", "RUN"),
    "runs list": ("runs", "list", "HOME"),
    "chat": ("chat", "RUN", "--question", "Who?", "--max-new-tokens", 2),
    "export": ("export", "RUN", "--out", "HOME/exported"),
    "verify": ("request", "verify", "RUN", "--node-dir", "NODE"),
    "certificate": ("certificate", "create", "RUN", "art17", "--out", "HOME/certificate"),
    "resume": ("simulate", "--resume", "RUN"),
    "its configuration as an experiment": ("simulate", "RUN/config.yaml", "name=mine", "output=HOME/mine"),
    "memory": ("model", "memory", "RUN/config.yaml"),
    "tuning": ("tune", "RUN", "--unlearning", "npo", "--dry-run"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_that_reads_a_run_executes_its_code(home, name):
    places = {"RUN": home / "run", "NODE": home / "node0", "HOME": home}
    arguments = []
    for argument in COMMANDS[name]:
        text = str(argument)
        for word, place in places.items():
            text = text.replace(word, str(place))
        arguments.append(text)
    done = call(*arguments)
    assert "Traceback" not in done.err, done.err
    assert not (home / "executed").exists()
    if name in ("resume", "its configuration as an experiment"):
        assert done.code == 2 and "nothing of it is executed" in done.err and "--allow-code marked.py" in done.err


def test_who_allows_it_by_hand_gets_the_whole_answer(home):
    done = exchange(home, "--allow-code", home / "marked.py")
    assert done.code == 0 and set(outcomes(done).values()) >= {"equal"}, done.out + done.err
    assert "differs" not in done.out and "not testable" not in done.out
    assert (home / "executed").exists()


def test_without_the_code_the_exchange_is_not_testable(home):
    done = exchange(home)
    assert done.code == 3 and "exchange: not testable (unlearning.method is" in done.out
    assert "the run's seal: equal" in done.out, "what can be tested without it is"


def test_other_code_under_its_name_is_not_the_runs(home):
    (home / "marked.py").write_text(LOSS + "# and more\n")
    done = exchange(home, "--allow-code", home / "marked.py")
    assert done.code == 2 and "it is other code" in done.err and not (home / "executed").exists()


def test_the_hash_of_the_code_is_in_both_ledgers(home):
    """Code and hash edited together: the run is not as its ledger says, and nothing is replayed."""
    (home / "marked.py").write_text(LOSS.replace("-forget", "0 * forget"))
    run = RunDirectory.open(home / "run")
    tree = yaml.safe_load(run.read_config())
    new = hashlib.sha256((home / "marked.py").read_bytes()).hexdigest()
    run.write_config(run.read_config().replace(tree["unlearning"]["code"], new))
    done = exchange(home, "--allow-code", home / "marked.py")
    assert done.code == 2 and "config.yaml is not the configuration that line" in done.err


# -- edited configurations ---------------------------------------------------------------------------------------------


def edited(home):
    """The run's configuration as if the client had been asked for less than it was."""
    run = RunDirectory.open(home / "run")
    text = run.read_config()
    assert "forget_nll_limit: null" in text
    run.write_config(text.replace("forget_nll_limit: null", "forget_nll_limit: 99.0"))
    return run


def test_a_configuration_that_was_edited_is_refused_whatever_would_come_out(home):
    """The model would come out equal all the same: the limit is never reached."""
    edited(home)
    done = exchange(home, "--allow-code", home / "marked.py")
    assert done.code == 2 and "config.yaml is not the configuration that line" in done.err and not done.out


def rechained(path, change):
    """A ledger written anew, with right hashes: `change` may alter each line."""
    head, lines = GENESIS, []
    for entry in map(json.loads, path.read_text().splitlines()):
        body = change({k: v for k, v in entry.items() if k not in ("prev", HASH)})
        line = linked(body, head)
        head = line[HASH]
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    path.write_text("".join(lines))


@pytest.mark.parametrize("hashed", [False, True], ids=["text alone", "text and hash"])
def test_with_the_runs_ledger_rewritten_the_clients_contradicts(home, hashed):
    """The owner of the run's folder edits the configuration and makes its whole ledger anew."""
    run = edited(home)
    text = hashlib.sha256(run.read_config().encode()).hexdigest()

    def change(entry):
        if entry["event"] != "stage":
            return entry
        return entry | {"text": text} | ({"config": text_hash(run.read_config())} if hashed else {})

    rechained(run.ledger_path, change)
    done = exchange(home, "--allow-code", home / "marked.py")
    found = outcomes(done)
    assert done.code == 1 and found["the run's seal"] == "equal"
    assert found["configuration, by the run's ledger"].startswith("equal" if hashed else "differs")
    assert found["configuration, by the ledger of client 0"].startswith("differs")


def test_a_replay_goes_by_no_other_configuration_than_the_runs(home):
    done = exchange(home, "--set", "unlearning.learning_rate=1e-3")
    assert done.code == 2 and "what may be set is where things lie" in done.err
    assert exchange(home, "--set", "model.device=cpu", "--allow-code", home / "marked.py").code == 0


def test_a_ledger_of_the_clients_that_was_altered_differs(home):
    ledger = home / "node0" / "requests.jsonl"
    ledger.write_text(ledger.read_text().replace('"kind": "train"', '"kind": "trained"', 1))
    done = exchange(home, "--allow-code", home / "marked.py")
    assert done.code == 1 and outcomes(done)["ledger of client 0"].startswith("differs (it was altered: line")


# -- numbers that a client tells ---------------------------------------------------------------------------------------


def test_a_client_is_not_taken_for_what_it_was_in_a_later_run_that_began_alike(home):
    """The same seed and the same records, under another configuration and as another client."""
    for folder in (home / "node0", home / "node1"):
        ledger = NodeLedger(folder)
        for line in ledger.lines():
            if line["event"] in ("run", "exchanged"):
                said = {k: v for k, v in line.items() if k not in ("event", "time", PREV, HASH)}
                later = {"run": "later", "client": 1 - line["client"]}
                config = {"config": "0" * 64} if line["event"] == "run" else {}
                ledger.note(line["event"], **said | later | config)
                ledger.note(line["event"], **said | config | {"run": "later"})
    done = exchange(home, "--allow-code", home / "marked.py")
    assert done.code == 0, done.out + done.err


def left_out_of_its_ledger(home):
    """A client that does not enter its audits."""
    audits = "evaluate.audit"
    rechained(home / "node0" / "requests.jsonl", lambda e: e | {"kind": "x"} if e.get("kind") == audits else e)


def test_numbers_that_its_own_ledger_does_not_have_are_computed(home):
    """Where the models are at hand: they are not believed."""
    left_out_of_its_ledger(home)
    done = exchange(home, "--allow-code", home / "marked.py")
    for moment in ("before", "after", "final"):
        said = outcomes(done)[f"numbers of the client's audit, {moment}"]
        assert said == "equal (computed here; its own ledger has no line about them)"


def test_without_the_model_nothing_is_tested(home):
    left_out_of_its_ledger(home)
    shutil.rmtree(home / "run" / "checkpoints" / "unlearn")
    done = exchange(home, "--allow-code", home / "marked.py")
    assert done.code == 2 and "the checkpoint of unlearn is gone; line" in done.err and not done.out


def test_false_numbers_differ_from_the_clients_own_ledger(home):
    run = RunDirectory.open(home / "run")
    path = audit_path(run.path, "art17")
    audit = json.loads(path.read_text())
    audit["final"]["request_prob"] = 0.0
    run.keep({path.relative_to(run.path).as_posix(): json.dumps(audit)})
    done = exchange(home, "--allow-code", home / "marked.py")
    assert done.code == 1
    assert outcomes(done)["numbers of the client's audit, final"] == "differs (its own ledger has other numbers)"


def test_false_numbers_told_with_the_answer_differ(home):
    """What a client said of its own unlearning stands in the run's ledger; the replay computes it."""
    run = RunDirectory.open(home / "run")

    def change(entry):
        if entry["event"] != "served":
            return entry
        return entry | {"told": entry["told"] | {"forget-nll-after": 7.5}}

    rechained(run.ledger_path, change)
    done = exchange(home, "--allow-code", home / "marked.py")
    said = outcomes(done)["numbers that client 0 told with its answer"]
    assert done.code == 1 and "forget-nll-after: told 7.5, found" in said


# -- what a node believes ----------------------------------------------------------------------------------------------


def heard(folder, *outcomes, run="run"):
    """A query of a server, as it travels: what the node's request is then, and which the node still tells."""
    lines = [{"id": "mine", "round": 1, **o, "line": hashlib.sha256(repr(o).encode()).hexdigest()} for o in outcomes]
    question = Question(run, "a" * 64, "b" * 64, 1, tuple(lines))
    grid = InProcessGrid(app, 1)
    (context,) = grid.contexts.values()
    context.node_config["node-dir"] = str(folder)
    config = ConfigRecord({"data": "node", **write_question(question), "config-hash": "c" * 64})
    message = Message(
        RecordDict({message_keys.CONFIG: config}), dst_node_id=context.node_id, message_type=message_keys.QUERY
    )
    message.metadata.__dict__["_message_id"] = "1"
    reply = app(message=message, context=context)
    assert not reply.has_error(), reply.error
    (request,) = NodeLedger(folder).requests()
    return request, list(reply.content.config_records[message_keys.REQUESTS][message_keys.REQUEST_IDS])


@pytest.fixture
def node(tmp_path):
    folder = write_nodes(tmp_path, 1) / "node0"
    NodeLedger(folder).submit(["p0-home"], reason="test", identifier="mine")
    return folder


FORGED = {
    "served": ({"event": "served"},),
    "verified": ({"event": "verified", "outcome": "verified", "rouge": 0.0, "limit": 0.5},),
    "served and verified": ({"event": "served"}, {"event": "verified", "outcome": "verified", "rouge": 0.0}),
    "covered": ({"event": "covered"},),
    "rejected": ({"event": "rejected", "reason": "it was withdrawn"},),
    "failed, but verified": ({"event": "failed", "reason": "", "outcome": "verified"},),
    "applied, but verified": ({"event": "applied", "before": "0" * 64, "after": "1" * 64, "outcome": "verified"},),
    "rolled back": ({"event": "rolled_back"},),
    "not verified": ({"event": "verification_failed", "outcome": "verified", "why": "-"},),
}


@pytest.mark.parametrize("name", FORGED)
def test_no_forged_query_ends_a_demand(node, name):
    request, told = heard(node, *FORGED[name])
    assert told == ["mine"] and not request.settled, request.progress
    assert request.served_round is None and request.state in ("open", "rejected")


def test_a_state_that_no_server_may_tell_is_refused(node):
    before = (node / "requests.jsonl").read_bytes()
    with pytest.raises(AssertionError, match="WireError"):
        heard(node, {"event": "withdrawn"})
    with pytest.raises(AssertionError, match="WireError"):
        heard(node, {"event": "exchanged"})
    assert b"withdrawn" not in (node / "requests.jsonl").read_bytes()[len(before) :]


def test_a_node_knows_of_its_own_what_it_did_and_measured(made):
    """The honest run: served, by its own exchange, and judged by no more than its own audit."""
    (request,) = NodeLedger(made / "node0").requests()
    (known,) = Ledger(made / "run" / "requests.jsonl")
    assert (request.served_round, request.state) == (1, known.outcome)
    lines = NodeLedger(made / "node0").exchanges()
    kinds = [(e["kind"], e.get("moment")) for e in lines if e.get("requests")]
    assert kinds[:3] == [("evaluate.audit", "before"), ("train.unlearn", None), ("evaluate.audit", "after")]
    assert all(e["numbers"] for e in lines if e.get("requests"))
