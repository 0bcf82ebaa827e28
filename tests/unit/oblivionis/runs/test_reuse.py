"""Which settings keep finished stages from being taken over: those that finetune or retrain depend on, and no other."""

import json

import pytest

from oblivionis.config import compose as configuration
from oblivionis.errors import RunError
from oblivionis.runs.reuse import check_source, differing

FEW = "federation.fraction_train=0.5"


def found(ours, theirs=()):
    return differing(configuration.compose("default", ours), configuration.compose("default", theirs))


@pytest.mark.parametrize(
    ("setting", "was", "common"),
    [
        ("federation.deadline=9.0", "None", ()),
        ("federation.oversample=1.5", "1.0", (FEW,)),
        ("federation.buffer.size=2", "0", ()),
        ("federation.simulated_seconds.distribution=pareto", "none", ()),
        ("federation.sampling=by_size", "uniform", ()),
        ("federation.candidates=20", "None", ("federation.sampling=power_of_choice", FEW)),
        ("federation.available_within=7.0", "30.0", ("federation.sampling=available",)),
        ("model.lora.rank=3", "32", ()),
        ("evaluation.rouge=any_script", "paper", ()),
        ("evaluation.full.questions_per_set=3", "None", ()),
        ("data.forget_authors=2", "3", ()),
    ],
)
def test_what_the_stages_depend_on_makes_others_and_is_named_with_both_values(setting, was, common):
    path, _, value = setting.partition("=")
    assert found((*common, setting), common) == [f"{path} was {was}, is {value}"]
    assert found(common, (*common, setting)) == [f"{path} was {value}, is {was}"]
    assert found((*common, setting), (*common, setting)) == []


@pytest.mark.parametrize("override", ["model.lora.unlearning_rank=full", "federation.available_within=7"])
def test_what_the_stages_do_not_depend_on_differs_freely(override):
    common = ("model.lora.ranks=[4]", "model.lora.aggregation=product") if "rank" in override else ()
    assert found((*common, override), common) == found(common, (*common, override)) == []


def test_a_source_with_other_settings_is_refused_by_its_files_alone(tmp_path):
    theirs = configuration.compose("smoke", ["federation.rounds.retrain=5", "federation.rounds.finetune=7"])
    (tmp_path / "config.yaml").write_text(configuration.to_yaml(theirs))
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "retrain.json").write_text(json.dumps({"stage": "retrain", "metrics": {}}))
    start = f"start_from={tmp_path}"
    check_source(configuration.compose("smoke", [start, "stages=[unlearn]", "federation.rounds.retrain=5"]))
    other = configuration.compose("smoke", [start, "federation.rounds.retrain=4", "seed=2", "data.authors=7"])
    with pytest.raises(RunError) as caught:
        check_source(other)
    expected = ["data.authors was 6, is 7", "seed was 0, is 2", "federation.rounds.retrain was 5, is 4"]
    assert str(caught.value) == f"start_from: {tmp_path} was made with other settings: {'; '.join(expected)}"
