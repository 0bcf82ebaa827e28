"""Which settings keep finished stages from being taken over: those that finetune or retrain depend on, and no other."""

import pytest

from oblivionis.config import compose as configuration
from oblivionis.runs.reuse import differing

FEW = "federation.fraction_train=0.5"


def found(ours, theirs=()):
    return differing(configuration.compose("default", ours), configuration.compose("default", theirs))


@pytest.mark.parametrize(
    ("key", "values", "common"),
    [
        ("deadline", ("deadline=9",), ()),
        ("oversample", ("oversample=1.5",), (FEW,)),
        ("buffer", ("buffer.size=2",), ()),
        ("simulated_seconds", ("simulated_seconds.distribution=pareto",), ()),
        ("sampling", ("sampling=by_size",), ()),
        ("candidates", ("candidates=20",), ("federation.sampling=power_of_choice", FEW)),
        ("available_within", ("available_within=7",), ("federation.sampling=available",)),
    ],
)
def test_who_is_drawn_and_waited_for_makes_another_stage(key, values, common):
    own = tuple(f"federation.{value}" for value in values)
    assert found((*common, *own), common) == found(common, (*common, *own)) == [f"federation.{key}"]
    assert found((*common, *own), (*common, *own)) == []


@pytest.mark.parametrize("override", ["model.lora.unlearning_rank=full", "federation.available_within=7"])
def test_what_the_stages_do_not_depend_on_differs_freely(override):
    common = ("model.lora.ranks=[4]", "model.lora.aggregation=product") if "rank" in override else ()
    assert found((*common, override), common) == found(common, (*common, override)) == []


def test_another_rank_is_another_stage():
    assert found(("model.lora.rank=3",)) == ["model"]


def test_a_stage_that_was_measured_by_other_words_of_rouge_is_not_taken_over():
    assert found(["evaluation.rouge=any_script"]) == ["evaluation.rouge"]
