"""Whole runs on a tiny random model of each family: trained, demanded to forget, measured, in float32 and bfloat16."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
from pathlib import Path

import pytest
import torch
from support.architectures import tiny_model
from support.inprocess import InProcessGrid

from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.erasure.ledger import Ledger
from oblivionis.errors import RunError
from oblivionis.models import embedded_model
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.progress import Events
from oblivionis.server.app import serve

pytestmark = pytest.mark.integration

FAMILIES = (
    "mamba", "mamba2", "falcon_mamba", "rwkv", "jamba", "bamba", "granitemoehybrid", "nemotron_h", "zamba2",
    "falcon_h1", "minimax", "lfm2", "qwen3_next", "qwen3_5_text", "recurrent_gemma", "mixtral", "qwen3_moe", "gpt2",
    "gpt_neox", "phi", "phi3", "olmo2", "gemma", "gemma2", "gemma3_text", "mistral", "llama",
)  # fmt: skip
METHODS = ("calibrated", "npo", "rmu")
EVERY = os.environ.get("OBLIVIONIS_EVERY_FAMILY") == "1"
"""Each family with every method, not with one of them in turn."""
CASES = [
    (family, method)
    for number, family in enumerate(FAMILIES)
    for method in (METHODS if EVERY else METHODS[number % 3 : number % 3 + 1])
]


def folder_of(family: str, folder: Path) -> Path:
    """A tiny model of that family with the embedded model's tokenizer."""
    tiny_model(family, vocab_size=2048, max_position_embeddings=512).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(embedded_model.folder() / name, folder / name)
    return folder


LITTLE = (
    "federation.rounds.finetune=1", "evaluation.every=0", "evaluation.at_start=false",
    "evaluation.full.questions_per_set=1", "evaluation.full.max_new_tokens=3",
    "evaluation.leakage={full_questions: 1, full_samples: 2, max_new_tokens: 3}",
    "evaluation.wikimem.full={counterfactuals: 2, templates: 1}",
)  # fmt: skip
"""Every evaluator, on as little as it takes: transformers computes a recurrent model token by token here."""
REFUSED = {("nemotron_h", "rmu"): "unlearning.params: rmu: nothing is trained in the layers 0 to 1"}
"""Of four layers the first two get no adapter by peft's own table."""


@pytest.mark.parametrize(("family", "method"), CASES)
def test_every_request_is_served_or_refused_before_anything_runs(family: str, method: str, tmp_path: Path) -> None:
    dtype = "bfloat16" if (FAMILIES.index(family) + METHODS.index(method)) % 2 else "float32"
    overrides = [
        f"model.source={folder_of(family, tmp_path / 'model')}", "model.name=tiny-family", f"model.dtype={dtype}",
        "model.lora.target_modules=null", f"unlearning={method}", "stages=[finetune,unlearn]", "strict=true",
        *LITTLE, f"output={tmp_path}", "name=run",
    ]  # fmt: skip
    config = configuration.compose("smoke", overrides)
    run = RunDirectory.create(Path(config.output), config.name)
    run.write_config(configuration.to_yaml(config))
    refused = REFUSED.get((family, method))
    expected = contextlib.nullcontext() if refused is None else pytest.raises(RunError, match=re.escape(refused))
    with torch.random.fork_rng(), expected:
        serve(config, InProcessGrid(app, config.federation.clients), run, Events(), threading.Event())
    if refused is not None:
        return
    summary = run.stage_summary("unlearn")
    assert summary is not None and summary["metrics"]["forget_prob"] >= 0
    requests = list(Ledger(run.ledger_path))
    assert requests and all(request.state in ("served", "verified") for request in requests)
