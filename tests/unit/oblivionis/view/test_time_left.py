"""The time left of a run is worked out by hand."""

import pytest

from oblivionis.config import compose as configuration
from oblivionis.runs.run_status import Progress
from oblivionis.view.time_left import time_left

OVERRIDES = (
    *("federation.rounds.finetune=4", "federation.rounds.unlearn=3", "stages=[finetune,unlearn]"),
    *("evaluation.every=1", "evaluation.every_training=1", "evaluation.at_start=true"),
    *("evaluation.light.questions_per_set=10", "evaluation.light.max_new_tokens=20"),
    *("evaluation.full.questions_per_set=20", "evaluation.full.max_new_tokens=30"),
)


@pytest.fixture(scope="module")
def config():
    return configuration.compose("default", OVERRIDES)


def exchange(stage, number, seconds, time):
    metrics = {"seconds": seconds}
    return {
        "stage": stage, "round": number, "moment": "round", "evaluator": "federation", "metrics": metrics, "time": time
    }  # fmt: skip


def evaluation(stage, number, moment, seconds, time, evaluator="tofu"):
    facts = {"stage": stage, "round": number, "moment": moment, "evaluator": evaluator, "metrics": {}}
    return {**facts, "seconds": seconds, "time": time}


START = [evaluation("finetune", 0, "start", 5.0, 100.0), evaluation("finetune", 0, "start", 5.0, 100.0, "leakage")]
FIRST = [evaluation("finetune", 1, "round", 5.0, 120.0), exchange("finetune", 1, 25.0, 120.0)]
SECOND = [evaluation("finetune", 2, "round", 5.0, 135.0), exchange("finetune", 2, 15.0, 135.0)]
STAGES = (Progress("finetune", 2, 4, False), Progress("unlearn", 0, 3, False))


def test_after_two_rounds(config):
    """Rounds of 10 s without their evaluations: two of finetune and three of unlearn are left, 50 s; evaluations of
    5 s: one between rounds, of unlearn that at the start and two; two full ones, thrice as long: 4 times 5 s + 30 s."""
    rows = [*START, *FIRST, *SECOND]
    assert time_left(config, STAGES, rows, 135.0) == "about 2 min left, 50 s of them evaluations"
    assert time_left(config, STAGES, rows, 175.0) == "about 60 s left, 50 s of them evaluations"
    assert time_left(config, STAGES, rows, 235.5) == "longer than foretold"


def test_before_a_round_there_is_no_telling(config):
    assert time_left(config, STAGES, [], 0.0) == time_left(config, STAGES, START, 100.0) == ""


def test_of_a_finished_stage_nothing_is_left(config):
    """Only 3 rounds of 10 s, their two light evaluations and the first of 5 s, and a full one of 15 s: 60 s."""
    stages = (Progress("finetune", 4, 4, True), Progress("unlearn", 0, 3, False))
    rows = [*START, *FIRST, *SECOND, evaluation("finetune", 4, "end", 15.0, 150.0)]
    assert time_left(config, stages, rows, 150.0) == "about 60 s left, 30 s of them evaluations"


def test_without_evaluations_rounds_alone_count(config):
    rows = [exchange("finetune", 1, 25.0, 120.0), exchange("finetune", 2, 10.0, 135.0)]
    assert time_left(config, STAGES, rows, 135.0) == "about 50 s left"
