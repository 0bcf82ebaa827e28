"""What a measure is without more than its metrics, and what measures add to a run's stages afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from support.reports import log_of, make_run, metrics_of

from evaluation.metrics.catalogue import Metric
from evaluation.metrics.membership import auc_difference
from oblivionis.measures import registry
from oblivionis.measures.base import Measure

_THREE = {
    "finetune": ([5.0, 6.0, 7.0], [1.0, 2.0, 3.0]),
    "unlearn": ([2.0, 5.0, 1.5], [1.0, 3.0, 4.0]),
    "retrain": ([1.0, 4.0, 3.5], [2.0, 3.0, 5.0]),
}
SCORES = {
    stage: tuple([score + shift for shift in (0.0, 0.25, 0.75) for score in group] for group in groups)
    for stage, groups in _THREE.items()
}


def log(stage):
    members, others = ({f"{who}{i}": x for i, x in enumerate(of)} for who, of in zip("mo", SCORES[stage], strict=True))
    auc = {"finetune": 1.0, "unlearn": 0.625, "retrain": 0.5}[stage]
    return log_of(stage) | {"membership": {"loss": {"members": members, "others": others}}, "muse": {"auc": auc}}


def test_what_only_the_retrained_model_tells_is_added(tmp_path):
    run, _ = make_run(tmp_path, logs=log)
    found = {stage: dict(metrics_of(stage)) for stage in SCORES}
    complete(run, found, 0.9)
    for stage in ("finetune", "unlearn"):
        expected = auc_difference(SCORES[stage], SCORES["retrain"], confidence=0.9)
        told = [found[stage][f"membership_auc_loss_{name}"] for name in ("difference", "difference_low", "p")]
        assert told == [expected.value, expected.low, expected.p_value]
    assert [found[stage]["muse_privleak"] for stage in SCORES] == [-100.0, pytest.approx(-25.0), 0.0]
    assert "membership_auc_loss_p" not in found["retrain"]


def test_what_a_stage_knew_itself_stays(tmp_path):
    run, _ = make_run(tmp_path, logs=log)
    known = {"membership_auc_loss_p": 0.5, "muse_privleak": 3.0, "forget_quality": 0.75}
    found = {"unlearn": dict(known), "retrain": {}}
    complete(run, found, 0.95)
    assert found["unlearn"] == known


def test_without_a_finished_retrained_model_nothing_is_added(tmp_path):
    run, _ = make_run(tmp_path, logs=log)
    found = {"unlearn": dict(metrics_of("unlearn"))}
    complete(run, found, 0.95)
    assert found == {"unlearn": metrics_of("unlearn")}


def complete(run, found, confidence):
    for measure in registry.measures().values():
        measure.complete(run, found, "geometric", confidence)


@dataclass
class Parts:
    """Of a context what the measure below needs."""

    questions: dict[str, Any] = field(default_factory=lambda: {"forget": [1]})
    prepared: Any = 1


class Both(Measure):
    needs = ("questions", "prepared")
    metrics = (Metric("one", "One", None, None, "One."),)

    def build(self, context):
        return ["an evaluator"]


@pytest.mark.parametrize(
    ("context", "built"),
    [(Parts(), ["an evaluator"]), (Parts(questions={}), []), (Parts(prepared=None), []), (Parts({}, None), [])],
)
def test_nothing_is_evaluated_without_all_that_is_needed(context, built):
    assert Both("both").evaluators(context) == built


def test_a_measure_needs_nothing_but_its_metrics():
    alone = Measure("alone")
    context: Any = Parts()
    assert (alone.metrics, alone.client_metrics, alone.legend, alone.others) == ((), (), "", None)
    assert alone.prepare(context) is None and alone.measure_base(context, context) is None
    assert alone.evaluators(context) == [] and alone.warnings(context) == []
    assert alone.to_log({"x": 1}) == {"alone": {"x": 1}} and alone.to_log({}) == {}
    assert list(Both("both").catalogue) == ["both_one"] and list(Both("tofu").catalogue) == ["one"]
