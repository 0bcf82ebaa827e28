"""What the logs of a run say of each request's own records."""

from __future__ import annotations

import numpy as np
import pytest
from support.reports import make_run

from evaluation.ruler.rank_significance import rank_test
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.naming import LOG_SETS
from oblivionis.reports import request_figures as module
from oblivionis.reports.request_figures import request_figures, write_request_figures

FORGET = LOG_SETS["forget"]
LOSSES = {"unlearn": [1.0, 2.0, 3.0, 4.0], "retrain": [1.5, 2.0, 2.5, 0.5]}


def log(stage):
    """The retrained model was not asked for `d`."""
    ids = ["a", "b", "c", "d"][: 3 if stage == "retrain" else 4]
    losses = LOSSES.get(stage, [0.0] * 4)[: len(ids)]
    found = {FORGET: {"avg_gt_loss": {str(i): x for i, x in enumerate(losses)}}, "ids": {FORGET: ids}}
    return found | ({"ruler": {"a": 0.25, "b": 0.75, "d": 1.0}} if stage == "unlearn" else {})


@pytest.fixture
def run(tmp_path):
    run, _ = make_run(tmp_path, logs=log)
    ledger = Ledger(run.ledger_path)
    for name, ids in (("one", ("a", "b", "d", "e")), ("two", ("c",)), ("none", ("f",))):
        ledger.submit(Request(name, 0, ids, 1))
    write_request_figures(run)
    return run


def test_the_records_that_both_models_were_asked_for_are_compared(run):
    found = request_figures(run, "one")["oracle"]
    assert (found["questions"], found["records"]) == (2, 4)
    assert found["value"] == pytest.approx(np.exp([-1.0, -2.0]).mean())
    assert found["oracle"] == pytest.approx(np.exp([-1.5, -2.0]).mean())
    assert request_figures(run, "two")["oracle"]["value"] == pytest.approx(np.exp(-3.0))


def test_the_ranks_of_its_own_records_count(run):
    expected = rank_test([0.25, 0.75, 1.0])
    assert request_figures(run, "one")["rank"] == {
        "mean rank": expected.mean,
        "records": 3,
        "p": expected.p_value,
        "verdict": expected.verdict,
    }
    assert "rank" not in request_figures(run, "two")


def test_nothing_is_said_of_records_that_were_not_measured(run):
    assert request_figures(run, "none") == {} == request_figures(run, "unheard of")


def test_before_the_unlearning_there_are_no_figures(tmp_path):
    run, _ = make_run(tmp_path, stages=["finetune", "retrain"], logs=log)
    Ledger(run.ledger_path).submit(Request("one", 0, ("a",), 1))
    write_request_figures(run)
    assert request_figures(run, "one") == {}


def test_a_log_without_losses_has_nothing_to_compare(tmp_path):
    def recalls(stage):
        found = log(stage)
        losses = found[FORGET].pop("avg_gt_loss") if stage == "retrain" else {}
        return found | {FORGET: {**found[FORGET], "rougeL_recall": dict.fromkeys(losses or "01", 0.5)}}

    run, _ = make_run(tmp_path, logs=recalls)
    Ledger(run.ledger_path).submit(Request("one", 0, ("a", "b"), 1))
    write_request_figures(run)
    assert "oracle" not in request_figures(run, "one") and request_figures(run, "one")["rank"]["records"] == 2


def test_records_that_the_retrained_model_was_trained_on_are_not_compared(tmp_path, monkeypatch):
    run, _ = make_run(tmp_path, logs=log)
    Ledger(run.ledger_path).submit(Request("one", 0, ("a", "b"), 1), Request("two", 0, ("b",), 1))
    monkeypatch.setattr(module, "seen_by_oracle", lambda run: {"one": ["a"], "two": ["b"]})
    write_request_figures(run)
    found = request_figures(run, "one")["oracle"]
    assert (found["questions"], found["records"]) == (1, 1) and found["value"] == pytest.approx(np.exp(-2.0))
    assert "oracle" not in request_figures(run, "two")


def test_without_requests_no_file_is_written(tmp_path):
    run, _ = make_run(tmp_path, logs=log)
    write_request_figures(run)
    assert not (run.path / module.FILE).exists() and request_figures(run, "one") == {}
