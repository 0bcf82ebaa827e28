"""Exchanges between real processes, in one deployment: secure sums whose SuperNodes die, and asynchronous rounds."""

import os

import numpy as np
import pytest
from support.deployed import BRISK, Deployed
from support.processes import MARK, listening, marked, reached_from_elsewhere, until

from oblivionis.chain import check_chain
from oblivionis.runs.directory import RunDirectory

pytestmark = pytest.mark.slow

CLIENTS, DEADLINE_S, PATIENCE_S, MISSED = 7, 45, 20, 2
ASKED = 2
"""The round in which a client of the asynchronous run asks."""
FAULTY = f"""\
import os, psutil, time
from flwr.clientapp import ClientApp

named = ("{MARK}", "OBLIVIONIS_TEST_NAME")
mine = {{variable: os.environ.get(variable, "") for variable in named}}
name, counted = mine["OBLIVIONIS_TEST_NAME"], os.path.join(os.path.dirname(__file__), "sessions-")
keys, shares, vectors, unmask = "query.secure_keys", "query.secure_shares", "train", "query.secure_unmask"
slow = os.path.join(os.path.dirname(__file__), "slow")
deadly = {{"node1": (keys, 1), "node2": (shares, 1), "node3": (vectors, 2), "node4": (unmask, 2)}}.get(name)
honest = ClientApp.__call__

def environment(process):
    try:
        return process.environ()
    except psutil.Error:
        return {{}}

def held():
    if not os.path.exists(slow):
        return {MISSED}
    rows = os.path.join(open(slow).read(), "metrics.jsonl")
    return open(rows).read().count('"evaluator": "federation"') if os.path.exists(rows) else 0

def call(self, message, context):
    kind, path = message.metadata.message_type, counted + name
    if kind == keys:
        with open(path, "a") as file:
            file.write("x")
    sessions = os.path.getsize(path) if os.path.exists(path) else 0
    if deadly is not None and (kind, sessions) == deadly:
        family = [p for p in psutil.process_iter() if mine.items() <= environment(p).items()]
        for process in sorted(family, key=lambda p: p.pid == os.getpid()):
            process.kill()
    while name == "node6" and kind == vectors and held() < {MISSED}:
        time.sleep(0.2)
    return honest(self, message, context)

ClientApp.__call__ = call
"""
"""Runs first in the clients: four of them die with their SuperNode, two in the first session, two in the second.

The last is slow to train: until the run that a file names has held some rounds.
"""


@pytest.fixture(scope="module")
def patch(tmp_path_factory):
    """What runs first in the clients."""
    file = tmp_path_factory.mktemp("patch") / "patch.py"
    file.write_text(FAULTY)
    return file


@pytest.fixture(scope="module")
def lab(tmp_path_factory, patch):
    """The deployment."""
    with Deployed(tmp_path_factory.mktemp("secure") / "lab", clients=CLIENTS) as lab:
        lab.start_superlink()
        lab.register()
        for partition in range(CLIENTS):
            lab.start_supernode(partition, OBLIVIONIS_TEST_PATCH=os.pathsep.join(map(str, (BRISK, patch))))
        lab.wait_online(range(CLIENTS))
        yield lab


def finished(lab, name, settings):
    both = f"stages=[finetune,unlearn] federation.clients={CLIENTS} federation.fraction_train=1.0 evaluation.every=0"
    run = lab.submit("smoke", f"name={name} {both} {settings}")
    assert lab.finish(run) == "finished:completed", lab.everything_said()
    return RunDirectory(lab.server / "runs" / name)


def rounds(run, stage):
    return {r["round"]: r for r in run.metrics() if (r["stage"], r["evaluator"]) == (stage, "federation")}


@pytest.fixture(scope="module")
def late(lab, patch):
    """A finished run of asynchronous rounds of two updates, all at work at once, one slow; another asks and leaves."""
    (patch.parent / "slow").write_text(str(lab.server / "runs" / "late"))
    (lab.node(5) / "node.toml").write_text("[requests]\nfrom_server = true\n")
    settings = (
        f"federation.buffer.size=2 federation.buffer.concurrency={CLIENTS} federation.rounds.finetune=6 "
        f"federation.rounds.unlearn={ASKED + 2} federation.timeout={3 * DEADLINE_S} "
        "unlearning.requests.policy=all_at_round unlearning.requests.scope=client unlearning.requests.clients=[5] "
        f"unlearning.requests.round={ASKED}"
    )
    return finished(lab, "late", settings)


