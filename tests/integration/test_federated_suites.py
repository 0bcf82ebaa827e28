"""Federated suites: matrix, shared runs, order, failures, kills and resuming; the tables are in test_suite_tables."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from support.commands import call
from support.processes import PROJECT

from benchmarks import kinds as suites
from benchmarks.federated import graph, identity, results
from benchmarks.federated.processes import slots
from oblivionis.config.compose import compose
from oblivionis.config.problems import ConfigError

SMALL = """
kind: federated
experiment: smoke
base:
  evaluation.at_start: false
  evaluation.every: 0
  evaluation.leakage.full_samples: 0
  evaluation.ruler.enabled: false
  evaluation.wikimem.enabled: false
stages: [finetune, unlearn]
matrix:
  strategy: [fedavg]
  unlearning: [npo, grad_diff]
  seed: [0]
tables:
  small: {rows: unlearning, columns: strategy, metrics: {MU: model_utility}}
"""


def suite(folder, text=SMALL, name="small.yaml"):
    file = folder / name
    file.write_text(text)
    return file


def cells(file, *overrides):
    return suites.load(file, overrides)[1].cells()


WITHOUT_RAY = str(PROJECT / "tests" / "support" / "without_ray.py")


@pytest.fixture(scope="module", autouse=True)
def without_ray():
    """The runs of a suite are processes of their own, but begin no Ray."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OBLIVIONIS_TEST_PATCH", WITHOUT_RAY)
        yield


# -- the suites that ship ------------------------------------------------------------------------------------------

SHIPPED = sorted(file.stem for file in suites.FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_suite_that_ships_is_right(name):
    kind, settings = suites.load(suites.find(name))
    assert kind in suites.KINDS
    if kind == "federated":
        assert settings.title and settings.description and settings.layouts()


@pytest.mark.parametrize("name", [n for n in SHIPPED if n.endswith("_tiny")])
def test_a_tiny_twin_has_the_methods_of_its_suite_and_the_tiny_model(name):
    twin, paper = (suites.load(suites.find(n))[1] for n in (name, name.removesuffix("_tiny")))
    assert all(cell.config.model.source == "embedded" for cell in twin.cells())
    assert set(twin.matrix["unlearning"]) <= set(paper.matrix["unlearning"]) if name.startswith("tofu") else True


@pytest.mark.parametrize(("split", "table"), [("99", "2"), ("95", "8"), ("90", "7")])
def test_the_tofu_suites_are_the_papers_tables(split, table):
    settings = suites.load(suites.find(f"tofu_split{split}"))[1]
    found = settings.cells()
    assert len(found) == 3 * 6 * 4 and f"paper-table-{table}" in {layout.name for layout in settings.layouts()}
    config = found[0].config
    assert config.data.forget_split == {"99": "forget01", "95": "forget05", "90": "forget10"}[split]
    assert (config.federation.clients, config.federation.fraction_train, config.federation.local_epochs) == (30, 0.1, 5)
    assert (config.training.learning_rate, config.model.lora.rank, config.model.lora.alpha) == (8e-5, 32, 64)


# -- matrix --------------------------------------------------------------------------------------------------------


def test_a_cell_has_the_values_of_its_labels_and_an_id_of_them(tmp_path):
    labelled = "[npo, {label: strong, unlearning: npo, unlearning.params.beta: 0.5}]"
    found = cells(suite(tmp_path), f"matrix.unlearning={labelled}", "matrix.seed=[0, 7]")
    assert [c.id for c in found] == [
        "fedavg/npo/seed=0",
        "fedavg/npo/seed=7",
        "fedavg/strong/seed=0",
        "fedavg/strong/seed=7",
    ]
    assert [c.config.seed for c in found] == [0, 7, 0, 7]
    assert found[2].config.unlearning.params["beta"] == 0.5 != found[0].config.unlearning.params["beta"]
    assert all(c.config.stages == ["finetune", "unlearn"] for c in found)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("matrix.strategy=fedavg", "matrix.strategy: 'fedavg' is no list of values"),
        ("matrix.seed=[0, 0]", "matrix.seed: names '0' twice"),
        ("matrix.unlearning=[{unlearning: npo}]", "has no label"),
        ("matrix.unlearning=[npoo]", "did you mean npo?"),
        ("matrix.trainin=[1]", "trainin: unknown key"),
        ("base.name=x", "name: a suite names its runs"),
        ("stages=[unlearn]", "unlearn has no finetuned model"),
        ("stages=[unlearn, finetune]", "out of order"),
        ("tables.small.rows=method", "there is no axis 'method'"),
        ("tables.small.columns=seed", "runs of several seeds are one entry"),
        ("tables.small.colums=strategy", "did you mean columns?"),
        ("tables.small.metrics={MU: {metrik: x}}", "names no metric"),
        ("tables.small.metrics={MU: {metric: x, best: high}}", "max, min or null"),
        ("tables.small.models=[finetuned]", "did you mean finetune?"),
        ("tables.small.show=[ours, paper]", "nothing to show beside ours"),
        ("tables.small.paper=table", "there is no 'table'"),
        ("extends=other", "extends"),
    ],
)
def test_mistakes_are_told_with_their_place(tmp_path, override, expected):
    result = call("bench", suite(tmp_path), override, "--dry-run")
    assert result.code == 2 and expected in result.err and "Traceback" not in result.err


