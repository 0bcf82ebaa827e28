"""One whole run by the real command: its results, its processes, and the same numbers in one process."""

import pytest
from support.processes import IN_ONE_PROCESS, listening
from support.simulations import RUN, Command, computed

from oblivionis.runtime.processes import NAME


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a run computed, whether its processes were gone after it, what it printed, its clients, and who listened."""
    folder = tmp_path_factory.mktemp("whole")
    running, clients = Command(folder, "simulate", *RUN, f"output={folder}", "name=whole"), set()

    def processes():
        clients.update(running.descendants(NAME))
        return running.descendants()

    try:
        with listening(processes) as listeners:
            assert running.finish() == 0, running.output
        clean = running.leaves_nothing()
        yield computed(folder / "whole"), clean, running.output, clients, listeners
    finally:
        running.end()


def test_a_run_ends_with_its_results_and_leaves_no_process(whole):
    ((metrics, final), _), clean, output, *_ = whole
    assert clean
    assert set(final) == {"finetune", "unlearn"}
    rounds = [(stage, round) for stage, round, _, evaluator, _ in metrics if evaluator == "federation"]
    assert rounds == [("finetune", r) for r in (1, 2, 3)] + [("unlearn", r) for r in (1, 2, 3, 4)]
    assert "Traceback" not in output


def test_no_process_of_a_run_listens(whole):
    *_, clients, listeners = whole
    assert clients, "they were looked at"
    assert not listeners


def test_the_in_process_grid_of_other_tests_computes_the_same(whole, tmp_path):
    started = {"OBLIVIONIS_TEST_PATCH": IN_ONE_PROCESS}
    running = Command(tmp_path, "simulate", *RUN, f"output={tmp_path}", "name=here", **started)
    assert running.finish() == 0, running.output
    assert computed(tmp_path / "here") == whole[0]
