"""Secure aggregation between real processes: SuperNodes are killed at four of its stages. In one run."""

import os
from pathlib import Path

import numpy as np
import pytest
from support.deployed import BRISK, Deployed

from oblivionis.chain import check_chain
from oblivionis.runs.directory import RunDirectory

pytestmark = pytest.mark.slow

CLIENTS, DEADLINE_S, PATIENCE_S = 7, 45, 20
DEADLY = """\
import os, psutil
from flwr.clientapp import ClientApp

name, counted = os.environ.get("OBLIVIONIS_TEST_NAME", ""), os.path.join(os.path.dirname(__file__), "sessions-")
keys, shares, vectors, unmask = "query.secure_keys", "query.secure_shares", "train", "query.secure_unmask"
deadly = {"node1": (keys, 1), "node2": (shares, 1), "node3": (vectors, 2), "node4": (unmask, 2)}.get(name)
honest = ClientApp.__call__

def environment(process):
    try:
        return process.environ()
    except psutil.Error:
        return {}

def call(self, message, context):
    kind, path = message.metadata.message_type, counted + name
    if kind == keys:
        with open(path, "a") as file:
            file.write("x")
    if deadly is not None and kind == deadly[0] and os.path.getsize(path) == deadly[1]:
        family = [p for p in psutil.process_iter() if environment(p).get("OBLIVIONIS_TEST_NAME") == name]
        for process in sorted(family, key=lambda p: p.pid == os.getpid()):
            process.kill()
    return honest(self, message, context)

ClientApp.__call__ = call
"""
"""Runs first in the clients: four of them die with their SuperNode, two in the first session, two in the second."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of two rounds, in both of which SuperNodes were killed."""
    patch = tmp_path_factory.mktemp("patch") / "patch.py"
    patch.write_text(DEADLY)
    with Deployed(tmp_path_factory.mktemp("secure") / "lab", clients=CLIENTS) as lab:
        lab.start_superlink()
        lab.register()
        for partition in range(CLIENTS):
            lab.start_supernode(partition, OBLIVIONIS_TEST_PATCH=os.pathsep.join(map(str, (BRISK, patch))))
        lab.wait_online(range(CLIENTS))
        settings = (
            f"name=masked stages=[finetune,unlearn] federation.clients={CLIENTS} federation.fraction_train=1.0 "
            "federation.min_clients=3 federation.rounds.finetune=2 federation.secure_aggregation.enabled=true "
            "federation.secure_aggregation.shares=5 federation.secure_aggregation.threshold=3 evaluation.every=0 "
            "federation.rounds.unlearn=1 unlearning.cover=3 unlearning.requests.policy=nodes "
            f"federation.timeout={DEADLINE_S} federation.secure_aggregation.patience={PATIENCE_S}"
        )
        assert lab.finish(lab.submit("smoke", settings)) == "finished:completed", lab.everything_said()
        folder = tmp_path_factory.mktemp("kept") / "masked"
        Path(lab.server / "runs" / "masked").rename(folder)
        yield RunDirectory(folder)


def test_every_round_has_its_sum(run):
    """Those in the sum train; who died before its vector came is not in it, who died later is."""
    rows = {r["round"]: r for r in run.metrics() if (r["stage"], r["evaluator"]) == ("finetune", "federation")}
    trained = {number: row["clients"].get("train", []) for number, row in rows.items()}
    assert trained[1] == [0, 3, 4, 5, 6], "killed before keys and before shares"
    assert rows[1]["clients"]["failed"] == [1, 2]
    assert {0, 5, 6} <= set(trained[2]) <= {0, 4, 5, 6}
    assert 3 in rows[2]["clients"]["failed"], "killed before its vector"
    models = [run.load_checkpoint("finetune", number).vector for number in (1, 2)]
    assert np.abs(models[0]).max() > 0 and not np.array_equal(*models), "each sum moved the model"
    assert all(np.isfinite(model).all() for model in models)
    assert not any("train-loss" in row["metrics"] for row in rows.values()), "sealed requests: nothing is told but sums"


def test_a_cover_exchange_is_held_among_those_that_are_left(run):
    """Nobody asks: the ledger has what three of them committed themselves to, and a sum of nothing."""
    (line,) = [e for e in check_chain(run.ledger_path).entries if e["event"] == "cover_exchange"]
    assert len(line["survivors"]) == 3
    assert {0, 4, 5, 6} >= set(line["survivors"])
    assert all(len(commitment) == 64 for commitment in line["commitments"].values())
    assert line["count"] == 0
    assert line["before"] == line["after"]
