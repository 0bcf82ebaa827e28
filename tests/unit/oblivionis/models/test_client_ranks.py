"""What a model with a client's adapters computes, beside the truncated products of the server's."""

import dataclasses

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from evaluation.engine.fused_lora import active_factors
from oblivionis.config.compose import compose
from oblivionis.models.adapters import lora_pairs
from oblivionis.models.assembly import assemble, of_rank, refitted
from oblivionis.models.client_ranks import fitting
from oblivionis.models.errors import ModelError
from strategies import message_keys

MODEL = compose("smoke", ["model.lora.aggregation=product", "model.lora.rank=12", "model.lora.ranks=[5,12]"]).model


def changes(assembled):
    """What the adapters add to each weight, scale included."""
    modules = ((n, active_factors(m)) for n, m in assembled.model.eval().named_modules())
    return {n: f[2] * f[1].detach().double().numpy() @ f[0].detach().double().numpy() for n, f in modules if f}


def test_a_client_of_a_lower_rank_computes_with_the_truncated_product_and_the_server_gets_it_back():
    server = assemble(MODEL, 1)
    vector = server.flat.numpy() + np.random.default_rng(0).normal(size=server.flat.size).astype(np.float32) / 50
    server.flat.load(vector)
    whole = changes(server)
    own = fitting(MODEL, server.flat.manifest, lambda client: 12)("train", ArrayRecord({"adapter": Array(vector)}))(0)
    assert own.settings[message_keys.LORA_RANK] == 5
    client = refitted(assemble(MODEL, 1), of_rank(MODEL, 5), 1)
    assert client.manifest_hash == own.settings["manifest-hash"]
    client.flat.load(own.sent["adapter"].numpy())
    cut = changes(client)
    assert whole.keys() == cut.keys() and len(whole) > 10
    for name, change in whole.items():
        u, s, vt = np.linalg.svd(change, full_matrices=False)
        np.testing.assert_allclose(cut[name], (u[:, :5] * s[:5]) @ vt[:5], atol=2e-6)
    learned = client.flat.numpy() * np.float32(1.1)
    client.flat.load(learned)
    server.flat.load(own.joined(ArrayRecord({"adapter": Array(learned)}))["adapter"].numpy())
    for name, change in changes(server).items():
        np.testing.assert_allclose(change, whole[name] - cut[name] + changes(client)[name], atol=5e-6)


def test_a_model_can_be_fitted_again_and_again():
    """A process plays clients of several ranks on one base model; what was drawn from the seed is so again."""
    fresh = assemble(MODEL, 1)
    vector, weights = fresh.flat.numpy(), [p.clone() for p in fresh.model.parameters() if not p.requires_grad]
    fitted = fresh
    for rank in (5, 12, 3, 12):
        fitted = refitted(fitted, of_rank(MODEL, rank), 1)
        assert {pair.rank for pair in lora_pairs(fitted.flat.manifest)} == {rank}
    assert fitted.flat.manifest == fresh.flat.manifest and fitted.manifest_hash == fresh.manifest_hash
    assert np.array_equal(fitted.flat.numpy(), vector)
    again = [p for p in fitted.model.parameters() if not p.requires_grad]
    assert len(again) == len(weights) and all((a == b).all() for a, b in zip(again, weights, strict=True))


def test_no_client_gets_a_larger_rank_than_its_node_trains():
    manifest = assemble(MODEL, 1).flat.manifest
    of_client = fitting(MODEL, manifest, lambda client: 3 if client == 1 else 12)("train", _start(manifest))
    assert [None if (own := of_client(c)) is None else own.settings[message_keys.LORA_RANK] for c in range(4)] == [
        5,
        3,
        5,
        None,
    ]


def test_a_client_may_unlearn_with_the_servers_rank_as_far_as_its_node_allows():
    full = dataclasses.replace(MODEL, lora=dataclasses.replace(MODEL.lora, unlearning_rank="full"))
    manifest = assemble(MODEL, 1).flat.manifest
    own = fitting(full, manifest, lambda client: 3 if client == 2 else 12)
    for kind, expected in (("train", [5, None, 3]), ("unlearn", [None, None, 3]), ("calibrate", [5, None, 3])):
        found = [own(kind, _start(manifest))(client) for client in range(3)]
        assert [one and one.settings[message_keys.LORA_RANK] for one in found] == expected


def test_a_rank_beyond_the_narrowest_layer_is_refused():
    lora = dataclasses.replace(MODEL.lora, rank=400, ranks=[300])
    with pytest.raises(ModelError, match=r"model\.lora\.ranks: the model has a layer of \d+ inputs, and 300 is more"):
        manifest = [("m.lora_A.default.weight", (400, 64)), ("m.lora_B.default.weight", (64, 400))]
        fitting(dataclasses.replace(MODEL, lora=lora), manifest, lambda client: 400)


def test_a_node_that_trains_less_than_the_run_gets_no_more_than_the_narrowest_layer_holds():
    lora = dataclasses.replace(MODEL.lora, rank=12, ranks=[12, 4])
    manifest = [("m.lora_A.default.weight", (12, 8)), ("m.lora_B.default.weight", (20, 12))]
    own = fitting(dataclasses.replace(MODEL, lora=lora), manifest, {0: 10, 1: 10, 2: 12}.__getitem__)
    found = [own("train", _start(manifest))(client) for client in range(3)]
    assert [one and one.settings[message_keys.LORA_RANK] for one in found] == [8, 4, None]


def test_without_a_list_nobody_has_a_form_of_its_own():
    lora = dataclasses.replace(MODEL.lora, ranks=None)
    assert fitting(dataclasses.replace(MODEL, lora=lora), [], lambda client: 12) is None


def _start(manifest):
    rng = np.random.default_rng(0)
    return ArrayRecord({"adapter": Array(rng.normal(size=sum(np.prod(s) for _, s in manifest)).astype(np.float32))})
