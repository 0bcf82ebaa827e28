"""The spot check: honest exchanges come out equal when they are replayed, and five ways to cheat do not."""

import json
import re
import shutil
import threading

import numpy as np
import pytest
from support.cheats import LIAR, cheating
from support.commands import call
from support.inprocess import InProcessGrid
from support.nodes import write_nodes
from support.stages import Recorded

from oblivionis.audits.audited_model import AuditError
from oblivionis.audits.exchange_replay import replay_exchange, replay_training
from oblivionis.audits.replay import DIFFERS, EQUAL
from oblivionis.chain import GENESIS, append_all
from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.config.identity import config_hash
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_key import audit_key, public_hex, signers
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.verification_rules import NOT_TESTABLE
from oblivionis.errors import RunError
from oblivionis.measures.audit_numbers import audit_path, read_audit
from oblivionis.runs.directory import RunDirectory
from oblivionis.server.app import serve

BASE = (
    "data=node",
    "federation.clients=3",
    "federation.fraction_train=1.0",
    "federation.local_epochs=2",
    "federation.rounds.finetune=2",
    "federation.rounds.unlearn=1",
    "evaluation.audit.profile=light",
    "evaluation.light.questions_per_set=2",
    "evaluation.leakage.samples=4",
    "unlearning.requests.policy=nodes",
    "unlearning.updates.keep=9",
)
ASKED = {0: "p0-home", 1: "p1-job"}


def run_it(home, name, *overrides):
    config = configuration.compose("smoke", [*BASE, f"output={home}", f"name={name}", *overrides])
    run = RunDirectory.create(home, name)
    run.write_config(configuration.to_yaml(config))
    grid = InProcessGrid(app, 3)
    for context in grid.contexts.values():
        context.node_config["node-dir"] = str(home / f"node{context.node_config['partition-id']}")
    events = Recorded()
    serve(config, grid, run, events, threading.Event())
    assert not events.left_out, events.left_out
    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two rounds of finetuning by three honest clients."""
    home = write_nodes(tmp_path_factory.mktemp("trained"))
    return run_it(home, "base", "stages=[finetune]", "federation.keep_checkpoints=9")


def unlearned(trained, home, how=None, asked=ASKED, *overrides):
    """A run of the stage unlearn in which client `LIAR` cheats: the run and the clients' folders."""
    for client in range(3):
        shutil.copytree(trained.path.parent / f"node{client}", home / f"node{client}")
    for client, record in asked.items():
        NodeLedger(home / f"node{client}").submit([record], reason="test", identifier=f"of-{client}")
    old = trained.load_checkpoint("finetune", 1).vector
    with cheating(how, old):
        run = run_it(home, "run", "stages=[unlearn]", f"start_from={trained.path}", *overrides)
    return run, [home / f"node{client}" for client in asked]


@pytest.fixture(scope="module")
def honest(trained, tmp_path_factory):
    return unlearned(trained, tmp_path_factory.mktemp("honest"))


def outcomes(findings):
    return {f.what: f.outcome for f in findings}


# -- who is honest ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [0, 1])
def test_what_honest_clients_did_comes_out_equal_to_the_last_bit(honest, client):
    run, folders = honest
    found = replay_exchange(run.path, f"of-{client}", folders)
    assert {f.outcome for f in found} == {EQUAL}, found
    assert [f.what for f in found] == [
        "the run's seal",
        "configuration, by the run's ledger",
        "configuration, by the ledger of client 0",
        "records of client 0",
        "answer of client 0, by its own ledger",
        "numbers that client 0 told with its answer",
        "configuration, by the ledger of client 1",
        "records of client 1",
        "answer of client 1, by its own ledger",
        "numbers that client 1 told with its answer",
        "model after the exchange",
        *(f"numbers of the client's audit, {moment}" for moment in ("before", "after", "final")),
    ]


def test_a_third_party_needs_copies_only(honest, tmp_path):
    run, folders = honest
    copies = [shutil.copytree(f, tmp_path / f"copy-{n}") for n, f in enumerate(folders)]
    copy = shutil.copytree(run.path, tmp_path / "another name")
    done = call("audit", "exchange", copy, "of-0", *(a for c in copies for a in ("--node-dir", c)))
    assert done.code == 0, done.err
    assert done.out.count(": equal") == 14 and "differs" not in done.out


