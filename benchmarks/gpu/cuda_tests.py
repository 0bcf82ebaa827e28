"""The test files that ask whether there is CUDA, run by pytest where the folder of the tests is there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.gpu.options import Options
from benchmarks.gpu.result_rows import NEEDS_CUDA, Row, Rows

ROOT = Path(__file__).resolve().parents[2]
ASKS = "torch.cuda.is_available()"


def run(options: Options, rows: Rows) -> None:
    """A row per test file."""
    files = files_below(ROOT / "tests")
    if not files:
        rows.skip("tests", f"no folder tests with such files in {ROOT}")
    elif importlib.util.find_spec("pytest") is None:
        rows.skip("tests", "pytest is not installed")
    else:
        for file in files:
            if options.on_gpu:
                rows.measure(str(file.relative_to(ROOT)), lambda file=file: tested(file, rows.left), seconds=15)
            else:
                rows.skip(str(file.relative_to(ROOT)), NEEDS_CUDA)


def files_below(folder: Path) -> list[Path]:
    """The test files that ask for CUDA."""
    return [path for path in sorted(folder.rglob("test_*.py")) if ASKS in path.read_text(encoding="utf-8")]


def tested(file: Path, seconds: float) -> Row:
    """How many tests passed and were skipped. Raises AssertionError naming the first that failed."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.xml"
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-o",
                "addopts=--import-mode=importlib",
                f"--junitxml={result}",
                file,
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            capture_output=True,
            text=True,
            check=False,
            timeout=max(1.0, seconds),
        )
        if not result.exists():
            raise AssertionError(f"pytest said nothing: {(done.stdout + done.stderr)[-200:]}")
        cases = list(ElementTree.parse(result).iter("testcase"))
    wrong = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    if wrong or not cases:
        first = wrong[0].get("name") if wrong else "no test was found"
        raise AssertionError(f"{len(wrong)} of {len(cases)} tests failed: {first}")
    return {"passed": len(cases) - skipped, "not_for_a_gpu": skipped}
