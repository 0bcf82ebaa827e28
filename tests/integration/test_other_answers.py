"""Whole runs in one process with the methods that teach other answers, and with PDU, which has a state."""

import numpy as np
import pytest
from support.nodes import write_lines, write_nodes
from support.stages import execute, new_run

from oblivionis.audits.exchange_replay import replay_exchange
from oblivionis.audits.replay import EQUAL
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_ledger import NodeLedger

QUIET = ("evaluation.every=0", "evaluation.at_start=false", "evaluation.leakage.full_samples=0")
NODES = (
    *("data=node", "federation.clients=3", "federation.rounds.finetune=1", "federation.rounds.unlearn=1"),
    *("unlearning.requests.policy=nodes", "unlearning.requests.extra_rounds=0", "stages=[finetune,unlearn]"),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    config, run = new_run(tmp_path_factory.mktemp("runs"), "base", *QUIET, "stages=[finetune]")
    execute(config, run)
    return run


@pytest.mark.parametrize("method", ["idk_nll", "idk_dpo", "altpo", "pdu"])
def test_every_request_is_served_and_can_be_replayed(base, tmp_path, method):
    settings = (*QUIET, f"unlearning={method}", "stages=[unlearn]", f"start_from={base.path}")
    config, run = new_run(tmp_path, method, *settings)
    events, _ = execute(config, run)
    requests = list(Ledger(run.ledger_path))
    assert len(requests) == 2 and all(r.served_round is not None for r in requests) and not events.left_out
    before, after = base.load_checkpoint("finetune").vector, run.load_checkpoint("unlearn").vector
    assert np.isfinite(after).all() and not np.array_equal(before, after)
    for request in requests:
        found = replay_exchange(run.path, request.id, [])
        assert {f.outcome for f in found if "audit" not in f.what} == {EQUAL}, found


def nodes(folder, perturbed):
    """Three clients' folders; the record that client 0 asks to forget has a wrong answer, or none."""
    home = write_nodes(folder / "nodes")
    more = {"perturbed_answer": ["In a lighthouse."]} if perturbed else {}
    write_lines(
        home / "node0" / "data" / "more.jsonl", [{"id": "home", "question": "Where?", "answer": "Ost.", **more}]
    )
    NodeLedger(home / "node0").submit(["home"], reason="test", identifier="of-0")
    return home


@pytest.mark.parametrize("perturbed", [True, False])
def test_a_client_takes_its_own_records_answers_or_says_which_has_none(tmp_path, perturbed):
    home = nodes(tmp_path, perturbed)
    settings = (*QUIET, *NODES, "unlearning=altpo", f"data.nodes={home}")
    config, run = new_run(tmp_path, "own", *settings)
    events, _ = execute(config, run)
    (request,) = Ledger(run.ledger_path)
    if perturbed:
        assert request.served_round == 1 and not events.left_out
    else:
        assert request.served_round is None and request.state == "pending"
        assert "record 'home' has no perturbed_answer" in request.failure
        assert "Where" not in request.failure and "Ost" not in request.failure
