"""LoRA of every kind on several architectures, held against peft itself, one record at a time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from support import tiny_models
from transformers import AutoModelForCausalLM

from clients.per_record_gradients import clipped_sum
from clients.training import TrainSettings, train
from evaluation.engine.forward import answer_logits, packed_batch
from evaluation.engine.merging import merged
from evaluation.engine.sequences import TokenSequence
from oblivionis.config.schema import Lora, Model
from oblivionis.models import adapters, lora
from oblivionis.models.assembly import Assembled, assemble, averaging, refitted
from oblivionis.models.errors import ModelError
from oblivionis.models.parameter_layers import layers_of
from oblivionis.models.parameter_roles import Role, file_key, module_of, role
from oblivionis.models.random_model import expected_distance

RECORDS = [
    TokenSequence((1, 5, 9), (17, 2)),
    TokenSequence((1, 30), (8, 44, 12, 2)),
    TokenSequence((1, 7, 7, 50), (3,)),
]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lm_head": ("mistral", {"target_modules": ["q_proj", "lm_head"]}),
    "embed_tokens": ("qwen2", {"target_modules": ["v_proj", "embed_tokens"]}),
    "tied head": ("gemma", {"target_modules": ["q_proj", "lm_head"]}),
    "tied embedding": ("gemma", {"target_modules": ["q_proj", "embed_tokens"]}),
    "tied both": ("gpt2", {"target_modules": ["wte", "lm_head", "c_attn"]}),
    "all-linear": ("mistral", {"target_modules": ["all-linear"]}),
    "all-linear and head": ("qwen2", {"target_modules": ["all-linear", "lm_head"]}),
    "by architecture": ("gpt2", {"target_modules": None}),
    "saved": ("mistral", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head", "norm"]}),
    "saved tied": ("gemma", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    "rslora": ("qwen2", {"target_modules": ["q_proj", "down_proj"], "use_rslora": True}),
    "dora": ("mistral", {"target_modules": ["q_proj", "lm_head", "embed_tokens"], "use_dora": True}),
    "dora tied": ("gemma", {"target_modules": ["o_proj", "lm_head"], "use_dora": True, "use_rslora": True}),
    "llama": ("llama", {"target_modules": ["q_proj", "lm_head", "embed_tokens"]}),
    "llama saved": ("llama", {"target_modules": ["v_proj"], "modules_to_save": ["embed_tokens", "lm_head", "norm"]}),
    "experts": ("mixtral", {"target_modules": ["q_proj"], "target_parameters": EXPERTS}),
    "experts alone": ("qwen3_moe", {"target_modules": [], "target_parameters": EXPERTS[:1]}),
}


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root, known = tmp_path_factory.mktemp("models"), {}

    def folder(kind: str) -> Path:
        if kind not in known:
            known[kind] = tiny_models.folder(root / kind, kind)
        return known[kind]

    return folder


def settings(folder: Path, dtype: str = "float32", **changes: Any) -> Model:
    own = {"rank": 3, "alpha": 6.0, "dropout": 0.0, **changes}
    return Model(name="own", source=str(folder), dtype=dtype, device="cpu", lora=Lora(**own))  # type: ignore[arg-type]


def logits(model: Any, record: TokenSequence) -> torch.Tensor:
    """Of the answer's tokens, by the model's own forward pass of this record alone."""
    ids = torch.tensor([[*record.prompt, *record.answer]])
    return model(input_ids=ids).logits[0, len(record.prompt) - 1 : -1].float()


def all_logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([logits(model, record) for record in RECORDS])


def steps(assembled: Assembled) -> None:
    """Two updates of one record each and one of all, at a rate that moves everything."""
    options = TrainSettings(epochs=2, learning_rate=3e-2, batch_size=2, warmup_epochs=0.0)
    train(assembled.model, assembled.flat, RECORDS, options, seed=0)
    assembled.model.eval()


def reference(folder: Path, dtype: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest, folders: Any, dtype: str) -> tuple[Path, Model]:
    kind, changes = CASES[request.param]
    return folders(kind), settings(folders(kind), dtype, **changes)


def test_every_kind_is_trained_sent_exported_merged_and_reloaded(case: Any, dtype: str, tmp_path: Path) -> None:
    folder, config = case
    base = all_logits(reference(folder, dtype))
    torch.manual_seed(5)
    assembled, again = assemble(config, seed=7), assemble(config, seed=7)
    flat, coarse = assembled.flat, dtype != "float32"

    # The start: the base model, and the same numbers at each load; in half precision DoRA divides what it rounded.
    assert np.array_equal(flat.numpy(), again.flat.numpy()) and flat.manifest == again.flat.manifest
    torch.testing.assert_close(all_logits(assembled.model), base, rtol=0, atol=0.1 if coarse else 1e-5)
    assert {p.dtype for p in assembled.model.parameters() if p.requires_grad} == {torch.float32}
    trained_dtypes = {n: p.dtype for n, p in assembled.model.named_parameters() if role(n) is None}
    assert set(trained_dtypes.values()) == {getattr(torch, dtype)}

    # A step reaches every parameter, and the vector is all of what it made.
    start = adapters.unflatten(flat.numpy(), flat.manifest)
    steps(assembled)
    vector = flat.numpy()
    for name, values in adapters.unflatten(vector, flat.manifest).items():
        assert np.isfinite(values).all() and not np.array_equal(values, start[name]), name
    own = all_logits(assembled.model)
    assert (own - base).abs().max() > 0.1
    again.flat.load(vector)
    assert torch.equal(all_logits(again.model), own)
    assert assembled.start is not None
    again.flat.load(assembled.start)
    torch.testing.assert_close(all_logits(again.model), base, rtol=0, atol=0.1 if coarse else 1e-5)

    # As an adapter, by our file and by peft's own.
    peft_config = assembled.model.peft_config["default"]
    adapters.to_peft(tmp_path / "ours", vector, flat.manifest, peft_config, base="someone/model")
    assembled.model.save_pretrained(tmp_path / "peft", save_embedding_layers=False)
    for place in ("ours", "peft"):
        loaded = PeftModel.from_pretrained(reference(folder, dtype), tmp_path / place).eval()
        torch.testing.assert_close(all_logits(loaded), own, rtol=0, atol=0.3 if coarse else 1e-6)

    # Merged, here and from the folder.
    plain: Any = merged(assembled.model)
    assert {p.dtype for p in plain.parameters()} == {getattr(torch, dtype)}
    torch.testing.assert_close(all_logits(plain), own, rtol=0, atol=0.5 if coarse else 1e-4)
    plain.save_pretrained(tmp_path / "merged")
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    assert torch.equal(all_logits(reloaded), all_logits(plain))


def test_gradients_are_pefts(case: Any, dtype: str) -> None:
    """Of the packed or padded pass, against plain peft with one record at a time."""
    _, config = case
    assembled = assemble(config, seed=7)
    rng = np.random.default_rng(0)
    moved = assembled.flat.numpy()
    assembled.flat.load(moved + rng.normal(scale=0.05, size=moved.shape).astype(np.float32))
    model = assembled.model
    weights = [torch.randn(len(r.answer), tiny_models.ROWS) for r in RECORDS]
    batch = packed_batch(model, RECORDS)
    (answer_logits(model, batch).float() * torch.cat(weights)).sum().backward()
    found = assembled.flat.grad.clone()
    assembled.flat.zero_grad()
    for record, weight in zip(RECORDS, weights, strict=True):
        (logits(model, record) * weight).sum().backward()
    expected = assembled.flat.grad
    assert expected.abs().max() > 0
    scale = expected.abs().max().item()
    torch.testing.assert_close(found, expected, rtol=0, atol=scale * (0.1 if dtype == "bfloat16" else 1e-4))


@pytest.mark.parametrize("name", ["lm_head", "embed_tokens", "saved", "dora", "experts", "experts alone", "rslora"])
def test_gradients_of_single_records_are_clipped_whatever_is_trained(name: str, folders: Any) -> None:
    kind, changes = CASES[name]
    assembled = assemble(settings(folders(kind), **changes), seed=1)
    flat = assembled.flat
    rng = np.random.default_rng(1)
    flat.load(flat.numpy() + rng.normal(scale=0.05, size=flat.size).astype(np.float32))

    def losses(numbers: Sequence[int]) -> torch.Tensor:
        chosen = [RECORDS[i] for i in numbers]
        batch = packed_batch(assembled.model, chosen)
        logp = answer_logits(assembled.model, batch).log_softmax(-1).gather(1, batch.labels[:, None])[:, 0]
        return torch.stack([-part.sum() for part in logp.split([len(r.answer) for r in chosen])])

    found = []
    for exactly in (False, True):
        flat.zero_grad()
        norms = clipped_sum(assembled.model, flat, RECORDS, losses, 0.5, exactly=exactly)
        found.append((norms, flat.grad.clone()))
    assert found[0][1].norm() > 0.1
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)


def test_the_start_depends_on_the_seed_alone(folders: Any) -> None:
    config = settings(folders("mistral"), target_modules=["q_proj", "embed_tokens"], modules_to_save=["lm_head"])
    torch.manual_seed(1)
    one = assemble(config, seed=3).flat.numpy()
    state = torch.get_rng_state()
    two, other = assemble(config, seed=3).flat.numpy(), assemble(config, seed=4).flat.numpy()
    assert np.array_equal(one, two) and not np.array_equal(one, other)
    assert torch.equal(state, torch.get_rng_state())


def test_roles_of_pefts_names() -> None:
    names = {
        "base_model.model.a.lora_A.default.weight": (Role.A, "base_model.model.a", "base_model.model.a.lora_A.weight"),
        "x.e.lora_embedding_B.default": (Role.EMBEDDING_B, "x.e", "x.e.lora_embedding_B"),
        "x.q.lora_magnitude_vector.default.weight": (Role.MAGNITUDE, "x.q", "x.q.lora_magnitude_vector"),
        "x.head.modules_to_save.default.weight": (Role.SAVED, "x.head", "x.head.weight"),
        "model.norm.weight": (None, "model.norm", "model.norm.weight"),
        "model.lora_Ada.bias": (None, "model.lora_Ada", "model.lora_Ada.bias"),
        "mlp.experts.gate_up_proj": (None, "mlp.experts.gate_up_proj", "mlp.experts.gate_up_proj"),
    }
    for name, expected in names.items():
        assert (role(name), module_of(name), file_key(name)) == expected


def test_all_of_a_layer_is_one_layer(folders: Any) -> None:
    config = settings(folders("mistral"), target_modules=["q_proj", "embed_tokens"], use_dora=True)
    flat = assemble(config, seed=0).flat
    assert len(set(layers_of(flat).tolist())) == 3, "two blocks' q_proj and the embedding"


def test_a_llama_and_an_unknown_architecture_have_targets(caplog: pytest.LogCaptureFixture) -> None:
    assert lora.default_targets(tiny_models.model("llama")) == [
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    ]
    assert lora.default_targets(tiny_models.model("mistral")) == ["q_proj", "v_proj"]
    with caplog.at_level(logging.WARNING):
        found = lora.default_targets(tiny_models.model("olmo2"))
    assert len(found) == 14 and not any("lm_head" in name for name in found)
    assert "peft names no LoRA targets for olmo2" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_modules": ["q_proj", "proj"]}, r"model\.lora\.target_modules: .* no linear layer for: proj; it has"),
        ({"modules_to_save": ["head"]}, r"model\.lora\.modules_to_save: the model has no module head$"),
        ({"target_parameters": ["experts"]}, r"model\.lora\.target_parameters: the model has no parameter experts$"),
        ({"target_modules": []}, r"^model\.lora: [^\n]+$"),
        ({"target_modules": ["embed_tokens"], "aggregation": "freeze_a"}, r"aggregation: freeze_a .*embed_tokens"),
    ],
)
def test_what_does_not_fit_names_its_key(folders: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        assemble(settings(folders("mistral"), **{"target_modules": ["q_proj"], **changes}), seed=0)


@pytest.mark.parametrize("changes", [{"target_modules": ["q_proj", "embed_tokens"]}, {"use_dora": True}])
def test_products_need_pairs(folders: Any, changes: dict[str, Any]) -> None:
    config = settings(folders("mistral"), **{"target_modules": ["q_proj"], "aggregation": "product", **changes})
    with pytest.raises(ModelError, match=r"set model\.lora\.aggregation=factors"):
        averaging(config, assemble(config, seed=0).flat.manifest)


def test_saved_modules_are_averaged_as_they_are(folders: Any) -> None:
    config = settings(folders("mistral"), target_modules=["q_proj"], modules_to_save=["lm_head"], aggregation="product")
    assembled = assemble(config, seed=0)
    mean = averaging(config, assembled.flat.manifest)
    assert mean is not None
    rows = [assembled.flat.numpy(), assembled.flat.numpy() + 1]
    saved = assembled.flat.mask([".modules_to_save."]).numpy()
    np.testing.assert_allclose(mean(rows, [0.25, 0.75])[saved], rows[0][saved] + 0.75, rtol=1e-6)


@pytest.mark.slow
def test_distance_from_a_random_embedding_adapter(folders: Any) -> None:
    config = settings(folders("mistral"), target_modules=["q_proj", "embed_tokens"])
    flat = assemble(config, seed=0).flat
    zero = np.zeros(flat.size, np.float32)
    drawn = [np.linalg.norm(assemble(config, seed=s).flat.numpy()) ** 2 for s in range(20)]
    assert expected_distance(zero, flat.manifest, "lora", 0.02) == pytest.approx(np.sqrt(np.mean(drawn)), rel=0.05)


def test_refitted_models_keep_the_scale_of_rslora(folders: Any) -> None:
    from oblivionis.models.assembly import of_rank

    config = settings(folders("mistral"), target_modules=["q_proj"], use_rslora=True)
    lower = refitted(assemble(config, seed=0), of_rank(config, 1), seed=0)
    layer: Any = lower.model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
    assert layer.scaling["default"] == pytest.approx(6.0 / np.sqrt(3))
