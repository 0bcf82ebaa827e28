"""What names a configuration: a SHA-256 that the server's and the nodes' ledgers hold from the start of a run."""

from __future__ import annotations

import hashlib
import json

from oblivionis.config.compose import to_tree
from oblivionis.config.schema import Config


def config_hash(config: Config) -> str:
    """SHA-256, in hexadecimal digits, of all keys of `config` with their values, the certificate's thresholds included.

    It is taken from canonical JSON (sorted keys, no white space, UTF-8) of what `to_yaml` writes, so that neither the
    order nor the layout of a YAML file matters: `config_hash(from_yaml(to_yaml(config)))` is the same.
    """
    text = json.dumps(to_tree(config), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
