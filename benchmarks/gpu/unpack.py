"""python -m benchmarks.gpu.unpack DIR --site FOLDER

Puts together what `benchmarks.gpu.pack` packed into DIR, compares every SHA-256, installs the wheels into FOLDER
without network (put it on PYTHONPATH) and converts the language model. It needs nothing but Python and pip.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

MANIFEST = "pieces.json"
_ROOT = Path(__file__).resolve().parents[2]
_BLOCK = 1 << 20


class Packed(TypedDict):
    """A file in pieces. model: the name of the language model that it holds, None for a package to install."""

    file: str
    sha256: str
    pieces: list[str]
    model: str | None


class Damaged(Exception):
    """A piece is missing, or the pieces are not those that were packed."""


def digest(file: Path) -> str:
    """SHA-256 in hexadecimal digits."""
    found = hashlib.sha256()
    with file.open("rb") as handle:
        while block := handle.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


def split(file: Path, folder: Path, size: int) -> list[str]:
    """Write `file` to `folder` in pieces of at most `size` bytes; their names in order."""
    names: list[str] = []
    with file.open("rb") as handle:
        while block := handle.read(size):
            names.append(f"{file.name}.{len(names):03}")
            (folder / names[-1]).write_bytes(block)
    return names


def joined(packed: Packed, folder: Path, target: Path) -> Path:
    """The file of these pieces, which lie anywhere below `folder`, in `target`. Raises Damaged."""
    file, there = target / Path(packed["file"]).name, {path.name: path for path in folder.rglob("*")}
    with file.open("wb") as handle:
        for name in packed["pieces"]:
            if (piece := there.get(name)) is None:
                raise Damaged(
                    f"{name} is missing in {folder}; expected {len(packed['pieces'])} pieces of {packed['file']}"
                )
            handle.write(piece.read_bytes())
    if (found := digest(file)) != packed["sha256"]:
        raise Damaged(f"{file} has the SHA-256 {found}, expected {packed['sha256']}: copy its pieces again")
    return file


def unpack(folder: Path, site: Path) -> None:
    """Install the wheels into `site`, then convert the models with them. Raises Damaged and CalledProcessError."""
    manifest = next(folder.rglob(MANIFEST), None)
    if manifest is None:
        raise Damaged(
            f"{folder} holds no {MANIFEST}; expected what benchmarks.gpu.pack wrote, its folders side by side"
        )
    listed: list[Packed] = json.loads(manifest.read_text(encoding="utf-8"))
    site.mkdir(parents=True, exist_ok=True)
    files = [(packed["model"], joined(packed, folder, site)) for packed in listed]
    wheels = [str(file) for model, file in files if model is None]
    if wheels:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
        subprocess.run([*command, "--upgrade", "--target", str(site), *wheels], check=True)
    path = os.pathsep.join([str(site), str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    for model, file in files:
        if model is not None:
            command = [sys.executable, "-m", "oblivionis.cli.main", "model", "fetch", model, "--from", str(file)]
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})
        file.unlink()


def main(arguments: list[str] | None = None) -> int:
    """Unpack; 1 with a message where that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--site", type=Path, required=True, help="folder that the packages go to")
    options = parser.parse_args(arguments)
    try:
        unpack(options.folder, options.site)
    except (Damaged, OSError, ValueError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
