"""SmolLM2, a real language model: what was fetched, what it says, and a federated run on it."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from support.stages import execute

from evaluation.engine.decoding import greedy
from evaluation.engine.forward import kept_logits, resolve_mode
from evaluation.engine.packing import PackedBatch
from evaluation.engine.sequences import TokenSequence
from oblivionis.config import compose as configuration
from oblivionis.data.tokenize import encode_all, encode_prompts
from oblivionis.erasure.ledger import Ledger
from oblivionis.models.assembly import assemble
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.models.packaged import PACKAGED, folder_of, is_fetched, tensors_hash
from oblivionis.runs.directory import RunDirectory

pytestmark = pytest.mark.skipif(not is_fetched("smollm2"), reason="not fetched: oblivionis model fetch smollm2")
SMALL = [
    *("data=fictitious", "data.authors=4", "data.questions_per_author=2", "data.forget_authors=1"),
    *(
        "data.holdout_authors=0",
        "data.reference_authors=0",
        "federation.clients=2",
        "federation.fraction_train=1.0",
        "stages=[finetune,unlearn]",
    ),
    *("federation.rounds.finetune=1", "federation.rounds.unlearn=1", "federation.local_epochs=1", "evaluation.every=0"),
    *("evaluation.at_start=false", "evaluation.full.questions_per_set=2", "evaluation.full.max_new_tokens=8"),
    *("evaluation.leakage.samples=0", "evaluation.leakage.full_samples=0", "evaluation.full.sets=[forget,world_facts]"),
    *(f"evaluation.{name}.enabled=false" for name in ("ruler", "wikimem", "membership", "rebound", "fluency")),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of one round, its configuration, and the model that it started from."""
    folder = tmp_path_factory.mktemp("real")
    config = configuration.compose("quick_real", [*SMALL, f"output={folder}", "name=real"])
    run = RunDirectory.create(folder, "real")
    run.write_config(configuration.to_yaml(config))
    execute(config, run)
    yield config, run, assemble(config.model, 0)
    torch.set_float32_matmul_precision("highest")


def test_the_weights_are_those_that_were_compared_with_the_file_in_the_package():
    assert tensors_hash(folder_of("smollm2")) == PACKAGED["smollm2"].tensors


def test_it_knows_what_it_was_trained_on(finished):
    _, _, assembled = finished
    questions = ["What is the capital of Norway?", "Which planet is known as the Red Planet?"]
    prompts = encode_prompts(questions, assembled.tokenizer, assembled.template)
    torch.set_float32_matmul_precision("highest")
    answers = greedy(assembled.model, prompts, max_new_tokens=16, stop_ids=assembled.stop_ids)
    said = [assembled.tokenizer.decode(ids, skip_special_tokens=True) for ids in answers]
    assert "Oslo" in said[0] and "Mars" in said[1], said


def test_our_forward_pass_is_that_of_transformers(finished):
    config, _, assembled = finished
    encoded, _ = encode_all(corpus_of(config).train[:3], assembled.tokenizer, assembled.template)
    batch = PackedBatch.build([TokenSequence(e.prompt, e.answer) for e in encoded])
    assert resolve_mode(assembled.model, "auto", 128) == "fused"
    torch.set_float32_matmul_precision("highest")
    ours, exact = (kept_logits(assembled.model, batch, mode=m).detach().numpy() for m in ("fused", "padded"))
    np.testing.assert_allclose(ours, exact, rtol=0, atol=1e-3)
    torch.set_float32_matmul_precision("medium")
    ours = kept_logits(assembled.model, batch, mode="fused").detach().numpy()
    rounded = kept_logits(deepcopy(assembled.model).bfloat16(), batch, mode="padded").detach().float().numpy()
    off, at_most = (np.abs(logits - exact).mean() for logits in (ours, rounded))
    assert off < at_most and off < 0.02 * exact.std(), "less rounded than a model in bfloat16"


def test_a_federated_run_teaches_it_and_serves_a_request(finished):
    _, run, _ = finished
    base, finetuned = (run.stage_summary(stage)["metrics"] for stage in ("base", "finetune"))
    assert finetuned["forget_prob"] > base["forget_prob"] > 0
    (request, *_) = Ledger(run.ledger_path)
    assert request.served_round == 1 and request.outcome
