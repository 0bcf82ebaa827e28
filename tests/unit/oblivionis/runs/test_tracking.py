"""Trackers get every row once: TensorBoard and MLflow read back by their readers, W&B and trackio by their interface.

W&B and trackio are no requirement of the tests: a module with the functions of theirs that are called stands in.
"""

import importlib.machinery
import importlib.util
import sys
import types

import pytest

from oblivionis.config import compose as configuration
from oblivionis.errors import OblivionisError
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.tracking import check_tracking, follow

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def row(round, moment="round", stage="unlearn", **metrics):
    return {"stage": stage, "round": round, "moment": moment, "evaluator": "tofu", "metrics": metrics, "time": 5.0}


def scalars(run):
    """Tag → (step, value) of all events in the run's folder."""
    reader = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0}, purge_orphaned_data=False)
    reader.Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def expected(run):
    found = {}
    for one in run.metrics():
        after = "/after_unlearn" if one["moment"] == "after_unlearn" else ""
        for name, value in one["metrics"].items():
            found.setdefault(f"{one['stage']}/{one['evaluator']}/{name}{after}", []).append((one["round"], value))
    return found


def check(run):
    found, wanted = scalars(run), expected(run)
    assert found.keys() == wanted.keys()
    for tag, events in wanted.items():
        assert [step for step, _ in found[tag]] == [step for step, _ in events], tag
        assert [v for _, v in found[tag]] == pytest.approx([v for _, v in events], rel=1e-6), tag


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path, "a run")


def test_rows_come_back_from_the_event_files(run):
    run.append_metrics([row(0, "start", forget_rouge=0.5)])
    warned = []
    tracking = follow(run, ["tensorboard"], {}, warned.append)
    run.append_metrics([row(1, "after_unlearn", forget_rouge=0.4), row(1, forget_rouge=0.25, none=None)])
    run.append_metrics([row(2, stage="finetune", forget_rouge=0.75), {**row(3), "error": "broken"}])
    assert scalars(run) == {
        "unlearn/tofu/forget_rouge": [(0, 0.5), (1, 0.25)],
        "unlearn/tofu/forget_rouge/after_unlearn": [(1, pytest.approx(0.4))],
        "finetune/tofu/forget_rouge": [(2, 0.75)],
    }, "before the run is over"
    tracking.close()
    assert warned == []


