"""Where a whole run says its verdicts."""

import json

import pytest
from support.stages import execute, new_run


def test_a_run_stores_its_verdicts_and_an_older_one_gets_them_when_it_is_resumed(tmp_path):
    config, run = new_run(tmp_path, "whole", "stages=[finetune, retrain, unlearn]")
    execute(config, run)
    stored = json.loads((run.path / "verdicts.json").read_text())
    assert (stored["model"], stored["oracle"]) == ("unlearn", "retrain")
    for measure, key in (("value", "unlearn"), ("oracle", "retrain")):
        assert stored["measures"]["prob"][measure] == pytest.approx(run.stage_summary(key)["metrics"]["forget_prob"])
    assert stored["measures"]["prob"]["questions"] == stored["measures"]["truth_ratio"]["questions"] == 3
    (run.path / "verdicts.json").unlink()
    execute(config, run)
    assert json.loads((run.path / "verdicts.json").read_text()) == stored


def test_a_run_without_a_retrained_model_has_no_verdicts(tmp_path):
    config, run = new_run(tmp_path, "alone", "stages=[finetune, unlearn]")
    execute(config, run)
    assert not (run.path / "verdicts.json").exists()
