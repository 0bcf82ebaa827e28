"""One SHA-256 that says whether two nodes have the same base model.

It is taken from files only, never from a model in memory: loading converts dtypes, renames and ties weights, so that a
value taken there could not be compared. What enters, each part preceded by its label and length:

1. `config.json` as canonical JSON (sorted keys) without `transformers_version`, `_name_or_path` and `_commit_hash`;
2. `tokenizer.json` as canonical JSON without `truncation` and `padding` (settings of the last use), else the bytes of
   `tokenizer.model`;
3. the chat template: `chat_template.jinja`, else `chat_template` of `tokenizer_config.json`; and from the latter the
   special tokens (bos, eos, pad, unk) and whether BOS and EOS are added, which change the sequences;
4. each tensor of the safetensors files that transformers would load, sorted by name: name, dtype, shape, bytes. So
   neither the split into shards nor the order within a file matters.

Formatting, README files and generation settings do not enter.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from oblivionis.config.adapter_folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from oblivionis.config.schema import Model
from oblivionis.errors import FileError
from oblivionis.files import checked, parse_json, read_bytes, write_json
from oblivionis.models.cache import cache_root
from oblivionis.models.errors import ModelError
from oblivionis.models.source import read_object, resolve

_CHUNK = 8 * 2**20
_VOLATILE = ("transformers_version", "_name_or_path", "_commit_hash")
_TOKENIZER_STATE = ("truncation", "padding")
_TOKENIZER_CONFIG = ("bos_token", "eos_token", "pad_token", "unk_token", "add_bos_token", "add_eos_token")
_PLACES = ("base_model_name_or_path", "revision", "inference_mode", "auto_mapping", "peft_version")
_SMALL_FILES = ("config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "chat_template.jinja")
known: dict[Path, tuple[list[list[Any]], str]] = {}
"""By folder what the process found, and the states of its files then."""


class _Index(TypedDict, total=False):
    weight_map: dict[str, str]


class _Entry(TypedDict):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Tensor(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    length: int


def fingerprint_source(source: str, revision: str | None = None) -> str:
    """The fingerprint of `embedded`, a folder or a hub name; see `fingerprint`."""
    return fingerprint(_resolved(source, revision, cache_root()))


def fingerprint_model(model: Model) -> str:
    """The fingerprint of a configured base model, with the adapter that it starts from.

    Parameters
    ----------
    model : Model
        `source`, `revision` and `adapter` count.

    Returns
    -------
    str
        That of the base model without an adapter; else SHA-256 (hexadecimal) over it, the adapter_config.json without
        what says where the base lies (`_PLACES`), and the adapter's tensors by name, dtype, shape and bytes.

    Raises
    ------
    ModelError
        For a model or an adapter that is not there.
    """
    base = fingerprint_source(model.source, model.revision)
    if model.adapter is None:
        return base
    folder = Path(model.adapter).expanduser()
    described = {k: v for k, v in read_object(folder / ADAPTER_CONFIG).items() if k not in _PLACES}
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ModelError(f"{folder} holds no {ADAPTER_WEIGHTS}; only safetensors weights can be used")
    digest = hashlib.sha256(f"{base}\n".encode() + _canonical(described))
    _add_tensors(digest, [folder / ADAPTER_WEIGHTS])
    return digest.hexdigest()


def fingerprint(folder: Path) -> str:
    """SHA-256 (hexadecimal) over config, tokenizer and weights of a model folder, as the module's docstring says.

    Reads in blocks, so that memory stays small. The value is remembered, by the process and in the cache folder, as
    long as path, size and times of all files stay the same. Raises ModelError for a folder without config.json or
    safetensors weights.
    """
    folder = folder.resolve()
    weights = _weight_files(folder)
    state = _state([folder / name for name in _SMALL_FILES] + weights)
    own = known.get(folder)
    if own is not None and own[0] == state:
        return own[1]
    memory = _cache_file()
    entry = _read_cache(memory).get(str(folder))
    if isinstance(entry, dict) and entry.get("files") == state and isinstance(entry.get("sha256"), str):
        known[folder] = state, entry["sha256"]
        return entry["sha256"]
    value = compute(folder)
    known[folder] = state, value
    with contextlib.suppress(OSError):
        write_json(memory, {**_read_cache(memory), str(folder): {"files": state, "sha256": value}})
    return value


def compute(folder: Path) -> str:
    """As `fingerprint`, but always read and never remembered."""
    digest = hashlib.sha256()

    def add(label: str, data: bytes) -> None:
        digest.update(f"{label} {len(data)}\n".encode())
        digest.update(data)

    config = read_object(folder / "config.json")
    add("config", _canonical({k: v for k, v in config.items() if k not in _VOLATILE}))
    if (folder / "tokenizer.json").is_file():
        tokenizer = read_object(folder / "tokenizer.json")
        add("tokenizer", _canonical({k: v for k, v in tokenizer.items() if k not in _TOKENIZER_STATE}))
    elif (folder / "tokenizer.model").is_file():
        add("tokenizer", read_bytes(folder / "tokenizer.model"))
    described = read_object(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    add("special tokens", _canonical({k: _content(described[k]) for k in _TOKENIZER_CONFIG if k in described}))
    template = folder / "chat_template.jinja"
    text = template.read_text(encoding="utf-8") if template.is_file() else described.get("chat_template")
    add("chat template", _canonical(text))
    _add_tensors(digest, _weight_files(folder))
    return digest.hexdigest()


def _add_tensors(digest: Any, files: list[Path]) -> None:
    for tensor in _tensors(files):
        digest.update(b"tensor " + _canonical([tensor.name, tensor.dtype, tensor.shape, tensor.length]) + b"\n")
        for block in _blocks(tensor):
            digest.update(block)


@functools.lru_cache(maxsize=16)
def _resolved(source: str, revision: str | None, cache: Path) -> Path:
    """As `resolve`, once for each folder that models are unpacked below."""
    return resolve(source, revision)


def _weight_files(folder: Path) -> list[Path]:
    """The files that transformers would load: one file, else the shards of the index."""
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        raise ModelError(f"{folder} holds no model.safetensors; only safetensors weights can be used")
    try:
        shards = sorted(set(checked(read_object(index), _Index).get("weight_map", {}).values()))
    except ValueError as error:
        raise ModelError(f"{index}: {error}") from None
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing or not shards:
        raise ModelError(f"{folder}: weight file {missing[0] if missing else index.name} is missing or empty")
    return [folder / name for name in shards]


def _tensors(files: list[Path]) -> list[_Tensor]:
    found: list[_Tensor] = []
    for path in files:
        with open(path, "rb") as file:
            try:
                length = int.from_bytes(file.read(8), "little")
                if length > os.fstat(file.fileno()).st_size:
                    raise ValueError("header is longer than the file")
                header = parse_json(file.read(length))
                for name, entry in header.items():
                    if name == "__metadata__":
                        continue
                    start, end = checked(entry, _Entry)["data_offsets"]
                    found.append(
                        _Tensor(name, entry["dtype"], tuple(entry["shape"]), path, 8 + length + start, end - start)
                    )
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ModelError(f"{path}: not a safetensors file ({error})") from error
    return sorted(found, key=lambda tensor: tensor.name)


def _blocks(tensor: _Tensor) -> Iterator[bytes]:
    with open(tensor.file, "rb") as file:
        file.seek(tensor.start)
        left = tensor.length
        while left:
            block = file.read(min(_CHUNK, left))
            if not block:
                raise ModelError(f"{tensor.file}: ends within the tensor {tensor.name}")
            left -= len(block)
            yield block


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _content(token: Any) -> Any:
    """A special token as text, whether it is written as text or as an object."""
    return token.get("content") if isinstance(token, dict) else token


def _state(paths: list[Path]) -> list[list[Any]]:
    present = [(path, path.stat()) for path in paths if path.is_file()]
    return [[path.name, info.st_size, info.st_mtime_ns, info.st_ctime_ns] for path, info in present]


def _cache_file() -> Path:
    return cache_root() / "fingerprints.json"


def _read_cache(path: Path) -> dict[str, Any]:
    try:
        value = parse_json(read_bytes(path))
    except (FileNotFoundError, FileError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
