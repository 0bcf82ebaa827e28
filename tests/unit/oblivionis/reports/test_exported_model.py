"""A model that leaves a run: the folder is what transformers and peft read, and the model is the run's own."""

from __future__ import annotations

import json

import huggingface_hub
import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from support.reports import make_run
from transformers import AutoModelForCausalLM, AutoTokenizer

from oblivionis.measures.assessor import assemble_for
from oblivionis.models.source import resolve
from oblivionis.reports import exported_model
from oblivionis.reports.model_card import ADAPTER, MERGED, WHOLE
from oblivionis.runs.directory import Checkpoint, vector_hash

PROMPT = "Question: Where was the author born?\nAnswer:"


def trained(folder, *overrides):
    """A run whose models of the stages finetune and unlearn lie at some distance from each other."""
    run, config = make_run(folder, ["finetune", "unlearn"], overrides=["model.lora.rank=2", *overrides])
    assembled = assemble_for(run, config)
    start, rng = assembled.flat.numpy(), np.random.default_rng(0)
    vectors = {stage: (start + rng.normal(0, 0.05, start.size)).astype(np.float32) for stage in ("finetune", "unlearn")}
    for number, (stage, vector) in enumerate(vectors.items()):
        run.save_checkpoint(Checkpoint(stage, 3 + number, vector, {}, {}), keep=1)
    return run, assembled, vectors


def logits(model, tokenizer):
    with torch.no_grad():
        return model.eval()(**tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)).logits


def of_run(assembled, vector):
    assembled.flat.load(vector)
    return logits(assembled.model, assembled.tokenizer)


@pytest.mark.slow
def test_an_adapter_and_the_model_with_it_are_those_of_the_stage(tmp_path):
    run, assembled, vectors = trained(tmp_path)
    (tmp_path / "adapter").mkdir()
    assert exported_model.export(run.path, "finetune", tmp_path / "adapter") == ADAPTER
    assert exported_model.export(run.path, None, tmp_path / "in" / "merged", merged=True) == MERGED
    base = AutoModelForCausalLM.from_pretrained(resolve("embedded"), dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "adapter")
    adapted = logits(PeftModel.from_pretrained(base, tmp_path / "adapter"), tokenizer)
    merged = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "in" / "merged"), tokenizer)
    finetuned, unlearned = (of_run(assembled, vectors[stage]) for stage in ("finetune", "unlearn"))
    assert not torch.allclose(finetuned, unlearned, atol=1e-2)
    torch.testing.assert_close(adapted, finetuned, rtol=0, atol=1e-5)
    torch.testing.assert_close(merged, unlearned, rtol=0, atol=1e-4)
    assert not (tmp_path / "in" / "merged" / "adapter_config.json").exists()
    told = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (told["base_model_name_or_path"], told["revision"]) == ("embedded", None)
    with safe_open(tmp_path / "adapter" / "adapter_model.safetensors", "np") as file:
        assert all("lora_" in name for name in file.keys()), "the base model's own weights stay with it"  # noqa: SIM118
    for folder, stage, server_round in (("adapter", "finetune", 3), ("in/merged", "unlearn", 4)):
        card = (tmp_path / folder / "README.md").read_text(encoding="utf-8")
        assert f"# made: {stage}\n" in card and f"| rounds | {server_round} of the stage {stage}" in card
        assert f"`{vector_hash(vectors[stage])}`" in card and f"{vectors[stage].size:,} parameters" in card
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "in", "runs"], "no scratch is left"
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["merged"]


def test_a_model_that_was_trained_whole_is_written_whole(tmp_path):
    run, assembled, vectors = trained(tmp_path, "model.mode=full")
    assert exported_model.export(run.path, "finetune", tmp_path / "whole", merged=True) == WHOLE
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert torch.equal(logits(model, assembled.tokenizer), of_run(assembled, vectors["finetune"]))


def test_a_vector_of_another_model_and_a_folder_in_use_are_refused(tmp_path):
    run, _, vectors = trained(tmp_path)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine.txt").touch()
    with pytest.raises(exported_model.ExportError, match=r"used is not empty: name a folder that does not exist yet"):
        exported_model.export(run.path, None, tmp_path / "used")
    run.save_checkpoint(Checkpoint("unlearn", 5, vectors["unlearn"][1:], {}, {}), keep=1)
    with pytest.raises(ValueError, match=str(vectors["unlearn"].size)):
        exported_model.export(run.path, None, tmp_path / "new")
    assert not (tmp_path / "new").exists() and [path.name for path in (tmp_path / "used").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(("given", "private"), [({}, True), ({"private": False}, False)])
def test_a_folder_is_uploaded_by_the_hubs_own_client(tmp_path, monkeypatch, given, private):
    calls = []

    class Hub:
        def create_repo(self, name, **how):
            calls.append((name, how))

        def upload_folder(self, repo_id, folder_path):
            return f"https://hub.example/{repo_id}/{folder_path}"

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    assert exported_model.push(tmp_path, "me/model", **given) == f"https://hub.example/me/model/{tmp_path}"
    assert calls == [("me/model", {"private": private, "exist_ok": True})]


@pytest.mark.parametrize(
    ("error", "reason"), [(OSError(" no network\nat all"), "no network"), (KeyError(), "KeyError")]
)
def test_what_the_hub_refuses_is_told_in_a_line(tmp_path, monkeypatch, error, reason):
    def refuse():
        raise error

    monkeypatch.setattr(huggingface_hub, "HfApi", refuse)
    with pytest.raises(exported_model.ExportError) as caught:
        exported_model.push(tmp_path, "me/model")
    assert str(caught.value).startswith(
        f"{tmp_path} is written, but could not be uploaded to me/model: {reason}. Look at the network and the token"
    )


def test_an_adapter_names_no_folder_of_this_machine_as_its_base(tmp_path):
    run, _, _ = trained(tmp_path, f"model.source={resolve('embedded')}", "model.name=mine")
    exported_model.export(run.path, None, tmp_path / "adapter")
    told = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert told["base_model_name_or_path"] == "mine"
