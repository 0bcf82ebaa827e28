"""A stopped and resumed run whose metrics go to TensorBoard."""

import threading

import pytest
from support.stages import Recorded, execute, new_run

from oblivionis.errors import RunInterrupted
from oblivionis.runs.directory import RunDirectory

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


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


def test_a_stopped_and_resumed_run_has_every_step_once(tmp_path):
    config, run = new_run(tmp_path, "stopped", "tracking=[tensorboard]", "evaluation.after_unlearn=true")
    with pytest.raises(RunInterrupted):
        execute(config, run, events=Recorded(threading.Event(), ("unlearn", 2)))
    execute(config, RunDirectory.open(run.path))
    check(run)
    assert any(tag.endswith("/after_unlearn") for tag in scalars(run))
    assert {tag.split("/")[0] for tag in scalars(run)} == {"finetune", "retrain", "unlearn"}
