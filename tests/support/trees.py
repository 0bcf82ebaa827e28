"""A copy of the whole tree, to which files can be added."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests" / "support"
PARTS = ("oblivionis", "strategies", "clients", "evaluation", "benchmarks", "conf")


class Tree:
    """The packages and `conf/` below `path`, which programs started by `run` import."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._before: dict[Path, bytes | None] = {}
        for part in PARTS:
            shutil.copytree(ROOT / part, path / part, ignore=shutil.ignore_patterns("__pycache__"))

    def add(self, name: str, text: str) -> None:
        """Write the file of this path below the tree."""
        file = self.path / name
        self._before.setdefault(file, file.read_bytes() if file.is_file() else None)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Context after which the files that were added within it are what they were before."""
        self._before = {}
        try:
            yield
        finally:
            for file, before in self._before.items():
                if before is None:
                    file.unlink()
                else:
                    file.write_bytes(before)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Python with these arguments, in the tree; its output as text."""
        path = os.pathsep.join([str(self.path), str(SUPPORT / "site")])
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.path,
            env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200", **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def oblivionis(self, *commands: list[str]) -> subprocess.CompletedProcess[str]:
        """These commands one after another, as `several.py` runs them."""
        return self.run(str(SUPPORT / "several.py"), json.dumps([[str(word) for word in each] for each in commands]))
