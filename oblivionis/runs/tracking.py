"""Metrics for trackers as they come: every row of `metrics.jsonl` to TensorBoard, MLflow, W&B or trackio, server only.

A scalar is called `<stage>/<evaluator>/<metric>`; its step is the round, in the stage `local` the client. A model right
after FedTU is half a round early, as in the report; TensorBoard and MLflow, whose steps are whole, have it at the
round, under `<stage>/<evaluator>/<metric>/after_unlearn`.

`tracking.jsonl` in the run directory remembers which rows each tracker has got. A resumed run sends those that are
missing and none twice: the rounds that it repeats come out the same.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypedDict

from oblivionis.errors import OblivionisError
from oblivionis.files import append_lines, read_json, read_lines, write_json
from oblivionis.runs.directory import RunDirectory

PROJECT = "oblivionis"
SENT_FILE, IDS_FILE = "tracking.jsonl", "tracking.json"
PACKAGES = {
    "tensorboard": "'oblivionis[tensorboard]'",
    "mlflow": "'oblivionis[mlflow]'",
    "wandb": "wandb",
    "trackio": "trackio",
}
"""By tracker, which is also the module that it needs, what to install."""
MLFLOW_TAG = "oblivionis.run"
AFTER_UNLEARN = "after_unlearn"

Row = Mapping[str, Any]


class Tracker(Protocol):
    """Takes the scalars of one row."""

    def log(self, row: Row, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def check_tracking(names: Sequence[str]) -> None:
    """Raises OblivionisError for a tracker whose package is not installed, with how to get it."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise OblivionisError(
                f"tracking: {name} is asked for, but its package is not installed; pip install {PACKAGES[name]}, or "
                f"leave {name} out of `tracking`"
            )


class Tracking:
    """Passes the rows of a run on to its trackers. A tracker that fails is left out from then on, with a warning."""

    def __init__(self, run: RunDirectory, trackers: Mapping[str, Tracker], warn: Callable[[str], None]) -> None:
        self._path, self._trackers, self._warn = run.path / SENT_FILE, dict(trackers), warn
        self._sent = {(entry["tracker"], *entry["row"]) for entry in read_lines(self._path, _Sent)}

    def rows(self, rows: Sequence[Row]) -> None:
        """Send what a tracker has not got yet."""
        for name in list(self._trackers):
            try:
                self._send(name, [row for row in rows if (name, *_key(row)) not in self._sent])
            except Exception as error:
                del self._trackers[name]
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                self._warn(f"tracking by {name} failed, the run goes on without it: {reason}")

    def _send(self, name: str, rows: Sequence[Row]) -> None:
        for row in rows:
            values = {f"{row['stage']}/{row['evaluator']}/{k}": float(v) for k, v in row["metrics"].items() if _is(v)}
            if values:
                self._trackers[name].log(row, values)
            self._sent.add((name, *_key(row)))
        append_lines(self._path, [{"tracker": name, "row": _key(row)} for row in rows])

    def close(self) -> None:
        for name, tracker in self._trackers.items():
            try:
                tracker.close()
            except Exception as error:
                self._warn(f"tracking by {name} did not end in order: {error}")


def follow(run: RunDirectory, names: Sequence[str], config: Mapping[str, Any], warn: Callable[[str], None]) -> Tracking:
    """Open the trackers called `names` for `run`, send them the rows they miss, and all that are yet to come.

    `config` goes to MLflow, W&B and trackio as the run's settings. Raises OblivionisError for a package that is
    missing or a tracker that cannot be opened.
    """
    check_tracking(names)
    trackers: dict[str, Tracker] = {}
    for name in names:
        try:
            trackers[name] = _open(name, run, config)
        except Exception as error:
            raise OblivionisError(f"tracking: {name} cannot be opened: {error}") from error
    tracking = Tracking(run, trackers, warn)
    if trackers:
        tracking.rows(run.metrics())
        run.on_metrics(tracking.rows)
    return tracking


def step_of(row: Row) -> float:
    """Round of a row, half a round earlier right after FedTU."""
    return row["round"] - 0.5 * (row["moment"] == AFTER_UNLEARN)


