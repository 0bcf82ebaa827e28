"""What the rest of a run will take, against sums by hand."""

import pytest

from oblivionis.config.compose import compose
from oblivionis.runs.duration_forecast import Forecast, Plan, duration, plan


def test_the_plan_counts_evaluations_as_the_server_does():
    config = compose("default", ["evaluation.every=3", "evaluation.every_training=4", "evaluation.at_start=true"])
    found = plan(config, {"finetune": 9, "unlearn": 7}, light=10, full=45)
    # finetune: before, after rounds 4 and 8; unlearn: before, after 3 and 6; the last round's is the stage's end
    assert found.light_evaluations == {"finetune": 3, "unlearn": 3} and found.full == 4.5
    config = compose("default", ["evaluation.every=1", "evaluation.every_training=0", "evaluation.at_start=false"])
    assert plan(config, {"finetune": 9, "unlearn": 7}, 10, 45).light_evaluations == {"finetune": 0, "unlearn": 6}
    assert plan(config, {"finetune": 9}, 0, 0).full is None


def test_a_client_alone_costs_its_rounds_of_a_share_of_the_clients():
    config = compose("default", ["federation.clients=30", "federation.fraction_train=0.1", "federation.rounds.local=6"])
    assert plan(config, {"finetune": 5, "local": 30}, 1, 1).weights == {"local": 2.0}


def forecast():
    return Forecast(Plan({"finetune": 4, "unlearn": 3}, {"finetune": 2, "unlearn": 2}, 5.0))


def test_nothing_is_foretold_before_the_first_round():
    found = forecast()
    found.evaluation("finetune", 7.0, full=False, inside=False)
    assert found.left() is None and found.sentence() == "" and found.advice() == ""


def test_rounds_and_evaluations_are_told_apart():
    found = forecast()
    found.evaluation("finetune", 2.0, full=False, inside=False)
    found.evaluation("finetune", 4.0, full=False, inside=True)
    found.round("finetune", 14.0)
    # six rounds of 14 - 4 s; two light evaluations of 3 s and two full ones of five times as much
    assert found.rounds_left() == pytest.approx(60.0)
    assert found.evaluations_left() == pytest.approx(2 * 3.0 + 2 * 15.0)
    found.evaluation("finetune", 20.0, full=True, inside=False)
    assert found.evaluations_left() == pytest.approx(2 * 3.0 + 20.0), "a timed full one says how long they take"
    found.finished("finetune")
    found.round("unlearn", 30.0)
    assert found.rounds_left() == pytest.approx(2 * 30.0), "a stage's own rounds count once it has some"


def test_the_first_round_in_which_processes_start_counts_until_there_is_another():
    found = forecast()
    found.round("finetune", 40.0)
    assert found.rounds_left() == pytest.approx(6 * 40.0)
    found.round("finetune", 2.0)
    assert found.rounds_left() == pytest.approx(5 * 2.0) and found.timed == 2


def test_full_evaluations_alone_tell_of_the_smaller_ones():
    found = forecast()
    found.evaluation("base", 50.0, full=True, inside=False)
    found.round("finetune", 1.0)
    assert found.evaluations_left() == pytest.approx(4 * 10.0 + 2 * 50.0)


def test_what_was_done_before_is_not_left():
    found = forecast()
    found.skip("finetune", 4)
    found.skip("unlearn", 1)
    found.round("unlearn", 10.0)
    found.evaluation("unlearn", 1.0, full=False, inside=False)
    assert found.rounds_left() == pytest.approx(10.0) and found.evaluations_left() == pytest.approx(5.0)
    found.round("unlearn", 10.0)
    found.round("unlearn", 10.0)
    assert found.rounds_left() == 0.0, "an extra round does not count backwards"


def test_advice_goes_by_what_takes_longest():
    many = Forecast(Plan({"finetune": 101}, {"finetune": 100}, 2.0))
    many.round("finetune", 1.0)
    many.evaluation("finetune", 9.0, full=False, inside=False)
    assert "evaluation.every" in many.advice()
    long = Forecast(Plan({"finetune": 101}, {"finetune": 1}, 500.0))
    long.round("finetune", 1.0)
    long.evaluation("finetune", 9.0, full=False, inside=False)
    assert "evaluation.full.questions_per_set" in long.advice()
    short = Forecast(Plan({"finetune": 2}, {"finetune": 1}, 2.0))
    short.round("finetune", 1.0)
    short.evaluation("finetune", 9.0, full=False, inside=False)
    assert short.advice() == ""


@pytest.mark.parametrize(("seconds", "words"), [(0.2, "1 s"), (89, "89 s"), (90, "2 min"), (5400, "1.5 h")])
def test_durations(seconds, words):
    assert duration(seconds) == words


def test_what_was_waited_for_is_no_longer_left():
    found = Forecast(Plan({"finetune": 3}, {"finetune": 1}, 2.0))
    found.round("finetune", 30.0)
    assert found.sentence() == "about 60 s left, evaluations not counted"
    assert found.sentence(20.0) == "about 40 s left, evaluations not counted"
    assert found.sentence(90.0) == "longer than foretold, evaluations not counted"
    found.evaluation("finetune", 10.0, full=False, inside=False)
    assert found.sentence(50.0) == "about 30 s left, 20 s of them evaluations"
    assert found.sentence(70.0) == "about 10 s left, 10 s of them evaluations", "those come last"
    assert found.sentence(80.0) == "longer than foretold"
    assert found.spent() == "rounds 30 s, evaluations 10 s"


def test_evaluations_alone_are_not_said_to_take_a_second():
    found = Forecast(Plan({"finetune": 1}, {"finetune": 0}, 2.0))
    found.round("finetune", 30.0)
    assert found.sentence() == "evaluations are left, of which none was timed yet"
