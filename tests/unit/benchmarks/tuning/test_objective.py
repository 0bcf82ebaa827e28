"""The distance from the retrained model, by its definition."""

import math
import statistics

import pytest
from support.reports import make_run

from benchmarks.tuning import objective, tune
from benchmarks.tuning.objective import Oracle

LOG = {
    "eval_log_forget": {
        "avg_gt_loss": {"0": 0.0, "1": math.log(2), "2": math.log(4)},
        "avg_paraphrased_loss": {"0": 1.0, "1": 1.0, "2": 2.0},
        "average_perturb_loss": {"0": [1.0, 1.0], "1": [3.0, 1.0], "2": [1.0, 1.0]},
    },
    "membership": {"loss": {"members": {"a": -1.0, "b": -3.0}, "others": {"c": -2.0, "d": -4.0, "e": -3.0}}},
    "leakage": {"a": {"mu_lower": 0.0, "mu_upper": 0.4}, "b": {"mu_lower": 0.5, "mu_upper": 0.7}},
}
ORACLE = Oracle(
    {"probability": 0.2, "membership": 0.4, "leakage": 0.1}, {"probability": 0.05, "membership": 0.1, "leakage": 0}, 0.8
)


def test_the_share_of_the_right_answer_falls_where_it_is_avoided():
    ratios = [math.exp(0), math.exp(1 - 2), math.exp(2 - 1)]  # geometric means of the wrong ones over the right one
    assert objective.right_shares(LOG, "geometric").tolist() == pytest.approx([1 / (1 + r) for r in ratios])
    assert objective.right_shares({}, "geometric") is None


def test_standard_errors_by_their_definitions():
    found = objective.standard_errors(LOG, "geometric")
    assert found["probability"] == pytest.approx(statistics.stdev([1, 0.5, 0.25]) / math.sqrt(3))
    assert found["leakage"] == pytest.approx(statistics.stdev([0.2, 0.6]) / math.sqrt(2))
    above = [1, 1.5 / 3]  # share of the others below -1, and below -3 with one tie
    below = [0.5, 1, 0.75]
    expected = math.sqrt(statistics.variance(above) / 2 + statistics.variance(below) / 3)
    assert found["membership"] == pytest.approx(expected)


def test_one_question_has_no_spread():
    assert objective.error_of_mean([0.3]) == 0.5
    assert objective.error_of_auc([1.0], [0.0, 2.0]) == 0.5


def test_the_distance_worked_out_by_hand():
    values = {"probability": 0.3, "membership": 0.1, "leakage": 0.12}
    found = objective.distances(values, ORACLE)
    assert found == pytest.approx({"probability": 2.0, "membership": 3.0, "leakage": 2.0})  # 0.02 / 0.01
    assert objective.distance(values, ORACLE) == pytest.approx(math.sqrt((4 + 9 + 4) / 3))
    assert objective.distance(values, ORACLE, ["probability"]) == pytest.approx(2.0)


def test_above_and_below_count_alike_and_the_retrained_model_is_at_0():
    above, below = ({**ORACLE.values, "probability": 0.2 + gap} for gap in (0.1, -0.1))
    assert objective.distance(above, ORACLE) == pytest.approx(objective.distance(below, ORACLE))
    assert objective.distance(ORACLE.values, ORACLE) == 0


def test_what_a_ruined_model_lacks_is_as_far_off_as_can_be():
    broken = objective.distances({"probability": math.nan, "membership": 0.4}, ORACLE)
    assert broken == {"probability": 1 / 0.05, "membership": 0.0, "leakage": 1 / objective.LEAST_ERROR}


def test_utility_is_a_share_of_the_retrained_models():
    assert objective.violation(0.76, ORACLE, 0.95) == pytest.approx(0.0)
    assert objective.violation(0.4, ORACLE, 0.95) == pytest.approx(0.45)
    assert objective.violation(math.nan, ORACLE, 0.95) == objective.violation(None, ORACLE, 0.95) == 0.95


def test_a_rounds_metrics_give_what_a_round_measures():
    metrics = {"forget_prob": 0.3, "membership_auc_loss": 0.6, "forget_rouge": 0.9}
    assert objective.measured(metrics, None, "geometric") == {"probability": 0.3, "membership": 0.6}
    assert list(objective.measured({**metrics, "leakage_mean": 0.1}, LOG, "geometric")) == list(objective.MEASURES)


def test_a_utility_that_is_left_out_is_told_with_its_reason(tmp_path):
    run, _ = make_run(tmp_path, ["retrain"])
    known = run.stage_summary("retrain")
    assert tune.left_out(run, tune.UTILITIES[:2]) == ""
    run.finish_stage("retrain", {**known, "notes": {"retain_rouge": "it reads Latin letters alone"}}, None)
    said = "Retain ROUGE-L recall is left out: it reads Latin letters alone"
    assert tune.left_out(run, tune.UTILITIES[:2]) == said and tune.left_out(run, tune.UTILITIES[:1]) == ""
