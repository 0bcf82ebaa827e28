"""Runs that are killed, and disks that are full: see `test_faults_of_runs`.

A child of this process, which has everything loaded and the model's questions tokenised, plays a whole run on the
in-process grid; it is killed, or kills itself within a write.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import torch
from support.inprocess import InProcessGrid

from oblivionis import array_files, files
from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.runs import directory
from oblivionis.runs.directory import RunDirectory, vector_hash
from oblivionis.runs.progress import Events
from oblivionis.server.app import serve

TINY = [
    "stages=[finetune,unlearn]",
    "federation.clients=2",
    "federation.fraction_train=1.0",
    "federation.rounds.finetune=2",
    "federation.rounds.unlearn=3",
    "federation.local_epochs=1",
    "data.authors=4",
    "data.questions_per_author=2",
    "data.forget_authors=2",
    "evaluation.every=0",
    "evaluation.at_start=false",
    "evaluation.light.questions_per_set=1",
    "evaluation.full.questions_per_set=2",
    "evaluation.full.max_new_tokens=2",
    "evaluation.leakage.samples=0",
    "evaluation.wikimem.enabled=false",
    "evaluation.ruler.enabled=false",
    "evaluation.membership.enabled=false",
]


def new_run(folder, name, *more):
    config = configuration.compose("smoke", [*TINY, f"output={folder}", f"name={name}", *more])
    run = RunDirectory.create(Path(config.output), config.name)
    run.write_config(configuration.to_yaml(config))
    return run


def play(run):
    """The run, or what is left of it, in this process, as `simulate --resume` plays it."""
    config = configuration.from_yaml(run.read_config())
    with run.lock():
        serve(config, InProcessGrid(app, config.federation.clients), run, Events(), threading.Event())


def child(run, prepare=lambda: None):
    """The id of a process that plays the run after `prepare()`; it ends with 0, or with 1 and a file of the error."""
    pid = os.fork()
    if pid:
        return pid
    code = 0
    try:
        torch.set_num_threads(1)
        prepare()
        play(run)
    except BaseException as error:
        code = 1
        said = "".join(traceback.format_exception(error))
        run.path.with_name(f"{run.name}-{os.getpid()}.error").write_text(said)
    finally:
        sys.stdout.flush()
        os._exit(code)


def ended(pid, seconds=180):
    """Exit code, or minus the signal, of a child."""
    deadline = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def dies_writing(name, number, moment):
    """In a child: it is killed in the `number`-th write of a file whose name contains `name`.

    moment: "temporary" (half of the new file is written), "renamed" (before the folder is synced) or "before" (all is
    written, the old file still stands).
    """

    def prepare():
        seen = [0]
        replace, write_atomic = os.replace, files.write_atomic

        def killed(source, target, *rest, **more):
            if name in str(target) and moment != "temporary":
                seen[0] += 1
                if seen[0] == number and moment == "before":
                    os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target, *rest, **more)
            if name in str(target) and seen[0] == number and moment == "renamed":
                os.kill(os.getpid(), signal.SIGKILL)

        def torn(path, data):
            if name in str(path) and moment == "temporary":
                seen[0] += 1
                if seen[0] == number:
                    payload = data.encode() if isinstance(data, str) else data
                    path.parent.mkdir(parents=True, exist_ok=True)
                    (path.parent / f".{path.name}.x.tmp").write_bytes(payload[: len(payload) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
            write_atomic(path, data)

        os.replace = killed
        array_files.write_atomic = directory.write_atomic = torn

    return prepare


def outcome(run):
    """The final models' hashes, and everything that the ledger says but times."""
    models = {stage: vector_hash(run.load_checkpoint(stage).vector) for stage in ("finetune", "unlearn")}
    return models, hashlib.sha256(repr(sorted(models.items())).encode()).hexdigest()
