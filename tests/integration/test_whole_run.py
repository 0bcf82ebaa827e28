"""One whole run by the real command: its results, its processes, and the same numbers without Ray."""

import pytest
from support.processes import WITHOUT_RAY
from support.simulations import RUN, Command, numbers


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What an uninterrupted run computed, whether its processes were gone after it, and what it printed."""
    folder = tmp_path_factory.mktemp("whole")
    running = Command(folder, "simulate", *RUN, f"output={folder}", "name=whole")
    try:
        assert running.finish() == 0, running.output
        clean = running.leaves_nothing()
        yield numbers(folder / "whole"), clean, running.output
    finally:
        running.end()


def test_a_run_ends_with_its_results_and_leaves_no_process(whole):
    (metrics, final), clean, output = whole
    assert clean
    assert set(final) == {"finetune", "unlearn"}
    rounds = [(stage, round) for stage, round, _, evaluator, _ in metrics if evaluator == "federation"]
    assert rounds == [("finetune", r) for r in (1, 2, 3)] + [("unlearn", r) for r in (1, 2, 3, 4)]
    assert "Traceback" not in output


def test_the_in_process_grid_of_other_tests_computes_the_same(whole, tmp_path):
    running = Command(tmp_path, "simulate", *RUN, f"output={tmp_path}", "name=here", OBLIVIONIS_TEST_PATCH=WITHOUT_RAY)
    assert running.finish() == 0, running.output
    assert numbers(tmp_path / "here") == whole[0]
