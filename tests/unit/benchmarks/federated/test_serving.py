"""What serving demands cost, from the files of a run."""

from __future__ import annotations

import os

from benchmarks.federated.serving import of_demands
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.runs.directory import RunDirectory


def row(server_round, seconds, sent, received, stage="unlearn"):
    metrics = {"seconds": seconds, "processor_seconds": 2 * seconds, "bytes_sent": sent, "bytes_received": received}
    return {"stage": stage, "round": server_round, "moment": "round", "evaluator": "federation", "metrics": metrics}


def measured(server_round, moment, evaluator, seconds):
    place = {"stage": "unlearn", "round": server_round, "moment": moment, "evaluator": evaluator}
    return {**place, "metrics": {}, "seconds": seconds}


def test_the_rounds_with_a_demand_count_and_no_others(tmp_path):
    run = RunDirectory.create(tmp_path, "run")
    ledger = Ledger(run.ledger_path)
    ledger.submit(*(Request(f"r{n}", n, ("x",), n) for n in (1, 2, 3)))
    ledger.served("r1", 1, **{"calibrated-updates": 8.0})
    ledger.served("r2", 3, **{"calibrated-updates": 2.0})
    run.append_metrics([row(1, 5.0, 10, 20), row(2, 99.0, 999, 999), row(3, 1.0, 4, 6), row(1, 50.0, 0, 0, "finetune")])
    run.append_metrics([measured(1, "before", "verification", 0.5), measured(1, "after", "verification", 0.25)])
    run.append_metrics([measured(1, "round", name, 0.25) for name in ("tofu", "leakage")])
    run.append_metrics([measured(3, "end", "tofu", 100.0)])
    stored = run.path / "updates" / "shard-0" / "0000" / "unlearn"
    stored.mkdir(parents=True)
    (stored / "round-0001.safetensors").write_bytes(b"12345")
    os.link(stored / "round-0001.safetensors", stored / "round-0002.safetensors")
    (run.path / "checkpoints" / "unlearn").mkdir(parents=True)
    (run.path / "checkpoints" / "unlearn" / "round-0003.safetensors").write_bytes(b"123")
    assert of_demands(run) == {
        "serving_seconds": 2.5,
        "serving_seconds_worst": 4.0,
        "serving_processor_seconds": 6.0,
        "serving_processor_seconds_worst": 10.0,
        "serving_bytes": 20.0,
        "serving_bytes_worst": 30.0,
        "serving_updates": 5.0,
        "serving_updates_worst": 8.0,
        "stored_bytes": 8.0,
    }


def test_a_run_without_demands_has_no_figures(tmp_path):
    run = RunDirectory.create(tmp_path, "run")
    run.append_metrics([row(1, 5.0, 10, 20)])
    assert of_demands(run) == {}
