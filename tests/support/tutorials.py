"""Follows a tutorial: runs the shell blocks of a document."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def follow(page, folder):
    """Run all blocks of a page in docs/ that are marked as shell, in `folder`; what each of them printed."""
    (folder / "docs").symlink_to(ROOT / "docs")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    said = []
    for block in BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8")):
        done = subprocess.run(
            ["bash", "-euc", block], cwd=folder, capture_output=True, text=True, env={**os.environ, "PATH": path}
        )
        assert done.returncode == 0, f"{block}{done.stdout}{done.stderr}"
        said.append(done.stdout)
    return said
