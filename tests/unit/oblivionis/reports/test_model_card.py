"""The card of a model that leaves a run, and what cannot be written."""

from __future__ import annotations

import pytest
import yaml
from support.reports import make_run

from oblivionis.config import compose as configuration
from oblivionis.reports import model_folder
from oblivionis.reports.model_card import ADAPTER, MERGED, WHOLE, model_card
from oblivionis.requests.judgement import MEANING, Judgement
from oblivionis.requests.ledger import Ledger, Request

FACTS = {"round": 5, "parameters": 12345, "adapter": "a" * 64, "fingerprint": "f" * 64}


def card(run, config, stage="unlearn", kind=ADAPTER):
    _, head, body = model_card(run, config, stage, kind, FACTS).split("---\n", 2)
    return yaml.safe_load(head), body


def asked(run, outcomes):
    ledger = Ledger(run.ledger_path)
    for number, outcome in enumerate(outcomes):
        ledger.submit(Request(f"r{number}", 0, (f"{number}-a", f"{number}-b"), number + 1))
        ledger.served(f"r{number}", number + 1)
        ledger.verified(f"r{number}", 9, Judgement(outcome, "so", 0.25), 0.5)


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        (["verified", "verified"], "\n\n2 verified."),
        (["verified", "not verified"], "\n\n**Not all of them are verified.** 1 not verified, 1 verified."),
        (["not testable"], "\n\n**Not all of them are verified.** 1 not testable."),
    ],
)
def test_the_card_tells_what_became_of_each_request(tmp_path, outcomes, told):
    run, config = make_run(tmp_path)
    asked(run, outcomes)
    _, body = card(run, config)
    assert told in body
    for number, outcome in enumerate(outcomes):
        assert f"| r{number} | {outcome} | so | {number + 1} | 2 | 0.250 |" in body
    assert {name for name in MEANING if f"- *{name}*: {MEANING[name]}" in body} == set(outcomes)


@pytest.mark.parametrize("stage", ["finetune", "retrain"])
def test_another_stages_model_has_no_requests(tmp_path, stage):
    run, config = make_run(tmp_path)
    asked(run, ["verified"])
    _, body = card(run, config, stage)
    assert "Deletion requests" not in body and "unlearning |" not in body


@pytest.mark.parametrize(
    ("kind", "library", "loads"),
    [(ADAPTER, "peft", True), (MERGED, "transformers", False), (WHOLE, "transformers", False)],
)
def test_the_card_says_how_the_model_is_loaded(tmp_path, kind, library, loads):
    head, body = card(*make_run(tmp_path), kind=kind)
    assert head["library_name"] == library and ("lora" in head["tags"]) is loads
    assert ("PeftModel.from_pretrained(base, FOLDER)" in body) is loads
    assert (f"Its fingerprint (`oblivionis model info`): `{'f' * 64}`" in body) is loads
    assert "| rounds | 5 of the stage unlearn" in body and "| trained | 12,345 parameters |" in body
    assert f"| SHA-256 of what was trained | `{'a' * 64}` |" in body


@pytest.mark.parametrize(
    ("mode", "merged", "kind"),
    [("lora", False, ADAPTER), ("lora", True, MERGED), ("full", False, WHOLE), ("full", True, WHOLE)],
)
def test_a_model_that_was_trained_whole_has_no_adapter(mode, merged, kind):
    assert model_folder.kind_of(configuration.compose("smoke", [f"model.mode={mode}"]), merged=merged) == kind


@pytest.mark.parametrize("content", ["file", "folder"])
def test_a_folder_in_use_stays_as_it_is(tmp_path, content):
    config, folder = configuration.compose("smoke"), tmp_path / "model"
    model_folder.check_export(config, folder, merged=False)
    folder.mkdir()
    model_folder.check_export(config, folder, merged=False)
    if content == "folder":
        (folder / "notes.txt").write_text("mine")
    else:
        folder.rmdir()
        folder.write_text("mine")
    with pytest.raises(model_folder.ExportError, match=r"is not empty: name a folder that does not exist yet"):
        model_folder.check_export(config, folder, merged=False)


def test_nothing_is_merged_into_rounded_weights(tmp_path):
    config = configuration.compose("smoke", ["model.quantization=int8"])
    model_folder.check_export(config, tmp_path / "model", merged=False)
    with pytest.raises(model_folder.ExportError, match=r"--merged: the base weights are rounded \(int8\)"):
        model_folder.check_export(config, tmp_path / "model", merged=True)


def test_how_it_was_made_and_what_is_beside_it(tmp_path):
    overrides = [
        *("model.lora.rank=4", "model.lora.use_rslora=true", "model.lora.target_modules=[q_proj,v_proj]"),
        *("federation.local_epochs=3", "training.batch_size=7", "seed=5", "federation.fraction_train=0.5"),
    ]
    run, config = make_run(tmp_path, overrides=overrides)
    head, body = card(run, config)
    assert head["tags"][-1] == "lora" and "base_model" not in head and head["pipeline_tag"] == "text-generation"
    assert body.startswith("\n# made: unlearn\n\nA LoRA adapter for tiny, fine-tuned, then made to forget by 2 clients")
    made = [line for line in body.splitlines() if line.startswith("| ")]
    assert made[2:9] == [
        "| data | fictitious, on 2 clients |",
        "| rounds | 5 of the stage unlearn, 50% of the clients in each |",
        "| local epochs | 3 |",
        "| aggregator | fedavg |",
        "| training | learning rate 0.001, batches of 7, seed 5 |",
        "| trained | 12,345 parameters |",
        "| LoRA | r = 4, alpha = 64, rsLoRA, q_proj, v_proj |",
    ]
    assert made[9].startswith("| unlearning | npo, epochs per request: ")
    assert "Deletion requests" not in body, "nobody asked"
    assert "\n\n\n" not in body
    asked(run, ["verified"])
    assert "| request | outcome | why | round | records | recall left |" in card(run, config)[1]