def test_a_mistake_of_many_cells_is_told_once(tmp_path):
    with pytest.raises(ConfigError) as error:
        suites.load(suite(tmp_path), ["matrix.seed=[0, 1, 2]", "base.federation.clients=0"])
    (problem,) = error.value.problems
    assert problem.path == "federation.clients" and "cell fedavg/npo/seed=0" in problem.where


def test_a_suite_stands_on_what_it_extends(tmp_path):
    suite(tmp_path)
    child = suite(tmp_path, "extends: small\ntitle: Child\nmatrix: {seed: [3]}\ntables: {small: null}\n", "child.yaml")
    settings = suites.load(child)[1]
    assert settings.title == "Child" and [c.labels["seed"] for c in settings.cells()] == ["3", "3"]
    assert settings.layouts() == []
    for text in ("extends: child\n", "extends: nowhere\n"):
        with pytest.raises(ConfigError, match="extends"):
            suites.load(suite(tmp_path, text, "child.yaml"))


# -- identity and graph --------------------------------------------------------------------------------------------


def test_cells_share_finetune_and_retrain_and_local(tmp_path):
    plan = graph.plan(
        cells(suite(tmp_path), "stages=[finetune, retrain, unlearn, local]", "matrix.strategy=[fedavg, fedadam]")
    )
    stages = [node.stage for node in plan.nodes]
    assert {s: stages.count(s) for s in set(stages)} == {"finetune": 2, "retrain": 2, "unlearn": 4, "local": 2}
    assert stages[:4] == ["finetune", "retrain"] * 2, "what others wait for comes first"
    for node in plan.nodes:
        assert [need.stage for need in node.needs] == (["finetune", "retrain"] if node.stage == "unlearn" else [])
        assert all(plan.nodes.index(need) < plan.nodes.index(node) for need in node.needs)
    assert {node.label for node in plan.nodes if node.stage == "local"} == {
        "local npo/seed=0",
        "local grad_diff/seed=0",
    }


def test_a_method_that_needs_the_clients_updates_has_a_finetune_of_its_own(tmp_path):
    plan = graph.plan(cells(suite(tmp_path), "matrix.unlearning=[npo, grad_diff, federaser]"))
    assert [node.label for node in plan.nodes if node.stage == "finetune"] == [
        "finetune fedavg/seed=0",
        "finetune fedavg/federaser/seed=0",
    ]


def base(*overrides, stage="finetune"):
    return identity.identity(identity.stage_config(compose("smoke", list(overrides)), stage))


def test_what_cannot_change_finetune_does_not_change_its_identity():
    assert base() == base("unlearning=simnpo", "federation.rounds.unlearn=9", "name=x", "output=y")
    assert base() == base("strategy.server_state_on_unlearn=keep") == base("federation.local_clients=1")
    for change in ("seed=1", "federation.rounds.finetune=3", "data.authors=7", "strategy=fedprox", "model.lora.rank=4"):
        assert base() != base(change)
    assert base() != base("evaluation.every=0") and base() != base(stage="retrain")


def test_a_suite_can_be_planned_without_its_model():
    result = call("bench", "tofu_split99", "matrix.strategy=[fedavg]", "--dry-run")
    assert result.code == 0 and "12 cells in 18 runs" in result.out


def test_data_count_by_what_they_contain_not_by_where_they_lie(tmp_path):
    line = '{"id": "%s", "question": "Q?", "answer": "A.", "client": 0}\n'
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "records.jsonl").write_text(line % 1 + line % 2)
    of = lambda folder: base("data=jsonl", f"data.path={tmp_path / folder / 'records.jsonl'}")  # noqa: E731
    assert of("a") == of("b")
    (tmp_path / "b" / "records.jsonl").write_text(line % 1 + line % 3)
    assert of("a") != of("b")
    gone, lost = (base(f"evaluation.wikimem.subjects={tmp_path / name}.jsonl") for name in ("gone", "lost"))
    assert gone != lost, "files that are not there are not alike"


