"""Runs on a Ray cluster as far as no cluster is needed: who is refused, who waits, and what happens to a lost machine.

`tests/integration/test_federated_suites.py` has a cluster.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from support.commands import call

from benchmarks import suite_kinds as suites
from benchmarks.federated.executors import ray_tasks, ray_worker
from benchmarks.federated.executors.ray_tasks import TIMES, RayExecutor
from benchmarks.federated.executors.ray_worker import Ended
from benchmarks.federated.graph import plan
from benchmarks.federated.options import RayCluster, Reserve
from oblivionis.errors import RunError

GB = 10**9
SMALL = Reserve(memory=GB)
LARGE = {"CPU": 8.0, "memory": 64.0 * GB}


def nodes(*overrides):
    one = ["matrix.strategy=[fedavg]", "matrix.unlearning=[npo]"]
    settings = suites.load(suites.find("quick"), [*one, *overrides])[1]
    return plan(settings.cells(), settings.oracles).nodes


@pytest.fixture
def enter(tmp_path, monkeypatch):
    """An entered executor on a made-up cluster whose machines answer `look` and `inputs` so, and have so much."""

    def make(answers, *resources, reserve=SMALL, runs=None):
        machines = [{"NodeManagerAddress": f"10.0.0.{n}", "Resources": there} for n, there in enumerate(resources)]

        def on_each(question, *arguments, **_):
            for n, answer in enumerate(answers):
                there = question(*arguments)
                yield f"10.0.0.{n}", answer if isinstance(answer, str) else there | answer.get(question.__name__, {})

        monkeypatch.setattr(ray_tasks.ray_cluster, "joined", lambda *_: nullcontext())
        monkeypatch.setattr(ray_tasks.ray_cluster, "machines", lambda: machines)
        monkeypatch.setattr(ray_tasks.ray_cluster, "on_each", on_each)
        told = []
        executor = RayExecutor(RayCluster("auto", reserve), tmp_path / "stages", runs or nodes(), told.append)
        return executor.__enter__(), told

    return make


@pytest.mark.slow
def test_machines_alike_are_accepted_and_one_that_does_not_see_the_store_gets_parcels(enter):
    executor, _ = enter([{}, {}], LARGE, LARGE)
    assert executor.sharing
    executor, _ = enter([{}, {"look": {"sees store": False}}], LARGE, LARGE)
    assert not executor.sharing


def test_everything_that_is_wrong_with_machines_is_said_at_once(enter, tmp_path):
    with pytest.raises(RunError) as refused:
        enter(
            [{"look": {"torch": "0.1", "the program": "abc"}}, "machine 10.0.0.1 cannot run tasks (no module)"], LARGE
        )
    text = str(refused.value)
    assert text.startswith("--ray-address: machine 10.0.0.0 has torch 0.1, this one ")
    assert "has the program abc" in text and "10.0.0.1 cannot run tasks" in text
    assert list((tmp_path / "stages").iterdir()) == [], "the probe goes"


def test_a_machine_without_the_data_is_named_with_the_key(enter, tmp_path):
    data = tmp_path / "mine.jsonl"
    data.write_text("I do not know.\n")
    runs = nodes("matrix.unlearning=[idk_nll]", f"base.unlearning.alternatives.idk={data}")
    named = f"unlearning.alternatives.idk={data}"
    with pytest.raises(RunError, match=f"machine 10.0.0.1 does not have {named} as this one has it: copy it there"):
        enter([{}, {"inputs": {named: "missing"}}], LARGE, LARGE, runs=runs)


@pytest.mark.slow
def test_what_no_machine_has_is_refused_with_the_cell_and_what_there_is(enter):
    small = {"CPU": 2.0, "memory": 4.0 * GB}
    with pytest.raises(RunError) as refused:
        enter([{}, {}], small, {**small, "GPU": 1.0}, reserve=Reserve(cpus=4, gpus=1, memory=16 * GB))
    text = str(refused.value)
    assert "finetune fedavg/npo/seed=0 asks for 4 CPUs, 1 GPU, 16 GB of RAM" in text
    assert "10.0.0.0 2 CPUs, 4 GB of RAM; 10.0.0.1 2 CPUs, 1 GPUs, 4 GB of RAM" in text
    together, apart = {"CPU": 4.0, "GPU": 1.0, "memory": 16.0 * GB}, {"CPU": 4.0, "memory": 16.0 * GB}
    enter([{}], together, reserve=Reserve(cpus=4, gpus=1, memory=16 * GB))
    with pytest.raises(RunError, match="no machine has"):
        enter([{}], apart, {**small, "GPU": 1.0}, reserve=Reserve(cpus=4, gpus=1, memory=16 * GB))


def test_runs_that_read_other_runs_need_a_store_that_all_see(enter):
    private = nodes("base.privacy.level=client")
    blind = {"look": {"sees store": False}}
    with pytest.raises(RunError, match=r"does not see .*stages, and unlearn .* reads the folders of other runs there"):
        enter([blind], LARGE, runs=private)
    enter([{}], LARGE, runs=private)


class Task:
    """A task whose machine is lost `losses` times before it ends."""

    def __init__(self, losses, host="", demand=None):
        self.losses, self.host, self.demand = losses, host, demand
        self.label, self.times, self.outcome = "finetune", 1, None

    def begin(self):
        self.times += 1

    def fail(self, reason):
        self.outcome = Ended(reason)

    def listen(self):
        if self.losses:
            self.losses -= 1
            return "10.0.0.1 was lost (NodeDiedError)"
        self.outcome = Ended("")
        return None


def test_a_run_begins_anew_where_its_machine_is_lost_but_not_for_ever(enter):
    executor, told = enter([{}], LARGE)
    good, bad = Task(losses=TIMES - 1), Task(losses=TIMES + 5)
    executor.tasks = [good, bad]
    ended = [task for _ in range(TIMES + 1) for task in executor.ended()]
    assert sorted((task.times, task.outcome.failure) for task in ended) == [
        (TIMES, ""),
        (TIMES, f"10.0.0.1 was lost (NodeDiedError), {TIMES} times"),
    ]
    assert len(told) == 2 * (TIMES - 1) and "it begins anew elsewhere (2 of 3)" in told[0] and not executor.tasks


@pytest.mark.parametrize(
    ("versions", "reason"),
    [({}, "does not see the store, which all machines did"), ({"torch": "1.0"}, "has another version of torch than")],
)
def test_a_machine_that_joined_later_does_nothing_that_it_cannot_do_right(versions, reason, tmp_path):
    """The run's folder in the store stays as it is, whatever that machine would send back."""
    probe = ray_worker.Probe(tmp_path / "elsewhere" / "probe", "text")
    order = ray_worker.Order("finetune-1", probe, tmp_path, "npo", {**ray_worker.versions(), **versions}, 1, [])
    begun, ended = ray_worker.work(order)
    assert isinstance(begun, ray_worker.Begun) and isinstance(ended, Ended) and reason in ended.failure
    assert not list(tmp_path.iterdir())


