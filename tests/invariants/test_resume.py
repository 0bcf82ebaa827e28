"""A run that is stopped and resumed is a run that is not: strategies alone, and whole runs."""

import threading

import numpy as np
import pytest
from support.fedtu_clients import Recorder, adapter, federation, flat, noise, request
from support.stages import Recorded, execute, final_metrics, new_run

from oblivionis.config import compose as configuration
from oblivionis.errors import RunInterrupted
from oblivionis.runs.directory import RunDirectory
from strategies.rounds.fedtu import FedTU, Options, RequestList
from strategies.rules.factory import build, names


@pytest.mark.parametrize("inner", names())
@pytest.mark.parametrize("stop", [(2, "round"), (2, "after_unlearn"), (3, "round")])
def test_resume_of_a_strategy_equals_not_stopping(inner, stop):
    def make(requests, listener=None):
        return FedTU(build(inner, fraction_train=0.5), requests=requests, listener=listener, options=Options(seed=3))

    due = [(2, request(1)), (4, request(3)), (4, request(5))]
    whole = Recorder()
    full = make(RequestList(due), whole).start(federation(6), adapter(noise("start")), num_rounds=5)
    round_, moment = stop
    arrays, state = whole.checkpoints[stop]
    requests = RequestList([(r, q) for r, q in due if r > round_])
    resumed, rest = make(requests, again := Recorder()), round_ if moment == "after_unlearn" else round_ + 1
    resumed.load_state_dict(state)
    seen = []
    result = resumed.start(
        federation(6), adapter(arrays), num_rounds=5, start_round=rest, evaluate_fn=lambda r, a: seen.append(r)
    )
    assert np.array_equal(flat(result.arrays), flat(full.arrays))
    assert seen == list(range(rest, 6)), "the initial model is not evaluated again"
    for key, (a, s) in again.checkpoints.items():
        assert np.array_equal(a, whole.checkpoints[key][0])
        assert s.keys() == whole.checkpoints[key][1].keys()
        assert all(np.array_equal(s[k], whole.checkpoints[key][1][k]) for k in s)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    config, run = new_run(tmp_path_factory.mktemp("runs"), "whole", "federation.rounds.unlearn=4")
    execute(config, run)
    return run


@pytest.mark.parametrize("stop_in", [("finetune", 2), ("retrain", 1), ("unlearn", 3)])
@pytest.mark.slow
def test_resume_equals_not_stopping(finished, tmp_path, stop_in):
    config, run = new_run(tmp_path, "stopped", "federation.rounds.unlearn=4")
    stop = threading.Event()
    with pytest.raises(RunInterrupted):
        execute(config, run, events=Recorded(stop, stop_in))
    assert run.stage_summary(stop_in[0]) is None
    again = configuration.from_yaml(run.read_config())
    execute(again, RunDirectory.open(run.path))
    assert final_metrics(run) == final_metrics(finished)
    for stage in ("finetune", "retrain", "unlearn"):
        np.testing.assert_array_equal(run.load_checkpoint(stage).vector, finished.load_checkpoint(stage).vector)
    keys = [(r["stage"], r["round"], r["moment"], r["evaluator"]) for r in run.metrics()]
    assert len(keys) == len(set(keys)), "no round is written twice"
