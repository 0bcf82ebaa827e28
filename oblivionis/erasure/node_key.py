"""The Ed25519 key with which a client signs its audits: made in its own folder, where it stays.

What is signed is canonical JSON (sorted keys, no white space, UTF-8) that names the request, the run, the stage, the
round, the moment, the model by its SHA-256, and the numbers. The public key travels with the signature, and the node's
ledger has it in a line `key`: whose it is, whoever has that ledger can tell.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from oblivionis.erasure.node_ledger import KEY_MADE, NodeLedger
from oblivionis.errors import ClientError, FileError
from oblivionis.files import read_bytes, sync_folder

KEY_FILE = "audit.key"
SIGNATURE, PUBLIC_KEY = "signature", "public-key"
"""Name of the ConfigRecord of an audit's reply, with the signature itself under the same key; hexadecimal digits."""
MOMENT = "moment"
"""Key of an audit message's config: one of `audit_numbers.MOMENTS`."""
SIGNED = ("run", "stage", "round", "model")
"""What of a signed audit is kept with its numbers; `request`, `client` and the moment stand in the file anyway."""


def audit_key(folder: Path) -> Ed25519PrivateKey:
    """The key of the client with that folder, made where there is none (PEM, readable by its owner only).

    Raises ClientError for a file that is no such key, or that others can read.
    """
    path = folder / KEY_FILE
    if not path.exists():
        _make(path)
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise ClientError(f"others can read the node's {KEY_FILE}, so nobody can tell who signs with it: chmod 600")
    try:
        key = serialization.load_pem_private_key(read_bytes(path), password=None)
    except (OSError, ValueError, TypeError, FileError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ClientError(f"the node's {KEY_FILE} is no Ed25519 private key (PEM); without the file a new one is made")
    _note(NodeLedger(folder), public_hex(key))
    return key


def public_hex(key: Ed25519PrivateKey) -> str:
    """The 32 bytes of the public key in hexadecimal digits."""
    return key.public_key().public_bytes_raw().hex()


def audit_bytes(
    request: str, client: int, moment: str, numbers: Mapping[str, float], facts: Mapping[str, object]
) -> bytes:
    """What a client signs of an audit.

    facts: by `SIGNED`, the name of the run, the label of the stage, the round, and of the audited weights the SHA-256
    (`oblivionis.runs.directory.vector_hash`).
    """
    body = {
        "audit": request,
        "client": client,
        "moment": moment,
        "numbers": {name: float(value) for name, value in numbers.items()},
        **{name: facts[name] for name in SIGNED},
    }
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def verified(public_key: object, signature: object, signed: bytes) -> bool:
    """Whether `signature` of `signed` is that of `public_key`, both in hexadecimal digits; False for anything else."""
    if not isinstance(public_key, str) or not isinstance(signature, str):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(bytes.fromhex(signature), signed)
    except (InvalidSignature, ValueError):
        return False
    return True


def signers(audit: Mapping[str, Any]) -> dict[str, str]:
    """Who signed each moment of an audit, as `read_audit` gives it: public keys (hexadecimal) by moment.

    A moment whose signature is absent, or does not fit the numbers that stand there now, is left out.
    """
    signatures = audit.get("signatures")
    keys: dict[str, str] = {}
    for moment, signed in signatures.items() if isinstance(signatures, Mapping) else ():
        try:
            body = audit_bytes(audit["request"], audit["client"], moment, audit[moment], signed)
            if verified(audit["signed_by"], signed[SIGNATURE], body):
                keys[moment] = audit["signed_by"]
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return keys


def _make(path: Path) -> None:
    """Write a new key; of two processes that do so at once the first one's stays."""
    secret = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
            handle.write(secret)
            handle.flush()
            os.fsync(handle.fileno())
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def _note(ledger: NodeLedger, public_key: str) -> None:
    if not any(e.get("public_key") == public_key for e in ledger.lines(KEY_MADE)):
        ledger.note(KEY_MADE, public_key=public_key)
