"""Federated suites that run: results, shared runs, failures, kills and resuming; the tables are in the units."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import psutil
import pytest
import yaml
from support import fake_slurm
from support.commands import call
from support.processes import IN_ONE_PROCESS, until
from support.ray_cluster import two_machines
from support.tutorials import follow

from benchmarks import suite_kinds as suites
from benchmarks.federated import results
from benchmarks.federated.executors import ray_tasks, ray_worker
from benchmarks.federated.executors.file_transfer import pieces
from benchmarks.federated.executors.ray_worker import Ended, Order, Probe
from benchmarks.federated.graph import plan
from benchmarks.federated.resource_demand import Demand
from oblivionis.models.hardware import usable_cpus


@pytest.fixture(scope="module", autouse=True)
def in_one_process():
    """The runs of a suite are processes of their own, but begin no Ray."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OBLIVIONIS_TEST_PATCH", str(IN_ONE_PROCESS))
        yield


# -- running -------------------------------------------------------------------------------------------------------


ONE = ["matrix.strategy=[fedavg]", "matrix.unlearning=[npo]"]


def start(output, *more):
    command = [sys.executable, "-m", "oblivionis.cli.main", "bench", "quick", *ONE, "--output", str(output), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def read(folder):
    return results.read(folder)[0].to_pandas()


def values(folder, **labels):
    """What the cells with these labels measured, without their times and bytes: messages name folders."""
    frame = read(folder)
    for axis, label in labels.items():
        frame = frame[frame[axis] == label]
    times = [results.SECONDS, "serving_seconds", "serving_seconds_worst"]
    volumes = ["bytes_sent", "bytes_received", "serving_bytes", "serving_bytes_worst"]
    frame = frame[~frame["metric"].isin([*times, *volumes])]
    return frame.drop(columns="run").reset_index(drop=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of the suite `quick`, and what the blocks of its tutorial printed."""
    folder = tmp_path_factory.mktemp("suite")
    said = follow("start/paper-table.md", folder)
    return folder / "runs" / "bench" / "quick", said


@pytest.mark.slow
def test_the_tutorial_ends_with_a_plan_of_the_papers_table(finished):
    folder, said = finished
    assert "\\begin{tabular}" in said[1]
    assert (folder.parents[2] / "my-results" / "results.parquet").is_file()
    assert "cells in" in said[2] and "llama" in said[2].lower()


@pytest.mark.slow
def test_quick_has_numbers_everywhere_prints_its_tables_and_keeps_its_results(finished):
    folder, said = finished
    assert "NPO" in said[0] and "GradDiff" in said[0]
    frame, axes = read(folder), results.read(folder)[1]
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
def test_results_are_kept_for_others_to_hold_theirs_against(finished, tmp_path):
    folder, _ = finished
    kept = tmp_path / "kept"
    result = call("bench", "keep", folder, kept, "--adapters", "5")
    assert result.code == 0 and result.out.startswith(f"{kept}: "), result.err
    assert read(kept).equals(read(folder))
    compared = call("bench", "compare", folder, kept)
    assert compared.code == 0 and "other settings" not in compared.out, compared.err
    with zipfile.ZipFile(kept / "runs.zip") as archive:
        names = archive.namelist()
        for row in read(folder)[["run", "stage"]].drop_duplicates().to_dict("records"):
            name = Path(row["run"]).name
            assert f"{name}/config.yaml" in names and f"{name}/metrics.jsonl" in names
            if row["stage"] != "base":
                log = f"{name}/evaluations/{row['stage']}.json"
                assert archive.read(log) == (folder / row["run"] / "evaluations" / f"{row['stage']}.json").read_bytes()
        models = [name for name in names if name.endswith(".safetensors")]
        assert len(models) == len([name for name in names if "/stages/" in name]), "the last one of each stage"
        for name in names:
            if name.endswith(".yaml"):
                config = yaml.safe_load(archive.read(name))
                assert not Path(config["output"]).is_absolute() and config["data"]["name"] == "fictitious"
                assert str(folder.parent).encode() not in archive.read(name)
    again = call("bench", "keep", folder, tmp_path / "again")
    assert again.code == 0 and (tmp_path / "again" / "results.parquet").read_bytes() == (
        (kept / "results.parquet").read_bytes()
    )
    with zipfile.ZipFile(tmp_path / "again" / "runs.zip") as archive:
        assert [name for name in names if name not in models] == archive.namelist()
    for target, place, reason in (
        (folder, kept, "is not empty: name a folder that does not exist yet"),
        (folder / "results.parquet", tmp_path / "new", "is not a suite's folder"),
        (tmp_path / "none", tmp_path / "new", "there is no such file or folder"),
        (kept, tmp_path / "new", "is no run directory"),
    ):
        refused = call("bench", "keep", target, place)
        assert refused.code == 2 and reason in refused.err, refused.err
        assert not (tmp_path / "new").exists()


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
    return (folder / results.FILE).exists() and not read(folder).empty


@pytest.mark.slow
def test_a_cell_that_fails_is_told_and_the_others_go_on(finished, tmp_path):
    folder, _ = finished
    store = tmp_path / "stages"
    shutil.copytree(folder.parent / "stages", store)
    wrong = "matrix.unlearning=[npo, {label: too deep, unlearning: npo, evaluation.ruler: {enabled: true, layer: 90}}]"
    result = call("bench", "quick", ONE[0], wrong, "--output", tmp_path / "out", "--store", store)
    assert result.code == 1 and "1 of 2 cells failed: fedavg/too deep/seed=0" in result.err
    frame = read(tmp_path / "out")
    failed = frame[frame["status"] == "failed"]
    assert list(failed["unlearning"]) == ["too deep"] and "layer" in failed["error"].iloc[0]
    assert set(frame[frame["status"] == "done"]["unlearning"]) == {"npo"}
    assert "Failed: fedavg/too deep/seed=0" in result.out


# -- on other machines ---------------------------------------------------------------------------------------------

CORES = max(1, usable_cpus() // 2)
"""What each run of the tutorial's `--jobs 2` had: with as many, the rows are the same to the last bit."""


def assert_the_same_rows(output, folder):
    expected = values(folder, strategy="fedavg", unlearning="npo")
    assert set(expected["stage"]) == {"base", "finetune", "retrain", "unlearn"}
    pd.testing.assert_frame_equal(values(output, strategy="fedavg", unlearning="npo"), expected, check_exact=True)


def simulations(processes):
    """Those of the processes that are runs."""
    found = []
    for process in processes:
        try:
            found += [process] if "simulate" in process.cmdline() else []
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_on_a_ray_cluster_neither_a_stop_nor_a_lost_machine_changes_a_row(finished, tmp_path, monkeypatch):
    folder, _ = finished
    output = tmp_path / "out"
    monkeypatch.setenv("OBLIVIONIS_TEST_PATCH", str(IN_ONE_PROCESS.with_name("in_one_process_runs.py")))
    with two_machines(num_cpus=CORES, memory=8 * 10**9) as (machines, second):
        where = ["--ray-address", machines.address, "--cpus", str(CORES)]
        process = start(output, *where)
        wait_for(lambda: list(tmp_path.glob("stages/finetune-*/checkpoints/finetune/*.safetensors")), process)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 130 and f"--ray-address {machines.address}" in out and "--resume" in out, out

        def still():
            return [p for p in simulations(psutil.process_iter()) if str(tmp_path) in " ".join(p.cmdline())]

        assert until(lambda: not still(), 60), still()
        process = start(output, *where, "--resume")
        raylet = psutil.Process(second.all_processes["raylet"][0].process.pid)
        wait_for(lambda: simulations(raylet.children(recursive=True)), process)
        machines.remove_node(second, allow_graceful=False)
        out, _ = process.communicate(timeout=900)
    assert process.returncode == 0 and "it begins anew elsewhere (2 of 3)" in out, out
    assert_the_same_rows(output, folder)


@pytest.mark.slow
def test_slurms_arrays_make_the_same_rows_and_run_again_what_failed(finished, tmp_path):
    folder, _ = finished
    output, store = tmp_path / "the out", tmp_path / "stages"
    written = call("bench", "quick", *ONE, "--slurm", "--output", output)
    assert written.code == 0 and "array-01: 1 runs (unlearn), each with 1 CPU, " in written.out, written.err
    assert not store.exists(), "nothing is run"
    commands = fake_slurm.install(tmp_path)
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    broken = store / (output / "slurm" / "array-00.tasks").read_text().split()[0]
    broken.mkdir(parents=True)
    (broken / "config.yaml").write_text("nonsense: 1\n")

    def bash(script):
        command = ["bash", output / "slurm" / script]
        cores = set(sorted(os.sched_getaffinity(0))[:CORES])
        given = {**os.environ, "PATH": path, "FAKE_SLURM": str(commands)}
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)
        try:
            return subprocess.run(command, env=given, capture_output=True, text=True, cwd="/")
        finally:
            os.sched_setaffinity(0, before)

    assert bash("submit.sh").returncode == 0
    first, second = (job["ended"] for job in fake_slurm.jobs(commands))
    assert first == {"0": 1, "1": 0} and second == {"0": None}, "what begins with a failed run is not run"
    collected = bash("collect.sh")
    assert collected.returncode == 1 and "1 of 1 cells are not done: fedavg/npo/seed=0" in collected.stderr
    assert "nonsense" in read(output)["error"].iloc[0]
    shutil.rmtree(broken)
    assert bash("submit.sh").returncode == 0
    again = fake_slurm.jobs(commands)[2:]
    assert [job["ended"] for job in again] == [{"0": 0}, {"0": 0}], "what is done is not run again"
    collected = bash("collect.sh")
    assert collected.returncode == 0 and "NPO" in collected.stdout, collected.stderr
    told = json.loads((output / "nodes.json").read_text())
    assert told["seconds"] is None and not any(node["shared"] for node in told["nodes"])
    assert f"{len(told['nodes'])}, done by others and collected" in (output / "suite.html").read_text()
    assert_the_same_rows(output, folder)
    gone = call("bench", "node", output, "finetune-0")
    assert gone.code == 2 and "the suite has no run finetune-0" in gone.err


@pytest.mark.slow
def test_a_machine_that_does_not_see_the_store_gets_the_run_and_sends_it_back(finished, tmp_path, monkeypatch):
    """Only the last evaluation is left to do: the worker's part of a task, without a cluster."""
    folder, _ = finished
    store = tmp_path / "stages"
    settings = suites.load(suites.find("quick"), ONE)[1]
    node = next(node for node in plan(settings.cells()).nodes if node.stage == "unlearn")
    shutil.copytree(folder.parent / "stages" / node.key, store / node.key)
    run = node.run(store)
    (run.path / "stages" / "unlearn.json").unlink()
    run.ledger_path.unlink()  # a mark alone may not be taken away
    monkeypatch.setattr("ray.get", lambda reference: reference)
    monkeypatch.setattr("ray.get_gpu_ids", lambda: [])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    places = SimpleNamespace(gettempdir=lambda: str(tmp_path), mkdtemp=lambda prefix: tempfile.mkdtemp(dir=scratch))
    monkeypatch.setattr(ray_worker, "tempfile", places)

    def done(**other):
        probe = Probe(store / ".probe", "unseen")
        versions = {**ray_worker.versions(), **other}
        method = node.config.unlearning.method
        order = Order(node.key, probe, tmp_path, method, versions, CORES, list(pieces(run.path)))
        task = ray_tasks.RayTask(node.label, run.path, order, Demand(CORES, 0, 0))
        for said in ray_worker.work(order):
            task.hear(said)
        return task

    assert "has another version of torch" in done(torch="other").failure() and not node.finished(store)
    assert done().outcome == Ended("") and node.finished(store)
    assert not list(scratch.iterdir()), "it keeps nothing"
    whole = node.run(folder.parent / "stages").stage_summary("unlearn")["metrics"]
    assert node.run(store).stage_summary("unlearn")["metrics"] == whole
    (run.path / "config.yaml").write_text("nonsense: 1\n")
    task = done()
    said = "config.yaml is not the configuration that line"
    assert said in task.failure() and said in task.log.read_text()
