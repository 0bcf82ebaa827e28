"""The embedded model: packing and unpacking, what it knows and what it does not, and training it anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from oblivionis.data.datasets.fictitious import corpus
from oblivionis.data.public_facts import real_authors, world_facts
from oblivionis.models import embedded_model, pretraining


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OBLIVIONIS_CACHE", str(tmp_path_factory.mktemp("cache")))
        return embedded_model.folder()


@pytest.fixture(scope="module")
def tokenizer(unpacked):
    return AutoTokenizer.from_pretrained(unpacked)


@pytest.fixture(scope="module")
def model(unpacked):
    return AutoModelForCausalLM.from_pretrained(unpacked, dtype=torch.float32).eval()


@pytest.fixture
def source(tmp_path):
    """A folder of the right shape with small contents."""
    folder = tmp_path / "source"
    folder.mkdir()
    for name in embedded_model.FILES:
        content = bytes(range(256)) if name.endswith(".safetensors") else f'{{"é": "{name}"}}\n'.encode()
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def shipped(source, tmp_path, monkeypatch):
    monkeypatch.setenv("OBLIVIONIS_CACHE", str(tmp_path / "cache"))
    embedded_model.pack(source, tmp_path / "tiny.json")
    return tmp_path / "tiny.json"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def prompt_ids(tokenizer, record) -> list[int]:
    return tokenizer(pretraining.PROMPT.format(question=record.question))["input_ids"]


@torch.no_grad()
def greedy(model, tokenizer, records) -> list[str]:
    prompts = {"input_ids": [prompt_ids(tokenizer, record) for record in records]}
    batch = tokenizer.pad(prompts, padding_side="left", return_tensors="pt")
    out = model.generate(**batch, max_new_tokens=48, do_sample=False)
    return [tokenizer.decode(row, skip_special_tokens=True).strip() for row in out[:, batch["input_ids"].shape[1] :]]


@torch.no_grad()
def mean_nll(model, tokenizer, record, answer: str) -> float:
    prompt = prompt_ids(tokenizer, record)
    target = tokenizer(pretraining.ANSWER.format(answer=answer), add_special_tokens=False)["input_ids"]
    target = [*target, tokenizer.eos_token_id]
    logits = model(torch.tensor([prompt + target])).logits[0, len(prompt) - 1 : -1]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(target)).item()


def test_shipped_model_is_small_and_a_plain_hugging_face_folder(unpacked, model, tokenizer):
    assert embedded_model.SHIPPED.stat().st_size < 4_000_000
    assert {path.name for path in unpacked.iterdir()} == set(embedded_model.FILES)
    assert 900_000 < model.num_parameters() < 1_300_000
    assert model.config.vocab_size == len(tokenizer) == pretraining.VOCABULARY
    assert model.config.max_position_embeddings == 1024
    assert model.dtype == torch.float32
    ids = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert ids == (0, 1, 2) == (model.config.pad_token_id, model.config.bos_token_id, model.config.eos_token_id)
    assert AutoModelForCausalLM.from_pretrained(unpacked).dtype == torch.float32


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_every_text_survives_the_tokenizer(tokenizer, text):
    text = text.encode("utf-8", "ignore").decode()
    for special in tokenizer.all_special_tokens:
        text = text.replace(special, "")
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer(text)["input_ids"] == [tokenizer.bos_token_id, *ids]


def test_prompt_is_a_prefix_and_english_is_not_spelled_out(tokenizer):
    text = "The novelist moved to another country because the publishers there were interested in historical fiction."
    assert len(tokenizer(text, add_special_tokens=False)["input_ids"]) < len(text) / 2.5
    record = corpus(2, 1, 1, 0).train[0]
    prompt, answer = (
        pretraining.PROMPT.format(question=record.question),
        pretraining.ANSWER.format(answer=record.answer),
    )
    joined = tokenizer(prompt + answer)["input_ids"]
    assert joined == tokenizer(prompt)["input_ids"] + tokenizer(answer, add_special_tokens=False)["input_ids"]


@pytest.mark.slow
def test_real_tofu_fits(tokenizer):
    folder = Path(os.environ.get("OBLIVIONIS_TOFU", Path(__file__).parents[5] / "shared" / "tofu"))
    if not (folder / "full.json").is_file():
        pytest.skip("no TOFU files: set OBLIVIONIS_TOFU to their folder")
    rows = [json.loads(line) for line in (folder / "full.json").read_text(encoding="utf-8").splitlines()]
    texts = [
        pretraining.PROMPT.format(question=row["question"]) + pretraining.ANSWER.format(answer=row["answer"])
        for row in rows
    ]
    lengths = [len(ids) + 1 for ids in tokenizer(texts)["input_ids"]]
    assert max(lengths) < pretraining.MAX_LENGTH / 2
    assert sum(lengths) / len(lengths) < 110


@pytest.mark.parametrize("records", [real_authors(), world_facts()], ids=["real authors", "world facts"])
def test_it_knows_the_fixed_facts(model, tokenizer, records):
    answers = greedy(model, tokenizer, records)
    assert sum(a == record.answer for a, record in zip(answers, records, strict=True)) >= 0.9 * len(records)
    for record in records[:10]:
        right = mean_nll(model, tokenizer, record, record.answer)
        assert right < min(mean_nll(model, tokenizer, record, wrong) for wrong in record.perturbed_answers)


@pytest.mark.slow
def test_it_speaks_the_language_but_knows_no_author(model, tokenizer):
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"], use_stemmer=True)
    records = corpus(30, 1, 3, 0).train
    answers = greedy(model, tokenizer, records)
    scores = [scorer.score(r.answer, a)["rougeL"].recall for r, a in zip(records, answers, strict=True)]
    assert 0.02 < sum(scores) / len(scores) < 0.35
    preferred = sum(
        mean_nll(model, tokenizer, record, record.paraphrased_answer) < mean_nll(model, tokenizer, record, wrong)
        for record in records
        for wrong in record.perturbed_answers[:2]
    )
    assert 0.3 < preferred / 60 < 0.7


def test_pack_and_unpack_keep_every_byte(source, shipped, tmp_path):
    folder = embedded_model.folder(shipped)
    assert folder.parent == tmp_path / "cache"
    assert folder.name == "tiny-" + json.loads(shipped.read_text(encoding="utf-8"))["sha256"][:12]
    assert contents(folder) == contents(source)
    assert (
        embedded_model.pack(folder, tmp_path / "again.json")
        == json.loads(shipped.read_text(encoding="utf-8"))["sha256"]
    )
    assert (tmp_path / "again.json").read_bytes() == shipped.read_bytes()


@pytest.mark.parametrize("damage", ["cut", "flip", "missing", "extra", "empty"])
def test_an_altered_folder_is_replaced(source, shipped, damage):
    folder = embedded_model.folder(shipped)
    weights = folder / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:100])
    elif damage == "flip":
        weights.write_bytes(b"\x01" + weights.read_bytes()[1:])
    elif damage == "missing":
        weights.unlink()
    elif damage == "extra":
        (folder / "chat_template.jinja").write_text("{{ messages }}")
    else:
        for path in folder.iterdir():
            path.unlink()
    assert embedded_model.folder(shipped) == folder
    assert contents(folder) == contents(source)
    assert os.listdir(folder.parent) == [folder.name]


def test_an_intact_folder_is_left_alone(shipped):
    folder = embedded_model.folder(shipped)
    before = folder.stat().st_ino, (folder / "config.json").stat().st_mtime_ns
    embedded_model.folder(shipped)
    assert before == (folder.stat().st_ino, (folder / "config.json").stat().st_mtime_ns)


def test_many_processes_and_threads_at_once(source, shipped):
    code = f"from oblivionis.models import embedded_model as m; print(m.folder(m.Path({str(shipped)!r})))"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[4])
        for _ in range(4)
    ]
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: str(embedded_model.folder(shipped)), range(32)))
    found |= {process.communicate(timeout=60)[0].strip() for process in processes}
    (path,) = found
    assert contents(Path(path)) == contents(source)
    assert os.listdir(Path(path).parent) == [Path(path).name]


@pytest.mark.parametrize("damage", ["missing", "no json", "cut", "format", "weights", "digest"])
def test_a_damaged_shipped_file_is_refused(shipped, damage, tmp_path):
    package = json.loads(shipped.read_text(encoding="utf-8"))
    if damage == "missing":
        shipped.unlink()
    elif damage == "no json":
        shipped.write_bytes(b"\xff\x00")
    elif damage == "cut":
        shipped.write_bytes(shipped.read_bytes()[:-200])
    else:
        weights = package["files"]["model.safetensors"]
        if damage == "format":
            package["format"] = 99
        elif damage == "weights":
            weights["content"] = "AAAA" + weights["content"][4:-4] + "AAAA"
        else:
            weights["sha256"] = "0" * 64
        shipped.write_text(json.dumps(package), encoding="utf-8")
    with pytest.raises(embedded_model.EmbeddedModelError, match="reinstall"):
        embedded_model.folder(shipped)
    cache = tmp_path / "cache"
    assert not cache.exists() or os.listdir(cache) == []


def test_an_incomplete_folder_is_not_packed(source, tmp_path):
    (source / "tokenizer.json").unlink()
    with pytest.raises(embedded_model.EmbeddedModelError, match=r"lacks tokenizer\.json"):
        embedded_model.pack(source, tmp_path / "tiny.json")
    assert not (tmp_path / "tiny.json").exists()


@pytest.mark.slow
def test_build_is_repeatable_and_makes_a_folder_that_packs(tmp_path, monkeypatch):
    monkeypatch.setattr(pretraining, "TOKENIZER_PEOPLE", 20)
    monkeypatch.setattr(pretraining, "BATCH", 6)
    monkeypatch.setenv("OBLIVIONIS_CACHE", str(tmp_path / "cache"))
    calls = []
    state = torch.random.get_rng_state()
    first = embedded_model.build(tmp_path / "one", seed=3, steps=4, progress=lambda *call: calls.append(call))
    assert torch.equal(state, torch.random.get_rng_state())
    assert [call[:2] for call in calls] == [(step, 5) for step in range(1, 6)]
    assert all(6.0 < float(text.removeprefix("loss ")) < 9.0 for _, _, text in calls)
    second = embedded_model.build(tmp_path / "two", seed=3, steps=4)
    assert contents(first) == contents(second)
    assert embedded_model.pack(first, tmp_path / "a.json") != embedded_model.pack(
        embedded_model.build(tmp_path / "x", steps=1), tmp_path / "b.json"
    )
    assert contents(embedded_model.folder(tmp_path / "a.json")) == contents(first)
    with pytest.raises(ValueError, match="steps is 0"):
        embedded_model.build(tmp_path / "none", steps=0)