@pytest.fixture(scope="module")
def masked(late, lab):
    """A finished run of two rounds, in both of which SuperNodes were killed."""
    settings = (
        "federation.min_clients=3 federation.rounds.finetune=2 federation.secure_aggregation.enabled=true "
        "federation.secure_aggregation.shares=5 federation.secure_aggregation.threshold=3 "
        "federation.rounds.unlearn=1 unlearning.cover=3 unlearning.requests.policy=nodes "
        f"federation.timeout={DEADLINE_S} federation.secure_aggregation.patience={PATIENCE_S}"
    )
    return finished(lab, "masked", settings)


def test_no_process_of_a_deployment_here_can_be_reached_from_another_machine(late, lab):
    with listening(lambda: marked(lab.folder)) as found:
        assert until(lambda: {"flower-superlin", "flower-supernod"} <= {name[:15] for name, _ in found}, 60), found
    assert not reached_from_elsewhere(found)


def test_no_round_waits_for_a_slow_client_whose_update_counts_later(late):
    learned, unlearned = (rounds(late, stage) for stage in ("finetune", "unlearn"))
    done = [row["clients"]["train"] for _, row in sorted(learned.items())]
    assert all(len(clients) == 2 for clients in done), "a step after two updates"
    assert not any(6 in clients for clients in done[:MISSED])
    assert len({client for clients in done for client in clients}) > 2
    assert not any(row["metrics"]["failures"] for row in learned.values())
    assert any(6 in row["clients"].get("train", []) for row in (*learned.values(), *unlearned.values()))


def test_a_request_is_a_barrier_for_what_was_under_way(late):
    entries = check_chain(late.ledger_path).entries
    (barrier,) = [e for e in entries if e["event"] == "barrier"]
    (served,) = [e for e in entries if e["event"] == "served"]
    assert served["client"] == 5 and barrier["requests"] == [served["id"]]
    assert served["round"] == barrier["round"] >= ASKED
    after = {number: row for number, row in rounds(late, "unlearn").items() if number >= barrier["round"]}
    assert barrier["discarded"] >= 1, "others were at work"
    assert sum(row["metrics"].get("discarded", 0) for row in after.values()) >= 1
    assert not any(5 in row["clients"].get("train", []) for row in after.values()), "who left trains no more"


def test_every_round_has_its_sum(masked):
    """Those in the sum train; who died before its vector came is not in it, who died later is."""
    rows = rounds(masked, "finetune")
    trained = {number: row["clients"].get("train", []) for number, row in rows.items()}
    assert trained[1] == [0, 3, 4, 5, 6], "killed before keys and before shares"
    assert rows[1]["clients"]["failed"] == [1, 2]
    assert {0, 5, 6} <= set(trained[2]) <= {0, 4, 5, 6}
    assert 3 in rows[2]["clients"]["failed"], "killed before its vector"
    models = [masked.load_checkpoint("finetune", number).vector for number in (1, 2)]
    assert np.abs(models[0]).max() > 0 and not np.array_equal(*models), "each sum moved the model"
    assert all(np.isfinite(model).all() for model in models)
    assert not any("train-loss" in row["metrics"] for row in rows.values()), "sealed requests: nothing is told but sums"


def test_a_cover_exchange_is_held_among_those_that_are_left(masked):
    """Nobody asks: the ledger has what three of them committed themselves to, and a sum of nothing."""
    (line,) = [e for e in check_chain(masked.ledger_path).entries if e["event"] == "cover_exchange"]
    assert len(line["survivors"]) == 3
    assert {0, 4, 5, 6} >= set(line["survivors"])
    assert all(len(commitment) == 64 for commitment in line["commitments"].values())
    assert line["count"] == 0
    assert line["before"] == line["after"]
