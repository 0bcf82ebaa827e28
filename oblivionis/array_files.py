"""Files of named arrays with a JSON header: safetensors, written whole or not at all, nothing unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from oblivionis.errors import RunError
from oblivionis.files import write_atomic

_HEADER = "oblivionis"


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
    """Write `arrays` and the JSON-able `info` atomically."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write_atomic(path, save(contiguous, metadata={_HEADER: json.dumps(dict(info))}))


def read_arrays(path: Path, what: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and info of a file that `write_arrays` wrote. RunError, naming `what` it should be, for any other."""
    try:
        with safe_open(path, framework="np") as handle:
            info = json.loads((handle.metadata() or {})[_HEADER])
            return {key: handle.get_tensor(key) for key in handle.keys()}, info  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise RunError(f"{path} is no readable {what}: {error}") from None
