"""What a run keeps of the evidence about its requests."""

from __future__ import annotations

from support.reports import make_run

from oblivionis.erasure.verification_evidence import RecordEvidence
from oblivionis.erasure.verification_records import exchanges, judgement_of, records_of, seen_by_oracle
from oblivionis.files import write_json


def test_the_judgement_of_a_request_with_the_terms_of_the_file(tmp_path):
    run, _ = make_run(tmp_path, stages=["unlearn"])
    assert judgement_of(run, "r0") == {} == seen_by_oracle(run) and records_of({}) == {}
    record = {"units": 5, "final": 0.1, "before": 1.0, "oracle": None}
    told = {"outcome": "verified", "records": {"a": record}}
    requests = {"r0": {**told, "seen": ["b"]}, "r1": told, "r2": {**told, "seen": []}}
    write_json(run.path / "judgements.json", {"limit": 0.5, "doubt": "", "model": "m", "requests": requests})
    assert judgement_of(run, "r1") == {**told, "limit": 0.5, "doubt": "", "model": "m"}
    assert judgement_of(run, "ghost") == {} and seen_by_oracle(run) == {"r0": ["b"], "r2": []}
    assert records_of(judgement_of(run, "r0")) == {"a": RecordEvidence(5, 0.1, 1.0, None)}


def test_what_was_measured_at_the_exchanges_of_a_stage(tmp_path):
    run, _ = make_run(tmp_path, stages=["unlearn"])
    row = {"stage": "unlearn", "round": 1, "moment": "before_unlearn", "evaluator": "requests", "metrics": {}}
    told = [{**row, "requests": {"r0": {"a": {"rouge": 0.1}}}}, {**row, "round": 2, "requests": {}}]
    others = [row, *({**told[0], **change} for change in ({"stage": "x"}, {"moment": "end"}, {"evaluator": "tofu"}))]
    run.append_metrics([*told, *others])
    found = exchanges(run, "unlearn", "before_unlearn")
    assert [(r["round"], r["requests"]) for r in found] == [(1, told[0]["requests"]), (2, {})]
