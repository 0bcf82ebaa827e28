"""Loading, LoRA, flat vectors, peft export, fingerprints: on a small Llama built here."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from clients.flat_parameters import FlatParameters
from oblivionis.models import adapters, dry_run, loading, lora
from oblivionis.models import fingerprint as fp
from oblivionis.models.errors import ModelError

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LORA = {"rank": 4, "alpha": 8.0, "dropout": 0.0, "target_modules": TARGETS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(["who wrote the book of the sea"] * 5, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>")
    tokenizer.save_pretrained(path)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OBLIVIONIS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    target = tmp_path / "copy"
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(12).reshape(2, 6)).logits


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
def test_weights_of_the_stored_dtype_are_mapped_not_copied(folder: Path) -> None:
    model, _ = loading.load_base(str(folder), dtype="float32")
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    mapped = [line[0].split("-") for line in lines if line[-1] == str((folder / "model.safetensors").resolve())]
    places = [(int(start, 16), int(end, 16)) for start, end in mapped]
    assert places
    for name, weight in model.named_parameters():
        assert any(start <= weight.data_ptr() < end for start, end in places), name


def test_load_base_from_a_folder(folder: Path) -> None:
    model, tokenizer = loading.load_base(str(folder))
    reference = LlamaForCausalLM.from_pretrained(folder)
    assert torch.equal(logits(model), logits(reference))
    assert not model.training and next(model.parameters()).dtype == torch.float32
    assert tokenizer.pad_token == "</s>" and len(tokenizer) <= model.get_input_embeddings().num_embeddings
    half, _ = loading.load_base(str(folder), dtype="bfloat16", attn_implementation="eager")
    assert next(half.parameters()).dtype == torch.bfloat16
    assert half.config._attn_implementation == "eager"


def test_padding_prefers_a_token_made_for_it(copy: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(copy)
    tokenizer.backend_tokenizer.add_special_tokens(["<|finetune_right_pad_id|>"])
    tokenizer.save_pretrained(copy)
    size = len(tokenizer)
    model, loaded = loading.load_base(str(copy))
    assert loaded.pad_token == "<|finetune_right_pad_id|>" and loaded.padding_side == "right"
    assert len(loaded) == size and model.get_input_embeddings().num_embeddings == 300


def test_a_tokenizer_larger_than_the_embeddings_is_refused_where_a_record_needs_it(copy: Path) -> None:
    from transformers import AutoTokenizer

    from oblivionis.data.errors import DataError
    from oblivionis.data.records import Record
    from oblivionis.data.tokenize import PromptTemplate, encode_all, encode_prompts

    tokenizer = AutoTokenizer.from_pretrained(copy)
    tokenizer.add_tokens([f"<extra{i}>" for i in range(301 - len(tokenizer))])
    tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
    tokenizer.save_pretrained(copy)
    model, loaded = loading.load_base(str(copy))
    assert len(loaded) == 302 and loaded.pad_token_id < 300
    fine, template = Record("fine", "who?", "the sea", "author"), PromptTemplate()
    last = tokenizer.convert_ids_to_tokens(300)
    bad = Record("bad", "who?", f"the {last}", "author")
    assert len(encode_all([fine], loaded, template)[0]) == 1
    with pytest.raises(DataError, match=r"bad: token 300 \('<extra") as error:
        encode_all([fine, bad], loaded, template)
    assert error.value.problems and len(error.value.problems) == 1
    (prompt,) = encode_prompts([f"{last}?"], loaded, template)
    with pytest.raises(ModelError, match=r"token 300 \('<extra.*embeds only the first 300"):
        model(torch.tensor([prompt]))


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("/no/such/folder", {}, "no such model folder"),
        ("FOLDER", {"dtype": "int8"}, "unknown dtype 'int8'"),
        ("FOLDER", {"device": "tpu!"}, "unknown device 'tpu!'"),
        ("FOLDER", {"attn_implementation": "nonsense"}, "cannot load the model"),
    ],
)
def test_load_base_refuses(folder: Path, source: str, options: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        loading.load_base(source.replace("FOLDER", str(folder)), **options)


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        loading.load_base(str(tmp_path))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_asked_for_without_gpu(folder: Path) -> None:
    with pytest.raises(ModelError, match="torch sees no GPU"):
        loading.load_base(str(folder), device="cuda")
    assert next(loading.load_base(str(folder), device="auto")[0].parameters()).device.type == "cpu"


def test_hub_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    calls = []

    def download(name: str, **options) -> str:
        calls.append((name, options))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert loading.resolve("someone/model", "main") == folder
    assert calls[0][0] == "someone/model" and calls[0][1]["revision"] == "main"
    assert not any("bin" in pattern or "pt" in pattern for pattern in calls[0][1]["allow_patterns"])

    def offline(name: str, **options) -> str:
        raise ConnectionError("no route to the hub\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ModelError, match=r"'someone/model'.*no route to the hub\n.*set model.source to a folder"):
        loading.load_base("someone/model")


def attached(folder: Path, seed: int = 0, **changes):
    return lora.attach_lora(loading.load_base(str(folder))[0], seed=seed, **{**LORA, **changes})


def adapter_state(model) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters() if "lora_" in n}


def test_lora_starts_as_the_base_model(folder: Path) -> None:
    base, _ = loading.load_base(str(folder))
    before = logits(base)
    model = lora.attach_lora(base, seed=3, **LORA)
    assert torch.equal(logits(model), before)
    state = adapter_state(model)
    assert len(state) == 2 * 7 * 2
    assert all(not p.any() for n, p in state.items() if "lora_B" in n)
    for name, p in state.items():
        if "lora_A" in name:
            bound = 1 / math.sqrt(p.shape[1])
            assert p.shape[0] == 4 and 0.8 * bound < p.abs().max() <= bound
    assert model.peft_config["default"].bias == "none"


def test_lora_init_depends_on_its_seed_only(folder: Path) -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = adapter_state(attached(folder, seed=5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    again, other = adapter_state(attached(folder, seed=5)), adapter_state(attached(folder, seed=6))
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert all(not torch.equal(first[n], other[n]) for n in first if "lora_A" in n)


def test_lora_on_half_precision_is_float32(folder: Path) -> None:
    base, _ = loading.load_base(str(folder), dtype="bfloat16")
    model = lora.attach_lora(base, seed=0, **LORA)
    assert {p.dtype for p in adapter_state(model).values()} == {torch.float32}
    full = adapter_state(attached(folder))
    assert all(torch.equal(p, full[n]) for n, p in adapter_state(model).items())


def test_lora_names_missing_layers(folder: Path) -> None:
    with pytest.raises(ModelError, match="no linear layer for: fc1, proj; it has down_proj, embed_tokens"):
        attached(folder, target_modules=["q_proj", "fc1", "proj"])


def test_trainable_and_counts(folder: Path) -> None:
    model = attached(folder)
    base = sum(p.numel() for p in LlamaForCausalLM.from_pretrained(folder).parameters())
    per_layer = sum(4 * (i + o) for i, o in [(32, 32), (32, 16), (32, 16), (32, 32), (32, 48), (32, 48), (48, 32)])
    assert lora.trainable(model, "lora") == (base + 2 * per_layer, 2 * per_layer)
    only_b = 2 * sum(4 * o for o in (32, 16, 16, 32, 48, 48, 32))
    assert lora.trainable(model, "lora", freeze_a=True) == (base + 2 * per_layer, only_b)
    assert all(p.requires_grad == ("lora_B" in name) for name, p in model.named_parameters())
    plain, _ = loading.load_base(str(folder))
    assert lora.trainable(plain, "full") == (base, base)
    with pytest.raises(ModelError, match="no LoRA weights"):
        lora.trainable(plain, "lora")
    assert lora.count(plain).trainable == 0
    with pytest.raises(ModelError, match="unknown mode"):
        lora.trainable(plain, "head")


MANIFEST = [("a", (2, 3)), ("b", (4,)), ("c", ())]


def test_vectors_round_trip() -> None:
    state = {"b": torch.arange(4.0), "c": torch.tensor(7.0), "a": torch.arange(6.0, dtype=torch.bfloat16).reshape(2, 3)}
    vector, manifest = adapters.flatten(state, MANIFEST)
    assert manifest == MANIFEST and vector.dtype == np.float32
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 7]
    back = adapters.unflatten(vector, MANIFEST)
    assert {n: a.tolist() for n, a in back.items()} == {n: t.tolist() for n, t in state.items()}
    assert adapters.flatten(back)[1] == MANIFEST
    with pytest.raises(adapters.VectorError, match=r"c is missing.*d is unexpected"):
        adapters.flatten({"a": np.zeros((2, 3)), "b": np.zeros(4), "d": np.zeros(1)}, MANIFEST)
    with pytest.raises(adapters.VectorError, match=r"b has shape \(5,\), expected \(4,\)"):
        adapters.flatten({"a": np.zeros((2, 3)), "b": np.zeros(5), "c": np.zeros(())}, MANIFEST)


def test_manifest_hash_sees_the_frozen_weights() -> None:
    hashes = set()
    for frozen in ({}, {"x": 0.0}, {"x": 1.0}, {"y": 1.0}):
        weights = {name: np.full((2, 2), value, dtype=np.float32) for name, value in frozen.items()}
        hashes.add(adapters.manifest_hash(MANIFEST, weights))
    assert len(hashes) == 4 and adapters.manifest_hash(MANIFEST, {}) == adapters.manifest_hash(MANIFEST)


def test_pairs_of_a_peft_model_point_at_its_factors(folder: Path) -> None:
    model = attached(folder)
    for p in model.parameters():
        p.data = torch.randn_like(p)
    state = adapter_state(model)
    vector, manifest = adapters.flatten(state)
    pairs = adapters.lora_pairs(manifest)
    assert len(pairs) == 2 * 7
    for (name, a), pair in zip([(n, t) for n, t in state.items() if "lora_A" in n], pairs, strict=True):
        b = state[name.replace("lora_A", "lora_B")]
        assert np.array_equal(vector[pair.a_part].reshape(pair.rank, pair.inputs), a)
        assert np.array_equal(vector[pair.b_part].reshape(pair.outputs, pair.rank), b)


def test_peft_export_with_frozen_a(folder: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    model = attached(folder, seed=1)
    lora.trainable(model, freeze_a=True)
    flat = FlatParameters(model)
    flat.load(np.random.default_rng(0).normal(scale=0.1, size=flat.size).astype(np.float32))
    frozen, config = lora.frozen_lora(model), model.peft_config["default"]
    adapters.to_peft(tmp_path / "adapter", flat.numpy(), flat.manifest, config, frozen=frozen)
    elsewhere = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(folder), tmp_path / "adapter")
    assert torch.equal(logits(elsewhere), logits(model))
    with pytest.raises(ModelError, match="has no lora_A beside it"):
        adapters.to_peft(tmp_path / "half", flat.numpy(), flat.manifest, config)
    assert not (tmp_path / "half").exists()


def test_manifest_hash_sees_names_shapes_and_order() -> None:
    text = json.dumps([["a", [2, 3]], ["b", [4]], ["c", []]], separators=(",", ":"))
    assert adapters.manifest_hash(MANIFEST) == hashlib.sha256(text.encode()).hexdigest()
    variants = [MANIFEST[::-1], [("A", (2, 3)), *MANIFEST[1:]], [("a", (3, 2)), *MANIFEST[1:]], MANIFEST[:2]]
    assert len({adapters.manifest_hash(m) for m in [MANIFEST, *variants]}) == 5


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(11), "expected float32 values, got float64"),
        (np.zeros(11, dtype=np.int32), "got int32"),
        (np.zeros(10, dtype=np.float32), r"shape \(11,\) for 3 parameters, got \(10,\)"),
        (np.zeros((11, 1), dtype=np.float32), r"got \(11, 1\)"),
        (np.array([0] * 6 + [np.nan, np.inf] + [0] * 3, dtype=np.float32), "2 of 11 values .* the first in b"),
        (np.array([0] * 10 + [-np.inf], dtype=np.float32), "1 of 11 values .* the first in c"),
        ([0.0] * 11, "expected a numpy array, got list"),
    ],
)
def test_check_vector_refuses(array, message: str) -> None:
    with pytest.raises(adapters.VectorError, match=message):
        adapters.check_vector(array, MANIFEST)


def test_check_vector_accepts_extreme_finite_values() -> None:
    adapters.check_vector(np.full(11, np.finfo(np.float32).max), MANIFEST)


def test_saved_vectors(tmp_path: Path) -> None:
    path = tmp_path / "round.safetensors"
    vector = np.random.default_rng(0).standard_normal(11).astype(np.float32)
    adapters.save_vector(path, vector, MANIFEST, {"round": 3, "nested": {"x": [1, None]}})
    loaded, manifest, metadata = adapters.load_vector(path)
    assert np.array_equal(loaded, vector) and manifest == MANIFEST
    assert metadata == {"round": 3, "nested": {"x": [1, None]}}
    assert [p.name for p in tmp_path.iterdir()] == ["round.safetensors"]
    with pytest.raises(adapters.VectorError):
        adapters.save_vector(path, vector * np.nan, MANIFEST)
    assert np.array_equal(adapters.load_vector(path)[0], vector)


def test_a_crash_while_saving_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    adapters.save_vector(path, np.ones(11, dtype=np.float32), MANIFEST)

    def crash(*args) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            adapters.save_vector(path, np.zeros(11, dtype=np.float32), MANIFEST)
    assert adapters.load_vector(path)[0].tolist() == [1.0] * 11
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(ModelError, match="no such file"):
        adapters.load_vector(path)
    adapters.save_vector(path, np.ones(11, dtype=np.float32), MANIFEST)
    whole = path.read_bytes()
    for data in (whole[:-5], whole[:20], b"", b"\0" * 100):
        path.write_bytes(data)
        with pytest.raises(ModelError, match="no whole file"):
            adapters.load_vector(path)
    save_file({"vector": torch.ones(11)}, path)
    with pytest.raises(ModelError, match="no whole file"):
        adapters.load_vector(path)


def test_peft_export_loads_elsewhere(folder: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    model = attached(folder, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.copy_(torch.randn(p.shape, generator=generator) * 0.1)
    vector, manifest = adapters.flatten(adapter_state(model))
    out = tmp_path / "adapter"
    adapters.to_peft(out, vector, manifest, model.peft_config["default"], base="someone/model")
    elsewhere = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(folder), out)
    assert torch.equal(logits(elsewhere), logits(model))
    assert not torch.allclose(logits(elsewhere), logits(LlamaForCausalLM.from_pretrained(folder)))
    described = json.loads((out / "adapter_config.json").read_text())
    assert described["base_model_name_or_path"] == "someone/model" and described["r"] == 4
    model.save_pretrained(tmp_path / "theirs")
    ours, theirs = (load_file(p / "adapter_model.safetensors") for p in (out, tmp_path / "theirs"))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)
    with pytest.raises(ModelError, match="no LoRA weight"):
        adapters.to_peft(out, np.zeros(11, dtype=np.float32), MANIFEST, model.peft_config["default"])


def by_hand(folder: Path) -> str:
    """The documented hash, put together from the decoded tensors."""
    kinds = {torch.float32: "F32", torch.bfloat16: "BF16"}

    def dump(value) -> bytes:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = json.loads((folder / "tokenizer_config.json").read_text())
    names = ("bos_token", "eos_token", "pad_token", "unk_token", "add_bos_token", "add_eos_token")
    parts = [
        ("config", dump({k: v for k, v in config.items() if k not in ("transformers_version", "_name_or_path")})),
        ("tokenizer", dump({k: v for k, v in tokenizer.items() if k not in ("truncation", "padding")})),
        ("special tokens", dump({k: special[k] for k in names if k in special})),
        ("chat template", b"null"),
    ]
    data = b"".join(f"{label} {len(value)}\n".encode() + value for label, value in parts)
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        data += b"tensor " + dump([name, kinds[tensor.dtype], list(tensor.shape), len(raw)]) + b"\n" + raw
    return hashlib.sha256(data).hexdigest()


def test_fingerprint_is_the_documented_hash(folder: Path) -> None:
    assert fp.fingerprint(folder) == by_hand(folder) == fp.fingerprint_source(str(folder))


def test_fingerprint_ignores_shards_formatting_and_versions(folder: Path, copy: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(folder)
    (copy / "model.safetensors").unlink()
    model.save_pretrained(copy, max_shard_size="20KB")
    assert len(list(copy.glob("*.safetensors"))) > 2
    config = json.loads((copy / "config.json").read_text())
    config |= {"transformers_version": "0.0", "_name_or_path": "/elsewhere"}
    (copy / "config.json").write_text(json.dumps(dict(reversed(config.items()))))
    (copy / "README.md").write_text("hello")
    assert fp.fingerprint(copy) == fp.fingerprint(folder)


@pytest.mark.parametrize("what", ["weight", "dtype", "config", "tokenizer", "template", "special"])
def test_fingerprint_sees_every_change(folder: Path, copy: Path, what: str) -> None:
    weights = load_file(copy / "model.safetensors")
    if what == "weight":
        weights["model.norm.weight"][5] += 1e-6
    elif what == "dtype":
        weights["model.norm.weight"] = weights["model.norm.weight"].bfloat16()
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    edits = {"config": ("config.json", "rms_norm_eps", 1e-3), "special": ("tokenizer_config.json", "eos_token", "<s>")}
    if what in edits:
        name, key, value = edits[what]
        (copy / name).write_text(json.dumps(json.loads((copy / name).read_text()) | {key: value}))
    elif what == "tokenizer":
        text = (copy / "tokenizer.json").read_text()
        (copy / "tokenizer.json").write_text(text.replace('"</s>"', '"</S>"'))
    elif what == "template":
        (copy / "chat_template.jinja").write_text("{{ messages }}")
    assert fp.fingerprint(copy) != fp.fingerprint(folder)


def test_fingerprint_is_remembered_until_a_file_changes(
    copy: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = fp.fingerprint(copy)
    calls = []
    compute = fp.compute
    monkeypatch.setattr(fp, "compute", lambda path: calls.append(path) or compute(path))
    assert fp.fingerprint(copy) == value and not calls
    weights = load_file(copy / "model.safetensors")
    times = (copy / "model.safetensors").stat()
    weights["model.norm.weight"] += 1
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    os.utime(copy / "model.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert fp.fingerprint(copy) != value and len(calls) == 1
    monkeypatch.setattr(fp, "known", {})  # as in another process
    assert fp.fingerprint(copy) != value and len(calls) == 1
    monkeypatch.setattr(fp, "known", {})
    (cache / "fingerprints.json").write_text("{ torn")
    fp.fingerprint(copy)
    assert len(calls) == 2
    assert list(json.loads((cache / "fingerprints.json").read_text())) == [str(copy)]


def test_fingerprint_without_a_writable_cache(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OBLIVIONIS_CACHE", str(tmp_path / "file" / "below"))
    assert fp.fingerprint(folder) == by_hand(folder)


def test_fingerprint_refuses_incomplete_folders(copy: Path) -> None:
    whole = (copy / "model.safetensors").read_bytes()
    for data in (whole[:-1], whole[:30], b"\xff" * 40):
        (copy / "model.safetensors").write_bytes(data)
        with pytest.raises(ModelError, match=r"not a safetensors file|ends within"):
            fp.fingerprint(copy)
    (copy / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"holds no model\.safetensors"):
        fp.fingerprint(copy)
    (copy / "config.json").unlink()
    with pytest.raises(ModelError):
        fp.fingerprint(copy)


def test_the_embedded_model_loads_by_its_name() -> None:
    model, tokenizer = loading.load_base("embedded")
    assert 5e5 < lora.count(model).total < 3e6
    assert tokenizer.pad_token_id is not None and tokenizer.eos_token_id is not None
    assert len(fp.fingerprint_source("embedded")) == 64


def test_a_model_is_looked_for_in_the_present_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBLIVIONIS_CACHE", str(tmp_path / "first"))
    first = fp.fingerprint_source("embedded")
    shutil.rmtree(tmp_path / "first")
    monkeypatch.setenv("OBLIVIONIS_CACHE", str(tmp_path / "second"))
    assert fp.fingerprint_source("embedded") == first
    assert (tmp_path / "second").is_dir() and not (tmp_path / "first").exists()


EVIL = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
Path({mark!r}).write_text("run")
class EvilConfig(LlamaConfig):
    model_type = "evil"
class Evil(LlamaForCausalLM):
    config_class = EvilConfig
"""