def test_one_run_of_each_demand_waits_for_a_machine(enter):
    executor, _ = enter([{}], LARGE)
    first, second, _ = executor.nodes
    assert executor.room(first)
    executor.tasks = [Task(0, host="", demand=executor.demands[first.key])]
    assert not executor.room(second), "it would ask for the same"
    executor.tasks[0].host = "there"
    assert executor.room(second) and executor.width == 1


def test_runs_on_one_machine_get_cores_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setattr(ray_worker, "tempfile", SimpleNamespace(gettempdir=lambda: str(tmp_path)))
    monkeypatch.setattr(ray_worker.os, "sched_getaffinity", lambda _: {3, 4, 5, 6, 7})
    with ray_worker.cores_of(2) as first, ray_worker.cores_of(2) as second, ray_worker.cores_of(2) as third:
        assert (first, second, third) == ((3, 4), (5, 6), ())
        with ray_worker.cores_of(1) as last:
            assert last == (7,), "who found too few keeps none"
    with ray_worker.cores_of(5) as all_of_them:
        assert all_of_them == (3, 4, 5, 6, 7)


@pytest.mark.parametrize(
    ("suite", "given", "reason"),
    [
        ("quick", ["--slurm", "--ray-address", "auto"], "exclude each other"),
        ("quick", ["--time", "60"], "give --slurm as well"),
        ("quick", ["--ray-address", "auto", "--sbatch=-x"], "give --slurm as well"),
        ("quick", ["--cpus", "2"], "give --ray-address or --slurm"),
        ("quick", ["--gpus", "0"], "give --ray-address or --slurm"),
        ("quick", ["--slurm", "--jobs", "2"], "on a cluster the resources decide"),
        ("ruler_tabular", ["--slurm"], "leave --slurm out"),
        ("ruler_tabular", ["--jobs", "2"], "leave --jobs out"),
        ("quick", ["--ray-address", "127.0.0.1:1"], "--ray-address: no Ray cluster answers at '127.0.0.1:1'"),
        ("quick", ["--ray-address", "there"], "expected host:port or auto"),
    ],
)
def test_options_that_do_not_fit_are_refused(suite, given, reason, tmp_path):
    result = call("bench", suite, "--output", tmp_path / "out", *given)
    assert result.code == 2 and reason in result.err and "Traceback" not in result.err, result.err


def test_a_plan_says_what_each_run_asks_for(tmp_path):
    given = ["--ray-address", "auto", "--cpus", "3", "--memory", "1.5", "--store", tmp_path / "stages", "--dry-run"]
    plan = call("bench", "quick", "matrix.strategy=[fedavg]", *given)
    assert plan.code == 0 and plan.out.count("asks for 3 CPUs, 1.5 GB of RAM") == 4, plan.err
