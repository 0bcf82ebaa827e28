"""One whole run by the real command: its results, its processes, and the same numbers without Ray."""

import contextlib
import sys
import time

import psutil
import pytest
from support.processes import IN_ONE_PROCESS, listening, reached_from_elsewhere
from support.simulations import RUN, Command, numbers

from oblivionis.server import forked_workers
from oblivionis.server.forked_workers import SERVE


def clients_parents(running):
    """The command lines of the processes that Ray's client processes come from, once there is one."""
    found = []
    while not found and running.process.poll() is None:
        for process in running.descendants():
            with contextlib.suppress(psutil.Error):
                if "".join(process.cmdline()[:1]).startswith("ray::ClientAppActor"):  # a zombie has no command line
                    found.append(process.parent().cmdline())
        time.sleep(0.1)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What an uninterrupted run computed, whether its processes were gone after it, and what it printed."""
    folder = tmp_path_factory.mktemp("whole")
    running = Command(folder, "simulate", *RUN, f"output={folder}", "name=whole")
    try:
        with listening(running.descendants) as listeners:
            parents = clients_parents(running)
            assert running.finish() == 0, running.output
        clean = running.leaves_nothing()
        yield numbers(folder / "whole"), clean, running.output, parents, listeners
    finally:
        running.end()


def test_a_run_ends_with_its_results_and_leaves_no_process(whole):
    (metrics, final), clean, output, *_ = whole
    assert clean
    assert set(final) == {"finetune", "unlearn"}
    rounds = [(stage, round) for stage, round, _, evaluator, _ in metrics if evaluator == "federation"]
    assert rounds == [("finetune", r) for r in (1, 2, 3)] + [("unlearn", r) for r in (1, 2, 3, 4)]
    assert "Traceback" not in output


@pytest.mark.skipif(sys.platform != "linux", reason="client processes are forked on Linux only")
def test_client_processes_are_forked_from_one_that_has_the_libraries(whole):
    *_, parents, _ = whole
    assert parents and all(SERVE in command and command[1] == forked_workers.__file__ for command in parents)


def test_no_process_of_a_run_can_be_reached_from_another_machine(whole):
    *_, listeners = whole
    assert {"gcs_server", "raylet"} <= {name for name, _ in listeners}, "they were looked at"
    assert not reached_from_elsewhere(listeners)


def test_the_in_process_grid_of_other_tests_computes_the_same(whole, tmp_path):
    running = Command(tmp_path, "simulate", *RUN, f"output={tmp_path}", "name=here", OBLIVIONIS_TEST_PATCH=IN_ONE_PROCESS)
    assert running.finish() == 0, running.output
    assert numbers(tmp_path / "here") == whole[0]