@pytest.mark.parametrize("known", [False, True], ids=["a type of its own", "a type that transformers knows"])
def test_code_in_a_model_folder_is_never_run(copy: Path, tmp_path: Path, monkeypatch, known: bool) -> None:
    mark = tmp_path / "mark"
    (copy / "evil.py").write_text(EVIL.format(mark=str(mark)))
    described = json.loads((copy / "config.json").read_text())
    described["auto_map"] = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.Evil"}
    described["model_type"] = described["model_type"] if known else "evil"
    (copy / "config.json").write_text(json.dumps(described))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))
    if known:
        loading.load_base(str(copy))
        dry_run.skeleton(copy, dtype=torch.float32)
    else:
        with pytest.raises(ModelError, match=r"custom code|trust_remote_code"):
            loading.load_base(str(copy))
        with pytest.raises(ModelError, match=r"custom code|trust_remote_code"):
            dry_run.skeleton(copy, dtype=torch.float32)
    assert not mark.exists()


@pytest.mark.parametrize(
    "added",
    [
        {"attn_implementation": "kernels-community/flash-attn"},
        {"_attn_implementation": "org/kernel@main:forward"},
        {"_attn_implementation_internal": "paged|org/kernel"},
        {"experts_implementation": "org/kernel"},
        {"text_config": {"attn_implementation": "org/kernel"}},
        {"attn_implementation": {"": "sdpa", "text_config": "org/kernel"}},
        {"layers": [1], "deep": {"deeper": {"_experts_implementation": {"a": "org/kernel"}}}},
    ],
)
def test_a_model_that_names_code_of_the_hub_is_refused_before_anything_is_loaded(folder, tmp_path, added):
    described = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(described | added))
    with pytest.raises(
        ModelError, match=r"config\.json: _?(attn|experts)_implementation\w*: '.*org/|.*kernels-"
    ) as caught:
        loading.load_base(str(tmp_path))
    assert "code from the hub" in str(caught.value) and "remove the key" in str(caught.value)


@pytest.mark.parametrize("name", ["sdpa", "eager", None])
def test_attention_that_comes_with_transformers_is_no_code_of_the_hub(folder, tmp_path, name):
    shutil.copytree(folder, tmp_path / "m")
    described = json.loads((folder / "config.json").read_text())
    described |= {"attn_implementation": name, "_attn_implementation_autoset": True, "note": "org/name"}
    (tmp_path / "m" / "config.json").write_text(json.dumps(described))
    model, _ = loading.load_base(str(tmp_path / "m"))
    assert model.config._attn_implementation == (name or "sdpa")
