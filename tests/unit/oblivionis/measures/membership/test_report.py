"""Membership inference beside the retrained model: the sentence."""

from __future__ import annotations

import pytest

from oblivionis.measures.membership import report


def attacked(p_values, difference):
    """Metrics of the unlearned and the retrained model: attack -> p-value, and the difference of all of them."""
    ours, theirs = {}, {}
    for attack, p in p_values.items():
        key = f"membership_auc_{attack}"
        ours |= {key: 0.75, f"{key}_low": 0.5, f"{key}_high": 1.0, f"{key}_p": p, f"{key}_difference": difference}
        theirs |= {key: 0.5, f"{key}_low": 0.25, f"{key}_high": 0.75}
    return {"unlearn": ours, "retrain": theirs}


@pytest.mark.parametrize(
    ("least", "difference", "words"),
    [
        (0.02, 0.25, "under-unlearned: still recognised"),
        (0.02, -0.25, "over-unlearned: recognised by avoidance"),
        (0.03, 0.25, "not to be told from the retrained model"),
    ],
)
def test_the_attack_that_tells_best_speaks_at_its_share_of_the_level(least, difference, words):
    """Two attacks: 0.05 / 2 is the level of each."""
    (sentence,) = report.sentences(attacked({"zlib": least, "loss": 0.9}, difference))
    assert sentence.endswith(f"(DeLong p = {least:.2g}, the least of 2 attacks, for which it takes 0.025): {words}.")
    assert "zlib" in sentence and "unlearned 0.750 [0.500, 1.000], retrained 0.500 [0.250, 0.750]" in sentence


def test_without_a_comparison_nothing_is_said():
    found = attacked({"loss": 0.001}, 0.25)
    assert report.sentences({"unlearn": found["unlearn"]}) == []
    assert report.sentences({"unlearn": {}, "retrain": found["retrain"]}) == []


@pytest.mark.parametrize(("p", "told"), [(0.05, True), (0.0501, False)])
def test_one_attack_has_the_whole_level(p, told):
    (sentence,) = report.sentences(attacked({"loss": p}, 0.25))
    assert "(DeLong p = 0.05, the least of 1 attacks, for which it takes 0.05): " in sentence
    assert sentence.endswith("under-unlearned: still recognised.") is told


def test_of_several_attacks_the_least_p_value_and_its_own_figures_are_told():
    found = attacked({"loss": 0.5, "zlib": 0.02, "min_k_20": 0.3}, -0.125)
    found["unlearn"]["membership_auc_zlib"] = 0.375
    (sentence,) = report.sentences(found)
    assert "unlearned 0.375 [0.500, 1.000], retrained 0.500 [0.250, 0.750], difference -0.125" in sentence
    assert "the least of 3 attacks, for which it takes 0.017): not to be told" in sentence


def test_too_few_records_for_a_test_are_told_of():
    found = attacked({"loss": 0.001}, 0.25)
    ours = {key: value for key, value in found["unlearn"].items() if not key.endswith("_p")}
    (sentence,) = report.sentences({"unlearn": ours, "retrain": found["retrain"]})
    assert sentence == (
        "Membership: too few records to test the difference from the retrained model (it takes 8 to be forgotten and "
        "8 of the holdout, with scores of both models)."
    )
    assert report.sentences({"unlearn": ours, "retrain": {}}) == []


def test_p_values_are_those_of_attacks_on_both_models():
    found = attacked({"loss": 0.001, "zlib": 0.5}, 0.25)
    del found["retrain"]["membership_auc_zlib"]
    assert report.p_values(found) == {"membership_auc_loss": 0.001} and report.p_values({}) == {}
