"""The gate: what a ledger names, what it says of a run that is otherwise, and that there is one door to a run."""

from __future__ import annotations

import ast
import hashlib
import json
import multiprocessing
import re
from pathlib import Path

import numpy as np
import pytest

import benchmarks
import oblivionis
from oblivionis.chain import Chain, check_chain
from oblivionis.config import compose as configuration
from oblivionis.erasure.events import line_fault
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.errors import RunError
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import Checkpoint, RunDirectory, vector_hash

LOOKERS = {
    "oblivionis/runs/artifact_binding.py": "the door itself",
    "oblivionis/cli/main.py": "runs show: it is told there that nothing follows",
    "oblivionis/api/runs.py": "figures of a run, for the program that just made it",
    "oblivionis/cli/request.py": "repair: its ledger is what is wrong",
    "benchmarks/output/warnings.py": "warnings of a table whose runs were looked at",
}


def row(stage, n, moment="round"):
    return {"stage": stage, "round": n, "moment": moment, "evaluator": "tofu", "metrics": {"forget_prob": n / 10}}


def point(stage, n, value):
    return Checkpoint(stage, n, np.full(3, value, np.float32), {"m": np.zeros(2, np.float32)}, {"seed": 0})


def round_of(run, stage, n):
    run.append_metrics([row(stage, n)])
    run.save_checkpoint(point(stage, n, n), keep=2)


def finish(run, stage, log=None):
    run.append_metrics([row(stage, 2, "end")])
    artifact_binding.finish_stage(run, stage, {"stage": stage, "rounds": 2, "metrics": {"forget_prob": 0.2}}, log)


@pytest.fixture
def config():
    return configuration.compose("smoke")


@pytest.fixture
def run(tmp_path, config):
    """Finetune is finished, unlearn broke off after its first round."""
    run = RunDirectory.create(tmp_path, "run")
    run.write_config(configuration.to_yaml(config))
    run.write_environment(seed=0)
    artifact_binding.start(run)
    for stage in ("finetune", "unlearn"):
        assert artifact_binding.begin(run, config, stage)
        round_of(run, stage, 1)
        if stage == "finetune":
            round_of(run, stage, 2)
            finish(run, stage, {"eval_log_forget": {}})
    return run


def faults(run, **more):
    return list(artifact_binding.check(run, **more).faults)


def test_a_run_as_it_was_written_is_whole(run):
    assert artifact_binding.check(run).faults == () and artifact_binding.check(run).missing == ""
    artifact_binding.require_intact(run)
    assert artifact_binding.opened(run.path).path == run.path
    assert not any(line_fault(entry) for entry in check_chain(run.ledger_path).entries)


def test_what_a_checkpoint_line_says_is_what_sha256sum_and_the_model_say(run):
    (line,) = [e for e in run.lines("checkpoint") if e["stage"] == "unlearn"]
    path = run.path / "checkpoints/unlearn/round-0001.safetensors"
    assert line["file"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert line["model"] == vector_hash(np.full(3, 1, np.float32))
    data = (run.path / "metrics.jsonl").read_bytes()
    assert line["rows"] == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def change(name, old, new):
    def edit(run):
        text = (run.path / name).read_text()
        assert old in text
        (run.path / name).write_text(text.replace(old, new, 1))

    return edit


def remove(name):
    return lambda run: (run.path / name).unlink()


def add(name):
    def edit(run):
        (run.path / name).parent.mkdir(parents=True, exist_ok=True)
        (run.path / name).write_text("{}")

    return edit


def put(stage, n, value, info=None):
    def edit(run):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunDirectory, "sealed", False)
            run.save_checkpoint(point(stage, n, value), keep=9)

    return edit


