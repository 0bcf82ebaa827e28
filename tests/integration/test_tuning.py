"""`oblivionis tune` as a whole, on the smallest experiment, its runs one after another in this process."""

import csv
import io
import json
import threading
from types import SimpleNamespace

import pytest
import yaml
from optuna.trial import TrialState
from rich.console import Console
from support.inprocess import InProcessGrid

from benchmarks import cli
from benchmarks.federated.matrix import axes_of, cells_of
from benchmarks.scheduling import processes, scheduler
from benchmarks.tuning.space import Dimension
from benchmarks.tuning.study import Search
from benchmarks.tuning.tune import Wanted, tune
from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.errors import OblivionisError, RunError, RunFailed, RunInterrupted
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.progress import Events
from oblivionis.server.app import serve

SMALL = (
    "data.authors=9",
    "data.holdout_authors=2",
    "data.reference_authors=0",
    "federation.rounds.finetune=1",
    "federation.rounds.retrain=1",
    "evaluation.leakage.samples=2",
    "evaluation.full.sets=[forget,retain]",
)
SPACE = """
grad_diff:
  unlearning.epochs: [1, 2, 5]
  unlearning.learning_rate: {low: 1.0e-5, high: 1.0e-3, log: true}
"""


class Fake:
    """In place of processes: `behaviour` does a run at once, and its end is what `poll` says."""

    def __init__(self, patch, behaviour):
        self.started, self.stopped, self._behaviour = [], [], behaviour
        patch.setattr(processes, "start", self.start)
        patch.setattr(processes, "stop", self.stopped.extend)
        patch.setattr(scheduler, "POLL_S", 0.0)

    def start(self, path, slot, method, command=processes.RESUME):
        self.started.append(path)
        code = self._behaviour(RunDirectory.open(path))
        log = path / processes.LOG
        log.write_text("error: it broke\n" if code else "done\n")
        polls = iter(range(200))  # a process that nobody stops must not keep the test waiting
        return processes.Job(SimpleNamespace(poll=lambda: code if next(polls) >= 0 else 1, returncode=code), log)


def done(run):
    config = configuration.from_yaml(run.read_config())
    with run.lock():
        serve(config, InProcessGrid(app, config.federation.clients), run, Events(), threading.Event())
    return 0


def work(
    folder, run="smoke", overrides=SMALL, *, methods=("grad_diff",), trials=4, resume=False, dry_run=False, **more
):
    space = folder.parent / "space.yaml"
    space.write_text(SPACE if "grad_diff" in methods else "{}")
    wanted = Wanted(str(run), tuple(overrides), methods, trials, 1, folder, space, least_utility=0.5, **more)
    console = Console(file=io.StringIO(), width=150)
    tune(wanted, console, resume=resume, dry_run=dry_run)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """The folder of a tuning of four trials that was stopped in the third, and what was printed at its end."""
    folder = tmp_path_factory.mktemp("tuning") / "made"

    def breaks_off(run):
        if run.name == "0003":
            raise KeyboardInterrupt
        return done(run)

    with pytest.MonkeyPatch.context() as patch:
        first = Fake(patch, breaks_off)
        with pytest.raises(RunInterrupted, match=r"oblivionis tune smoke .* --resume"):
            work(folder)
        begun = len(first.started)
        second = Fake(patch, done)
        said = work(folder, resume=True)
    return SimpleNamespace(folder=folder, said=said, begun=begun, again=[path.name for path in second.started])


