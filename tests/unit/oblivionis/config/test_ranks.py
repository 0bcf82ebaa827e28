"""Clients of several LoRA ranks: what does not go with them is said before anything starts."""

import pytest

from oblivionis.config.compose import compose, from_yaml, to_yaml
from oblivionis.config.problems import ConfigError

PRODUCT = "model.lora.aggregation=product"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.lora.ranks=[8,64]", PRODUCT], r"model\.lora\.ranks: 64 is no rank .*ranks from 1 to 32"),
        (["model.lora.ranks=[0,8]", PRODUCT], r"model\.lora\.ranks: 0 is no rank"),
        (["model.lora.unlearning_rank=full"], r"model\.lora\.unlearning_rank: all clients have the server's rank"),
        (["model.lora.ranks=[]", PRODUCT], r"model\.lora\.ranks: the list is empty"),
        (["model.lora.ranks=[8,16]"], r"model\.lora\.ranks: factors of several ranks.*is factors.*aggregation=product"),
        (["model.lora.ranks=[8,16]", "model.lora.aggregation=freeze_a"], r"model\.lora\.ranks: a frozen A"),
        (["model.lora.ranks=[8,16]", "model.mode=full"], r"model\.lora\.ranks: all weights are trained"),
        (
            ["model.lora.ranks=[8]", PRODUCT, "stages=[finetune,retrain,unlearn,local]"],
            "stages: the stage local has one",
        ),
        (["model.lora.ranks=[8]", PRODUCT, "unlearning=pga"], r"unlearning\.method: pga starts from"),
        (["model.lora.ranks=[8]", PRODUCT, "strategy=fedmedian"], r"model\.lora\.aggregation: fedmedian combines"),
        (
            ["model.lora.ranks=[8]", PRODUCT, "federation.secure_aggregation.enabled=true"],
            r"model\.lora\.aggregation: the mean of LoRA's products takes every client's factors",
        ),
        (["model.lora.ranks=[8]", PRODUCT, "privacy=client"], r"model\.lora\.aggregation: the sum of clipped updates"),
    ],
)
def test_what_does_not_go_together_is_one_clear_message(changes, message):
    with pytest.raises(ConfigError, match=message):
        compose("smoke", changes)


def test_a_rank_may_stand_in_the_list_more_than_once():
    config = compose("smoke", ["model.lora.ranks=[8,8,32]", PRODUCT])
    assert config.model.lora.ranks == from_yaml(to_yaml(config)).model.lora.ranks == [8, 8, 32]


def test_other_lists_still_name_nothing_twice():
    with pytest.raises(ConfigError, match="names something twice"):
        compose("smoke", ["stages=[finetune,finetune]"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["federation.secure_aggregation.enabled=true", "unlearning.cover=3", "federation.min_clients=3"],
            r"method: masks cover",
        ),
        (["stages=[finetune,retrain,unlearn,local]"], "stages: in the stage local each client's model"),
        (["model.lora.ranks=[8]", PRODUCT], r"error_feedback: a client of a lower rank.*expected false"),
        (["federation.buffer.size=1"], r"method: asynchronous rounds"),
        (["federation.compression.keep=0"], r"compression\.keep"),
        (["federation.compression.method=zip"], r"compression\.method"),
    ],
)
def test_what_compressed_updates_do_not_go_with(changes, message):
    with pytest.raises(ConfigError, match=message):
        compose("smoke", ["federation.compression.method=int8", *changes])


def test_ranks_go_with_compression_that_keeps_nothing_back():
    changes = ["federation.compression.method=int8", "federation.compression.error_feedback=false"]
    assert compose("smoke", ["model.lora.ranks=[8]", PRODUCT, *changes]).model.lora.ranks == [8]
