"""Folders with models and adapters as others save them: read as peft and transformers read them, or refused by name."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny_models

from oblivionis.audits.audited_model import find_target, is_model
from oblivionis.config import compose as configuration
from oblivionis.config.schema import Lora, Model
from oblivionis.data.errors import DataError
from oblivionis.data.tokenize import PromptTemplate, encode_pairs
from oblivionis.errors import OblivionisError
from oblivionis.models import loading
from oblivionis.models.assembly import assemble, assemble_untrained
from oblivionis.models.errors import ModelError
from oblivionis.models.fingerprint import fingerprint_model
from oblivionis.models.peft_adapters import attach_adapter
from oblivionis.models.source import base_of, resolve

IDS = torch.tensor([[1, 5, 9, 17, 33, 2]])
LORA: dict[str, Any] = {"peft_type": "LORA", "r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "v_proj"]}
READ: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("mistral", LORA),
    "rslora": ("qwen2", {**LORA, "use_rslora": True}),
    "dora of a tied head": ("gemma", {**LORA, "use_dora": True, "target_modules": ["lm_head", "o_proj"]}),
    "biases": ("qwen2", {**LORA, "bias": "all"}),
    "own biases": ("qwen2", {**LORA, "bias": "lora_only", "lora_bias": True}),
    "a regular expression": ("mistral", {**LORA, "target_modules": r".*layers\.1\..*(up|down)_proj"}),
    "ranks by layer": ("mistral", {**LORA, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 9}}),
    "saved modules": ("mistral", {**LORA, "modules_to_save": ["embed_tokens", "lm_head"]}),
    "saved and tied": ("gemma", {**LORA, "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    "tokens": ("mistral", {**LORA, "trainable_token_indices": [5, 9]}),
    "pissa": ("mistral", {**LORA, "init_lora_weights": "pissa"}),
    "experts": ("mixtral", {**LORA, "target_parameters": ["mlp.experts.down_proj"]}),
    "ia3": (
        "mistral",
        {"peft_type": "IA3", "target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
    ),
    "loha": ("mistral", {"peft_type": "LOHA", "r": 2, "target_modules": ["q_proj"]}),
    "lokr": ("mistral", {"peft_type": "LOKR", "r": 2, "target_modules": ["q_proj"]}),
    "vera": ("mistral", {"peft_type": "VERA", "r": 2, "target_modules": ["q_proj"]}),
    "oft": ("mistral", {"peft_type": "OFT", "oft_block_size": 8, "target_modules": ["q_proj"]}),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBLIVIONIS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root, known = tmp_path_factory.mktemp("bases"), {}

    def folder(kind: str) -> Path:
        if kind not in known:
            known[kind] = tiny_models.folder(root / kind, kind)
        return known[kind]

    return folder


def numbers(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits[0].float()


def save_adapter(folder: Path, base: Path, config: dict[str, Any], named: str | None = None) -> torch.Tensor:
    """An adapter with random numbers as peft saves it, and what peft reads from there."""
    torch.manual_seed(3)
    made = peft.get_peft_model(tiny_reference(base), peft.PeftConfig.from_peft_type(**config))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    made.peft_config["default"].base_model_name_or_path = named or str(base)
    made.save_pretrained(folder, save_embedding_layers=False)
    return numbers(peft.PeftModel.from_pretrained(tiny_reference(base), folder).eval())


def tiny_reference(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def described(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("name", list(READ))
def test_an_adapter_is_measured_as_peft_reads_it(name: str, base: Any, tmp_path: Path) -> None:
    kind, config = READ[name]
    expected = save_adapter(tmp_path / "adapter", base(kind), config)
    assert (expected - numbers(tiny_reference(base(kind)))).abs().max() > 1e-3
    target = find_target(str(tmp_path / "adapter"), None, ["model.device=cpu"])
    assert target.config.model.source == str(base(kind)) and is_model(str(tmp_path / "adapter"))
    assembled = assemble_untrained(target.config.model)
    torch.testing.assert_close(numbers(assembled.model), expected, rtol=0, atol=1e-5)
    assert assembled.flat.size == 0 and not any(p.requires_grad for p in assembled.model.parameters())
    half = find_target(str(tmp_path / "adapter"), None, ["model.device=cpu", "model.dtype=bfloat16"]).config.model
    assert (numbers(assemble_untrained(half).model) - expected).abs().max() < 1


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"peft_type": "PROMPT_TUNING"}, "peft_type is 'PROMPT_TUNING'"),
        ({"peft_type": "NEXT_YEARS"}, "peft_type is 'NEXT_YEARS'"),
        ({"peft_type": None}, "peft_type is None"),
        ({**LORA, "task_type": "SEQ_CLS"}, "task_type is 'SEQ_CLS'"),
        ({**LORA, "layer_replication": [[0, 2], [1, 2]]}, "layer_replication is"),
        ({**LORA, "alora_invocation_tokens": [5]}, "alora_invocation_tokens is"),
        ({**LORA, "use_next_year": 3}, "use_next_year is 3, which the installed peft does not know"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_its_key(config: Any, key: str, base: Any, tmp_path: Path) -> None:
    save_adapter(tmp_path, base("mistral"), LORA)
    described(tmp_path, **config)
    with pytest.raises(OblivionisError, match=re.escape(key)) as error:
        assemble_untrained(find_target(str(tmp_path), None, ["model.device=cpu"]).config.model)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"bias": "all"}, "bias is 'all', which would not be trained"),
        ({"trainable_token_indices": [5]}, "trainable_token_indices is [5]"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_by_its_key(config: Any, key: str, base: Any, tmp_path: Path) -> None:
    save_adapter(tmp_path, base("mistral"), LORA)
    described(tmp_path, **config)
    with pytest.raises(ModelError, match=re.escape(key)):
        assemble(starting(tmp_path, base("mistral")), seed=0)


def starting(adapter: Path, base: Path, *overrides: str) -> Model:
    given = [f"model.source={base}", "model.name=own", f"model.adapter={adapter}", "model.device=cpu", *overrides]
    return configuration.compose("smoke", given).model


@pytest.mark.parametrize(
    "name", ["plain", "rslora", "dora of a tied head", "ranks by layer", "saved modules", "experts"]
)
def test_a_run_starts_from_an_adapter(name: str, base: Any, tmp_path: Path) -> None:
    kind, config = READ[name]
    expected = save_adapter(tmp_path / "adapter", base(kind), config)
    model = starting(tmp_path / "adapter", base(kind))
    assert (model.lora.rank, model.lora.alpha, model.lora.dropout) == (3, 5.0, 0.0)
    assembled, other = assemble(model, seed=0), assemble(model, seed=1)
    assert np.array_equal(assembled.flat.numpy(), other.flat.numpy()), "nothing is drawn"
    torch.testing.assert_close(numbers(assembled.model), expected, rtol=0, atol=1e-5)
    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert assembled.flat.size == sum(t.numel() for t in stored.values())


def test_an_adapter_that_brings_base_weights_is_measured_but_not_trained_on(base: Any, tmp_path: Path) -> None:
    """As peft saves one with `save_embedding_layers`: what is neither trained nor sent would be lost on the way."""
    kind, config = READ["plain"]
    made = peft.get_peft_model(tiny_reference(base(kind)), peft.PeftConfig.from_peft_type(**config))
    with torch.no_grad():
        made.get_input_embeddings().weight.add_(0.1)
    made.save_pretrained(tmp_path, save_embedding_layers=True)
    reference = peft.PeftModel.from_pretrained(tiny_reference(base(kind)), tmp_path).eval()
    read = attach_adapter(tiny_reference(base(kind)), tmp_path)
    torch.testing.assert_close(numbers(read), numbers(reference))
    with pytest.raises(ModelError, match=r"holds base weights \(.*embed_tokens"):
        assemble(starting(tmp_path, base(kind)), seed=0)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.lora.rank=4", "model.lora.rank: 4 is not the adapter's"),
        ("model.lora.alpha=6", "model.lora.alpha: 6.0 is not the adapter's"),
        ("model.lora.use_dora=true", "model.lora.use_dora: True is not the adapter's"),
        ("model.lora.target_modules=[q_proj]", "model.lora.target_modules: ['q_proj'] is not the adapter's"),
        ("model.lora.modules_to_save=[lm_head]", "model.lora.modules_to_save: ['lm_head'] is not the adapter's"),
        ("model.mode=full", "model.mode: full trains all weights"),
        ("model.lora.ranks=[1,2]", "model.lora.ranks: an adapter has one rank"),
        ("model.adapter=/no/such", "model.adapter: /no/such/adapter_config.json: no such file"),
    ],
)
def test_settings_that_contradict_the_adapter_are_named(override: str, message: str, base: Any, tmp_path: Path) -> None:
    save_adapter(tmp_path, base("mistral"), LORA)
    with pytest.raises(configuration.ConfigError, match=re.escape(message)):
        starting(tmp_path, base("mistral"), override)


def test_the_fingerprint_covers_the_adapter(base: Any, tmp_path: Path) -> None:
    folder = base("mistral")
    save_adapter(tmp_path / "one", folder, LORA)
    shutil.copytree(tmp_path / "one", tmp_path / "same")
    described(tmp_path / "same", base_model_name_or_path="elsewhere", inference_mode=False)
    shutil.copytree(tmp_path / "one", tmp_path / "scaled")
    described(tmp_path / "scaled", lora_alpha=6)
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    weights = tmp_path / "other" / "adapter_model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(weights).items()}, weights)
    plain = fingerprint_model(Model(source=str(folder)))
    one, same, scaled, other = (
        fingerprint_model(Model(source=str(folder), adapter=str(tmp_path / name)))
        for name in ("one", "same", "scaled", "other")
    )
    assert one == same and len({plain, one, scaled, other}) == 4


def test_where_the_base_model_of_an_adapter_lies(base: Any, tmp_path: Path) -> None:
    folder = base("mistral")
    save_adapter(tmp_path / "adapter", folder, LORA)
    for named, expected in ((str(folder), str(folder)), ("../base", str(tmp_path / "base")), ("embedded", "embedded")):
        if named == "../base":
            (tmp_path / "base").symlink_to(folder)
        described(tmp_path / "adapter", base_model_name_or_path=named)
        assert Path(base_of(tmp_path / "adapter")).resolve() == Path(expected).resolve()
    described(tmp_path / "adapter", base_model_name_or_path="/no/such/base")
    with pytest.raises(
        ModelError, match=r"^[^\n]*base_model_name_or_path is /no/such/base, and there is no such folder$"
    ):
        find_target(str(tmp_path / "adapter"), None, [])
    found = find_target(str(tmp_path / "adapter"), None, [f"model.source={folder}"]).config.model
    assert found.source == str(folder) and found.adapter == str(tmp_path / "adapter")
    described(tmp_path / "adapter", base_model_name_or_path=None)
    with pytest.raises(ModelError, match="names no base model"):
        base_of(tmp_path / "adapter")


def test_an_adapter_beside_a_whole_model_is_refused(base: Any, tmp_path: Path) -> None:
    save_adapter(tmp_path, base("mistral"), LORA)
    for file in base("mistral").iterdir():
        shutil.copy(file, tmp_path)
    for call in (lambda: resolve(str(tmp_path)), lambda: find_target(str(tmp_path), None, [])):
        with pytest.raises(ModelError, match=r"holds an adapter .* and the weights of a whole model \(model\.saf"):
            call()


def test_an_adapter_is_no_base_model(base: Any, tmp_path: Path) -> None:
    save_adapter(tmp_path, base("mistral"), LORA)
    with pytest.raises(ModelError, match=r"holds an adapter; give it as model\.adapter"):
        loading.load_base(str(tmp_path))


@pytest.mark.parametrize("fault", ["lacks", "beyond", "shape", "no weights", "torn"])
def test_an_adapter_that_does_not_fit_is_refused(fault: str, base: Any, tmp_path: Path) -> None:
    save_adapter(tmp_path, base("mistral"), LORA)
    file = tmp_path / "adapter_model.safetensors"
    tensors = load_file(file)
    name = min(tensors)
    if fault == "lacks":
        del tensors[name]
    elif fault == "beyond":
        tensors[name.replace("layers.0", "layers.7")] = tensors[name].clone()
    elif fault == "shape":
        tensors[name] = torch.zeros(3, 5)
    save_file(tensors, file)
    if fault == "no weights":
        file.unlink()
    elif fault == "torn":
        file.write_bytes(file.read_bytes()[:100])
    expected = {"lacks": "lacks .*layers.0", "beyond": "no place for .*layers.7", "shape": "does not fit the model"}
    with pytest.raises(ModelError, match=expected.get(fault, "adapter_model|does not fit")) as error:
        assemble_untrained(Model(source=str(base("mistral")), adapter=str(tmp_path), device="cpu"))
    assert "\n" not in str(error.value)


@pytest.fixture
def copy(base: Any, tmp_path: Path) -> Callable[[str], Path]:
    return lambda kind: Path(shutil.copytree(base(kind), tmp_path / kind))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("mistral", {"model.layers.0.mlp.up_proj.weight": None}, r"lacks model\.layers\.0\.mlp\.up_proj\.weight$"),
        ("mistral", {"lm_head.weight": None}, r"lacks lm_head\.weight$"),
        (
            "mixtral",
            {"model.layers.1.mlp.gate.weight": None, "model.layers.1.block_sparse_moe.gate.weight": None},
            "lacks",
        ),
        (
            "mistral",
            {"model.norm.weight": (9,)},
            r"model\.norm\.weight has shape \(9,\), and config\.json says \(16,\)",
        ),
        ("mistral", {"model.layers.2.mlp.up_proj.weight": (24, 16)}, r"no place for model\.layers\.2"),
        ("mistral", {"model.layers.0.self_attn.q_proj.lora_A.weight": (2, 16)}, r"no place for .*lora_A"),
        ("mistral", {"model.layers.0.self_attn.q_proj.bias": (16,)}, r"no place for .*q_proj\.bias"),
        ("mistral", {"lm_head.bias": (61,)}, r"no place for lm_head\.bias"),
    ],
)
def test_tensors_that_are_missing_or_left_over_are_named(copy: Any, kind: str, change: Any, message: str) -> None:
    folder = copy(kind)
    tensors = load_file(folder / "model.safetensors")
    for name, shape in change.items():
        if shape is None:
            tensors.pop(name, None)
        else:
            tensors[name] = torch.zeros(shape)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=message) as error:
        loading.load_base(str(folder))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("mistral", {"model.layers.0.self_attn.rotary_emb.inv_freq": (4,), "v_head.summary.weight": (1, 16)}),
        ("gemma", {"lm_head.weight": None}),
        ("gpt2", {"transformer.h.0.attn.bias": (1, 1, 64, 64), "transformer.h.0.attn.masked_bias": ()}),
        ("mistral", {"vision_tower.patch.weight": (3, 3)}),
    ],
)
def test_what_lies_beside_the_language_model_may_stay(copy: Any, kind: str, more: Any) -> None:
    folder = copy(kind)
    expected = numbers(loading.load_base(str(folder))[0])
    tensors = load_file(folder / "model.safetensors")
    tied = tensors.get("model.embed_tokens.weight", torch.zeros(0))
    tensors |= {name: tied.clone() if shape is None else torch.zeros(shape) for name, shape in more.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(numbers(loading.load_base(str(folder))[0]), expected)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("num_hidden_layers", v) for v in (1, 3, -1, "two", None)],
        *[("hidden_size", v) for v in (0, 32, "wide")],
        *[("vocab_size", v) for v in (-1, 7, [])],
        *[("model_type", v) for v in ("nonsense", None, 3)],
        *[("num_attention_heads", v) for v in (0, 4)],
    ],
)
def test_nonsense_in_a_configuration_is_one_line(copy: Any, key: str, value: Any) -> None:
    folder = copy("mistral")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(ModelError, match=r"^[^\n]+$"):
        loading.load_base(str(folder))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"architectures": ["MistralForSequenceClassification"]}, "MistralForSequenceClassification is no causal"),
        ({"architectures": ["MistralModel"]}, "MistralModel is no causal language model"),
        ({"is_causal": False}, "mistral is no causal language model"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config: fp8; expected bitsandbytes' int8"),
        (
            {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
            "set model.quantization=int8",
        ),
        (
            {"quantization_config": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}},
            "kept as nf4 .*set model.quantization=nf4",
        ),
    ],
)
def test_what_a_configuration_says_of_its_weights_is_taken_at_its_word(copy: Any, more: Any, message: str) -> None:
    path = copy("mistral") / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
    with pytest.raises(ModelError, match=rf"^[^\n]*{message}[^\n]*$"):
        loading.load_base(str(path.parent))


def test_a_configuration_that_wants_tuples_gives_the_same_numbers(copy: Any, base: Any) -> None:
    path = copy("mistral") / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "return_dict": False}))
    torch.testing.assert_close(
        numbers(loading.load_base(str(path.parent))[0]), numbers(tiny_reference(base("mistral")))
    )


def test_damaged_weights_are_told_when_they_are_loaded(copy: Any) -> None:
    file = copy("mistral") / "model.safetensors"
    weights = load_file(file)
    weights["lm_head.weight"][0, 0] = math.nan
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="is no number: its weights may be damaged"):
        loading.load_base(str(file.parent))


def test_records_longer_than_the_learned_positions_are_named(base: Any) -> None:
    _, known = loading.load_base(str(base("gpt2")))
    text = "a b c " * 40
    with pytest.raises(
        DataError, match=r"longer than the 64 positions that the model learned(.|\n)*pair 0: \d+ tokens"
    ):
        encode_pairs([("q", text)], known, PromptTemplate())
    assert encode_pairs([("q", text)], loading.load_base(str(base("mistral")))[1], PromptTemplate())


@pytest.mark.parametrize("kind", ["mistral", "phi", "gpt2", "gemma", "qwen3", "gpt_neox", "mixtral"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_evaluation_changes_no_number_format(base: Any, kind: str, dtype: str) -> None:
    config = Model(source=str(base(kind)), dtype=dtype, device="cpu", lora=Lora(dropout=0.0))  # type: ignore[arg-type]
    assembled = assemble_untrained(config)
    assert {p.dtype for p in assembled.model.parameters()} == {getattr(torch, dtype)}
    expected = numbers(tiny_reference(base(kind)))
    assert (numbers(assembled.model) - expected).abs().max() < 0.1 * expected.abs().max()


@pytest.mark.parametrize("kind", ["mistral", "phi", "gpt2", "gemma", "qwen3", "gpt_neox", "mixtral"])
def test_all_weights_are_trained_in_float32_whatever_the_number_format(base: Any, kind: str) -> None:
    config = Model(source=str(base(kind)), dtype="bfloat16", mode="full", device="cpu")
    assembled = assemble(config, seed=0)
    numbers_of_all = numbers(assembled.model)
    assembled.model(input_ids=IDS).logits.float().square().mean().backward()
    assert {p.dtype for p in assembled.model.parameters()} == {torch.float32}
    assert assembled.flat.grad.abs().max() > 0 and torch.isfinite(numbers_of_all).all()
