"""Which settings of privacy go together, and what is told of those that do not."""

from __future__ import annotations

import pytest

from oblivionis.config.compose import ConfigError, compose, from_yaml, to_yaml


def problems(*overrides: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        compose("default", overrides)
    return {problem.path: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi", "fedadagrad"])
@pytest.mark.parametrize("level", ["client", "record"])
def test_the_groups_compose_with_every_aggregator_that_takes_one_update(strategy, level):
    config = compose("default", [f"privacy={level}", f"strategy={strategy}", "privacy.epsilon=3"])
    assert (config.privacy.level, config.privacy.epsilon, config.privacy.noise_multiplier) == (level, 3.0, None)
    assert from_yaml(to_yaml(config)).privacy == config.privacy


def test_by_default_nobody_is_hidden():
    privacy = compose("default").privacy
    assert (privacy.level, privacy.epsilon, privacy.clipping_norm) == ("none", None, None)


def test_a_configuration_from_before_there_was_privacy_still_reads():
    text = to_yaml(compose("default"))
    assert from_yaml(text[: text.index("privacy:")]).privacy.level == "none"


OF_60 = ("privacy.delta", "one of 60 records")
REFUSED = [
    (["privacy.epsilon=3"], "privacy.epsilon", "privacy.level is none"),
    (["privacy=client", "privacy.noise_multiplier=1"], "privacy.noise_multiplier", "so does this"),
    (["privacy=client", "privacy.epsilon=null"], "privacy.epsilon", "nothing says how much noise"),
    (["privacy=client", "privacy.clipping_norm=null"], "privacy.clipping_norm", "no noise hides it"),
    (["privacy=record", "privacy.clipping=adaptive"], "privacy.clipping", "clients' updates"),
    (["privacy=client", "federation.clients=20", "privacy.delta=0.05"], "privacy.delta", "one of 20 clients"),
    (
        ["privacy=record", "data.authors=10", "data.questions_per_author=5", "privacy.delta=0.02"],
        "privacy.delta",
        "one of 50 records",
    ),
    (["privacy=record", "data=node", "unlearning.requests.policy=nodes"], "privacy.delta", "nobody knows beforehand"),
    *(
        (["privacy=client", f"strategy={name}"], "strategy.name", f"{name} compares single clients' updates")
        for name in ("krum", "multikrum", "fedmedian", "fedtrimmedmean", "fednova")
    ),
    *(
        (["privacy=client", f"unlearning={name}"], "unlearning.method", f"{name} goes by single clients' models")
        for name in ("federaser", "pga")
    ),
    (["privacy=client", "unlearning.updates.keep=2"], "unlearning.updates.keep", "kept on disk"),
    (["privacy=client", "model.lora.aggregation=product"], "model.lora.aggregation", "not to their product"),
    *(
        (["privacy=record", f"unlearning={name}"], "unlearning.method", "no sum of terms")
        for name in ("pdu", "rmu", "scrub", "federaser", "fine_tune")
    ),
    (["privacy=record", "unlearning.entropy.forget=0.1"], "unlearning.entropy", "not clipped"),
    (["privacy=record", "unlearning.forget_nll_limit=3"], "unlearning.forget_nll_limit", "when a client stops"),
    (["privacy=record", "model.dtype=float16"], "model.dtype", "scaled up"),
    (["privacy=client", "stages=[finetune,local]"], "stages", "hidden among nobody"),
    (["privacy=record", "stages=[finetune,local]"], "stages", "no account"),
]


@pytest.mark.parametrize(("overrides", "key", "message"), REFUSED, ids=lambda v: " ".join(v) if type(v) is list else "")
def test_what_means_nothing_is_refused_and_told_why(overrides, key, message):
    found = problems(*overrides)
    assert message in found[key]
    assert len(found) == 1, found


@pytest.mark.parametrize("method", ["grad_ascent", "grad_diff", "npo", "simnpo"])
def test_losses_that_are_sums_over_records_are_allowed(method):
    assert compose("default", ["privacy=record", f"unlearning={method}"]).unlearning.method == method


@pytest.mark.parametrize("strategy", ["krum", "fedmedian", "fednova"])
def test_record_privacy_lies_with_the_clients_so_that_any_aggregator_follows(strategy):
    assert compose("default", ["privacy=record", f"strategy={strategy}"]).strategy.name == strategy
