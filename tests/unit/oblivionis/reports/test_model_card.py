"""The card of a model that leaves a run, and what cannot be written."""

from __future__ import annotations

import pytest
import yaml
from support.reports import make_run

from oblivionis.config import compose as configuration
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_rules import MEANING, Judgement
from oblivionis.reports import exported_model
from oblivionis.reports import model_card as module
from oblivionis.reports.model_card import ADAPTER, MERGED, WHOLE, model_card

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
    assert exported_model.kind_of(configuration.compose("smoke", [f"model.mode={mode}"]), merged=merged) == kind


@pytest.mark.parametrize("content", ["file", "folder"])
def test_a_folder_in_use_stays_as_it_is(tmp_path, content):
    config, folder = configuration.compose("smoke"), tmp_path / "model"
    exported_model.check_export(config, folder, merged=False)
    folder.mkdir()
    exported_model.check_export(config, folder, merged=False)
    if content == "folder":
        (folder / "notes.txt").write_text("mine")
    else:
        folder.rmdir()
        folder.write_text("mine")
    with pytest.raises(exported_model.ExportError, match=r"is not empty: name a folder that does not exist yet"):
        exported_model.check_export(config, folder, merged=False)


def test_nothing_is_merged_into_rounded_weights(tmp_path):
    config = configuration.compose("smoke", ["model.quantization=int8"])
    exported_model.check_export(config, tmp_path / "model", merged=False)
    with pytest.raises(exported_model.ExportError, match=r"--merged: the base weights are rounded \(int8\)"):
        exported_model.check_export(config, tmp_path / "model", merged=True)


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


@pytest.mark.parametrize(
    ("source", "revision", "told", "base"),
    [
        (
            "embedded",
            None,
            "the model inside of Oblivionis; `oblivionis export --merged` writes it with the adapter.",
            None,
        ),
        (
            "smollm2",
            None,
            "the folder that `oblivionis model fetch smollm2` makes: HuggingFaceTB/SmolLM2-135M-Instruct, its weights "
            "rounded to 4 bits (Q4_1).",
            None,
        ),
        ("FOLDER", None, "a model folder, 'base' where it was trained.", None),
        ("me/model", None, "me/model.", "me/model"),
        ("me/model", "v2", "me/model at revision v2.", "me/model"),
    ],
)
def test_the_base_of_an_adapter_is_named_so_that_others_find_it(tmp_path, source, revision, told, base):
    run, config = make_run(tmp_path)
    (tmp_path / "base").mkdir()
    config.model.source = str(tmp_path / "base") if source == "FOLDER" else source
    config.model.revision = revision
    head, body = card(run, config)
    assert head.get("base_model") == base and str(tmp_path) not in body
    (line,) = [line for line in body.splitlines() if line.startswith("`BASE` is ")]
    fingerprint = f"Its fingerprint (`oblivionis model info`): `{'f' * 64}`."
    assert line == f"`BASE` is {told} {fingerprint} On another base the adapter means nothing."
    assert "`BASE`" not in card(run, config, kind=MERGED)[1]


@pytest.mark.parametrize(
    ("kind", "stage", "opening"),
    [
        (ADAPTER, "finetune", "A LoRA adapter for tiny, fine-tuned by 2 clients that shared no records ("),
        (
            MERGED,
            "retrain",
            "tiny with a LoRA adapter added to its weights, fine-tuned without what others had to forget",
        ),
        (WHOLE, "unlearn", "tiny, all of its weights trained, fine-tuned, then made to forget by 2 clients"),
    ],
)
def test_a_card_begins_with_what_was_made_of_what(tmp_path, kind, stage, opening):
    _, body = card(*make_run(tmp_path), stage, kind)
    blank, title, below, first = body.splitlines()[:4]
    assert (blank, title, below) == ("", f"# made: {stage}", "") and first.startswith(opening)


def test_all_that_is_adapted_is_named(tmp_path):
    overrides = [
        *("model.lora.use_dora=true", "model.lora.target_modules=[q_proj]", "model.lora.modules_to_save=[lm_head]"),
        "model.lora.alpha=2.5",
    ]
    run, config = make_run(tmp_path, overrides=overrides)
    config.model.lora.target_parameters = ["experts"]
    config.model.template.arguments = {"thinking": False}
    lines = card(run, config)[1].splitlines()
    assert "| LoRA | r = 32, alpha = 2.5, DoRA, q_proj, experts, lm_head trained whole |" in lines
    assert '| arguments of the chat template | `{"thinking": false}` |' in lines
    config.model.mode = "full"
    assert not any(line.startswith("| LoRA") for line in card(run, config, kind=WHOLE)[1].splitlines())


def test_results_of_certificates_are_counted(tmp_path, monkeypatch):
    run, config = make_run(tmp_path)
    asked(run, ["verified"])
    assert "- certificates" not in card(run, config)[1]
    monkeypatch.setattr(module, "results_of", lambda run: ["PASS", "FAIL", "PASS"])
    assert "- certificates: 1 FAIL, 2 PASS" in card(run, config)[1].splitlines()


@pytest.mark.parametrize(("failed", "measured"), [(False, False), (True, True)])
def test_without_figures_there_is_no_table_unless_something_failed(tmp_path, failed, measured):
    run, config = make_run(tmp_path, metrics=lambda stage: {}, logs=lambda stage: {})
    if failed:
        row = {
            "stage": "unlearn",
            "round": 2,
            "moment": "end",
            "evaluator": "muse",
            "metrics": {},
            "error": "no memory",
        }
        run.append_metrics([row])
    body = card(run, config)[1]
    assert ("## What was measured" in body) is measured and ("**failed: no memory**" in body) is measured
