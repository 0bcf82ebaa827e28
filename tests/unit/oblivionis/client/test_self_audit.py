"""Which models a node keeps to measure its own sealed requests by."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from oblivionis.client.self_audit import (
    FOLDER,
    LATEST,
    Kept,
    SelfAuditError,
    keep_model,
    keep_numbers,
    number_of_audit,
    right_after,
)
from oblivionis.erasure.hidden_requests import enter_outcomes, join, open_commitment
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.query_schema import SessionOutcome
from oblivionis.measures.audit_numbers import read_audit
from oblivionis.runs.directory import Checkpoint, read_checkpoint, vector_hash

BEGAN, ENDED, LATER = (np.full(3, value, np.float32) for value in (1.0, 2.0, 3.0))


def test_audits_of_a_sealed_request_are_counted_and_fewer_samples_refused(tmp_path):
    vector = np.ones(3, np.float32)
    last, model = Checkpoint("unlearn", 2, vector, {}, {}), vector_hash(vector)
    opened = SimpleNamespace(run="run", client=0, round=1, demand=SimpleNamespace(request_id="x"))
    ledger = NodeLedger(tmp_path)
    ledger.submit(["r"], identifier="x")
    assert number_of_audit(tmp_path, opened, last, 8) == 1
    for of in (model, "0" * 64):
        ledger.note("verification_failed", "x", run="run", round=2, model=of, outcome="not verified", why="", limit=0.5)
    count = number_of_audit(tmp_path, opened, last, 64)
    assert count == 2, "that of another model is another one's"
    keep_numbers(tmp_path, opened, "final", {"leakage_samples": 64.0}, last, count)
    assert read_audit(tmp_path, "x")["audits"] == 2
    with pytest.raises(SelfAuditError, match="64 were drawn before"):
        number_of_audit(tmp_path, opened, last, 8)


def kept(folder):
    return {p.name: read_checkpoint(p).vector[0] for p in sorted((folder / FOLDER).iterdir())}


def about(server_round, run="run", stage="unlearn"):
    return Kept(run, stage, server_round, "settings", "fingerprint")


def exchange(folder, session, server_round):
    """The message that begins an exchange brings a model, and so does that of the training after it."""
    share = join(folder, "run", session, 0)
    keep_model(folder, BEGAN, about(server_round))
    keep_model(folder, BEGAN, about(server_round), session)
    return share


def counted(share):
    return SessionOutcome("s1", "run", 2, "counted", "a" * 64, share.commitment, "b" * 64, vector_hash(ENDED))


def test_the_model_of_the_same_round_is_kept_beside_that_which_the_exchange_began_with(tmp_path):
    NodeLedger(tmp_path).submit(["r1"], identifier="x", reason="by letter")
    share = exchange(tmp_path, "s1", 2)
    assert list(kept(tmp_path).values()) == [1.0, 1.0]
    for other in (about(3), about(2, run="other"), about(2, stage="local")):
        keep_model(tmp_path, LATER, other)
        assert len(kept(tmp_path)) == 2, "it came of another exchange"
    keep_model(tmp_path, ENDED, about(2))
    found = kept(tmp_path)
    assert len(found) == 3 and sorted(found.values()) == [1.0, 2.0, 2.0] and found[LATEST] == 2.0
    enter_outcomes(
        tmp_path, [SessionOutcome("s1", "run", 2, "counted", "a" * 64, share.commitment, "b" * 64, vector_hash(ENDED))]
    )
    model = right_after(tmp_path, open_commitment(tmp_path, "x"), "x")
    assert model is not None and np.array_equal(model.vector, ENDED)
    exchange(tmp_path, "s2", 3)
    assert len(kept(tmp_path)) == 4, "the request is not settled: what measures it stays"
    NodeLedger(tmp_path).note("verified", "x", run="run", round=3, outcome="verified", rouge=0.0, limit=0.5)
    exchange(tmp_path, "s3", 4)
    assert len(kept(tmp_path)) == 2, "nobody needs the others any more"


@pytest.mark.parametrize("after", [BEGAN, None])
def test_a_model_that_the_exchange_did_not_end_with_does_not_count(tmp_path, after):
    NodeLedger(tmp_path).submit(["r1"], identifier="x", reason="by letter")
    share = exchange(tmp_path, "s1", 2)
    if after is not None:
        keep_model(tmp_path, after, about(2))
    enter_outcomes(
        tmp_path, [SessionOutcome("s1", "run", 2, "counted", "a" * 64, share.commitment, "b" * 64, vector_hash(ENDED))]
    )
    assert right_after(tmp_path, open_commitment(tmp_path, "x"), "x") is None
