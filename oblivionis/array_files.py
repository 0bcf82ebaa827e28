"""Files of named arrays with a JSON header: safetensors, written whole or not at all, nothing unpickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from oblivionis.errors import FileError
from oblivionis.files import need_file, parse_json, write_atomic

_HEADER, _HASH = "oblivionis", "sha256"


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
    """Write what `arrays_bytes` makes of these, atomically."""
    write_atomic(path, arrays_bytes(arrays, info))


def arrays_bytes(arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> bytes:
    """A file of `arrays` and the JSON-able `info`, and of their hash: the same bytes for the same content.

    Info and hash are one entry of the metadata, a line each: safetensors writes several in another order each time.
    """
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = json.dumps(dict(info))
    return save(contiguous, metadata={_HEADER: f"{text}\n{_hash(contiguous, text)}"})


def read_arrays(path: Path, what: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and info of a file that `write_arrays` wrote. RunError, naming `what` it should be, for any other.

    Files of earlier versions, with the hash as an entry of its own or without one, are read as well.
    """
    try:
        need_file(path)
        with safe_open(path, framework="np") as handle:
            metadata = handle.metadata() or {}
            text, _, digest = metadata[_HEADER].partition("\n")
            info = parse_json(text)
            arrays = {key: handle.get_tensor(key) for key in handle.keys()}  # noqa: SIM118 - no mapping
    except FileError:
        raise
    except (OSError, SafetensorError, ValueError, TypeError) as error:  # TypeError: numbers that numpy does not have
        raise FileError(f"{path} is no readable {what}: {getattr(error, 'strerror', None) or error}") from None
    except KeyError:
        raise FileError(f"{path} is no readable {what}: its header is not that of such a file") from None
    if not isinstance(info, dict):
        raise FileError(f"{path} is no readable {what}: its header is not that of such a file")
    digest = digest or metadata.get(_HASH)
    if digest and digest != _hash(arrays, text):
        raise FileError(f"{path} is no readable {what}: it is not as it was written")
    return arrays, info


def _hash(arrays: Mapping[str, np.ndarray], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"\0{name}\0{arrays[name].dtype.str}{arrays[name].shape}\0".encode())
        digest.update(arrays[name].data if arrays[name].size else b"")
    return digest.hexdigest()
