"""`oblivionis simulate` as a process of its own, and what it computed."""

import json
import os
import signal
import subprocess
import sys
import uuid

from support.processes import MARK, environment, marked, until

SMALL = [
    "federation.client_cpus=2",  # one client process on two cores
    "federation.clients=3",
    "federation.fraction_train=0.67",
    "federation.rounds.finetune=3",
    "federation.rounds.unlearn=4",
    "federation.local_epochs=2",
    "data.authors=9",
    "data.questions_per_author=2",
    "data.forget_authors=3",
    "evaluation.every=0",
    "evaluation.at_start=false",
    "evaluation.full.questions_per_set=2",
    "evaluation.full.max_new_tokens=4",
]
RUN = ["smoke", "stages=[finetune, unlearn]", "strategy=fedadam", *SMALL]
TIMING = {*{"seconds", "processor_seconds", "time", "train-seconds", "unlearn-seconds"}, "bytes_sent", "bytes_received"}
START_S, STOP_S, RUN_S = 300, 120, 600


class Command:
    """A started `oblivionis` command; its descendants are known by a mark in their environment."""

    def __init__(self, cwd, *arguments, **variables):
        self.log = cwd / f"{uuid.uuid4().hex}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "oblivionis.cli.main", *map(str, arguments)],
                cwd=cwd,
                env=environment(**{MARK: self.log}, **variables),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self):
        return self.log.read_text(encoding="utf-8", errors="replace")

    def finish(self, timeout=RUN_S):
        """The exit code."""
        return self.process.wait(timeout)

    def descendants(self, name=""):
        return marked(self.log, name)

    def leaves_nothing(self):
        """Whether no descendant lives on `STOP_S` seconds after the end of the command."""
        return until(lambda: not self.descendants(), STOP_S)

    def interrupt(self):
        """What a terminal does on Ctrl-C: SIGINT to the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self):
        self.process.kill()
        for process in self.descendants():
            process.kill()
        self.process.wait()


def rows(run):
    """The complete lines of metrics.jsonl."""
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    return [json.loads(line) for line in lines]


def completed(run, stage, round):
    return any(r["evaluator"] == "federation" and (r["stage"], r["round"]) == (stage, round) for r in rows(run))


def reach(running, run, stage, round):
    """Wait until `round` of `stage` is complete, so that the next one has begun."""
    assert until(lambda: running.process.poll() is not None or completed(run, stage, round), START_S, every=0.005)
    assert running.process.poll() is None, running.output


def numbers(run):
    """Everything that a run computed: all metrics but the times, after each round and at the end of each stage."""
    metrics = [
        [row[k] for k in ("stage", "round", "moment", "evaluator")]
        + [{k: v for k, v in row["metrics"].items() if k not in TIMING}]
        for row in rows(run)
    ]
    final = {p.stem: json.loads(p.read_text())["metrics"] for p in sorted((run / "stages").iterdir())}
    return metrics, final


OF_THE_RUN = {"time", "prev", "hash", "run", "config", "text", "file", "files", "rows"}
"""Keys of a ledger's lines that differ between runs of the same settings: times, names, hashes of what has these."""


def ledger(run):
    """What a run's ledger says, the model's hash after each round included, without times and names."""
    lines = map(json.loads, (run / "requests.jsonl").read_text(encoding="utf-8").splitlines())
    said = [{k: v for k, v in line.items() if k not in OF_THE_RUN} for line in lines]
    for line in said:
        line.get("told", {}).pop("unlearn-seconds", None)
    assert [line["round"] for line in said if line["event"] == "checkpoint"], "there are models to compare"
    return said


def computed(run):
    """What is the same to the last bit wherever clients are simulated."""
    return numbers(run), ledger(run)
