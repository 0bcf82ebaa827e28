"""The scripts for Slurm: which runs share an array, what each asks for, and what is submitted again."""

import dataclasses
import json
import os
import shlex
import subprocess

import pytest
from rich.console import Console
from support import fake_slurm

from benchmarks import suite_kinds as suites
from benchmarks.federated import slurm
from benchmarks.federated.graph import plan
from benchmarks.federated.options import Options, Reserve, Slurm
from benchmarks.federated.resource_demand import BESIDES, MARGIN, Demand, Demands, check
from oblivionis.config.compose import compose
from oblivionis.errors import OblivionisError
from oblivionis.models.hardware import Machine
from oblivionis.models.memory import estimate
from oblivionis.server.preflight import lengths_of

BOTH = ["matrix.strategy=[fedavg, fedadam]", "matrix.unlearning=[npo, grad_diff]"]
RESERVE = Reserve(cpus=2, memory=3_000_000_000)


@pytest.fixture(scope="module")
def graph():
    """Two aggregators with two methods each: finetune and retrain twice, unlearn four times."""
    return plan(suites.load(suites.find("quick"), BOTH)[1].cells())


def demands(reserve=RESERVE, **more):
    return Demands(reserve, **{"gpus_there": False, "tell": pytest.fail, **more})


@pytest.fixture
def written(graph, tmp_path):
    """The folder of the scripts and a function that submits them and returns what it printed."""
    store, folder = tmp_path / "my stages", tmp_path / "the suite's"
    asked = Slurm(RESERVE, "4:00:00", ("--partition=gpu", "--account=mine"))
    slurm.write(graph, folder, store, asked, Console())
    commands = fake_slurm.install(tmp_path)

    def submit(**variables):
        path = f"{commands}{os.pathsep}{os.environ['PATH']}"
        given = {**os.environ, "PATH": path, "FAKE_SLURM": str(commands), "FAKE_SLURM_ONLY_TELL": "1", **variables}
        before = len(fake_slurm.jobs(commands))
        done = subprocess.run(["bash", folder / "slurm" / "submit.sh"], env=given, capture_output=True, text=True)
        return done, fake_slurm.jobs(commands)[before:]

    return folder / "slurm", store, submit


def finish(store, node):
    for stage in node.config.stages:
        file = store / node.key / "stages" / f"{stage}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({}))


def directives(script):
    lines = [line.removeprefix("#SBATCH ") for line in script.read_text().splitlines() if line.startswith("#SBATCH")]
    return dict(option.partition("=")[::2] for option in lines)


def keys(script):
    return [line.split()[0] for line in script.with_suffix(".tasks").read_text().splitlines()]


def test_runs_that_begin_with_the_same_are_one_array(graph):
    found = slurm.arrays(graph.nodes, demands())
    assert [len(array.nodes) for array in found] == [4, 2, 2]
    assert found[0].after == () and {node.stage for node in found[0].nodes} == {"finetune", "retrain"}
    for array in found[1:]:
        assert all(node.after == array.after for node in array.nodes) and len(array.after) == 2
    assert sorted(node.key for array in found for node in array.nodes) == sorted(node.key for node in graph.nodes)


def test_no_array_is_larger_than_slurm_takes(graph, monkeypatch):
    monkeypatch.setattr(slurm, "TASKS", 3)
    found = slurm.arrays(graph.nodes, demands())
    assert [len(array.nodes) for array in found] == [3, 1, 2, 2] and len({array.name for array in found}) == 4


def test_scripts_are_bash_and_say_what_a_run_asks_for(written, graph):
    place, store, _ = written
    scripts = sorted(place.glob("*.sbatch"))
    for script in [*scripts, place / "submit.sh", place / "collect.sh"]:
        checked = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
    for script in scripts:
        asked = directives(script)
        assert asked["--cpus-per-task"] == "2" and asked["--mem"] == f"{-(-3_000_000_000 // 2**20)}M"
        assert asked["--time"] == "4:00:00" and asked["--partition"] == "gpu" and asked["--account"] == "mine"
        assert "--requeue" in asked and "--gpus" not in asked
        assert shlex.split(asked["--output"]) == [f"{place}/logs/{script.stem}-%A_%a.out"]
        last = script.read_text().splitlines()[-1]
        assert shlex.split(last)[-2:] == ["--store", str(store)]
    assert sorted(key for script in scripts for key in keys(script)) == sorted(node.key for node in graph.nodes)


