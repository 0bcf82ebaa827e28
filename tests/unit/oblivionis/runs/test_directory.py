"""The run directory: atomic files, checkpoints, metrics, locks."""

import json
import multiprocessing
import os
import subprocess
import sys

import numpy as np
import pytest

from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.errors import RunError
from oblivionis.files import append_lines, read_lines, write_atomic, write_json
from oblivionis.runs.directory import Checkpoint, RunDirectory, list_runs


@pytest.fixture
def run(tmp_path):
    run = RunDirectory.create(tmp_path / "runs", "first")
    run.write_config("seed: 0\n")
    return run


def checkpoint(round, stage="finetune"):
    rng = np.random.default_rng(round)
    state = {"m": rng.normal(size=7), "v": rng.normal(size=7).astype(np.float32)}
    return Checkpoint(stage, round, rng.normal(size=7).astype(np.float32), state, {"requests": 2})


def test_checkpoint_round_trip_is_exact(run):
    run.save_checkpoint(checkpoint(4), keep=3)
    loaded = run.load_checkpoint("finetune")
    expected = checkpoint(4)
    assert (loaded.stage, loaded.round, loaded.info) == ("finetune", 4, {"requests": 2})
    np.testing.assert_array_equal(loaded.vector, expected.vector)
    assert loaded.strategy_state.keys() == expected.strategy_state.keys()
    for key, value in expected.strategy_state.items():
        np.testing.assert_array_equal(loaded.strategy_state[key], value)
        assert loaded.strategy_state[key].dtype == value.dtype


def test_only_the_newest_checkpoints_stay(run):
    for round in range(1, 7):
        run.save_checkpoint(checkpoint(round), keep=2)
    assert run.checkpoint_rounds("finetune") == [5, 6]


def test_a_torn_checkpoint_falls_back_to_the_one_before(run):
    for round in (1, 2):
        run.save_checkpoint(checkpoint(round), keep=3)
    newest = run.path / "checkpoints/finetune/round-0002.safetensors"
    newest.write_bytes(newest.read_bytes()[:40])
    assert run.load_checkpoint("finetune").round == 1
    with pytest.raises(RunError, match="round-0002"):
        run.load_checkpoint("finetune", 2)


def test_no_checkpoint_is_an_error_that_names_the_stage(run):
    with pytest.raises(RunError, match="unlearn"):
        run.load_checkpoint("unlearn")


def test_metrics_after_a_round_are_dropped_for_that_stage_only(run):
    rows = [{"stage": s, "round": r, "metrics": {}} for s in ("finetune", "unlearn") for r in (1, 2, 3)]
    run.append_metrics(rows)
    run.forget_metrics_after("unlearn", 1)
    assert [(r["stage"], r["round"]) for r in run.metrics()] == [
        ("finetune", 1),
        ("finetune", 2),
        ("finetune", 3),
        ("unlearn", 1),
    ]


def test_write_atomic_leaves_the_old_file_when_writing_fails(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    write_json(path, {"a": 1})

    def refuse(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"], "no temporary file is left"


def test_nan_is_no_json(tmp_path):
    with pytest.raises(ValueError):
        write_json(tmp_path / "x.json", {"a": float("nan")})
    assert not (tmp_path / "x.json").exists()


def test_append_after_a_torn_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_lines(path, [{"n": 1}])
    with open(path, "a") as handle:
        handle.write('{"n": 2')
    append_lines(path, [{"n": 3}, {"n": 4}])
    assert read_lines(path) == [{"n": 1}, {"n": 3}, {"n": 4}]


def test_a_name_is_used_once(run, tmp_path):
    with pytest.raises(RunError, match=r"or continue that run, by its own settings, with --resume .*first$"):
        RunDirectory.create(tmp_path / "runs", "first")
    (run.path / "report.html").touch()
    with pytest.raises(RunError, match=r"first exists already and is finished; choose another name$"):
        RunDirectory.create(tmp_path / "runs", "first")
    (tmp_path / "runs" / "photos").mkdir()
    with pytest.raises(RunError, match=r"photos exists already and is no run; choose another name$"):
        RunDirectory.create(tmp_path / "runs", "photos")
    unnamed = [RunDirectory.create(tmp_path / "runs", None) for _ in range(3)]
    assert len({r.path for r in unnamed}) == 3


def test_open_refuses_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(RunError, match=r"config\.yaml"):
        RunDirectory.open(tmp_path)


def test_a_run_is_locked_while_its_process_lives(run):
    code = (
        "import sys, time; from pathlib import Path; from oblivionis.runs.directory import RunDirectory\n"
        "with RunDirectory.open(Path(sys.argv[1])).lock():\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline().strip() == "held"
        with pytest.raises(RunError, match=str(child.pid)), run.lock():
            pass
    finally:
        child.kill()
        child.wait()
    with run.lock():
        assert (run.path / "running.json").exists()
    assert not (run.path / "running.json").exists()


def _try_lock(path, barrier, times, taken):
    for _ in range(times):
        barrier.wait()
        try:
            with RunDirectory.open(path).lock():
                taken.put(1)
                barrier.wait()  # nobody lets go before all have tried
        except RunError:
            taken.put(0)
            barrier.wait()


def test_of_processes_that_ask_for_the_lock_at_once_one_gets_it(run):
    times, processes = 40, 3
    started = multiprocessing.get_context("fork")
    barrier, taken = started.Barrier(processes), started.SimpleQueue()
    children = [
        started.Process(target=_try_lock, args=(run.path, barrier, times, taken), daemon=True) for _ in range(processes)
    ]
    for child in children:
        child.start()
    got = [taken.get() for _ in range(times * processes)]
    for child in children:
        child.join(timeout=30)
    assert sum(got) == times and [child.exitcode for child in children] == [0] * processes


def test_list_runs_is_ordered_by_age(tmp_path):
    for name in ("b", "a", "c"):
        RunDirectory.create(tmp_path, name).write_config("seed: 0\n")
    for age, name in enumerate(("b", "a", "c")):
        os.utime(tmp_path / name / "config.yaml", (age, age))
    (tmp_path / "no-run").mkdir()
    assert [r.name for r in list_runs(tmp_path)] == ["b", "a", "c"]
    assert list_runs(tmp_path / "nowhere") == []


def test_tombstones_survive_and_do_not_repeat(tmp_path):
    node = NodeFolder(tmp_path / "nodes/3")
    assert node.tombstones() == frozenset()
    node.bury(["a", "b"], "req-1")
    node.bury(["b", "c"], "req-2")
    assert NodeFolder(tmp_path / "nodes/3").tombstones() == {"a", "b", "c"}
    assert len(node.tombstones_path.read_text().splitlines()) == 3


def test_write_atomic_creates_folders(tmp_path):
    write_atomic(tmp_path / "a/b/c.txt", "text")
    assert (tmp_path / "a/b/c.txt").read_text() == "text"


def test_lines_end_at_newlines_only(tmp_path):
    rows = [{"reason": "a\u2028b\u0085c\u2029d"}, {"reason": "e"}]
    append_lines(tmp_path / "l.jsonl", rows)
    assert read_lines(tmp_path / "l.jsonl") == rows
