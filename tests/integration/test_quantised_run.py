"""Whole runs on 8-bit and 4-bit base weights."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.inprocess import InProcessGrid

from evaluation.engine.models import is_quantized
from oblivionis.audits.leakage import forget_questions
from oblivionis.audits.loaded_model import find_subject
from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.measures.assessor import evaluate_checkpoint
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.progress import Events
from oblivionis.server.app import serve

pytest.importorskip("bitsandbytes")


@pytest.fixture(scope="module", params=["nf4", "int8"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("runs")
    overrides = [f"model.quantization={request.param}", f"output={folder}", "name=quantised", "evaluation.every=0"]
    config = configuration.compose("smoke", [*overrides, "stages=[finetune, unlearn]", "strict=true"])
    run = RunDirectory.create(Path(config.output), config.name)
    run.write_config(configuration.to_yaml(config))
    serve(config, InProcessGrid(app, config.federation.clients), run, Events(), threading.Event())
    return run


def test_a_whole_run_can_be_evaluated_and_audited(run: RunDirectory) -> None:
    kind = configuration.from_yaml(run.read_config()).model.quantization
    stored: Any = run.stage_summary("unlearn")
    assert stored["requests"] and np.isfinite(stored["metrics"]["forget_prob"])
    again = evaluate_checkpoint(run.path, "unlearn", [])[2].metrics
    measured = {k: v for k, v in stored["metrics"].items() if k.startswith(("forget_prob", "forget_rouge", "leakage"))}
    assert {k: again[k] for k in measured} == pytest.approx(measured, abs=1e-6)
    subject = find_subject(str(run.path), None, [])
    assert is_quantized(subject.model) and subject.identity.endswith(f"/{'nf4-double' if kind == 'nf4' else kind}")
    assert len(forget_questions(subject)) == 2
