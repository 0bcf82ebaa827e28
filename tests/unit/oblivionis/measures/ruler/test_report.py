"""RULER in words: ranks before and after unlearning, and the bands of retrained models."""

from __future__ import annotations

import math

import pytest
from support.reports import make_run, metrics_of

from evaluation.ruler.rank_significance import RankTest, rank_test
from oblivionis.measures.ruler import report
from oblivionis.measures.ruler.paired_models import Before

HIGH = RankTest(0.9, 0.01, 0.001, 20)
MIDDLE = RankTest(0.5, 0.02, 0.8, 20)
BAND = {"low": 0.4, "high": 0.6, "mean": 0.5, "n": 3, "confidence": 0.95, "values": [0.45, 0.5, 0.55]}


def finished(folder, ranks, bands=None, **values):
    """A run whose unlearned model has these ranks, and these bands beside the values of its metrics."""
    run, _ = make_run(folder, stages=["finetune"], metrics=metrics_of)
    metrics = {f"ruler_{name}": value for name, value in values.items()}
    run.finish_stage(
        "unlearn", {"stage": "unlearn", "metrics": metrics, "ruler": {"bands": bands or {}}}, {"ruler": ranks}
    )
    return run


@pytest.mark.parametrize(
    ("base", "p_moved", "doubted"),
    [(HIGH, 0.4, True), (MIDDLE, 0.001, False), (HIGH, 0.05, False), (HIGH, 0.051, True)],
)
def test_a_rank_that_the_base_model_has_too_is_no_memory(base, p_moved, doubted):
    text = report.before_unlearning(Before(base, HIGH, p_moved))
    assert text.startswith(
        f"RULER: mean rank of 20 forget records {base.mean:.3f} ± {base.error:.3f} in the base model → 0.900 ± 0.010 "
        "in the finetuned one (against 0.5: p = 0.001). Above 0.5: they lie closer"
    )
    assert ("But the base model, which never saw them, has about the same rank" in text) is doubted


def test_a_rank_of_one_half_needs_no_comparison_with_the_base_model():
    text = report.before_unlearning(Before(MIDDLE, MIDDLE, 0.9))
    assert "Not to be told from 0.5" in text and "But the base model" not in text


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([0.9, 0.8, 0.95, 0.7, 0.85, 0.99, 0.75], "above 0.5, a sign that they are still memorised"),
        ([0.1, 0.2, 0.05, 0.3, 0.15, 0.01, 0.25], "below 0.5, they lie apart from the retained records"),
        ([0.4, 0.6, 0.45, 0.55, 0.3, 0.7], "not to be told from 0.5"),
        ([0.9, 0.8], "which so few records cannot tell from 0.5 (it takes 6)"),
    ],
)
def test_the_unlearned_models_rank_against_one_half(tmp_path, ranks, said):
    (line,) = report.sentences(finished(tmp_path, {f"r{i}": x for i, x in enumerate(ranks)}))
    test = rank_test(ranks)
    assert line.startswith(f"RULER: mean rank of the forget records in the unlearned model {test.mean:.3f} ± ")
    assert said in line and line.endswith(f"(p = {test.p_value:.3f}, {len(ranks)} records).")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.6, report.INSIDE),
        (0.61, "outside, not like a retrained model"),
        (0.39, "outside, not like a retrained model"),
    ],
)
def test_a_value_lies_within_the_band_of_retrained_models_or_outside(tmp_path, value, said):
    bands = {"mean_rank": BAND, "gap": BAND, "shift": BAND}
    run = finished(tmp_path, {"a": 0.5, "b": 0.6}, bands, mean_rank=value, gap=0.5)
    _, rank, gap = report.sentences(run)
    held = "0.400 to 0.600, if these vary normally"
    assert rank == f"RULER: mean rank {value:.3f}, 95% band of 3 retrained models {held}: {said}."
    assert gap == f"RULER: S_gap 0.500, 95% band of 3 pairs of retrained models {held}: {report.INSIDE}."
    facts = report.verdict_facts(run)
    assert facts["mean_rank"]["band"]["verdict"] == (report.INSIDE if said == report.INSIDE else report.OUTSIDE)
    assert facts["gap"]["value"] == 0.5 and "shift" not in facts, "of which the unlearned model has no value"


@pytest.mark.parametrize(("p", "said"), [(0.0312, "0.031"), (0.001, "0.001"), (0.00042, "4.2e-04")])
def test_a_small_p_value_is_not_shown_as_zero(p, said):
    assert report.p_text(p) == said


def test_without_ranks_nothing_is_said(tmp_path):
    run, _ = make_run(tmp_path)
    assert report.sentences(run) == [] and report.verdict_facts(run) == {} and report.bands(run) == {}


def test_one_record_has_no_error(tmp_path):
    (line,) = report.sentences(finished(tmp_path, {"a": 0.75}))
    assert line == (
        "RULER: mean rank of the forget records in the unlearned model 0.750, which so few records cannot tell from "
        "0.5 (it takes 6) (p = 1.000, 1 record)."
    )
    one = RankTest(0.75, math.nan, 1.0, 1)
    assert report.before_unlearning(Before(one, one, 1.0)) == (
        "RULER: mean rank of 1 forget record 0.750 in the base model → 0.750 in the finetuned one (against 0.5: p = "
        "1.000). So few records cannot tell it from 0.5 (it takes 6)."
    )


def test_every_word_on_a_rank_before_unlearning():
    low = RankTest(0.25, 0.125, 0.0004, 20)
    assert report.before_unlearning(Before(MIDDLE, low, 0.0625)) == (
        "RULER: mean rank of 20 forget records 0.500 ± 0.020 in the base model → 0.250 ± 0.125 in the finetuned one "
        "(against 0.5: p = 4.0e-04). Below 0.5: they lie apart from the retained records. But the base model, which "
        "never saw them, has about the same rank (paired: p = 0.062): that may be what they are like, not memory."
    )


def test_ranks_of_an_unfinished_stage_count_for_nothing(tmp_path):
    run = finished(tmp_path, {"a": 0.5, "b": 0.6})
    assert report.after_unlearning(run) is not None
    (run.path / "stages" / "unlearn.json").unlink()
    assert report.after_unlearning(run) is None


def test_the_facts_have_value_and_band_of_each(tmp_path):
    run = finished(tmp_path, {f"r{i}": 0.5 + i / 100 for i in range(8)}, {"mean_rank": BAND, "gap": BAND}, gap=0.7)
    facts = report.verdict_facts(run)
    known = {key: value for key, value in BAND.items() if key != "values"}
    assert facts["gap"] == {"value": 0.7, "band": {"verdict": "outside", **known}}
    assert "band" not in facts["mean_rank"] and facts["mean_rank"]["null"] == 0.5 and set(facts) == {"mean_rank", "gap"}
