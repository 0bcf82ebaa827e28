"""Shared by tests: see `test_stages`."""

import json
import threading
from pathlib import Path

from support.churn import QUIET
from support.inprocess import InProcessGrid
from support.one_layer import one_layer

from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.progress import Events
from oblivionis.server.app import serve

WHOLE_MODEL = "model.source=embedded"
"""The embedded model with all its layers, in the place of the one that `BASE` has."""
BASE = [
    f"model.source={one_layer()}",
    "federation.clients=4",
    "federation.fraction_train=0.5",
    "federation.local_epochs=1",
    "data.authors=8",
    "data.questions_per_author=2",
    "data.forget_authors=2",
    "evaluation.light.questions_per_set=2",
    "evaluation.full.questions_per_set=3",
]

EXACT = (
    *("unlearning=exact", "strategy=fedadam", *QUIET, "federation.clients=3"),
    *("federation.rounds.finetune=3", "federation.rounds.retrain=3", "federation.rounds.unlearn=2"),
    "federation.fraction_train=0.7",
)
"""Settings of small runs of exact erasure."""


class Recorded(Events):
    """Keeps the events; `stop_in` sets the stop flag when that (stage, round) starts."""

    def __init__(self, stop=None, stop_in=None):
        self.left_out, self.warnings, self.trained, self.unlearned = [], [], [], []
        self.stop, self.stop_in, self.stage = stop, stop_in, ""

    def stage_started(self, stage, done, total):
        self.stage = stage

    def round_started(self, round):
        if self.stop_in == (self.stage, round):
            self.stop.set()

    def exchange_started(self, kind, clients):
        (self.unlearned if kind == "unlearn" else self.trained).append((self.stage, tuple(clients)))

    def reply(self, client, ok, reason):
        if not ok:
            self.left_out.append((self.stage, client, reason))

    def warning(self, text):
        self.warnings.append(text)


def new_run(tmp_path, name, *overrides):
    config = configuration.compose("smoke", [*BASE, f"output={tmp_path}", f"name={name}", *overrides])
    run = RunDirectory.create(Path(config.output), config.name)
    run.write_config(configuration.to_yaml(config))
    return config, run


def execute(config, run, tamper=None, events=None):
    events = events or Recorded()
    stop = events.stop or threading.Event()
    grid = InProcessGrid(app, config.federation.clients, tamper)
    serve(config, grid, run, events, stop)
    return events, grid


def final_metrics(run):
    return {stage: run.stage_summary(stage)["metrics"] for stage in ("finetune", "retrain", "unlearn")}


def tombstones(run):
    return {row["record_id"] for p in run.nodes_path.glob("*/tombstones.jsonl") for row in map(json.loads, p.open())}