def test_what_is_submitted_comes_after_what_it_begins_with(written, graph):
    place, _, submit = written
    done, jobs = submit()
    assert done.returncode == 0, done.stderr
    assert [job["options"]["array"] for job in jobs] == ["0,1,2,3", "0,1", "0,1"]
    assert "dependency" not in jobs[0]["options"]
    first = {key: f"{jobs[0]['id']}_{n}" for n, key in enumerate(keys(place / "array-00.sbatch"))}
    for job, array in zip(jobs[1:], slurm.arrays(graph.nodes, demands())[1:], strict=True):
        how, *tasks = job["options"]["dependency"].split(":")
        assert how == "afterok" and tasks == [first[need.key] for need in array.after]
        assert job["options"]["kill-on-invalid-dep"] == "yes"


def test_only_what_is_missing_is_submitted_again(written, graph):
    place, store, submit = written
    finetune, retrain = slurm.arrays(graph.nodes, demands())[1].after
    finish(store, finetune)
    _, jobs = submit()
    assert [job["options"]["array"] for job in jobs] == ["1,2,3", "0,1", "0,1"]
    second = keys(place / "array-00.sbatch").index(retrain.key)
    assert jobs[1]["options"]["dependency"] == f"afterok:{jobs[0]['id']}_{second}", "what is done is not waited for"
    for node in graph.nodes[:-1]:
        finish(store, node)
    _, jobs = submit()
    assert [(job["options"]["array"], "dependency" in job["options"]) for job in jobs] == [("1", False)]
    finish(store, graph.nodes[-1])
    done, jobs = submit()
    assert jobs == [] and "all runs are done" in done.stdout


def test_a_suite_that_is_queued_is_not_submitted_twice(written):
    _, _, submit = written
    done, jobs = submit(FAKE_SLURM_QUEUED="17\n")
    assert done.returncode == 1 and jobs == [] and "scancel --me --name=oblivionis-" in done.stderr


def test_nothing_is_submitted_where_slurm_does_not_say_what_is_queued(written):
    _, _, submit = written
    done, jobs = submit(FAKE_SLURM_DOWN="1")
    assert done.returncode == 1 and jobs == []


def test_a_task_does_the_run_that_its_number_meant_when_it_was_submitted(written):
    """Slurm copies a script when it is submitted: it names its runs itself, in the order of the list beside it."""
    place, *_ = written
    for script in place.glob("array-*.sbatch"):
        text = script.read_text()
        assert text.partition("keys=(\n")[2].partition("\n)\n")[0].split() == keys(script)
        assert ".tasks" not in text


# -- what a run asks for -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_memory_is_the_estimate_with_room_and_taken_once_for_runs_alike(graph, monkeypatch):
    found = demands(Reserve())
    node = next(node for node in graph.nodes if node.stage == "unlearn")
    ram = estimate(node.config, Machine(1, 0, 0), lengths_of(node.config)).ram
    asked = found.of(node.config)
    assert (asked.cpus, asked.gpus) == (1, 0) and 0 <= asked.memory - (MARGIN * ram + BESIDES) < 100_000_000
    monkeypatch.setattr(Demands, "estimated", lambda *_: pytest.fail("estimated twice"))
    assert found.of(dataclasses.replace(node.config, seed=5)) == asked


@pytest.mark.parametrize(
    ("keys", "there", "gpus"),
    [
        (["model.device=auto"], True, 1),
        (["model.device=auto"], False, 0),
        (["model.device=cpu"], True, 0),
        (["model.device=cuda"], False, 1),
        (["federation.client_gpus=2"], False, 2),
        (["federation.client_gpus=0.5"], False, 1),
    ],
)
def test_a_model_on_a_gpu_gets_one(keys, there, gpus):
    config = compose("smoke", keys)
    assert demands(gpus_there=there).of(config) == Demand(2, gpus, 3_000_000_000)
    assert demands(Reserve(gpus=3, memory=1), gpus_there=there).of(config).gpus == 3


def test_a_run_whose_memory_nobody_can_tell_says_so_once(monkeypatch):
    told = []
    found = demands(Reserve(), tell=told.append)
    for seed in (0, 1):
        config = compose("smoke", ["model.source=nobody/nothing", f"data.authors={6 + seed}"])
        assert found.of(config).memory == 0
    assert len(told) == 1 and "--memory" in told[0]


def test_clients_that_ray_spreads_are_refused(graph):
    with pytest.raises(OblivionisError, match=r"finetune: federation\.ray_address spreads the clients of one run"):
        check(compose("smoke", ["federation.ray_address=auto"]), "finetune")


def test_the_command_that_goes_on_says_where(tmp_path):
    reserve = Reserve(cpus=2, gpus=0, memory=2_500_000_000)
    assert [*Options(1, tmp_path, Slurm(reserve, "60", ("-x",))).arguments()] == [
        *("--slurm", "--cpus", "2", "--gpus", "0", "--memory", "2.5", "--time", "60", "--sbatch=-x")
    ]
    assert [*Options(3, tmp_path).arguments()] == ["--jobs", "3"]
