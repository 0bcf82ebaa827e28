"""What names a configuration: a SHA-256 that the server's and the nodes' ledgers hold from the start of a run."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from omegaconf import OmegaConf

from oblivionis.config.compose import to_tree
from oblivionis.config.schema import Config
from oblivionis.config.yaml_files import YAML_ERRORS


def config_hash(config: Config) -> str:
    """SHA-256, in hexadecimal digits, of all keys of `config` with their values, the certificate's thresholds included.

    It is taken from canonical JSON (sorted keys, no white space, UTF-8) of what `to_yaml` writes, so that neither the
    order nor the layout of a YAML file matters: `config_hash(from_yaml(to_yaml(config)))` is the same.
    """
    return _hashed(to_tree(config))


def text_hash(text: str) -> str:
    """`config_hash` of the configuration that `to_yaml` wrote as `text`, by the version that wrote it.

    A later version, which has more keys, gets the same. Raises ValueError for a text that is no configuration.
    """
    try:
        return _hashed(OmegaConf.to_container(OmegaConf.create(text), resolve=True))
    except YAML_ERRORS as error:
        raise ValueError(f"no configuration: {error}") from None


def _hashed(tree: Any) -> str:
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