def test_the_program_counts_but_not_its_comments(tmp_path):
    module = tmp_path / "clients" / "step.py"
    module.parent.mkdir()

    def value(text, name="clients/step.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return identity.program_of(tmp_path)

    first = value('"""Doc."""\ndef f(x):\n    """Doubles."""\n    return 2 * x\n')
    assert first == value('"""Other."""\n# a comment\ndef f(x):\n    """Twice."""\n    return 2*x\n')
    assert first == value("print('shown')\n", "oblivionis/reports/summary.py")
    assert first != value("def f(x):\n    return 3 * x\n")


def test_cores_are_dealt_out():
    cores = os.sched_getaffinity(0)
    assert set().union(*(slot.cpus for slot in slots(2))) == cores
    assert all(slot.cpus for slot in slots(len(cores) + 3))


# -- running -------------------------------------------------------------------------------------------------------


ONE = ["matrix.strategy=[fedavg]", "matrix.unlearning=[npo]"]


def start(output, *more):
    command = [sys.executable, "-m", "oblivionis.cli.main", "bench", "quick", *ONE, "--output", str(output), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def values(folder, **labels):
    """What the cells with these labels measured, without their times."""
    frame, _ = results.read(folder)
    for axis, label in labels.items():
        frame = frame[frame[axis] == label]
    frame = frame[frame["metric"] != results.SECONDS]
    return frame.drop(columns="run").reset_index(drop=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of the suite `quick`, and what the command printed."""
    folder = tmp_path_factory.mktemp("suite")
    result = call("bench", "quick", "--output", folder / "out", "--jobs", "2")
    assert result.code == 0, result.err
    return folder / "out", result


@pytest.mark.slow
def test_quick_has_numbers_everywhere_prints_its_tables_and_keeps_its_results(finished):
    folder, result = finished
    assert "NPO" in result.out and "GradDiff" in result.out
    frame, axes = results.read(folder)
    assert axes == ["strategy", "unlearning", "seed"] and set(frame["status"]) == {"done"}
    assert frame["cell"].nunique() == 4 and "–" not in (folder / "tables" / "quick.md").read_text()
    assert set(frame["stage"]) == {"base", "finetune", "retrain", "unlearn"} and frame["value"].dtype == "float64"
    for row in frame[frame["metric"] == "model_utility"].to_dict("records"):
        summary = json.loads((folder / row["run"] / "stages" / f"{row['stage']}.json").read_text())
        assert summary["metrics"]["model_utility"] == row["value"]
    assert {file.name for file in (folder / "tables").iterdir()} == {
        f"{table}.{suffix}" for table in ("quick", "seconds") for suffix in ("md", "tex", "csv", "html")
    }
    page = (folder / "suite.html").read_text()
    assert "NPO" in page and "report.html" in page
    table = call("bench", "table", folder, "--format", "csv", "--layout", "quick")
    assert table.out == (folder / "tables" / "quick.csv").read_text()


@pytest.mark.slow
def test_a_second_suite_starts_from_what_the_first_has_done(finished, tmp_path):
    folder, _ = finished
    store = tmp_path / "stages"
    shutil.copytree(folder.parent / "stages", store)
    more = ["matrix.strategy=[fedavg]", "matrix.unlearning=[npo, simnpo]", "--dry-run", "--store", store]
    dry = call("bench", "quick", *more)
    assert "3 of them are in" in dry.out and dry.out.count("to do") == 1
    again = call("bench", "quick", "--output", tmp_path / "again", "--store", store)
    assert "8 of 8 runs are done already" in again.out
    pd.testing.assert_frame_equal(values(tmp_path / "again"), values(folder))


@pytest.mark.slow
def test_a_suite_killed_and_stopped_goes_on_to_the_same_results(finished, tmp_path):
    folder, _ = finished
    output = tmp_path / "out"
    for done in (folder.parent / "stages").glob("retrain-*"):  # less to do
        shutil.copytree(done, tmp_path / "stages" / done.name)

    def runs(stage):
        return list((tmp_path / "stages").glob(f"{stage}-*/checkpoints/{stage}/*.safetensors"))

    process = start(output)
    wait_for(lambda: runs("finetune"), process)
    process.kill()
    process.wait()
    assert not values_exist(output)
    process = start(output, "--resume")
    wait_for(lambda: runs("unlearn"), process)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "--resume" in out
    last = call("bench", "quick", *ONE, "--output", output, "--resume")
    assert last.code == 0, last.err
    uninterrupted = values(folder, strategy="fedavg", unlearning="npo")
    pd.testing.assert_frame_equal(values(output, strategy="fedavg", unlearning="npo"), uninterrupted)


def wait_for(condition, process, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.05)


def values_exist(folder: Path) -> bool:
    return (folder / results.FILE).exists() and not results.read(folder)[0].empty


@pytest.mark.slow
def test_a_cell_that_fails_is_told_and_the_others_go_on(finished, tmp_path):
    folder, _ = finished
    store = tmp_path / "stages"
    shutil.copytree(folder.parent / "stages", store)
    wrong = "matrix.unlearning=[npo, {label: too deep, unlearning: npo, evaluation.ruler: {enabled: true, layer: 90}}]"
    result = call("bench", "quick", ONE[0], wrong, "--output", tmp_path / "out", "--store", store)
    assert result.code == 1 and "1 of 2 cells failed: fedavg/too deep/seed=0" in result.err
    frame, _ = results.read(tmp_path / "out")
    failed = frame[frame["status"] == "failed"]
    assert list(failed["unlearning"]) == ["too deep"] and "layer" in failed["error"].iloc[0]
    assert set(frame[frame["status"] == "done"]["unlearning"]) == {"npo"}
    assert "Failed: fedavg/too deep/seed=0" in result.out
