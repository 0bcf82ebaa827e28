"""The real command with Flower's real processes: kills, Ctrl-C, resume, users' mistakes, and Flower's own command."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[1]
SMALL = [
    "federation.clients=3",
    "federation.fraction_train=0.67",
    "federation.rounds.finetune=3",
    "federation.rounds.unlearn=4",
    "federation.local_epochs=2",
    "data.authors=9",
    "data.questions_per_author=2",
    "data.forget_authors=3",
    "evaluation.every=0",
    "evaluation.at_start=false",
    "evaluation.full.questions_per_set=2",
    "evaluation.full.max_new_tokens=4",
]
RUN = ["smoke", "stages=[finetune, unlearn]", "strategy=fedadam", *SMALL]
TIMING = {"seconds", "time", "train-seconds", "unlearn-seconds"}
START_S, STOP_S, RUN_S = 120, 20, 300


class Command:
    """A started `oblivionis` command; all its descendants carry `mark` in their environment."""

    def __init__(self, cwd, *arguments):
        self.mark = uuid.uuid4().hex
        self.log = cwd / f"{self.mark}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "oblivionis.cli", *map(str, arguments)],
                cwd=cwd,
                env=environment(OBLIVIONIS_TEST_MARK=self.mark),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self):
        return self.log.read_text(encoding="utf-8", errors="replace")

    def finish(self, timeout=RUN_S):
        """The exit code."""
        return self.process.wait(timeout)

    def descendants(self, name=""):
        """Live processes that this command started, also when their parents are gone, with `name` in their command."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != self.process.pid and process.environ().get("OBLIVIONIS_TEST_MARK") == self.mark:
                    command = " ".join(process.cmdline())
                    if name in command and process.status() != psutil.STATUS_ZOMBIE:
                        found.append((process.pid, command[:80]))
            except psutil.Error:
                continue
        return found

    def leaves_nothing(self):
        """Whether all descendants are gone within `STOP_S` seconds."""
        return until(lambda: not self.descendants(), STOP_S)

    def interrupt(self):
        """What a terminal does on Ctrl-C: SIGINT to the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self):
        for pid, _ in [(self.process.pid, ""), *self.descendants()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def environment(**more):
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    offline = {"HF_HUB_OFFLINE": "1", "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **offline, **more}


def until(condition, seconds, *, every=0.02):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            return None
        time.sleep(every)
    return value


@pytest.fixture
def command(tmp_path):
    """Starts commands and ends what is left of them after the test."""
    started = []

    def start(*arguments):
        started.append(Command(tmp_path, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.end()


def simulation(command, tmp_path, name, *more):
    running = command("simulate", *RUN, f"output={tmp_path}", f"name={name}", *more)
    return running, tmp_path / name


def rows(run):
    """The complete lines of metrics.jsonl."""
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    return [json.loads(line) for line in lines]


def completed(run, stage, round):
    return any(r["evaluator"] == "federation" and (r["stage"], r["round"]) == (stage, round) for r in rows(run))


def reach(running, run, stage, round):
    """Wait until `round` of `stage` is complete, so that the next one has begun."""
    assert until(lambda: running.process.poll() is not None or completed(run, stage, round), START_S, every=0.005)
    assert running.process.poll() is None, running.output


def numbers(run):
    """Everything that a run computed: all metrics but the times, and the end of each request."""
    metrics = [
        (r["stage"], r["round"], r["moment"], r["evaluator"], {k: v for k, v in r["metrics"].items() if k not in TIMING})
        for r in rows(run)
    ]
    final = {p.stem: json.loads(p.read_text())["metrics"] for p in sorted((run / "stages").iterdir())}
    return metrics, final


def resume(command, run):
    running = command("simulate", "--resume", run)
    assert running.finish() == 0, running.output
    return running


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """An uninterrupted run, and whether its processes were gone after it."""
    folder = tmp_path_factory.mktemp("reference")
    running = Command(folder, "simulate", *RUN, f"output={folder}", "name=reference")
    try:
        assert running.finish() == 0, running.output
        clean = running.leaves_nothing()
        yield numbers(folder / "reference"), clean, running.output
    finally:
        running.end()


def test_a_run_ends_with_its_results_and_leaves_no_process(reference):
    (metrics, final), clean, output = reference
    assert clean
    assert set(final) == {"finetune", "unlearn"}
    federation = [(stage, round) for stage, round, _, evaluator, _ in metrics if evaluator == "federation"]
    assert federation == [("finetune", r) for r in (1, 2, 3)] + [("unlearn", r) for r in (1, 2, 3, 4)]
    assert "Traceback" not in output


def test_killed_server_resumes_to_the_same_numbers(command, tmp_path, reference):
    running, run = simulation(command, tmp_path, "killed")
    reach(running, run, "unlearn", 2)
    os.kill(running.process.pid, signal.SIGKILL)
    assert running.finish() == -signal.SIGKILL
    assert not completed(run, "unlearn", 3), "the kill came too late to be in round 3"
    assert running.leaves_nothing(), running.descendants()
    resumed = resume(command, run)
    assert "continuing after round 2" in resumed.output
    assert numbers(run) == reference[0]


def test_dead_client_process_ends_the_run_which_resumes(command, tmp_path, reference):
    running, run = simulation(command, tmp_path, "dead-client")
    reach(running, run, "finetune", 1)
    pid, _ = running.descendants("ray::ClientAppActor")[0]
    os.kill(pid, signal.SIGKILL)
    assert running.finish(60) == 1, running.output
    assert re.search(r"process of client \d died", running.output), running.output
    assert f"oblivionis simulate --resume {run}" in running.output
    assert "Traceback" not in running.output
    assert running.leaves_nothing(), running.descendants()
    resume(command, run)
    assert numbers(run) == reference[0]


def test_ctrl_c_ends_at_once_and_resumes(command, tmp_path, reference):
    running, run = simulation(command, tmp_path, "stopped")
    reach(running, run, "unlearn", 1)
    running.interrupt()
    assert running.finish(STOP_S) == 130, running.output
    assert f"oblivionis simulate --resume {run}" in running.output
    assert "Traceback" not in running.output
    assert running.leaves_nothing(), running.descendants()
    assert not (run / "stages" / "unlearn.json").exists()
    resume(command, run)
    assert numbers(run) == reference[0]


@pytest.mark.parametrize("sign", ["gcs_server", "ray::IDLE"])
def test_ctrl_c_while_ray_starts(command, tmp_path, sign):
    running, run = simulation(command, tmp_path, "early")
    assert until(lambda: running.descendants(sign), START_S)
    running.interrupt()
    assert running.finish(2 * STOP_S) == 130, running.output
    assert f"oblivionis simulate --resume {run}" in running.output
    assert "Traceback" not in running.output
    assert running.leaves_nothing(), running.descendants()
