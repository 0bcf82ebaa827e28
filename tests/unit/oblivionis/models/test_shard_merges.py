"""What is served of several shards, beside sums of the products that each of them adds to the weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evaluation.engine.fused_lora import active_factors
from oblivionis import seeds
from oblivionis.config.compose import compose
from oblivionis.models.adapters import VectorError
from oblivionis.models.assembly import assemble
from oblivionis.models.errors import ModelError
from oblivionis.models.shard_merges import assemble_served

SHARDS, RANK = 3, 4


def composed(merge, *overrides):
    shards = (f"federation.shards={SHARDS}", "federation.clients=6", f"federation.shard_merge={merge}")
    return compose("smoke", [f"model.lora.rank={RANK}", *shards, *overrides])


def alone(config):
    """The model of one shard, as its clients train it."""
    return assemble(config.model, seeds.derive(config.seed, "adapter"))


def changes(model):
    """What the adapters add to each weight, scale included."""
    modules = ((n, active_factors(m)) for n, m in model.eval().named_modules())
    return {n: f[2] * f[1].detach().double().numpy() @ f[0].detach().double().numpy() for n, f in modules if f}


def trained(start, count=SHARDS, seed=0):
    rng = np.random.default_rng(seed)
    return [start + rng.normal(size=start.size).astype(np.float32) / 20 for _ in range(count)]


def mean_of_changes(one, vectors):
    each = []
    for vector in vectors:
        one.flat.load(vector)
        each.append(changes(one.model))
    return {name: np.mean([change[name] for change in each], axis=0) for name in each[0]}


@pytest.mark.parametrize(
    "overrides", [(), ("model.lora.use_rslora=true",), ("model.lora.aggregation=product", "model.lora.alpha=5")]
)
def test_a_stack_is_the_mean_of_the_products_without_loss(overrides):
    config = composed("stack", *overrides)
    one, served = alone(config), assemble_served(config)
    vectors = trained(one.flat.numpy())
    expected = mean_of_changes(one, vectors)
    served.load(np.concatenate(vectors))
    found = changes(served.model)
    assert found.keys() == expected.keys() and len(found) > 10
    for name, change in expected.items():
        assert np.linalg.matrix_rank(change, tol=1e-6) > RANK, "the ranks of the shards add up"
        np.testing.assert_allclose(found[name], change, atol=3e-6)
    assert served.manifest_hash == one.manifest_hash and served.flat.size == SHARDS * one.flat.size


@pytest.mark.parametrize("overrides", [(), ("model.lora.aggregation=product", "model.lora.use_rslora=true")])
def test_a_mean_is_the_nearest_of_the_rank_of_one_shard(overrides):
    """Eckart and Young: the truncated singular value decomposition of the dense mean."""
    config = composed("mean", *overrides)
    one, served = alone(config), assemble_served(config)
    vectors = trained(one.flat.numpy())
    expected = mean_of_changes(one, vectors)
    served.load(np.concatenate(vectors))
    for name, change in changes(served.model).items():
        u, s, vt = np.linalg.svd(expected[name], full_matrices=False)
        np.testing.assert_allclose(change, (u[:, :RANK] * s[:RANK]) @ vt[:RANK], atol=1e-5)


@pytest.mark.parametrize("changed", ["model.mode=full", "model.lora.aggregation=freeze_a"])
def test_numbers_that_stand_alone_are_averaged_one_by_one(changed):
    config = composed("mean", changed)
    served = assemble_served(config)
    vectors = trained(alone(config).flat.numpy())
    served.load(np.concatenate(vectors))
    np.testing.assert_allclose(served.flat.numpy(), np.mean(vectors, axis=0, dtype=np.float64), atol=1e-7)


@pytest.mark.parametrize("merge", ["mean", "stack", "ensemble"])
def test_shards_that_nobody_trained_are_the_base_model(merge):
    config = composed(merge)
    served, one = assemble_served(config), alone(config)
    np.testing.assert_array_equal(served.start, np.tile(one.flat.numpy(), SHARDS))
    served.load(served.start)
    model = served.model.choose(1) if merge == "ensemble" else served.model
    assert all(not change.any() for change in changes(model).values())


def test_an_ensemble_holds_the_shards_one_after_the_other():
    config = composed("ensemble")
    served, one = assemble_served(config), alone(config)
    vectors = trained(one.flat.numpy())
    served.load(np.concatenate(vectors))
    for number, vector in enumerate(vectors):
        one.flat.load(vector)
        found, expected = changes(served.model.choose(number)), changes(one.model)
        assert all(np.array_equal(found[name], change) for name, change in expected.items())


@pytest.mark.parametrize("merge", ["mean", "stack", "ensemble"])
def test_a_vector_of_other_shards_or_of_no_numbers_is_refused(merge):
    served = assemble_served(composed(merge))
    with pytest.raises(VectorError, match=r"expected an array of shape \(\d+,\) for 3 shards \(federation.shards\)"):
        served.load(served.start[: served.start.size // 3])
    broken = served.start.copy()
    broken[-1] = np.nan
    with pytest.raises(VectorError, match=r"1 of \d+ values are NaN or infinite"):
        served.load(broken)


def test_what_has_no_product_is_refused_with_the_key():
    config = composed("mean", "model.lora.target_modules=[embed_tokens,q_proj]")
    with pytest.raises(ModelError, match=r"federation\.shard_merge: mean takes LoRA on linear layers"):
        assemble_served(config)


def test_one_shard_is_served_as_it_is():
    config = compose("smoke", [])
    served = assemble_served(config)
    assert served.merge is None and torch.equal(served.flat.vector, alone(config).flat.vector)
