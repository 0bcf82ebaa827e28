"""What does not go with shards is one message that names the key, before anything runs."""

from __future__ import annotations

import pytest

from oblivionis.config import compose as configuration

THREE = "federation.shards=3"
BY_RISK = "federation.shard_placement=by_risk"
STACK, ENSEMBLE = "federation.shard_merge=stack", "federation.shard_merge=ensemble"
NODE = ("data=node", "unlearning.requests.policy=nodes", "unlearning=npo")
SECURE = ["federation.secure_aggregation.enabled=true", "federation.min_clients=4", "unlearning.cover=4"]


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        (["federation.shards=0"], "federation.shards", "0 is out of range"),
        (["federation.shards=31"], "federation.shards", "31 shards cannot share 30 clients"),
        ([THREE, "federation.shard_merge=sum"], "federation.shard_merge", "unknown choice 'sum'"),
        ([THREE, BY_RISK, "federation.likely_to_ask=[4,30,-1]"], "federation.likely_to_ask", "no client 30, -1"),
        ([THREE, BY_RISK, "federation.likely_to_ask=[4,4]"], "federation.likely_to_ask", "something twice"),
        ([THREE, "federation.likely_to_ask=[4]"], "federation.likely_to_ask", "decides nothing"),
        ([BY_RISK, "federation.likely_to_ask=[4]"], "federation.likely_to_ask", "decides nothing"),
        (
            ["federation.shards=10", "strategy=krum", "strategy.params.num_malicious_nodes=1", "unlearning=npo"],
            "federation.shards",
            "answers of 5 clients in a round, and a shard has 3",
        ),
        ([THREE, *NODE, "federation.shard_placement=by_size"], "federation.shard_placement", "once it has answered"),
        ([THREE, *NODE, BY_RISK], "federation.likely_to_ask", "only their nodes know"),
        ([THREE, "federation.buffer.size=3"], "federation.buffer.size", "versions of one model"),
        ([THREE, "federation.compression.method=topk_int8"], "federation.compression.method", "travel whole"),
        ([THREE, *SECURE], "federation.secure_aggregation.enabled", "sum of no shard"),
        (
            [THREE, "model.lora.ranks=[8]", "model.lora.aggregation=product"],
            "model.lora.ranks",
            "the rank of its model",
        ),
        ([THREE, "federation.sampling=by_size"], "federation.sampling", "cannot be compared"),
        ([THREE, "strategy.server_state_on_unlearn=reset"], "strategy.server_state_on_unlearn", "does not touch"),
        ([THREE, "stages=[finetune,retrain,unlearn,local]"], "stages", "alone"),
        ([THREE, STACK, "model.mode=full"], "federation.shard_merge", "no rank to stack"),
        ([THREE, "model.lora.use_dora=true"], "model.lora.use_dora", "magnitudes"),
        ([THREE, STACK, "model.lora.aggregation=freeze_a"], "federation.shard_merge", "mean has no loss"),
        ([THREE, ENSEMBLE, "evaluation.lm_eval.tasks=[x]"], "evaluation.lm_eval.tasks", "one model"),
        ([THREE, "unlearning=pga"], "federation.shards", "one model of the clients that do not"),
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
        [THREE, "unlearning=exact"],
        [THREE, ENSEMBLE, "model.lora.use_dora=true"],
        [THREE, ENSEMBLE, "model.mode=full"],
        [THREE, STACK, *NODE, BY_RISK, "federation.likely_to_ask=[4]"],
        [THREE, "model.mode=full"],
        ["federation.shards=30", "unlearning=federaser"],
        [THREE, BY_RISK, "federation.likely_to_ask=[4,7]", "unlearning=rapid_retraining"],
        [THREE, "privacy=record", "privacy.epsilon=8", "privacy.clipping_norm=1"],
    ],
)
def test_what_goes_together(overrides):
    assert configuration.compose("default", overrides).federation.shards > 1
