"""A folder with an adapter as peft writes it: what its adapter_config.json says, read without peft."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oblivionis.errors import FileError
from oblivionis.files import parse_json, read_bytes

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

_SCALARS = {
    "rank": ("r", 8, int),
    "alpha": ("lora_alpha", 8, float),
    "dropout": ("lora_dropout", 0.0, float),
    "use_rslora": ("use_rslora", False, bool),
    "use_dora": ("use_dora", False, bool),
}
_LISTS = ("modules_to_save", "target_parameters")


class AdapterError(FileError):
    """A folder with an adapter that cannot be used; the message names the file and the key."""


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter.

    Parameters
    ----------
    folder : Path

    Returns
    -------
    bool
    """
    return (folder / ADAPTER_CONFIG).is_file()


def read_adapter(folder: Path) -> dict[str, Any]:
    """What the adapter_config.json of a folder says.

    Parameters
    ----------
    folder : Path

    Returns
    -------
    dict

    Raises
    ------
    AdapterError
        Without such a file, or where it is no JSON object.
    """
    path = folder / ADAPTER_CONFIG
    try:
        described = parse_json(read_bytes(path), finite=False, unique=False)
    except FileNotFoundError:
        raise AdapterError(f"{path}: no such file; expected a folder that peft's save_pretrained wrote") from None
    except FileError as error:
        raise AdapterError(str(error)) from None
    except ValueError as error:
        raise AdapterError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(described, dict):
        raise AdapterError(f"{path}: expected a JSON object")
    return described


def lora_settings(described: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `model.lora` that an adapter determines, with the adapter's values.

    Parameters
    ----------
    described : mapping
        As `read_adapter` gives it.

    Returns
    -------
    dict
        By name below `model.lora`, nothing for an adapter that is no LoRA. `target_modules` is null: the adapter's own,
        which may be a regular expression.

    Raises
    ------
    AdapterError
        For a value of another type than peft writes.
    """
    if described.get("peft_type") != "LORA":
        return {}
    found: dict[str, Any] = {"target_modules": None}
    for name, (key, default, kind) in _SCALARS.items():
        value = described.get(key, default)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise AdapterError(f"{ADAPTER_CONFIG}: {key} is {value!r}")
        found[name] = value
    for name in _LISTS:
        value = described.get(name) or None
        if value is not None and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            raise AdapterError(f"{ADAPTER_CONFIG}: {name} is {value!r}")
        found[name] = value
    return found
