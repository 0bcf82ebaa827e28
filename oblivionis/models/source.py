"""Where a base model and its tokenizer lie; needs none of the libraries that run a model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oblivionis.config.adapter_folder import ADAPTER_CONFIG, is_adapter, read_adapter
from oblivionis.errors import FileError
from oblivionis.files import parse_json, read_bytes
from oblivionis.models import embedded_model
from oblivionis.models.errors import ModelError
from oblivionis.models.packaged import PACKAGED, fetched
from oblivionis.naming import PLAIN_NAME

EMBEDDED = "embedded"

_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
"""What a name on the Hugging Face hub looks like."""
_IMPLEMENTATIONS = re.compile(r"_?(attn|experts)_implementation(_internal)?")


def resolve(source: str, revision: str | None = None) -> Path:
    """The folder that holds `source`: `embedded`, a name in `PACKAGED`, a folder, or a hub name.

    The latter is downloaded unless cached, safetensors weights only. Raises ModelError, also without network, for a
    folder that holds an adapter, which transformers would put on the model unasked, and for one that names code.
    """
    folder = located(source, revision)
    if is_adapter(folder):
        check_adapter_folder(folder)
        raise ModelError(f"{source} holds an adapter; give it as model.adapter, and its base model as model.source")
    described = read_config(folder) if (folder / "config.json").is_file() else {}
    for key, name in _implementations(described):
        if not PLAIN_NAME.fullmatch(name):
            raise ModelError(
                f"{folder / 'config.json'}: {key}: {name!r} is code from the hub, and a model runs none here; "
                "remove the key, or set it to sdpa or eager"
            )
    return folder


def _implementations(described: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Each key of a model's configuration that names what computes a part of it, however deep, with the name."""
    if isinstance(described, dict):
        for name, value in described.items():
            inside = isinstance(name, str) and _IMPLEMENTATIONS.fullmatch(name)
            yield from _implementations(value, name if inside else key)
    elif key and isinstance(described, str):
        yield key, described


def check_adapter_folder(folder: Path) -> None:
    """Refuse a folder that holds both an adapter and the weights of a whole model.

    Parameters
    ----------
    folder : Path

    Raises
    ------
    ModelError
        For such a folder: the adapter may be in the weights already.
    """
    patterns = ("model*.safetensors*", "pytorch_model*")
    if is_adapter(folder) and (whole := sorted(f.name for p in patterns for f in folder.glob(p))):
        raise ModelError(
            f"{folder} holds an adapter ({ADAPTER_CONFIG}) and the weights of a whole model ({whole[0]}), to which it "
            "may have been added already; move one of them elsewhere"
        )


def base_of(folder: Path) -> str:
    """The base model that the adapter of a folder names.

    Parameters
    ----------
    folder : Path
        With an adapter_config.json.

    Returns
    -------
    str
        What `resolve` takes; a relative path begins at the adapter's folder, or else where the program was started.

    Raises
    ------
    ModelError
        Where it names none, or a folder that is not there.
    """
    check_adapter_folder(folder)
    name = read_adapter(folder).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ModelError(f"{folder / ADAPTER_CONFIG}: base_model_name_or_path names no base model")
    if name == EMBEDDED or name in PACKAGED:
        return name
    for place in (folder / Path(name).expanduser(), Path(name).expanduser()):
        if place.is_dir():
            return str(place.resolve())
    if not HUB_NAME.fullmatch(name):
        raise ModelError(f"{folder / ADAPTER_CONFIG}: base_model_name_or_path is {name}, and there is no such folder")
    return name


def located(source: str, revision: str | None = None) -> Path:
    """As `resolve`, without reading what the folder holds."""
    if source == EMBEDDED:
        return embedded_model.folder()
    if source in PACKAGED:
        return fetched(source)
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file() and not is_adapter(folder):
            raise ModelError(f"{folder} holds no config.json; expected a model saved with save_pretrained")
        return folder
    if not HUB_NAME.fullmatch(source):
        raise ModelError(f"no such model folder: {source}")
    import huggingface_hub

    try:
        return Path(
            huggingface_hub.snapshot_download(
                source, revision=revision, allow_patterns=_HUB_FILES, ignore_patterns=["*/*"]
            )
        )
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"{source!r} is no folder, and the Hugging Face hub does not give it (no such model, no access or no "
            f"network): {reason}\n  without network set model.source to a folder with the model"
        ) from error


def cached(source: str, revision: str | None = None) -> Path | None:
    """The folder of a hub name in this machine's cache; None where it is not there. Nothing is fetched."""
    import huggingface_hub

    try:
        return Path(
            huggingface_hub.snapshot_download(
                source, revision=revision, allow_patterns=_HUB_FILES, ignore_patterns=["*/*"], local_files_only=True
            )
        )
    except (OSError, ValueError):
        return None


def read_config(folder: Path) -> dict[str, Any]:
    """What a model folder's config.json says. Raises ModelError."""
    return read_object(folder / "config.json")


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model folder. Raises ModelError."""
    try:
        value = parse_json(read_bytes(path), finite=False, unique=False)
    except FileNotFoundError as error:
        raise ModelError(f"{path}: no such file; expected a model saved with save_pretrained") from error
    except FileError as error:
        raise ModelError(str(error)) from error
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object")
    return value


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer in a model folder, as it is there."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