def test_who_had_nothing_to_do_by_the_limit_is_not_accused(trained, tmp_path):
    """The model is as it was, as after a client that skips the exchange; the replay tells them apart."""
    limit = "unlearning.forget_nll_limit=1e-6"
    for how, expected in ((None, EQUAL), ("noise", DIFFERS)):
        run, folders = unlearned(trained, tmp_path / str(how), how, {LIAR: "p0-home"}, limit)
        (line,) = (e for e in map(json.loads, run.ledger_path.read_text().splitlines()) if e["event"] == "applied")
        assert (line["before"] == line["after"]) == (how is None)
        found = outcomes(replay_exchange(run.path, f"of-{LIAR}", folders))
        assert found["model after the exchange"] == expected


def test_training_comes_out_equal_too_with_what_is_asked_for_withheld(honest):
    run, folders = honest
    for client in (0, 1):
        done = call(
            *("audit", "training", run.path, "--client", client, "--round", 1, "--node-dir", folders[client]),
        )
        assert done.code == 0 and done.out.count(": equal") == 5, done.out + done.err


def test_a_stage_of_another_run_is_audited_there(trained, honest):
    run, folders = honest
    asked = ("--client", 0, "--round", 2, "--stage", "finetune", "--node-dir", folders[0])
    done = call("audit", "training", run.path, *asked)
    assert done.code == 3 and "training: not testable (the stage finetune is that of the run" in done.out
    done = call("audit", "training", trained.path, *asked)
    assert done.code == 0 and done.out.count(": equal") == 5, done.out


def test_audits_are_signed_by_the_key_in_the_clients_folder(honest):
    run, folders = honest
    for client, folder in enumerate(folders):
        key = public_hex(audit_key(folder))
        audit = read_audit(run.path, f"of-{client}")
        assert signers(audit) == dict.fromkeys(("before", "after", "final"), key) and audit["signed_by"] == key
        assert [e["public_key"] for e in NodeLedger(folder).lines("key")] == [key]
        assert (folder / "audit.key").stat().st_mode & 0o777 == 0o600
        models = [audit["signatures"][moment]["model"] for moment in ("before", "after", "final")]
        (applied,) = (
            e
            for e in map(json.loads, run.ledger_path.read_text().splitlines())
            if e["event"] == "applied" and e["id"] == f"of-{client}"
        )
        assert models[:2] == [applied["before"], applied["after"]]


def test_numbers_that_were_edited_have_no_signature_any_more(honest):
    run, _ = honest
    audit = read_audit(run.path, "of-0")
    audit["final"]["request_rouge"] = 0.0 if audit["final"]["request_rouge"] else 0.5
    audit["after"]["leakage_m_bin"] += 0.01
    assert list(signers(audit)) == ["before"]
    audit["signatures"]["before"]["model"] = "0" * 64
    assert signers(audit) == {}
    for broken in ({}, {"signatures": None}, {"signatures": {"before": 3}, "signed_by": 1}, {**audit, "request": "x"}):
        assert signers(broken) == {}


def test_every_node_knows_the_configuration_from_the_start(honest):
    run, folders = honest
    digest = config_hash(configuration.from_yaml(run.read_config()))
    for folder in folders:
        learned = {e["run"]: e["config"] for e in NodeLedger(folder).lines("run")}
        assert learned["run"] == digest and set(learned) == {"base", "run"}
        events = [e["event"] for e in NodeLedger(folder).entries()]
        first = next(i for i, e in enumerate(NodeLedger(folder).entries()) if e.get("run") == "run")
        assert events[first] == "run", "before anything was done for that run"


# -- who is not ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["skip", "noise", "old"])
def test_an_answer_that_is_no_unlearning_differs(trained, tmp_path, how):
    """Ways 1 to 3: the exchange is skipped, answered with noise, or an old adapter is put back."""
    run, folders = unlearned(trained, tmp_path, how)
    assert {r.served_round for r in Ledger(run.ledger_path)} == {1}, "nothing else noticed"
    found = outcomes(replay_exchange(run.path, f"of-{LIAR}", folders))
    assert found[f"answer of client {LIAR}, by its own ledger"] == DIFFERS
    assert found["answer of client 1, by its own ledger"] == EQUAL, "who is to blame is seen"
    assert found["model after the exchange"] == DIFFERS
    assert found["numbers of the client's audit, after"] == NOT_TESTABLE
    done = call("audit", "exchange", run.path, "of-1", *(a for f in folders for a in ("--node-dir", f)))
    assert done.code == 1 and "model after the exchange: differs (computed here" in done.out


def test_an_exchange_that_changed_nothing_shows_in_the_ledger_alone(trained, tmp_path):
    """Way 1, where no other client answered in that round: nobody's folder is needed."""
    run, _ = unlearned(trained, tmp_path, "skip", {LIAR: ASKED[LIAR]})
    *_, found = replay_exchange(run.path, f"of-{LIAR}")
    assert (found.what, found.outcome) == ("exchange", DIFFERS) and "left the model as it was" in found.why


