"""The whole experiment of `conf/smollm2.yaml` by `oblivionis simulate`: seconds and values."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.gpu.options import Options
from benchmarks.gpu.result_rows import FAILED, SKIPPED, OutOfTime, Row, Rows
from oblivionis.errors import FileError
from oblivionis.files import read_json, read_lines
from oblivionis.models.packaged import folder_of, is_fetched

NAME = "smollm2"
STAGES = ("finetune", "retrain", "unlearn")
VALUES = ("forget_rouge", "forget_prob", "forget_truth_ratio", "retain_rouge", "retain_prob", "model_utility")
LEAST = 60.0
"""Seconds without which it is not begun."""
TO_END = 15.0
AUTHORS = [
    "data.name=fictitious",
    "data.retain_authors=null",
    "data.authors=20",
    "data.questions_per_author=20",
    "data.forget_authors=2",
]
"""As many made-up authors as `conf/smollm2.yaml` takes of TOFU's."""
TINY = [
    "federation.clients=2",
    "data.authors=8",
    "stages=[finetune,unlearn]",
    "federation.rounds.finetune=1",
    "federation.rounds.unlearn=1",
    "evaluation.every=0",
    "evaluation.at_start=false",
    "evaluation.leakage.samples=0",
    "evaluation.leakage.full_samples=0",
]


def run(options: Options, rows: Rows) -> None:
    """A row per stage, next to that of `options.beside` if it names results of another device."""
    if not options.tiny and not is_fetched(NAME):
        rows.skip("experiment", f"the model is not here, expected in {folder_of(NAME)}")
        return
    with tempfile.TemporaryDirectory() as output:
        whole = rows.measure(
            "whole run", lambda: simulated(options, Path(output), rows), seconds=0.0 if options.tiny else LEAST
        )
        for stage in STAGES:
            if row := of_stage(Path(output) / "run", stage):
                rows.measure(stage, lambda row=row: row, seconds=-TO_END)
            elif whole is None:
                rows.skip(stage, "the run did not come so far")
    if options.beside:
        rows.measure("beside", lambda: add_reference(Path(options.beside or ""), rows), seconds=-TO_END)


def command(options: Options, output: Path) -> list[str]:
    """The run, as a command line."""
    experiment, more = ("smoke", TINY) if options.tiny else (NAME, [])
    if not options.tiny:
        more = [f"data.path={options.tofu}"] if options.tofu else AUTHORS
    share = 0.3 if options.on_gpu else 0.0
    settings = [f"model.device={options.device}", f"federation.client_gpus={share}", f"output={output}", "name=run"]
    return [sys.executable, "-m", "oblivionis.cli.main", "simulate", experiment, *more, *settings]


def simulated(options: Options, output: Path, rows: Rows) -> Row:
    """Run it in a process of its own, which is ended in time. Raises RuntimeError with its last words, or OutOfTime."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    start = time.perf_counter()
    process = subprocess.Popen(
        command(options, output),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=max(1.0, rows.left - TO_END))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=TO_END)
        raise OutOfTime(f"ended after {time.perf_counter() - start:.0f} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}: {' '.join(said.split())[-250:]}")
    return {"seconds": time.perf_counter() - start}


def of_stage(run: Path, stage: str) -> Row:
    """Rounds, and seconds of each, of a stage; of one that was finished also its seconds and values. Empty for none."""
    lines = read_lines(run / "metrics.jsonl") if (run / "metrics.jsonl").exists() else []
    times = [x["metrics"]["seconds"] for x in lines if (x["stage"], x["evaluator"]) == (stage, "federation")]
    row: Row = {"rounds": len(times), "seconds_per_round": statistics.mean(times)} if times else {}
    summary = run / "stages" / f"{stage}.json"
    if not summary.exists():
        return {**row, "finished": False} if row else {}
    found: dict[str, Any] = read_json(summary)
    values = {key: found["metrics"][key] for key in VALUES if found["metrics"].get(key) is not None}
    return {**row, "finished": True, "seconds": found["seconds"], **values}


def add_reference(file: Path, rows: Rows) -> Row:
    """Put the numbers of the same rows in `file`, an earlier `gpu.json`, next to these. Raises FileError."""
    earlier: dict[str, Any] = read_json(file)
    theirs = earlier.get("parts", {}).get(NAME, {}).get("rows", {})
    if not theirs:
        raise FileError(f"{file} has no results of the part {NAME}")
    for name in [name for name in rows.rows if name in theirs]:
        row = {key: value for key, value in theirs[name].items() if key not in (FAILED, SKIPPED)}
        rows.measure(f"{name}, on {earlier['device']['name']}", lambda row=row: row, seconds=-TO_END)
    return {"rows": len(theirs)}
