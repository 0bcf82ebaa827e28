"""The settings with which a method is tuned: its own, on the run's requests."""

import pytest

from benchmarks.tuning.requests import subjects_of
from benchmarks.tuning.settings import base_config, own_keys, source_of, untuned_config
from oblivionis.config.compose import compose, to_tree, tree_of
from oblivionis.config.problems import ConfigError


def untuned(method, *overrides):
    source = source_of("default", overrides)
    base = base_config(source, subjects_of(source.config, 0), method, prune=True)
    return source.config, untuned_config(source, base, method)


def test_a_method_that_takes_all_requests_at_once_is_tuned_so_and_its_row_says_it():
    run, config = untuned("weight_negation")
    assert run.unlearning.requests.policy == "random_client_per_round"
    assert config.unlearning.requests.policy == "all_at_round", "else each negation undoes the one before"
    assert own_keys(config, run)["unlearning.requests.policy"] == "all_at_round"
    assert "unlearning.requests.policy" not in own_keys(*reversed(untuned("npo")))


@pytest.mark.parametrize("policy", ["all_at_round", "random_client_per_round"])
def test_another_method_is_tuned_at_the_times_of_the_run(policy):
    run, config = untuned("npo", f"unlearning.requests.policy={policy}")
    assert config.unlearning.requests.policy == run.unlearning.requests.policy == policy


def test_what_the_method_takes_is_what_the_suite_and_the_command_give_it():
    run, config = untuned("fused")
    row = to_tree(compose("default", ["unlearning=fused"]))["unlearning"]
    found = tree_of(own_keys(config, run))["unlearning"]
    assert found.keys() == row.keys() and found.pop("requests") == {"policy": row.pop("requests")["policy"]}
    assert found == row


def test_a_method_that_does_not_go_with_the_run_is_refused_before_anything_is_made():
    with pytest.raises(ConfigError, match=r"(?s)unlearning.method: weight_negation is no update.*--unlearning"):
        untuned("weight_negation", "privacy.level=client")