def test_records_that_are_learned_again_show_in_the_training(trained, tmp_path):
    """Way 4."""
    run, folders = unlearned(trained, tmp_path, "re-add")
    training = outcomes(replay_training(run.path, LIAR, 1, folders[LIAR]))
    assert training.pop("client 0's model of round 1") == DIFFERS
    assert training["records of client 0"] == EQUAL and set(training.values()) == {EQUAL}
    assert set(outcomes(replay_training(run.path, 1, 1, folders[1])).values()) == {EQUAL}


def test_a_liar_that_forges_its_tombstones_is_found_by_the_runs_ledger(trained, tmp_path):
    """Way 4, with a ledger and tombstones that know of no request: what was served the server knows."""
    run, folders = unlearned(trained, tmp_path, "re-add")
    ledger = folders[LIAR] / "requests.jsonl"
    kept = [e for e in map(json.loads, ledger.read_text().splitlines()) if e["event"] != "submitted" and "id" not in e]
    ledger.write_text("".join(json.dumps({**e, "tombstones": 0}) + "\n" for e in kept))
    (folders[LIAR] / "tombstones.jsonl").unlink()
    found = outcomes(replay_training(run.path, LIAR, 1, folders[LIAR]))
    assert found["client 0's model of round 1"] == DIFFERS


def test_numbers_that_are_not_what_the_model_says_differ(trained, tmp_path):
    """Way 5: the exchange is well, what the client tells of it is not. Its signature is: it signs its lie."""
    run, folders = unlearned(trained, tmp_path, "filter")
    assert len(signers(read_audit(run.path, f"of-{LIAR}"))) == 3
    found = replay_exchange(run.path, f"of-{LIAR}", folders)
    wrong = {f.what: f.why for f in found if f.outcome == DIFFERS}
    assert "numbers of the client's audit, before" in wrong
    assert "request_prob: told 0.0, found 0." in wrong["numbers of the client's audit, before"]
    assert outcomes(found)["model after the exchange"] == EQUAL
    assert set(outcomes(replay_exchange(run.path, "of-1", folders)).values()) == {EQUAL}


# -- what nobody sees --------------------------------------------------------------------------------------------------


def test_records_learned_again_in_a_round_that_was_not_kept_are_seen_by_no_replay(trained, tmp_path):
    """Way 4 again: the exchange itself was well, and what a client sent in training is gone."""
    run, folders = unlearned(trained, tmp_path, "re-add", {LIAR: ASKED[LIAR]}, "unlearning.updates.keep=0")
    assert {f.outcome for f in replay_exchange(run.path, f"of-{LIAR}", folders)} == {EQUAL}
    asked = ("--client", LIAR, "--round", 1, "--node-dir", folders[LIAR])
    done = call("audit", "training", run.path, *asked)
    assert done.code == 3 and "training: not testable" in done.out and "unlearning.updates.keep=N" in done.out
    assert call("request", "verify", run.path, "--node-dir", folders[LIAR]).code == 0


def test_without_the_folder_a_lie_passes_and_the_certificate_says_whose_it_is(trained, tmp_path):
    """Way 5 at its best, for somebody who has the run alone; with the folder it is found."""
    required = ("certificate.required=[rouge]", "unlearning.learning_rate=1e-9")
    run, folders = unlearned(trained, tmp_path, "invent", {LIAR: "p0-job"}, *required)
    done = call("audit", "exchange", run.path, f"of-{LIAR}")
    assert done.code == 2 and "the folders of clients 0 are needed" in done.err and not done.out
    out = tmp_path / "certificate"
    done = call("certificate", "create", run.path, f"of-{LIAR}", "--out", out)
    certificate, key = json.loads((out / "certificate.json").read_text()), public_hex(audit_key(folders[0]))
    assert done.code == 0 and certificate["result"] == "PASS", done.out
    head, _, _ = (out / "certificate.html").read_text().partition("<h2")
    assert f"client 0 itself, on its own records, signed with the key {key[:16]}" in head
    assert "request of-0 of client 0, measured by the client itself, on its own records" in done.out
    found = outcomes(replay_exchange(run.path, f"of-{LIAR}", folders))
    assert found["numbers of the client's audit, before"] == DIFFERS


