"""The rows of a suite's results: whose numbers they are, and which run they come from."""

import json
import shutil

import pytest
from support.commands import call

from benchmarks import suite_kinds as suites
from benchmarks.federated import collecting, graph
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.runs.failed_evaluators import row_of

SUITE = """
kind: federated
experiment: smoke
base: {evaluation.base: true}
matrix: {strategy: [fedavg], unlearning: [npo, grad_diff], seed: [0]}
tables:
  small: {rows: unlearning, columns: strategy, models: [base, unlearn], metrics: {MU: model_utility}}
"""


@pytest.fixture
def collected(tmp_path):
    """The table of a suite whose runs are all there, each with made-up values."""
    (tmp_path / "small.yaml").write_text(SUITE)
    settings = suites.load(tmp_path / "small.yaml", [])[1]
    cells = settings.cells()
    plan = graph.plan(cells)
    for number, node in enumerate(plan.nodes):
        folder = node.run(tmp_path / "store").path / "stages"
        folder.mkdir(parents=True)
        stages = [*node.config.stages, *(["base"] if node.config.evaluation.base else [])]
        for stage in stages:
            summary = {"stage": stage, "rounds": 1, "seconds": 1.0, "seed": 0, "fingerprint": "0" * 64}
            value = 0.5 if stage == "base" else number
            (folder / f"{stage}.json").write_text(json.dumps({**summary, "metrics": {"model_utility": value}}))
    (tmp_path / "results").mkdir()
    table = collecting.collect(settings.axes(), cells, plan, tmp_path / "store", tmp_path / "results", {})
    return table.to_pandas(), plan


@pytest.mark.slow
def test_the_base_model_of_a_cell_is_that_of_its_first_stage(collected):
    rows, plan = collected
    base = rows[(rows["stage"] == "base") & (rows["metric"] == "model_utility")]
    (finetune,) = (node for node in plan.nodes if node.stage == "finetune")
    assert list(base["value"]) == [0.5, 0.5] and set(base["run"]) == {f"../store/{finetune.key}"}
    own = rows[(rows["stage"] == "unlearn") & (rows["metric"] == "model_utility")]
    assert set(own["run"]) == {f"../store/{node.key}" for node in plan.nodes if node.stage == "unlearn"}


@pytest.mark.slow
def test_an_evaluator_that_failed_is_a_row_and_exit_code_1(collected, tmp_path):
    _, plan = collected
    node = plan.nodes[-1]
    run = node.run(tmp_path / "store")
    run.append_metrics([row_of("unlearn", 1, "round", "leakage", "no"), row_of("unlearn", 1, "end", "tofu", "NaN")])
    shutil.copy(tmp_path / "small.yaml", tmp_path / "results" / suites.SUITE_FILE)
    result = call("bench", "collect", tmp_path / "results", "--store", tmp_path / "store", "--json")
    assert result.code == 1
    rows = [row for row in json.loads(result.out)["rows"] if row["status"] == "not measured"]
    told = [(row["cell"], row["stage"], row["metric"], row["error"], row["value"]) for row in rows]
    assert told == [(node.cells[0].id, "unlearn", "tofu", "NaN", None)]
    last = result.err.splitlines()[-1]
    assert f"tofu in unlearn of {node.cells[0].id}: NaN" in last
    assert last.endswith(f"oblivionis evaluate {run.path} --stage unlearn")


@pytest.mark.slow
def test_a_request_that_was_not_served_is_exit_code_1(collected, tmp_path):
    _, plan = collected
    node = plan.nodes[-1]
    ledger = Ledger(node.run(tmp_path / "store").ledger_path)
    ledger.submit(Request("asked", 0, ("a record",), 1))
    shutil.copy(tmp_path / "small.yaml", tmp_path / "results" / suites.SUITE_FILE)

    at = ("--store", tmp_path / "store")
    commands = (
        ("bench", "collect", tmp_path / "results", *at),
        ("bench", tmp_path / "small.yaml", "--output", tmp_path / "again", *at),
    )
    for command in commands:
        waiting = call(*command)
        assert waiting.code == 1, waiting.err
        last = waiting.err.splitlines()[-1]
        why = f"(to see why, for example: oblivionis runs show {ledger.path.parent})"
        text = "error: Deletion requests of 1 of 2 cells are pending or were rejected"
        assert last == f"{text} {why}: {node.cells[0].id}."
    ledger.served("asked", 1)
    assert call(*commands[0]).code == 0


def test_what_was_run_and_found_and_failed(collected, tmp_path):
    _, plan = collected
    finetune, retrain, *rest = plan.nodes
    (retrain.run(tmp_path / "store").path / "stages" / "retrain.json").unlink()
    for node in rest:
        (node.run(tmp_path / "store").path / "stages" / "unlearn.json").unlink()
    told = collecting.facts(plan, tmp_path / "store", {retrain.key: "why"}, {finetune.key}, 7.0)
    of_both = {"cells": [cell.id for cell in finetune.cells]}
    assert told == {
        "seconds": 7.0,
        "nodes": [
            {"key": n.key, "label": n.label, "stage": n.stage, **of_both, "seconds": s, "shared": f, "error": e}
            for n, s, f, e in ((finetune, 1.0, True, ""), (retrain, 0, False, "why"))
        ],
    }


def test_keeping_what_is_not_there_is_refused(tmp_path):
    result = call("bench", "keep", tmp_path, tmp_path / "new")
    assert result.code == 2 and "cannot be read as results of a suite" in result.err


def test_a_metric_that_is_left_out_has_its_reason_and_no_value(tmp_path):
    (tmp_path / "small.yaml").write_text(SUITE)
    settings = suites.load(tmp_path / "small.yaml", [])[1]
    cells = settings.cells()
    plan = graph.plan(cells)
    for node in plan.nodes:
        for stage in [*node.config.stages, "base"]:
            run = node.run(tmp_path / "store")
            (run.path / "stages").mkdir(parents=True, exist_ok=True)
            head = {"stage": stage, "rounds": 1, "seconds": 1.0, "metrics": {"retain_prob": 0.5}}
            (run.path / "stages" / f"{stage}.json").write_text(json.dumps({**head, "notes": {"retain_rouge": "why"}}))
    rows = collecting.collect(settings.axes(), cells, plan, tmp_path / "store", tmp_path, {}).to_pylist()
    of = {(r["stage"], r["value"], r["error"], r["status"]) for r in rows if r["metric"] == "retain_rouge"}
    assert of == {(stage, None, "why", "done") for stage in ("base", "finetune", "retrain", "unlearn")}
    assert {r["error"] for r in rows if r["metric"] == "retain_prob"} == {""}
