"""Exact erasure in a deployment: a client asks while it runs, and anybody with the nodes' folders computes it again."""

import os
import shutil

import pytest
from support.commands import call
from support.deployed import BRISK, UNMEASURED, Deployed
from support.processes import PROJECT, until

from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.verification_rules import ERASED
from oblivionis.runs.directory import RunDirectory

pytestmark = pytest.mark.slow

EXAMPLE = PROJECT / "docs" / "guides" / "examples" / "three-hospitals"
NEVER_HELD, ROUND_S = 77, 240
SERVER = f"""\
from dataclasses import replace
from flwr.serverapp import ServerApp

honest = ServerApp.__call__

def call(self, grid, context):
    from strategies.protocols.exact import ExactProtocol

    held_again, asked = ExactProtocol._held_again, []

    def dishonest(protocol, server_round, past, *rest):
        asked.append(past)
        past = replace(past, round={NEVER_HELD}) if len(asked) == 1 else past
        return held_again(protocol, server_round, past, *rest)

    ExactProtocol._held_again = dishonest
    return honest(self, grid, context)

ServerApp.__call__ = call
"""
"""Runs first in the ServerApp: it begins the first replay with a round that nobody took part in."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    patch = tmp_path_factory.mktemp("patch") / "server.py"
    patch.write_text(SERVER)
    with Deployed(tmp_path_factory.mktemp("exact") / "lab") as lab:
        for partition, hospital in enumerate(("harbour", "hill", "meadow")):
            shutil.copy(EXAMPLE / hospital / "patients.jsonl", lab.node(partition) / "data")
        lab.start_superlink(OBLIVIONIS_TEST_PATCH=os.pathsep.join(map(str, (BRISK, patch))))
        lab.register()
        for partition in range(3):
            lab.start_supernode(partition)
        lab.wait_online(3)
        yield lab


@pytest.fixture(scope="module")
def run(lab):
    """A finished run in which the second hospital asked while it learned."""
    settings = (
        "name=exact unlearning=exact unlearning.requests.policy=nodes federation.local_epochs=1 "
        f"federation.rounds.finetune=2 federation.rounds.unlearn=2 {UNMEASURED}"
    )
    submitted = lab.submit(EXAMPLE / "hospitals.yaml", settings)
    found = RunDirectory(lab.server / "runs" / "exact")
    assert until(found.metrics, ROUND_S, every=0.1), lab.everything_said()
    asks = ("--ids", "hill-001-a", "--id", "art17", "--reason", "test")
    lab.oblivionis("request", "submit", "--node-dir", lab.node(1), *asks)
    assert lab.finish(submitted) == "finished:completed", lab.everything_said()
    return found


def test_a_node_refuses_to_hold_a_round_again_in_which_it_took_no_part(run):
    (failed,) = run.lines("failed")
    assert (
        f"is to hold round {NEVER_HELD} of train again, and its ledger does not say that it took part"
        in failed["reason"]
    )


def test_the_request_is_erased_exactly_and_its_node_says_so_too(run, lab):
    (request,) = list(Ledger(run.ledger_path))
    assert (request.outcome, request.served_round) == (ERASED, 2)
    (own,) = NodeLedger(lab.node(1)).requests()
    assert (own.state, own.note) == (ERASED, "this node held its rounds again")


def test_the_certificate_is_computed_again_from_the_nodes_folders(run, lab, tmp_path):
    key = tmp_path / "key"
    assert call("certificate", "keygen", "--out", key).code == 0
    made = call("certificate", "create", run.path, "art17", "--key", key, "--out", tmp_path / "certificate")
    assert "PASS" in made.out, made.err
    folders = [argument for partition in range(3) for argument in ("--node-dir", lab.node(partition))]
    verify = ("certificate", "verify", tmp_path / "certificate", "--public-key", f"{key}.pub", "--replay")
    again = call(*verify, "--run", run.path, *folders)
    assert again.code == 0, again.out + again.err
    few = call(*verify, "--run", run.path, *folders[:2])
    assert (few.code, "name each, or a copy, with --node-dir" in few.err) == (2, True)