class TensorBoard:
    """Event files in a folder."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def log(self, row: Row, values: Mapping[str, float]) -> None:
        for tag, value in _whole_steps(row, values).items():
            self._writer.add_scalar(tag, value, row["round"], walltime=row.get("time", time.time()))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Mlflow:
    """A run of the experiment `oblivionis` in the store that `MLFLOW_TRACKING_URI` names, else in `mlflow.db` next to
    the run directories.

    It is known by a tag, so that a resumed run goes on in it. MLflow's report of its own usage is off unless
    `MLFLOW_DISABLE_TELEMETRY` says otherwise.
    """

    def __init__(self, run: RunDirectory, config: Mapping[str, Any]) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient, entities  # type: ignore[import-not-found]

        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        folder, store = run.path.resolve().parent, os.environ.get("MLFLOW_TRACKING_URI")
        self._client, self._entities = MlflowClient(store or f"sqlite:///{folder / 'mlflow.db'}"), entities
        identity, known = _identity(run), self._client.get_experiment_by_name(PROJECT)
        artifacts = None if store else (folder / "mlruns").as_uri()
        experiment = known.experiment_id if known else self._client.create_experiment(PROJECT, artifacts)
        begun = self._client.search_runs([experiment], f"tags.`{MLFLOW_TAG}` = '{identity}'")
        if begun:
            self._id = begun[0].info.run_id
            self._client.update_run(self._id, "RUNNING")
        else:
            self._id = self._client.create_run(experiment, run_name=run.name, tags={MLFLOW_TAG: identity}).info.run_id
            self._client.log_batch(self._id, params=[entities.Param(*one) for one in _flat(config)])

    def log(self, row: Row, values: Mapping[str, float]) -> None:
        milliseconds = int(1000 * row.get("time", time.time()))
        named = _whole_steps(row, values).items()
        metrics = [self._entities.Metric(name, value, milliseconds, row["round"]) for name, value in named]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._id)


class Logged:
    """A run of W&B or of trackio, which has the same interface. The step is a value of its own, `<stage>/round`.

    Without an account at hand W&B writes into the run directory only (`wandb sync` sends it later).
    """

    def __init__(self, logged: Any) -> None:
        self._run = logged

    def log(self, row: Row, values: Mapping[str, float]) -> None:
        self._run.log({f"{row['stage']}/round": step_of(row), **values})

    def close(self) -> None:
        self._run.finish()


def _open(name: str, run: RunDirectory, config: Mapping[str, Any]) -> Tracker:
    if name == "tensorboard":
        return TensorBoard(run.path / "tensorboard")
    if name == "mlflow":
        return Mlflow(run, config)
    if name == "trackio":
        import trackio  # type: ignore[import-not-found]

        return Logged(trackio.init(project=PROJECT, name=_identity(run), config=dict(config), resume="allow"))
    import wandb  # type: ignore[import-not-found]

    known = os.environ.get("WANDB_MODE") or os.environ.get("WANDB_API_KEY") or wandb.login(prompt=False)
    logged = wandb.init(
        project=PROJECT,
        name=run.name,
        id=_identity(run),
        resume="allow",
        dir=str(run.path),
        config=dict(config),
        mode=None if known else "offline",
        settings=wandb.Settings(console="off", silent=True),
    )
    for stage in ("finetune", "retrain", "unlearn", "local", "local_unlearned"):
        logged.define_metric(f"{stage}/round", hidden=True)
        logged.define_metric(f"{stage}/*", step_metric=f"{stage}/round")
    return Logged(logged)


def _identity(run: RunDirectory) -> str:
    """A name for the run by which a tracker finds it again after a resume: no other run directory has the same."""
    path = run.path / IDS_FILE
    if not path.exists():
        write_json(path, {"id": re.sub(r"[^\w.-]+", "-", run.name)[:80] + f"-{os.urandom(4).hex()}"})
    return read_json(path, _Identity)["id"]


def _whole_steps(row: Row, values: Mapping[str, float]) -> dict[str, float]:
    """Values by the names that tell a model right after FedTU from the one at the end of the same round."""
    after = f"/{AFTER_UNLEARN}" if row["moment"] == AFTER_UNLEARN else ""
    return {f"{name}{after}": value for name, value in values.items()}


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Each setting as its dotted key and a text."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value if isinstance(value, str) else json.dumps(value)


class _Sent(TypedDict):
    tracker: str
    row: tuple[str, int, str, str]


class _Identity(TypedDict):
    id: str


def _key(row: Row) -> list[Any]:
    return [row["stage"], row["round"], row["moment"], row["evaluator"]]


def _is(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