@pytest.fixture
def mlflow(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return pytest.importorskip("mlflow")


@pytest.mark.slow
def test_mlflow_has_settings_and_rows_and_goes_on_in_the_same_run(run, mlflow, capfd):
    config = {"seed": 3, "model": {"name": "tiny", "lora": {"target_modules": ["q_proj"]}}, "start_from": None}
    tracking = follow(run, ["mlflow"], config, print)
    assert capfd.readouterr() == ("", ""), "MLflow's own log does not disturb the command's"
    run.append_metrics([row(1, "after_unlearn", x=1.0), row(1, x=2.0, none=None)])
    store = mlflow.MlflowClient(f"sqlite:///{run.path.parent / 'mlflow.db'}")
    experiment = store.get_experiment_by_name("oblivionis").experiment_id
    (begun,) = store.search_runs([experiment])
    assert begun.info.status == "RUNNING" and begun.info.run_name == "a run"
    assert begun.data.params == {
        "seed": "3",
        "model.name": "tiny",
        "model.lora.target_modules": '["q_proj"]',
        "start_from": "null",
    }
    tracking.close()
    again = RunDirectory(run.path)
    tracking = follow(again, ["mlflow"], {**config, "seed": 4}, print)
    again.append_metrics([row(2, x=3.0)])
    tracking.close()
    (ended,) = store.search_runs([experiment])
    assert ended.info.status == "FINISHED" and ended.data.params == begun.data.params
    histories = {key: store.get_metric_history(ended.info.run_id, key) for key in ended.data.metrics}
    assert {key: [(m.step, m.value, m.timestamp) for m in found] for key, found in histories.items()} == {
        "unlearn/tofu/x/after_unlearn": [(1, 1.0, 5000)],
        "unlearn/tofu/x": [(1, 2.0, 5000), (2, 3.0, 5000)],
    }
    follow(RunDirectory.create(run.path.parent, "other"), ["mlflow"], config, print).close()
    assert [found.info.run_name for found in store.search_runs([experiment])] == ["other", "a run"]


@pytest.mark.slow
def test_mlflow_writes_where_its_variable_says(run, mlflow, monkeypatch, tmp_path):
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", elsewhere)
    follow(run, ["mlflow"], {}, print).close()
    assert len(mlflow.MlflowClient(elsewhere).search_runs(["1"])) == 1
    assert not (run.path.parent / "mlflow.db").exists()


def test_a_second_process_sends_what_is_lacking_and_nothing_twice(run):
    follow(run, ["tensorboard"], {}, print).close()
    run.append_metrics([row(1, x=1.0)])
    again = RunDirectory(run.path)
    follow(again, ["tensorboard"], {}, print)
    again.append_metrics([row(2, x=2.0)])
    again.forget_metrics_after("unlearn", 1)
    third = RunDirectory(run.path)
    follow(third, ["tensorboard"], {}, print)
    third.append_metrics([row(2, x=2.0), row(3, x=3.0)])
    assert scalars(run) == {"unlearn/tofu/x": [(1, 1.0), (2, 2.0), (3, 3.0)]}


def test_without_tracking_nothing_is_written(run):
    follow(run, [], {}, print).close()
    run.append_metrics([row(1, x=1.0)])
    assert sorted(p.name for p in run.path.iterdir()) == ["metrics.jsonl"]


def test_a_missing_package_is_one_message(monkeypatch, run):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OblivionisError, match=r"tensorboard is asked for.*pip install 'oblivionis\[tensorboard\]'"):
        check_tracking(["tensorboard"])
    with pytest.raises(OblivionisError, match=r"mlflow is asked for.*pip install 'oblivionis\[mlflow\]'"):
        check_tracking(["mlflow"])
    with pytest.raises(OblivionisError, match="pip install wandb"):
        follow(run, ["wandb"], {}, print)


def test_an_unknown_tracker_is_a_problem_of_the_configuration():
    with pytest.raises(configuration.ConfigError, match=r"tracking\[0\].*did you mean tensorboard"):
        configuration.compose("smoke", ["tracking=[tensorbord]"])


class Fake(types.ModuleType):
    """The functions of W&B and trackio that are called: `init` gives a run with `log` and `finish`."""

    def __init__(self, name, fail_at=None):
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)
        self.started, self.logged, self.finished, self.fail_at = [], [], 0, fail_at

    def login(self, prompt=True):
        return False

    def Settings(self, **settings):
        return settings

    def init(self, **settings):
        self.started.append(settings)
        return self

    def define_metric(self, name, **settings): ...

    def log(self, values):
        if len(self.logged) == self.fail_at:
            raise ConnectionError("no network")
        self.logged.append(values)

    def finish(self):
        self.finished += 1


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_the_others_get_the_round_as_a_value(monkeypatch, run, name):
    for variable in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    module = Fake(name)
    monkeypatch.setitem(sys.modules, name, module)
    for _ in range(2):
        tracking = follow(RunDirectory(run.path), [name], {"seed": 3}, print)
        tracking.rows([row(1, "after_unlearn", x=1.0), row(1, x=2.0)])
        tracking.close()
    assert module.logged == [{"unlearn/round": 0.5, "unlearn/tofu/x": 1.0}, {"unlearn/round": 1, "unlearn/tofu/x": 2.0}]
    assert module.finished == 2
    first, second = module.started
    key = "id" if name == "wandb" else "name"
    assert first[key] == second[key] and " " not in first[key], "a resumed run is the same run"
    assert first["config"] == {"seed": 3} and first.get("mode") == ("offline" if name == "wandb" else None)


def test_a_tracker_that_fails_does_not_end_the_run(monkeypatch, run):
    monkeypatch.setitem(sys.modules, "trackio", Fake("trackio", fail_at=1))
    warned = []
    follow(run, ["trackio", "tensorboard"], {}, warned.append)
    for i in (1, 2, 3):
        run.append_metrics([row(i, x=float(i))])
    assert len(warned) == 1 and "no network" in warned[0]
    assert scalars(run) == {"unlearn/tofu/x": [(1, 1.0), (2, 2.0), (3, 3.0)]}
