"""What does not go with late clients is one message that names the key."""

import pytest

from oblivionis.config import compose as configuration

SECURE = ["federation.secure_aggregation.enabled=true", "federation.min_clients=4", "unlearning.cover=4"]
CLIENT = ["privacy=client", "privacy.epsilon=8", "privacy.clipping_norm=1"]


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        (["federation.deadline=5", *SECURE], "federation.deadline", "secure sum"),
        (["federation.oversample=2", *SECURE], "federation.oversample", "secure sum"),
        (["federation.buffer.size=2", *SECURE], "federation.buffer.size", "secure sum"),
        (
            ["federation.simulated_seconds.distribution=pareto", *SECURE],
            "federation.simulated_seconds.distribution",
            "secure",
        ),
        (["federation.deadline=5000"], "federation.deadline", "3600"),
        (["federation.oversample=1.5", "federation.fraction_train=1"], "federation.oversample", "asked already"),
        (["federation.oversample=1.5", *CLIENT], "federation.oversample", "fast"),
        (["federation.buffer.concurrency=3"], "federation.buffer.concurrency", "synchronous"),
        (["federation.buffer.size=31"], "federation.buffer.size", "30 clients"),
        (
            ["federation.buffer.size=3", "federation.buffer.concurrency=31"],
            "federation.buffer.concurrency",
            "30 clients",
        ),
        (["federation.buffer.size=3", "federation.deadline=5"], "federation.deadline", "wait for nobody"),
        (["federation.buffer.size=3", "federation.oversample=2"], "federation.oversample", "wait for nobody"),
        (["federation.buffer.size=3", "strategy=krum"], "strategy.name", "one model"),
        (["federation.buffer.size=3", "strategy=fedmedian"], "strategy.name", "one model"),
        (["federation.buffer.size=3", "model.lora.aggregation=product"], "model.lora.aggregation", "older model"),
        (["federation.buffer.size=3", *CLIENT], "privacy.level", "rounds"),
        (["federation.buffer.size=3", "unlearning=federaser"], "unlearning.method", "same round"),
        (["federation.buffer.size=3", "unlearning=pga"], "unlearning.method", "same round"),
        (["federation.buffer.size=3", "unlearning=fedosd"], "unlearning.method", "same round"),
        (["federation.buffer.size=3", "unlearning.updates.keep=2"], "unlearning.updates.keep", "all started from"),
    ],
)
def test_what_cannot_work_is_one_message(overrides, key, words):
    with pytest.raises(configuration.ConfigError) as caught:
        configuration.compose("default", overrides)
    (problem,) = caught.value.problems
    assert problem.path == key and words in problem.message


@pytest.mark.parametrize(
    "overrides",
    [
        ["federation.deadline=30", "federation.oversample=1.3", "strategy=krum"],
        ["federation.deadline=30", "unlearning=federaser"],
        ["federation.deadline=30", *CLIENT],
        ["federation.buffer.size=3", "federation.buffer.concurrency=6", "strategy=fedadam"],
        ["federation.buffer.size=3", "federation.simulated_seconds.distribution=pareto"],
    ],
)
def test_what_works_is_let_through(overrides):
    configuration.compose("default", overrides)


def test_a_run_without_the_keys_is_what_it_was():
    """A configuration of an earlier version, in which they are absent, has the defaults: rounds as ever."""
    from oblivionis.server.round_settings import waiting

    config = configuration.compose("smoke")
    lines = configuration.to_yaml(config)
    new = ("deadline:", "oversample:", "buffer:", "simulated_seconds:")
    tree = configuration.to_tree(config)
    for key in new:
        assert f"  {key}" in lines
        del tree["federation"][key.rstrip(":")]
    from omegaconf import OmegaConf

    assert configuration.from_yaml(OmegaConf.to_yaml(tree)) == config
    options = waiting(config)
    assert options.pop("available_within") == 30.0  # of another way to draw clients
    assert options == {"deadline": None, "oversample": 1.0, "durations": None, "buffer": None, "compression": None}
