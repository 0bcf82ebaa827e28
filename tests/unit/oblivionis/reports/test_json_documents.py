"""A run as a document for other programs."""

from __future__ import annotations

from support.reports import ask, make_run

from oblivionis.reports.json_documents import failed_now, run_document, runs_document, with_left_out


def test_a_run_with_its_requests_and_their_outcomes(tmp_path):
    run, config = make_run(tmp_path)
    ask(run)
    found = run_document(run, config)
    assert found["run"] == run.path and found["report"] is None
    requests = [(r["id"], r["client"], r["record_ids"], r["state"], r["outcome"]) for r in found["requests"]]
    assert requests == [("r0", 0, ("a", "b"), "verified", "verified"), ("r1", 1, ("c",), "pending", "pending")]
    assert found["outcome"].sentence.startswith("1 of 2 deletion requests verified")
    assert found["metrics"]["unlearn"]["forget_prob"] == 4.25e-7 and found["failed"] == []
    assert [row["run"] for row in runs_document(run.path.parent)] == ["made"]
    (run.path / "report.html").touch()
    assert run_document(run, config)["report"] == run.path / "report.html"


def test_what_failed_now_is_a_failure_at_the_end():
    (failure,) = failed_now("unlearn", 3, {"muse": "no memory"})
    assert (failure.stage, failure.round, failure.evaluator, failure.reason) == ("unlearn", 3, "muse", "no memory")
    assert failure.final


def test_what_is_left_out_for_a_reason_is_none():
    assert with_left_out({"a": 1.0, "b": 2.0}, {"b": "odd", "c": "absent"}) == {"a": 1.0, "b": 2.0, "c": None}
