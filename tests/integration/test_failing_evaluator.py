"""An evaluator that fails: a row that says so, in the run, on the screen and on the page, and exit code 1."""

import json
import re

import pytest
from support.commands import call, in_process
from support.reports import Page

from evaluation.leakage.evaluator import LeakageEvaluator
from evaluation.metrics.tofu import TofuEvaluator
from oblivionis.config import compose as configuration
from oblivionis.erasure.ledger import Ledger
from oblivionis.errors import RunInterrupted
from oblivionis.measures.verification import Verification
from oblivionis.reports import run_outcome
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.failed_evaluators import failures
from oblivionis.server import simulation
from oblivionis.server.stage import Stage

SMALL = [
    *("data.authors=8", "data.forget_authors=2", "evaluation.full.questions_per_set=4", "evaluation.every=1"),
    *("evaluation.wikimem.enabled=false", "federation.rounds.finetune=1", "federation.rounds.retrain=1"),
]
REASON = "the disk\nof the moon is full"
LINE = "RuntimeError: the disk of the moon is full"


class Fails:
    """Makes an evaluator raise in the evaluations for which `when(stage, round, moment)` is true."""

    def __init__(self, patch, kind, when):
        self.at, evaluate, measure = ("", 0, ""), kind.evaluate, Stage.evaluate
        fails = self

        def measured(self, server_round, moment, vector):
            fails.at = self.name, server_round, moment
            return measure(self, server_round, moment, vector)

        def evaluated(self, session):
            if when(*fails.at):
                raise RuntimeError(REASON)
            return evaluate(self, session)

        patch.setattr(Stage, "evaluate", measured)
        patch.setattr(kind, "evaluate", evaluated)


def simulate(folder, name, *more):
    return call("simulate", "smoke", f"output={folder}", f"name={name}", *SMALL, *more)


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A run whose sampled answers failed at the end of unlearn and after its first round, and what the command said."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "simulate", in_process)
        Fails(patch, LeakageEvaluator, lambda stage, at, moment: stage == "unlearn" and moment in ("end", "round"))
        result = simulate(folder, "broken", "--full")
    return folder / "broken", result


def test_the_run_goes_on_and_the_table_has_a_row_that_says_so(broken):
    path, result = broken
    assert result.code == 1
    (row,) = [line for line in result.out.splitlines() if line.startswith("│ not measured")]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[1] == "leakage" and cells[3].startswith("failed: RuntimeError") and cells[2] == cells[4] == ""
    assert "failed: leakage in unlearn, round 1: RuntimeError: the disk of the moon is full" in result.out
    (sampled,) = [line for line in result.out.splitlines() if "Mean leakage" in line]
    assert re.findall(r"│ +(failed|[\d.]+)", sampled)[1] == "failed"
    run = RunDirectory.open(path)
    assert {s for s in ("finetune", "retrain", "unlearn") if run.stage_summary(s)} == {"finetune", "retrain", "unlearn"}
    assert [(f.stage, f.moment, f.evaluator, f.reason) for f in failures(run)] == [
        ("unlearn", "round", "leakage", LINE),
        ("unlearn", "end", "leakage", LINE),
    ]


def test_the_last_line_says_what_failed_and_what_to_do(broken):
    path, result = broken
    (line,) = [line for line in result.err.splitlines() if line.startswith("error:")]
    assert "2 evaluations failed" in line and line.count("leakage in unlearn, round") == 2
    assert line.endswith(f"measure again: oblivionis evaluate {path} --stage unlearn")
    assert "Traceback" not in result.err and "continue with" not in result.err


def test_what_is_shown_later_knows_it(broken):
    path, _ = broken
    shown = call("runs", "show", path)
    assert shown.code == 0 and "failed: leakage in unlearn, round 2 (end, full profile)" in shown.out
    run = RunDirectory.open(path)
    page = Page(run, configuration.from_yaml(run.read_config()))
    assert "The evaluator leakage failed in 2 of" in page.text and f"failed: {LINE}" in page.text
    told = json.loads(call("runs", "show", path, "--json").out)
    assert [f["reason"] for f in told["failed"]] == [LINE, LINE]


def test_no_verdict_gains_by_it(broken):
    path, _ = broken
    run = RunDirectory.open(path)
    config = configuration.from_yaml(run.read_config())
    assert {r.outcome for r in Ledger(run.ledger_path)} <= {"inconclusive", "not verified"}
    found = run_outcome.of_run(run, config)
    assert found.grade != run_outcome.GOOD and "not measured, because it failed: leakage" in found.sentence
    verdicts = json.loads((path / "verdicts.json").read_text())
    assert verdicts["failed"] == {"unlearn": {"leakage": LINE}}
    request = next(iter(Ledger(run.ledger_path))).id
    certificate = json.loads(call("certificate", "create", path, request, "--json").out)["certificate"]
    assert certificate["result"] != "PASS"
    (model,) = [c for part in certificate["requests"] for c in part["checks"] if c["name"] == "model"]
    assert model["result"] == "INCONCLUSIVE" and "leakage" in model["why"]


