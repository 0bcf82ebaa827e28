"""Which runs begin when, what a failed one does to others, and how all are stopped."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from benchmarks.scheduling import processes, scheduler
from benchmarks.scheduling.executors import LocalExecutor
from benchmarks.scheduling.processes import Slot
from benchmarks.scheduling.scheduler import Runs, Scheduler
from benchmarks.scheduling.tasks import Task
from oblivionis.errors import RunError


class Machine:
    """Runs, of which so many are done at once; each ends at the next look, finished unless it is in `broken`."""

    def __init__(self, width=2, broken=()):
        self.width, self.broken = width, broken
        self.done, self.begun, self.stopped, self.most = set(), [], [], 0
        self.under_way = []

    def task(self, key, *after, held=lambda: None, prepare=lambda: None):
        def summary(stage):
            return {} if key in self.done else None

        run = SimpleNamespace(stage_summary=summary, held_by=held)
        return Task(key, key, SimpleNamespace(stages=["finetune"]), run, prepare, after)

    def room(self, task):
        return len(self.under_way) < self.width

    def submit(self, task):
        self.begun.append(task.key)
        work = SimpleNamespace(
            key=task.key, seconds=1.0, log=Path("log"), saying=lambda: "", failure=lambda: "it broke"
        )
        self.under_way.append(work)
        self.most = max(self.most, len(self.under_way))
        return work

    def ended(self):
        over, self.under_way = self.under_way, []
        self.done |= {work.key for work in over} - set(self.broken)
        return over

    def stop(self, works):
        self.stopped += [work.key for work in works]


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(scheduler, "POLL_S", 0.0)


def runs_of(machine, *tasks):
    console = Console(file=io.StringIO(), width=200)
    runs = Runs(tasks, Scheduler(machine, console))
    return runs, console.file


def test_a_run_begins_after_those_that_it_needs_and_no_more_begin_than_there_is_room_for():
    machine = Machine(width=2)
    task = machine.task
    runs, said = runs_of(machine, task("a"), task("b"), task("c", "a"), task("d", "a", "b"), task("e"))
    runs.execute()
    assert machine.begun == ["a", "b", "c", "d", "e"] and machine.most == 2 and not runs.failures
    assert "about" in said.getvalue().splitlines()[0] and "about" not in said.getvalue().splitlines()[-1]


def test_what_is_done_is_not_done_again():
    machine = Machine()
    machine.done = {"a"}
    runs, _ = runs_of(machine, machine.task("a"), machine.task("b", "a"))
    assert runs.done == {"a"}
    runs.execute()
    assert machine.begun == ["b"]


def test_a_failed_run_fails_those_that_need_it_and_keeps_the_others_going():
    machine = Machine(broken=("a",))
    task, told = machine.task, []
    runs, said = runs_of(machine, task("a"), task("b", "a"), task("c", "b"), task("d"))
    runs.execute(lambda: told.append(dict(runs.failures)))
    assert machine.begun == ["a", "d"] and "d" in machine.done
    assert list(runs.failures) == ["a", "b", "c"] and runs.failures["a"] == "it broke; see log"
    assert runs.failures["c"].count("what it starts from failed") == 2
    assert "a failed: it broke; see log" in said.getvalue() and told[0] == {"a": "it broke; see log"}


def test_a_run_that_cannot_be_prepared_fails():
    def prepare():
        raise RunError("the disk is full")

    machine = Machine()
    runs, _ = runs_of(machine, machine.task("a", prepare=prepare), machine.task("b"))
    runs.execute()
    assert runs.failures == {"a": "the disk is full"} and machine.begun == ["b"]


def test_a_run_that_another_process_does_is_waited_for_and_taken():
    machine, looks = Machine(), []

    def held():
        looks.append(1)
        if len(looks) < 4:
            return 17
        machine.done.add("a")
        return 17

    runs, _ = runs_of(machine, machine.task("a", held=held), machine.task("b", "a"))
    runs.execute()
    assert machine.begun == ["b"] and runs.done == {"a"} and not runs.failures


def test_an_interruption_ends_what_is_under_way():
    machine = Machine()

    def interrupted():
        raise KeyboardInterrupt

    machine.ended = interrupted
    runs, said = runs_of(machine, machine.task("a"), machine.task("b"), machine.task("c"))
    with pytest.raises(KeyboardInterrupt):
        runs.execute()
    assert machine.stopped == machine.begun == ["a", "b"] and "stopping 2 runs" in said.getvalue()


def test_a_stopped_run_gives_its_cores_back(monkeypatch):
    slots, ends = [Slot((0,)), Slot((1,))], []

    def start(path, slot, method, *, command):
        assert (method, command) == ("npo", ("module",))
        return processes.Job(SimpleNamespace(poll=lambda: None, slot=slot), path / "log")

    monkeypatch.setattr(processes, "slots", lambda jobs: list(slots))
    monkeypatch.setattr(processes, "start", start)
    monkeypatch.setattr(processes, "stop", ends.extend)
    executor = LocalExecutor(2)
    run = SimpleNamespace(path=Path("run"))
    config = SimpleNamespace(unlearning=SimpleNamespace(method="npo"))
    task = SimpleNamespace(run=run, config=config, command=("module",))
    first, second = executor.submit(task), executor.submit(task)
    assert not executor.room(task) and [job.process.slot for job in (first, second)] == slots
    executor.stop([first])
    assert ends == [first] and executor.room(task) and executor.submit(task).process.slot == slots[0]


def test_a_run_that_has_said_nothing_yet_is_said_to_start(monkeypatch):
    told, machine = [], Machine()
    monkeypatch.setattr(scheduler, "Ticker", lambda tell: told.append(tell) or SimpleNamespace(close=lambda: None))
    runs, said = runs_of(machine, machine.task("a"))
    ended = machine.ended
    monkeypatch.setattr(machine, "ended", lambda: (told[0](1.0), ended())[1], raising=False)
    runs.execute()
    assert said.getvalue().splitlines()[0] == "a: starting"