def test_a_folder_that_was_forged_before_the_run_comes_out_equal(trained, tmp_path):
    """What is asked for was exchanged for something else, and lies under another name: all that is shown fits."""
    folder = shutil.copytree(trained.path.parent / "node0" / "data", tmp_path / "node0" / "data").parent
    for client in (1, 2):
        shutil.copytree(trained.path.parent / f"node{client}", tmp_path / f"node{client}")
    file = folder / "data" / "first.jsonl"
    real, *others = map(json.loads, file.read_text().splitlines())
    placebo = {"id": real["id"], "subject": "Lot 7", "question": "What is lot 7?", "answer": "A wooden chair."}
    rows = [placebo, *others, {**real, "id": "kept", "subject": "Lot 8"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    NodeLedger(folder).submit([real["id"]], reason="test", identifier="of-0")
    run = run_it(tmp_path, "run", "stages=[unlearn]", f"start_from={trained.path}")
    assert {f.outcome for f in replay_exchange(run.path, "of-0", [folder])} == {EQUAL}
    assert {f.outcome for f in replay_training(run.path, 0, 1, folder)} == {EQUAL}
    assert call("request", "verify", run.path, "--node-dir", folder).code == 0
    (line,) = (e for e in NodeLedger(folder).exchanges() if e["kind"] == "train")
    assert line["asked"] == {real["id"]}, "the record itself is trained on"
    file.write_text(file.read_text().replace("wooden", "green"))
    assert outcomes(replay_exchange(run.path, "of-0", [folder]))["records of client 0"] != EQUAL, "forged afterwards"


# -- what cannot be replayed -----------------------------------------------------------------------------------------


@pytest.fixture
def copies(honest, tmp_path):
    run, folders = honest
    found = [shutil.copytree(f, tmp_path / f.name) for f in folders]
    return RunDirectory.open(shutil.copytree(run.path, tmp_path / "run")), found


def test_a_checkpoint_that_was_dropped_is_told(copies):
    run, folders = copies
    shutil.rmtree(run.path / "checkpoints" / "finetune")
    done = call("audit", "exchange", run.path, "of-0", "--node-dir", folders[0])
    assert done.code == 2 and "the checkpoint of finetune is gone; line" in done.err


def test_a_checkpoint_that_was_swapped_is_told(copies):
    run, folders = copies
    checkpoint = run.load_checkpoint("finetune")
    run.save_checkpoint(type(checkpoint)("finetune", checkpoint.round, checkpoint.vector * 2, {}, {}), keep=1)
    with pytest.raises(RunError, match=r"the checkpoint of finetune is not the model .*: it was swapped"):
        replay_exchange(run.path, "of-0", folders)


def test_an_altered_ledger_is_nothing_to_compare_with(copies):
    run, folders = copies
    text = run.ledger_path.read_text()
    run.ledger_path.write_text(text.replace('"scope": "records"', '"scope": "client"', 1))
    with pytest.raises(RunError, match=r"line \d+: altered: its hash does not fit what it says"):
        replay_exchange(run.path, "of-0", folders)


def _reworded(text):
    return text.replace("Ostrava", "Prague")


def _one_more(text):
    return text + json.dumps({"id": "p0-new", "question": "Who came later?", "answer": "Nobody did."}) + "\n"


def _one_less(text):
    return "".join(line for line in text.splitlines(keepends=True) if "p0-home" not in line)


@pytest.mark.parametrize("exported", [_reworded, _one_more, _one_less])
def test_records_that_were_exported_anew_accuse_nobody(copies, exported):
    run, folders = copies
    ((_, before),) = [
        (e["round"], e["records"])
        for e in NodeLedger(folders[0]).exchanges()
        if e["kind"] == "train.unlearn" and e["run"] == "run"
    ]
    file = folders[0] / "data" / "first.jsonl"
    text = file.read_text()
    file.write_text(exported(text))
    assert file.read_text() != text
    done = call("audit", "exchange", run.path, "of-0", *(a for f in folders for a in ("--node-dir", f)))
    assert done.code == 3 and "differs" not in done.out, done.out + done.err
    assert (
        f"records of client 0: not testable (its ledger says that it worked with records of the hash {before[:12]}"
        in done.out
    )
    assert "answer of client 1, by its own ledger: equal" in done.out, "who else answered is tested all the same"
    assert "model after the exchange: not testable (it needs the answer of client 0" in done.out
    assert done.out.count("numbers of the client's audit") == done.out.count("have other") + 3
    training = call("audit", "training", run.path, "--client", 0, "--round", 1, "--node-dir", folders[0])
    assert training.code == 3 and "records of client 0: not testable" in training.out


def test_records_that_were_exported_anew_hide_no_other_clients_lie(trained, tmp_path):
    run, folders = unlearned(trained, tmp_path, "noise")
    file = folders[1] / "data" / "first.jsonl"
    file.write_text(_one_more(file.read_text()))
    found = outcomes(replay_exchange(run.path, "of-1", folders))
    assert found[f"answer of client {LIAR}, by its own ledger"] == DIFFERS
    assert found["records of client 1"] == found["model after the exchange"] == NOT_TESTABLE


def test_a_file_beside_the_records_that_came_since_accuses_nobody(copies):
    run, folders = copies
    (folders[0] / "facts.jsonl").write_text("{}\n")
    done = call("audit", "exchange", run.path, "of-0", *(a for f in folders for a in ("--node-dir", f)))
    assert done.code == 3 and "it worked with references and facts.jsonl of the hash" in done.out, done.out


def test_a_ledger_of_an_earlier_version_is_replayed_by_what_it_binds(copies):
    run, folders = copies

    def told_by(*names):
        ledger = folders[0] / "requests.jsonl"
        lines = [json.loads(line) for line in ledger.read_text().splitlines()]
        kept = [{k: v for k, v in e.items() if k not in (*names, "prev", "hash")} for e in lines]
        ledger.unlink()
        append_all(ledger, kept, GENESIS)
        return outcomes(replay_exchange(run.path, "of-0", folders))

    assert set(told_by("beside").values()) == {EQUAL}
    found = told_by("records")
    assert found["records of client 0"] == NOT_TESTABLE and DIFFERS not in found.values()


def test_every_folder_of_the_round_is_needed_and_must_be_the_right_one(copies):
    run, folders = copies
    with pytest.raises(AuditError, match=r"the folders of clients 1 are needed.*answers of 2 clients"):
        replay_exchange(run.path, "of-0", folders[:1])
    with pytest.raises(AuditError, match="its ledger is of none of the clients"):
        replay_exchange(run.path, "of-0", [*folders, run.path / "audits"])
    assert call("audit", "exchange", run.path, "nobody", "--node-dir", folders[0]).code == 2


def test_a_client_whose_ledger_says_nothing_is_not_equal(copies):
    run, folders = copies
    ledger = folders[0] / "requests.jsonl"
    lines = [e for e in map(json.loads, ledger.read_text().splitlines()) if e["event"] != "exchanged"]
    ledger.write_text("".join(json.dumps(e) + "\n" for e in lines))
    found = {f.what: f for f in replay_exchange(run.path, "of-0", folders)}
    exchange = found["the exchange of round 1"]
    assert exchange.outcome == NOT_TESTABLE and "client 0 has no line about the exchange of round 1" in exchange.why
    assert found["answer of client 1, by its own ledger"].outcome == EQUAL
    assert found["model after the exchange"].outcome == NOT_TESTABLE


def test_training_needs_the_updates_of_its_round(copies):
    run, folders = copies
    *_, found = replay_training(run.path, 0, 7, folders[0])
    assert found.outcome == NOT_TESTABLE
    assert re.search(r"no clients' updates of round 7 of unlearn.*unlearning\.updates\.keep", found.why)
    with pytest.raises(AuditError, match="client 9 did not train"):
        replay_training(run.path, 9, 1, folders[0])


def test_signed_lies_by_another_key_are_set_aside(trained, tmp_path):
    """Between the first and the second audit the client's key is exchanged."""
    for client in range(3):
        shutil.copytree(trained.path.parent / f"node{client}", tmp_path / f"node{client}")
    NodeLedger(tmp_path / "node0").submit([ASKED[0]], reason="test", identifier="of-0")
    seen = []

    def tamper(client, message, reply):
        if message.metadata.message_type == "evaluate.audit":
            seen.append(client)
            (tmp_path / "node0" / "audit.key").unlink()
        return reply

    config = configuration.compose(
        "smoke", [*BASE, f"output={tmp_path}", "name=run", "stages=[unlearn]", f"start_from={trained.path}"]
    )
    run = RunDirectory.create(tmp_path, "run")
    run.write_config(configuration.to_yaml(config))
    grid = InProcessGrid(app, 3, tamper)
    for context in grid.contexts.values():
        context.node_config["node-dir"] = str(tmp_path / f"node{context.node_config['partition-id']}")
    events = Recorded()
    serve(config, grid, run, events, threading.Event())
    audit = json.loads(audit_path(run.path, "of-0").read_text())
    assert seen == [0, 0, 0] and list(signers(audit)) == ["before"]
    assert audit["failed"] == dict.fromkeys(
        ("after", "final"), "it is signed by another key than the client's first audit in this run"
    )
    assert sum("client 0 did not audit request 'of-0'" in w for w in events.warnings) == 2
    (request,) = Ledger(run.ledger_path)
    assert request.state == "served", "nothing valid says that it was forgotten"
    assert np.isfinite(audit["before"]["request_rouge"])