def test_a_finished_run_that_is_resumed_stays_told(broken, monkeypatch):
    path, first = broken
    monkeypatch.setattr(simulation, "simulate", in_process)
    again = call("simulate", "--resume", path)
    assert again.code == 1 and again.err.splitlines()[-1] == first.err.splitlines()[-1]


def test_an_evaluation_that_is_repeated_and_succeeds_supersedes_the_failure(tmp_path, monkeypatch):
    """The first attempt is stopped between the failed evaluation at the end of finetune and the mark of its end."""
    monkeypatch.setattr(simulation, "simulate", in_process)
    with monkeypatch.context() as patch:
        Fails(patch, LeakageEvaluator, lambda stage, at, moment: moment == "end")
        patch.setattr(RunDirectory, "finish_stage", lambda *_: (_ for _ in ()).throw(RunInterrupted("stopped")))
        assert simulate(tmp_path, "again", "stages=[finetune]").code == 130
    run = RunDirectory.open(tmp_path / "again")
    assert [f.evaluator for f in failures(run)] == ["leakage"]
    result = call("simulate", "--resume", run.path)
    assert result.code == 0 and failures(run) == [] and "not measured" not in result.out


def test_the_measure_of_utility_that_failed_before_unlearning_leaves_requests_inconclusive(tmp_path, monkeypatch):
    """And a verification that raises leaves them unverified: all of it told, with the other stages done."""
    monkeypatch.setattr(simulation, "simulate", in_process)
    judge = Verification.judge
    monkeypatch.setattr(Verification, "judge", lambda *given: judge(*given) and {}["nothing"])
    Fails(monkeypatch, TofuEvaluator, lambda stage, at, moment: (stage, moment) == ("finetune", "end"))
    result = simulate(tmp_path, "blind", "--json")
    assert result.code == 1
    told = json.loads(result.out)
    assert [(f["stage"], f["evaluator"]) for f in told["failed"]] == [("finetune", "tofu"), ("unlearn", "verification")]
    assert {r["outcome"] for r in told["requests"]} == {"served"} and told["outcome"]["grade"] != "good"
    judged = json.loads((tmp_path / "blind" / "judgements.json").read_text())
    assert "tofu failed on the finetuned model" in judged["doubt"]
    assert {r["outcome"] for r in judged["requests"].values()} <= {"inconclusive", "not verified"}
    assert "model_utility" in told["metrics"]["unlearn"] and "leakage_mean" in told["metrics"]["finetune"]


def test_evaluate_and_attack_end_with_exit_code_1(broken, monkeypatch):
    path, _ = broken
    Fails(monkeypatch, LeakageEvaluator, lambda *_: True)
    result = call("evaluate", path, "--stage", "finetune")
    assert result.code == 1 and f"failed: {LINE}" in result.out
    assert result.err.splitlines()[-1].startswith(f"error: 1 evaluation failed, all else is kept: leakage: {LINE}")
    told = call("evaluate", path, "--stage", "finetune", "--json")
    assert told.code == 1 and json.loads(told.out)["failed"] == {"leakage": LINE}
    attacked = call("attack", path, "--only", "sampling", "attack.samples=2", "attack.questions=2")
    assert attacked.code == 1 and "sampling.unlearn: " in attacked.err.splitlines()[-1]
    assert "sampling.unlearn failed" in attacked.out and "2 more failed" in attacked.out
    results = json.loads((path / "attacks" / "unlearn-0002" / "results.json").read_text())
    told = json.loads(call("attack", path, "--only", "sampling", "attack.samples=2", "--json").out)
    assert told["failed"].keys() == results["failed"].keys() == {"sampling.unlearn", "sampling.retrain"}


def test_a_request_that_no_round_served_ends_the_command_with_exit_code_1(tmp_path, monkeypatch):
    """Its client leaves, and the method needs records that stay."""
    monkeypatch.setattr(simulation, "simulate", in_process)
    asked = tmp_path / "asked.jsonl"
    asked.write_text('{"id": "leave", "round": 1, "client": 0, "scope": "client"}\n')
    policy = ["unlearning.requests.policy=file", f"unlearning.requests.file={asked}"]
    method = ["unlearning=fine_tune", "federation.rounds.unlearn=1", "unlearning.requests.extra_rounds=0"]
    result = simulate(tmp_path, "left", "stages=[finetune, unlearn]", *policy, *method)
    assert result.code == 1 and "Traceback" not in result.err
    last = result.err.splitlines()[-1]
    assert last.startswith("error: 1 deletion request is still pending: leave. Most frequent reason: error")
    assert "needs retain records, and client 0 has none left" in last
