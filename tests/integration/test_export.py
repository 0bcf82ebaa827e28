"""Models that leave a run: what transformers and peft make of them, and what their cards tell."""

import json

import huggingface_hub
import numpy as np
import pytest
import torch
import yaml
from peft import PeftModel
from support.commands import call
from support.stages import WHOLE_MODEL, execute, new_run
from transformers import AutoModelForCausalLM, AutoTokenizer

from oblivionis.data.corpora import load_corpus
from oblivionis.erasure.ledger import Ledger
from oblivionis.measures.assessor import assemble_for
from oblivionis.models.source import resolve
from oblivionis.reports import exported_model

PROMPT = "Question: Where was the author born?\nAnswer:"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    config, run = new_run(tmp_path_factory.mktemp("runs"), "model", WHOLE_MODEL, "training.learning_rate=0.003")
    execute(config, run)
    return config, run


def logits(model, tokenizer):
    with torch.no_grad():
        return model.eval()(**tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)).logits


def of_run(config, run, stage):
    """The logits of the run's own model, and its tokenizer."""
    assembled = assemble_for(run, config)
    assembled.flat.load(run.load_checkpoint(stage).vector)
    return logits(assembled.model, assembled.tokenizer), assembled.tokenizer


def card_of(folder):
    text = (folder / "README.md").read_text()
    _, head, body = text.split("---\n", 2)
    return yaml.safe_load(head), body


def test_an_adapter_is_what_peft_loads(finished, tmp_path):
    config, run = finished
    found = []
    for stage in ("finetune", "unlearn"):
        folder = tmp_path / stage
        result = call("export", run.path, "--stage", stage, "--out", folder)
        assert result.code == 0 and result.out == f"{folder}: PEFT adapter, tokenizer and README.md\n", result.err
        base = AutoModelForCausalLM.from_pretrained(resolve("embedded"), dtype=torch.float32)
        model = PeftModel.from_pretrained(base, folder)
        expected, tokenizer = of_run(config, run, stage)
        torch.testing.assert_close(logits(model, AutoTokenizer.from_pretrained(folder)), expected, rtol=0, atol=1e-5)
        assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(folder).get_vocab()
        assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "embedded"
        found.append(expected)
    assert not torch.allclose(*found, atol=1e-3)


def test_a_merged_model_needs_no_base(finished, tmp_path):
    config, run = finished
    result = call("export", run.path, "--out", tmp_path / "merged", "--merged")
    assert result.code == 0 and "model with the adapter added" in result.out, result.err
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    expected, tokenizer = of_run(config, run, "unlearn")
    torch.testing.assert_close(logits(model, tokenizer), expected, rtol=0, atol=1e-4)
    assert card_of(tmp_path / "merged")[0]["library_name"] == "transformers"


def test_a_checkpoint_of_a_run_in_full_mode_gives_the_whole_model(tmp_path):
    more = ("model.mode=full", "stages=[finetune]", "federation.rounds.finetune=1")
    config, run = new_run(tmp_path, "full", *more)
    execute(config, run)
    file = run.path / "checkpoints" / "finetune" / "round-0001.safetensors"
    result = call("export", file, "--out", tmp_path / "whole")
    assert result.code == 0 and result.out == f"{tmp_path / 'whole'}: model, tokenizer and README.md\n", result.err
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    expected, tokenizer = of_run(config, run, "finetune")
    assert torch.equal(logits(model, tokenizer), expected)


def test_the_card_tells_of_the_requests_and_of_no_record(finished):
    config, run = finished
    result = call("export", run.path)
    folder = run.path / "export" / "unlearn"
    assert result.code == 0 and folder.is_dir(), result.err
    head, body = card_of(folder)
    assert head["library_name"] == "peft" and "machine-unlearning" in head["tags"] and "base_model" not in head
    requests = list(Ledger(run.ledger_path))
    assert requests
    for request in requests:
        assert f"| {request.id} | {request.outcome} |" in body
    assert exported_model.vector_hash(run.load_checkpoint("unlearn").vector) in body
    assert run.environment()["fingerprint"] in body
    metrics = run.stage_summary("unlearn")["metrics"]
    assert f"{metrics['forget_prob']:.3f}" in body
    for record in load_corpus(config.data).train:
        assert record.question not in body and record.answer not in body
    assert str(run.path) not in (folder / "README.md").read_text() + (folder / "adapter_config.json").read_text()


def test_a_folder_in_use_and_what_cannot_be_are_refused(finished, tmp_path):
    config, run = finished
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine.txt").touch()
    nothing = tmp_path / "nothing"
    for arguments, reason in (
        ((run.path, "--out", tmp_path / "used"), "is not empty: name a folder that does not exist yet"),
        ((run.path, "--out", nothing, "--to", "onnx"), "--to onnx: expected hf"),
        ((run.path, "--out", nothing, "--stage", "local"), "local"),
        ((tmp_path, "--out", nothing), "is no run directory"),
    ):
        refused = call("export", *arguments)
        assert refused.code == 2 and reason in refused.err, refused.err
    assert not nothing.exists() and [f.name for f in (tmp_path / "used").iterdir()] == ["mine.txt"]
    config.model.quantization = "nf4"
    try:
        with pytest.raises(exported_model.ExportError, match=r"--merged: the base weights are rounded \(nf4\)"):
            exported_model.check_export(config, nothing, merged=True)
    finally:
        config.model.quantization = "none"


def test_a_failed_export_leaves_nothing(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(exported_model, "model_card", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        exported_model.export(finished[1].path, None, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_uploading_goes_by_the_hubs_own_client(finished, tmp_path, monkeypatch):
    calls = []

    class Hub:
        def create_repo(self, name, **how):
            calls.append((name, how))

        def upload_folder(self, repo_id, folder_path):
            assert (folder_path / "adapter_model.safetensors").is_file()
            return f"https://hub.example/{repo_id}"

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    result = call("export", finished[1].path, "--out", tmp_path / "up", "--push", "me/model")
    assert result.code == 0 and result.out.endswith("https://hub.example/me/model\n"), result.err
    assert calls == [("me/model", {"private": True, "exist_ok": True})]
    monkeypatch.setattr(Hub, "upload_folder", lambda *_, **__: np.empty(-1))
    failed = call("export", finished[1].path, "--out", tmp_path / "kept", "--push", "me/model", "--public")
    assert failed.code == 2 and "is written, but could not be uploaded to me/model: " in failed.err
    assert (tmp_path / "kept" / "README.md").is_file() and calls[-1][1]["private"] is False
