"""Golden runs of one source tree: each in processes of its own, forked from one that has the libraries loaded."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from golden import fixing
from golden.cases import LEDGER, REQUEST, Case, Step
from support.forks import LIBRARIES

ARRAYS = (".safetensors", ".npz", ".npy")
LEFT_OUT = ("flower.log", "running.lock")
"""What libraries log, with the time, and who holds a run."""
_PROGRESS = re.compile(r"^.*(it|examples)/s\]$\n?", re.MULTILINE)
"""Libraries' bars, which tell how fast it goes."""
LIMIT_S = 1200
SITE = Path(__file__).with_name("site")


def record(folder: Path, tree: Path, cases: Sequence[Case], jobs: int) -> list[str]:
    """Do `cases` with the program in `tree`, `jobs` at a time, and write what they left to `folder`, a folder each.

    Returns the names of cases that could not be recorded; `CASE.log` in `folder` says why.
    """
    _preload()
    folder.mkdir(parents=True)
    work = Path(tempfile.mkdtemp(prefix="oblivionis-golden-"))
    running: dict[int, tuple[str, float]] = {}
    waiting, failed = list(cases), []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                case = waiting.pop(0)
                running[_forked(lambda case=case: _do(case, work, tree, folder), folder / f"{case.name}.log")] = (
                    case.name,
                    time.monotonic(),
                )
            pid, status = os.waitpid(-1, 0)
            name, began = running.pop(pid)
            if status:
                failed.append(name)
            else:
                (folder / f"{name}.log").unlink()
            print(f"{name}: {'failed' if status else 'done'}, {time.monotonic() - began:.1f} s", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return sorted(failed)


def _preload() -> None:
    sys.modules["bitsandbytes"] = None  # type: ignore[assignment]  # as after a plain installation
    for name in (*LIBRARIES, "ray", "flwr.simulation", "lm_eval", "dp_accounting"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _forked(work: Callable[[], None], log: Path) -> int:
    """The process that does `work()`, whose screen goes to `log`."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _screen(log)
            work()
            code = 0
        except SystemExit as stop:
            if isinstance(stop.code, str):
                print(stop.code, file=sys.stderr)
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code & 0xFF)
    return pid


def _screen(log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number in (1, 2):
        os.dup2(file, number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(number, "w", 1, "utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115


def _do(case: Case, work: Path, tree: Path, folder: Path) -> None:
    """In a process of its own: all steps, and what they left."""
    here = work / case.name
    here.mkdir()
    os.chdir(here)
    case.prepare(here)
    out = folder / case.name
    (out / "screens").mkdir(parents=True)
    codes = {}
    for number, step in enumerate(case.steps, 1):
        arguments = _arguments(step)
        screen = work / f"{case.name}-{number}.log"
        codes[f"{number} oblivionis {' '.join(arguments)}"] = (_real if case.real else _fixed)(
            case, number, step, arguments, screen, tree, work
        )
        text = _PROGRESS.sub("", screen.read_text(encoding="utf-8", errors="backslashreplace"))
        (out / "screens" / f"{number}.txt").write_text(_without_places(text, here, work, tree), encoding="utf-8")
    (out / "exit-codes.json").write_text(json.dumps(codes, indent=1) + "\n")
    gather(here, out / "files", lambda text: _without_places(text, here, work, tree))


def _arguments(step: Step) -> list[str]:
    """With the first request of the ledger in the place of `REQUEST`."""
    if REQUEST not in step.arguments:
        return list(step.arguments)
    lines = [json.loads(line) for line in Path(LEDGER).read_text().splitlines()] if Path(LEDGER).is_file() else []
    first = next((line["id"] for line in lines if "id" in line), "none")
    return [first if argument == REQUEST else argument for argument in step.arguments]


def _environment(work: Path) -> dict[str, str]:
    return {
        "COLUMNS": "200",
        "LC_ALL": "C.UTF-8",
        "OBLIVIONIS_CACHE": str(work / "cache"),
        "RAY_AUTH_MODE": "token",
        "TZ": "UTC",
    }


def _fixed(case: Case, number: int, step: Step, arguments: list[str], screen: Path, tree: Path, work: Path) -> int:
    """The exit code of a step in a process in which everything is fixed."""

    def run() -> None:
        signal.alarm(LIMIT_S)
        for path in Path.cwd().rglob("*"):
            os.utime(path, (fixing.START, fixing.START))
        os.environ.update(_environment(work))
        time.tzset()
        broken = None if step.broken_off is None else fixing.Broken(Path(LEDGER).absolute(), step.broken_off)
        nodes = Path("nodes").absolute() if case.own_folders else None
        sys.path.insert(0, str(tree))
        fixing.everything(tree, f"{case.name}/{number}", 60.0 * number, nodes, broken)
        sys.argv[:] = ["oblivionis", *arguments]
        from oblivionis.cli.main import main

        main()

    _, status = os.waitpid(_forked(run, screen), 0)
    return os.waitstatus_to_exitcode(status)


def _real(case: Case, number: int, step: Step, arguments: list[str], screen: Path, tree: Path, work: Path) -> int:
    """The exit code of the command in a process that starts as any other, as those that it starts."""
    own = {"PYTHONPATH": f"{SITE}{os.pathsep}{tree}", "OBLIVIONIS_GOLDEN_TREE": str(tree)}
    begin = "import sys; from oblivionis.cli.main import main; sys.argv[0] = 'oblivionis'; main()"
    with screen.open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-c", begin, *arguments],
            env={**os.environ, **_environment(work), **own},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
    return done.returncode


def _without_places(text: str, here: Path, work: Path, tree: Path) -> str:
    for place, name in ((here, "<folder>"), (work, "<work>"), (tree, "<tree>")):
        text = text.replace(str(place), name)
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:<port>", text)


def gather(here: Path, out: Path, clean: Callable[[str], str] = str) -> None:
    """Texts as they are but for places; of arrays the SHA-256 of each, of other files that of the whole."""
    for path in sorted(p for p in here.rglob("*") if p.is_file() and p.name not in LEFT_OUT):
        place = out / path.relative_to(here)
        place.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes()
        if path.suffix in ARRAYS:
            place.with_name(f"{place.name}.hashes").write_text(_array_hashes(path))
            continue
        try:
            place.write_text(clean(content.decode("utf-8")), encoding="utf-8")
        except UnicodeDecodeError:
            place.with_name(f"{place.name}.sha256").write_text(hashlib.sha256(content).hexdigest() + "\n")


def _array_hashes(path: Path) -> str:
    """A line for each array of a file: name, type, shape and the hash of its numbers."""
    import numpy as np
    from safetensors.numpy import load_file

    if path.suffix == ".safetensors":
        arrays = load_file(path)
    else:
        loaded = np.load(path, allow_pickle=False)
        arrays = dict(loaded) if path.suffix == ".npz" else {"": loaded}
    return "".join(
        f"{name} {a.dtype} {a.shape} {hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()}\n"
        for name, a in sorted(arrays.items())
    )