EDITS = {
    "config": (change("config.yaml", "seed: 0", "seed: 1"), r"config\.yaml is not the configuration that line \d+ of"),
    "summary": (
        change("stages/finetune.json", "0.2", "0.1"),
        r"stages/finetune\.json is not the file that line \d+ of",
    ),
    "mark": (remove("stages/finetune.json"), r"stages/finetune\.json is gone; line \d+ of the ledger names it"),
    "log": (remove("evaluations/finetune.json"), r"evaluations/finetune\.json is gone; line \d+"),
    "environment": (change("environment.json", '"seed": 0', '"seed": 1'), r"environment\.json is not .* line \d+"),
    "first row": (change("metrics.jsonl", "0.1", "0.2"), r"metrics\.jsonl is not .* line \d+"),
    "all rows": (remove("metrics.jsonl"), r"metrics\.jsonl is gone; line \d+"),
    "by hand": (add("stages/retrain.json"), r"stages/retrain\.json is not named in the ledger: it was added by hand"),
    "an audit": (add("audits/leakage-unlearn-0001/audit.json"), "it was added by hand"),
    "figures": (add("request_figures.json"), "it was added by hand"),
    "a model": (put("unlearn", 1, 5), r"the checkpoint of unlearn is not the model that line \d+ of the ledger names"),
    "a finished model": (put("finetune", 2, 5), r"the checkpoint of finetune is not the model that line \d+"),
    "a model of another round": (put("unlearn", 2, 2), r"unlearn/round-0002\.safetensors is not named in the ledger"),
    "an older model": (
        remove("checkpoints/finetune/round-0002.safetensors"),
        r"the checkpoint of finetune is not the model that line \d+",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_named_with_the_file_and_the_line(run, name):
    edit, why = EDITS[name]
    edit(run)
    assert len(faults(run)) == 1 and re.search(why, faults(run)[0]), faults(run)
    with pytest.raises(RunError, match=why):
        artifact_binding.opened(run.path)
    if "model" in name:
        assert not faults(run, with_models=False)
    else:
        with pytest.raises(RunError, match=why):
            artifact_binding.seal(run)
    number = re.search(r"line (\d+)", faults(run)[0])
    if number and name in ("summary", "mark", "log", "environment"):
        line = check_chain(run.ledger_path).entries[int(number[1]) - 1]
        assert any(file in faults(run)[0] for file in line["files"]), "the line is one that names the file"


def test_what_is_gone_of_a_finished_stage_is_told_of(run):
    for path in (run.path / "checkpoints/finetune").iterdir():
        path.unlink()
    assert re.search(r"the checkpoint of finetune is gone; line \d+", faults(run)[0])


def test_a_model_that_a_disk_damaged_is_passed_over_while_its_stage_goes_on(run):
    path = run.path / "checkpoints/unlearn/round-0001.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    assert faults(run) == []
    path = run.path / "checkpoints/finetune/round-0002.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    assert len(faults(run)) == 1, "that of a finished stage is not"


def test_rows_that_follow_are_free_until_the_stage_is_sealed(run):
    run.append_metrics([row("unlearn", 2)])
    assert faults(run) == []
    finish(run, "unlearn")
    assert faults(run) == []
    run.append_metrics([row("unlearn", 3)])
    assert len(faults(run)) == 1


def test_a_stage_goes_on_with_the_rows_that_its_checkpoint_had(run, config):
    """Those of its last evaluation are dropped, whatever they say of their round and moment."""
    kept = run.metrics()
    run.append_metrics([row("unlearn", 1, "end"), row("unlearn", 1, "after"), row("unlearn", 0, "before")])
    assert not artifact_binding.begin(run, config, "unlearn")
    artifact_binding.resume(run, "unlearn", 1)
    assert run.metrics() == kept and faults(run) == []
    (line,) = run.lines("resumed")
    assert (line["stage"], line["round"]) == ("unlearn", 1)
    assert line["file"] == run.lines("checkpoint")[-1]["file"]
    artifact_binding.resume(run, "unlearn", 0)
    assert run.metrics() == [r for r in kept if r["stage"] == "finetune"]
    assert run.lines("resumed")[-1]["file"] == ""


def test_an_earlier_text_of_a_file_is_allowed_until_the_stage_is_sealed(run):
    """A kill before the file was written leaves the one before."""
    run.keep({"judgements.json": "1"})
    run.note("sealing", files={"judgements.json": hashlib.sha256(b"2").hexdigest()})
    assert faults(run) == []
    (run.path / "judgements.json").write_text("2")
    assert faults(run) == []
    (run.path / "judgements.json").write_text("3")
    assert len(faults(run)) == 1
    (run.path / "judgements.json").write_text("2")
    finish(run, "unlearn")
    (run.path / "judgements.json").write_text("1")
    assert re.search(r"judgements\.json is not", faults(run)[0])
    (run.path / "judgements.json").unlink()
    assert re.search(r"judgements\.json is gone", faults(run)[0])


def test_what_is_there_already_takes_no_line(run):
    run.keep({"judgements.json": "1"})
    count = len(check_chain(run.ledger_path).entries)
    run.keep({"judgements.json": "1"})
    artifact_binding.start(run)
    assert len(check_chain(run.ledger_path).entries) == count


def test_representations_may_be_gone_and_nothing_else(run):
    run.keep({"evaluations/finetune.states.safetensors": b"x"})
    finish(run, "unlearn")
    (run.path / "evaluations/finetune.states.safetensors").write_bytes(b"y")
    assert len(faults(run)) == 1
    (run.path / "evaluations/finetune.states.safetensors").unlink()
    assert faults(run) == []


def test_later_measures_replace_each_other(run):
    finish(run, "unlearn")
    path = run.path / "audits/leakage-unlearn-0001/audit.json"
    for value in (1, 2):
        artifact_binding.measured(run, path, {"questions": value})
        assert faults(run) == []
    path.write_text(json.dumps({"questions": 1}, indent=1) + "\n")
    assert re.search(r"audit\.json is not the file", faults(run)[0]), "an earlier audit, put back"
    path.unlink()
    assert re.search(r"audit\.json is gone", faults(run)[0])


def test_a_run_without_a_ledger_is_not_sealed_and_stays_so_when_it_goes_on(run, config, capsys):
    run.ledger_path.unlink()
    old = RunDirectory(run.path)
    assert artifact_binding.check(old) == artifact_binding.Bound(missing=artifact_binding.NO_LEDGER)
    artifact_binding.opened(run.path)
    assert f"{run.path} is not sealed: {artifact_binding.NO_LEDGER}" in capsys.readouterr().err
    artifact_binding.start(old)
    assert artifact_binding.begin(old, config, "unlearn")
    artifact_binding.resume(old, "unlearn", 1)
    assert [r["stage"] for r in old.metrics()].count("unlearn") == 1
    finish(old, "unlearn")
    assert faults(old) == [] and "before line 1 of its ledger" in artifact_binding.check(old).missing
    change("stages/finetune.json", "0.2", "0.1")(old)
    assert len(faults(old)) == 1, "from then on it is bound"


def test_what_comes_from_a_run_that_is_not_sealed_is_not_sealed(run, tmp_path):
    good = RunDirectory.create(tmp_path, "good")
    good.write_config(run.read_config())
    artifact_binding.take_over(good, run, "finetune")
    (line,) = good.lines("taken_over")
    checked = check_chain(run.ledger_path)
    assert (line["source"]["head"], line["source"]["count"]) == (checked.head, len(checked.entries))
    assert artifact_binding.check(good).missing == ""
    run.ledger_path.unlink()
    other = RunDirectory.create(tmp_path, "other")
    other.write_config(run.read_config())
    artifact_binding.take_over(other, RunDirectory(run.path), "finetune")
    assert "which is not sealed" in artifact_binding.check(other).missing


def test_nothing_is_taken_over_from_an_edited_run(run, tmp_path):
    change("stages/finetune.json", "0.2", "0.1")(run)
    second = RunDirectory.create(tmp_path, "second")
    with pytest.raises(RunError, match=r"stages/finetune\.json is not"):
        artifact_binding.take_over(second, run, "finetune")
    assert not second.ledger_path.exists()


def test_the_torn_end_of_a_ledger_is_a_kill_and_an_altered_line_is_not(run):
    text = run.ledger_path.read_text()
    run.ledger_path.write_text(text + '{"event": "sealing", "fi')
    artifact_binding.require_intact(run)
    run.ledger_path.write_text(text.replace('"round": 1', '"round": 7', 1))
    with pytest.raises(RunError, match=r"requests\.jsonl was changed: line \d+: altered"):
        artifact_binding.require_intact(run)


def test_a_ledger_of_requests_takes_up_what_others_append(run):
    ledger = Ledger(run.ledger_path)
    before = ledger.count
    run.note("rows", stage="unlearn", rows=run.rows())
    ledger.submit(Request("a", 0, ("x",), 1))
    run.note("rows", stage="unlearn", rows=run.rows())
    ledger.served("a", 1)
    checked = check_chain(run.ledger_path)
    assert checked.faults == () and ledger.count == len(checked.entries) == before + 4
    assert ledger.head == checked.head and len(ledger.notes("rows")) == 2


def _append(path, who):
    chain = Chain(path)
    for n in range(30):
        chain.append([{"event": "x", "who": who, "n": n}])


def test_processes_that_append_at_once_make_one_chain(tmp_path):
    path = tmp_path / "requests.jsonl"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_append, args=(path, who)) for who in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    checked = check_chain(path)
    assert checked.faults == () and len(checked.entries) == 90


@pytest.mark.slow
def test_there_is_one_door_to_a_run_that_is_built_upon():
    """Who opens a run's folder in any other way is listed here, with the reason."""
    found = set()
    for package in (oblivionis, benchmarks):
        root = Path(str(package.__file__)).parent
        for path in root.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Attribute)
                    and node.attr == "open"
                    and ast.unparse(node.value) == "RunDirectory"
                ):
                    found.add(path.relative_to(root.parent).as_posix())
    assert found == set(LOOKERS)