def rows(folder):
    with (folder / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def test_what_was_done_is_not_done_again(tuned):
    assert tuned.begun == 5, "base, untuned, two trials and the one that was stopped"
    assert tuned.again == ["0003", "0004"], "the interrupted trial itself is continued"
    assert [row["state"] for row in rows(tuned.folder)] == ["complete"] * 5


def test_the_table_has_tuned_beside_untuned(tuned):
    assert "untuned" in tuned.said and "tuned" in tuned.said and "retrained" in tuned.said
    assert "4 trials finished" in tuned.said


def test_the_result_says_which_records_were_used_and_at_what_cost(tuned):
    result = json.loads((tuned.folder / "result.json").read_text())
    assert not set(result["records"]["tuned_on"]) & set(result["records"]["reported"])
    budget = result["methods"]["grad_diff"]["budget"]
    assert budget["complete"] == 4 and budget["exchanges"] > 0 and budget["client_epochs"] >= budget["exchanges"]
    own = result["methods"]["grad_diff"]
    assert own["tuned"]["distance"] <= own["untuned"]["distance"] or own["untuned"]["violation"] > 0
    assert (tuned.folder / "frontier.svg").read_text().count("<svg") == 1


def test_the_tuned_file_is_an_experiment_on_the_reported_requests(tuned):
    file = tuned.folder / "grad_diff" / "tuned.yaml"
    config, untuned = configuration.compose(file), configuration.compose("smoke", list(SMALL))
    best = json.loads((tuned.folder / "result.json").read_text())["methods"]["grad_diff"]["tuned"]["values"]
    assert config.unlearning.method == "grad_diff" and config.unlearning.epochs == best["unlearning.epochs"]
    assert config.data == untuned.data and config.evaluation == untuned.evaluation
    assert config.unlearning.requests == untuned.unlearning.requests


def test_the_tuned_file_is_a_row_of_a_suite(tuned):
    file = tuned.folder / "grad_diff" / "tuned.yaml"
    rows = ["grad_diff", {"label": "grad_diff, tuned", "tuned": str(file)}]
    untuned, found = cells_of(axes_of({"unlearning": rows}), {}, "smoke", ["finetune", "unlearn"])
    assert found.labels == {"unlearning": "grad_diff, tuned"} and untuned.config.unlearning.epochs == 5
    values = yaml.safe_load(file.read_text())["unlearning"]
    assert found.config.unlearning.epochs == values["epochs"]
    assert found.config.unlearning.learning_rate == values["learning_rate"]


def test_a_trial_that_is_worse_than_most_is_stopped_and_counts(tuned):
    def lingers(run):
        head = {"stage": "unlearn", "round": 1, "moment": "round"}
        tofu = {**head, "evaluator": "tofu", "metrics": {"forget_prob": 1.0}}
        run.append_metrics([tofu, {**head, "evaluator": "membership", "metrics": {"auc_loss": 1.0}}])
        return None

    with pytest.MonkeyPatch.context() as patch:
        fake = Fake(patch, lingers)
        said = work(tuned.folder, trials=5, resume=True)
    assert len(fake.stopped) == 1 and "stopped after round 1" in said and "1 stopped early" in said
    assert rows(tuned.folder)[-1]["state"] == "pruned"


def test_trials_that_break_off_are_failed_and_replaced(tuned):
    codes = iter([-9, 0])

    def killed_once(run):
        return next(codes) or done(run)

    with pytest.MonkeyPatch.context() as patch:
        Fake(patch, killed_once)
        said = work(tuned.folder, trials=6, resume=True)
    last = rows(tuned.folder)[-2:]
    assert [row["state"] for row in last] == ["fail", "complete"] and "killed by signal 9" in said
    assert "killed by signal 9" in last[0]["error"]
    with pytest.MonkeyPatch.context() as patch:
        Fake(patch, lambda run: 1)
        with pytest.raises(RunFailed, match="one after another"):
            work(tuned.folder, trials=20, resume=True)


def test_a_resumed_search_draws_what_one_that_was_not_stopped_draws(tuned, tmp_path):
    space = json.loads((tuned.folder / "result.json").read_text())["methods"]["grad_diff"]["space"]
    space = [Dimension(path, **{**plain, "choices": tuple(plain["choices"])}) for path, plain in space.items()]
    drawn = [t.params for t in Search(tuned.folder, "grad_diff", space, 0, 2).trials(TrialState.COMPLETE)]
    fresh = Search(tmp_path, "grad_diff", space, 0, 2)
    fresh.study.add_trial(Search(tuned.folder, "grad_diff", space, 0, 2).study.get_trials()[0])
    assert [fresh.ask().params for _ in range(4)] == drawn[:4], "the first ones are random, each by its own seed"


def test_a_run_gives_its_finetuned_model(tuned, tmp_path):
    run = tmp_path / "reported"
    config = configuration.compose("smoke", [*SMALL, "stages=[finetune,retrain]"])
    made = RunDirectory(run)
    run.mkdir()
    made.write_config(configuration.to_yaml(config))
    with pytest.raises(RunError, match="no finished stage finetune"):
        work(tmp_path / "tuning", run, ())
    done(made)
    with pytest.raises(RunError, match="does not hold the clients' updates"):
        work(tmp_path / "early", run, (), methods=("npo", "pga"))
    assert not (tmp_path / "early").exists(), "told before anything is made"
    with pytest.MonkeyPatch.context() as patch:
        Fake(patch, done)
        work(tmp_path / "tuning", run, (), trials=1)
    base = RunDirectory(tmp_path / "tuning" / "base")
    ours, theirs = (r.load_checkpoint("finetune").vector for r in (base, made))
    assert (ours == theirs).all() and base.stage_summary("finetune")["metrics"] != made.stage_summary("finetune")[
        "metrics"
    ]
    experiment = configuration.compose(tmp_path / "tuning" / "grad_diff" / "tuned.yaml")
    assert experiment.start_from == str(run) and experiment.name is None
    (run / "stages" / "retrain.json").unlink()
    with pytest.raises(RunError, match=r"stages/retrain\.json is gone; line \d+ of the ledger names it"):
        work(tmp_path / "other", run, ())


def test_a_folder_is_one_tuning(tuned):
    with pytest.raises(RunError, match="has a tuning already"):
        work(tuned.folder)
    with pytest.raises(RunError, match="max_epochs was 20, is 3"):
        work(tuned.folder, resume=True, max_epochs=3)
    with pytest.raises(RunError, match="nothing to resume"):
        work(tuned.folder.parent / "new", resume=True)


def test_a_dry_run_only_says(tmp_path):
    said = work(tmp_path / "none", dry_run=True)
    assert "budget of each method: 4 trials of 2 rounds" in said and not (tmp_path / "none").exists()


def test_without_optuna_it_says_how_to_get_it():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(OblivionisError, match=r"pip install 'oblivionis\[tune\]'"):
            cli.tune("smoke")
