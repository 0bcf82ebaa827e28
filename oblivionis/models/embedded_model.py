"""The embedded model: a Llama of about one million parameters that knows the language of the fictitious authors.

It has read about thousands of invented people, none of whom occurs in a corpus, and knows the real authors and world
facts, also after fine-tuning on other people. It is shipped as one text file (`tiny.json`) and unpacked into a cache
folder on first use. To replace it::

    pack(build(Path("out")), SHIPPED)
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oblivionis.files import write_atomic
from oblivionis.models.cache import cache_root
from oblivionis.models.errors import ModelError

SHIPPED = Path(__file__).with_name("tiny.json")
FORMAT = 1
PART = 400_000
"""Characters of a part, where the file is shipped in parts: places such as Flower's hub take no file beyond 1 MB."""
STEPS = 1600
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")

Progress = Callable[[int, int, str], None]


class EmbeddedModelError(ModelError):
    """The shipped model file is damaged or of another format, or a folder to be packed is incomplete."""


def folder(shipped: Path = SHIPPED) -> Path:
    """The embedded model as a Hugging Face folder, unpacked from `shipped` where it is absent or altered.

    Safe when several processes ask at once: a folder appears whole or not at all. Raises EmbeddedModelError when the
    shipped file is missing, damaged or of another format.
    """
    package = _read(shipped)
    digests = {name: entry["sha256"] for name, entry in package["files"].items()}
    target = cache_root() / f"tiny-{package['sha256'][:12]}"
    for _ in range(10):
        if _intact(target, digests):
            return target
        _unpack(package["files"], target)
    raise EmbeddedModelError(f"{target} keeps changing while it is unpacked; remove it and set OBLIVIONIS_CACHE")


def pack(source: Path, shipped: Path) -> str:
    """Write the Hugging Face folder `source` as one text file for shipping, atomically; returns its SHA-256.

    Text files are stored as they are, weights as base64. Raises EmbeddedModelError when a file is missing.
    """
    missing = [name for name in FILES if not (source / name).is_file()]
    if missing:
        raise EmbeddedModelError(f"{source} lacks {', '.join(missing)}; expected a folder written by build()")
    files = {}
    for name in FILES:
        data = (source / name).read_bytes()
        binary = name.endswith(".safetensors")
        content = base64.b64encode(data).decode() if binary else data.decode("utf-8")
        digest = hashlib.sha256(data).hexdigest()
        files[name] = {"sha256": digest, "encoding": "base64" if binary else "utf-8", "content": content}
    whole = _digest(files)
    package = {"format": FORMAT, "sha256": whole, "files": files}
    write_atomic(shipped, json.dumps(package, indent=1, ensure_ascii=False) + "\n")
    return whole


def build(out: Path, *, seed: int = 0, steps: int = STEPS, progress: Progress | None = None) -> Path:
    """Train tokenizer and model from nothing and write them to the folder `out` (weights as float16).

    `steps` updates for the language and a third as many for keeping the known facts; see `pretraining`. After every
    one `progress(step, of, text)` is called; `text` states the loss in nats per token, over question and answer. Uses
    torch's threads as they are set (two: about ten minutes) and leaves its global random generator as it was. Raises
    ValueError for `steps` < 1.
    """
    import torch

    from oblivionis.models import pretraining

    if steps < 1:
        raise ValueError(f"steps is {steps}; expected an integer from 1")
    hardening = steps // 3

    def report(before: int) -> Callable[[int, float], None]:
        def call(step: int, loss: float) -> None:
            if progress is not None:
                progress(before + step + 1, steps + hardening, f"loss {loss:.3f}")

        return call

    state = torch.random.get_rng_state()
    try:
        torch.manual_seed(seed)
        tokenizer = pretraining.build_tokenizer(seed)
        model = pretraining.new_model(tokenizer)
        pretraining.learn_language(model, tokenizer, seed, steps, report(0))
        pretraining.harden(model, tokenizer, seed, hardening, report(steps))
    finally:
        torch.random.set_rng_state(state)
    out.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    config = json.loads((out / "config.json").read_text())
    config["dtype"] = "float32"
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return out


def write_parts(shipped: Path) -> None:
    """Write the embedded model in parts `<name>-00.json` …, which `folder` reads as well as `shipped` in one piece."""
    text = _text(SHIPPED)
    shipped.parent.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, len(text), PART)):
        part = json.dumps(text[start : start + PART], ensure_ascii=False)
        shipped.with_name(f"{shipped.stem}-{number:02d}.json").write_text(part + "\n", encoding="utf-8")


def _text(shipped: Path) -> str:
    """The shipped file, in one piece or put together. Raises FileNotFoundError where there is neither."""
    if shipped.exists():
        return shipped.read_text(encoding="utf-8")
    parts = sorted(shipped.parent.glob(f"{shipped.stem}-[0-9][0-9].json"))
    if not parts:
        raise FileNotFoundError(shipped)
    return "".join(str(json.loads(part.read_text(encoding="utf-8"))) for part in parts)


def _digest(files: dict[str, dict[str, str]]) -> str:
    listing = "".join(f"{name} {files[name]['sha256']}\n" for name in sorted(files))
    return hashlib.sha256(f"{FORMAT}\n{listing}".encode()).hexdigest()


def _read(shipped: Path) -> dict[str, Any]:
    try:
        package = json.loads(_text(shipped))
    except FileNotFoundError as error:
        raise EmbeddedModelError(
            f"{shipped} is missing; reinstall, or make it: oblivionis model build --help"
        ) from error
    except ValueError as error:
        raise EmbeddedModelError(f"{shipped} is damaged ({error}); reinstall the package") from error
    if not isinstance(package, dict) or package.get("format") != FORMAT:
        raise EmbeddedModelError(f"{shipped} is no embedded model of format {FORMAT}; reinstall the package")
    if set(package["files"]) != set(FILES) or _digest(package["files"]) != package["sha256"]:
        raise EmbeddedModelError(f"{shipped} is damaged (its SHA-256 does not fit); reinstall the package")
    return package


def _intact(target: Path, digests: dict[str, str]) -> bool:
    try:
        present = {path.name for path in target.iterdir()}
        return present == set(digests) and all(
            hashlib.sha256((target / name).read_bytes()).hexdigest() == digest for name, digest in digests.items()
        )
    except OSError:
        return False


def _unpack(files: dict[str, dict[str, str]], target: Path) -> None:
    """Put a whole folder in the place of `target`; an earlier folder is moved away first."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    old = fresh.with_name(f"{fresh.name}.old")
    try:
        for name, entry in files.items():
            content = entry["content"]
            try:
                data = base64.b64decode(content) if entry["encoding"] == "base64" else content.encode()
            except ValueError:  # not even base64
                data = b""
            if hashlib.sha256(data).hexdigest() != entry["sha256"]:
                raise EmbeddedModelError(f"{name} in the shipped model is damaged; reinstall the package")
            (fresh / name).write_bytes(data)
        if target.exists() and not _intact(target, {name: entry["sha256"] for name, entry in files.items()}):
            with contextlib.suppress(FileNotFoundError):
                os.rename(target, old)
        with contextlib.suppress(OSError):
            os.rename(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
