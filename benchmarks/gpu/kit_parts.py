"""The parts of the kit: what each measures, how long it may take, and how it came out."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.options import Options
from benchmarks.gpu.result_rows import FAILED, NO_TIME, SKIPPED, Row, Rows, read, summary_of

DONE = "done"
GRACE = 20.0
"""Seconds beyond its own time after which a part is ended."""


@dataclass(frozen=True, slots=True)
class Part:
    """module: in this package, whose `run` does it; least, most: seconds that it needs and that it may take."""

    name: str
    module: str
    title: str
    least: float
    most: float


PARTS = (
    Part("tests", "cuda_tests", "Tests that ask for CUDA", 15, 60),
    Part("checks", "checks", "The same numbers as on the CPU", 15, 60),
    Part("llama_1b", "llama_1b", "Llama-3.2-1B's shape in the paper's setting", 20, 170),
    Part("profile", "profiling", "Where the time of local training goes", 10, 40),
    Part("llama_8b", "llama_8b", "Llama-3.1-8B's shape in 4 bits", 20, 80),
    Part("smollm2", "smollm2", "SmolLM2: the whole experiment, by the real command", 30, 600),
)
Outcome = dict[str, Any]
"""A part in the JSON: title, status (done, failed or skipped), seconds, rows, and why, where there is a reason."""


def work(part: Part, options: Options, file: Path, deadline: float) -> None:
    """Do the part in this process; its rows go to `file`."""
    rows = Rows(file, deadline, on_gpu=options.on_gpu)
    importlib.import_module(f"benchmarks.gpu.{part.module}").run(options, rows)


def outcome(part: Part, options: Options, end: float, *, apart: bool) -> Outcome:
    """Do the part and tell how it came out, whatever happens; `end`, in seconds since the epoch, is that of the kit.

    apart: in a process of its own, so that one that hangs, crashes or ruins its CUDA context harms no other part.
    """
    start, why, status = time.time(), "", DONE
    if end - start < part.least and not options.tiny:
        return {"title": part.title, "status": SKIPPED, "seconds": 0.0, "why": NO_TIME, "rows": {}}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        try:
            (_apart if apart else work)(part, options, file, min(end, start + part.most))
        except Exception as error:
            if not isinstance(error, _Ended):
                print("".join(traceback.format_exception(error)), file=sys.stderr)
            status, why = FAILED, str(error) if isinstance(error, _Ended) else summary_of(error)
        rows = read(file)
    if any(FAILED in row for row in rows.values()):
        status = FAILED
    elif status == DONE and all(SKIPPED in row for row in rows.values()):
        status = SKIPPED
    return {"title": part.title, "status": status, "seconds": time.time() - start, "why": why, "rows": rows}


def counted(rows: dict[str, Row], column: str) -> int:
    """How many rows failed or were skipped."""
    return sum(column in row for row in rows.values())


class _Ended(Exception):
    """The process of a part broke off."""


def _apart(part: Part, options: Options, file: Path, deadline: float) -> None:
    """`work` in a process of its own. Raises _Ended with the reason where it broke off."""
    command = [sys.executable, "-m", "benchmarks.gpu.kit_parts", part.name, json.dumps(asdict(options)), str(file)]
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [*command, str(deadline)],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=max(1.0, deadline - time.time()) + GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise _Ended(f"ended {GRACE:.0f} s after its time was up") from None
    sys.stderr.write(said)
    if process.returncode:
        last = [line for line in said.splitlines() if line.strip()] or [""]
        raise _Ended(f"exit code {process.returncode}: {last[-1][:300]}")


def main(arguments: list[str]) -> None:
    """The process of one part: its name, the options as JSON, the file of its rows, its deadline."""
    name, options, file, deadline = arguments
    part = next(part for part in PARTS if part.name == name)
    work(part, Options(**json.loads(options)), Path(file), float(deadline))


if __name__ == "__main__":
    main(sys.argv[1:])
