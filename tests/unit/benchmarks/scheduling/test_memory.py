"""Whether several runs at a time have the memory that they take together."""

from types import SimpleNamespace

import pytest
from rich.console import Console

from benchmarks import suite_kinds as suites
from benchmarks.federated import runner
from benchmarks.federated.options import Options
from benchmarks.scheduling.memory import warn_of_memory
from benchmarks.scheduling.scheduler import Runs
from oblivionis.config.compose import compose
from oblivionis.errors import RunFailed
from oblivionis.models.hardware import Machine
from oblivionis.server import preflight

GB = 1_000_000_000


@pytest.fixture
def estimates(monkeypatch):
    """The batch sizes whose memory was estimated; a run takes as many GB, with 7 nobody knows how many."""
    asked = []

    def estimated(config, machine):
        asked.append(size := config.training.batch_size)
        return "memory: unknown" if size == 7 else SimpleNamespace(ram=size * GB)

    monkeypatch.setattr(preflight, "estimated", estimated)
    return asked


def runs(*sizes):
    return [compose("smoke", [f"training.batch_size={size}", f"seed={i}"]) for i, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "jobs", "free", "said"),
    [
        ((3, 5, 2), 2, 8, None),
        ((3, 5, 2), 2, 7, "2 runs at a time take up to 8 GB of 7 GB free RAM; --jobs 1 takes up to 5 GB"),
        ((3, 5, 2, 4), 4, 12, "4 runs at a time take up to 14 GB of 12 GB free RAM; --jobs 3 takes up to 12 GB"),
        ((5, 5), 8, 9, "2 runs at a time take up to 10 GB of 9 GB free RAM; --jobs 1 takes up to 5 GB"),
        ((5, 5), 2, 4, "2 runs at a time take up to 10 GB of 4 GB free RAM; --jobs 1 takes up to 5 GB"),
        ((7, 5), 2, 5, None),
    ],
)
def test_the_largest_runs_count_together(estimates, monkeypatch, sizes, jobs, free, said):
    """Sums by hand; runs that differ in nothing but their seed are estimated once."""
    monkeypatch.setattr(Machine, "here", lambda: Machine(2, 0, free * GB))
    console = Console(record=True, width=300)
    warn_of_memory(runs(*sizes), jobs, console)
    assert sorted(estimates) == sorted(set(sizes))
    assert console.export_text() == ("" if said is None else f"warning: --jobs {jobs}: the memory may not do: {said}\n")


@pytest.mark.parametrize(("jobs", "warned"), [(1, False), (2, True)])
def test_a_suite_warns_before_its_first_run(estimates, tmp_path, monkeypatch, jobs, warned):
    monkeypatch.setattr(Machine, "here", lambda: Machine(2, 0, 3 * GB))
    console = Console(record=True, width=300)

    def execute(self, changed):
        raise RunFailed(console.export_text())

    monkeypatch.setattr(Runs, "execute", execute)
    settings = suites.load(suites.find("quick"), ["base.training.batch_size=2"])[1]
    with pytest.raises(RunFailed) as printed:
        runner.run(settings, tmp_path, console, Options(jobs, tmp_path))
    assert (
        "warning: --jobs 2: the memory may not do: 2 runs at a time take up to 4 GB" in str(printed.value)
    ) == warned
