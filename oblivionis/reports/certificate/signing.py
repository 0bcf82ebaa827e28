"""The erasure certificate of a served request: what was asked, done and measured, signed with Ed25519.

What is signed is the certificate's JSON without `signature`, with sorted keys and no white space, in UTF-8. The public
key is part of it: a certificate can be checked offline, and says whose key it was; that the key is the right one's, the
reader must know from elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from oblivionis import __version__
from oblivionis.audits.people_outcomes import person_slug
from oblivionis.config import compose as configuration
from oblivionis.errors import FileError, OblivionisError
from oblivionis.files import read_bytes, read_json, write_atomic, write_json
from oblivionis.reports.certificate.checks import Check, overall, run_checks
from oblivionis.reports.certificate.evidence import STAGE, gather
from oblivionis.reports.certificate.page import FOLDER, JSON_FILE, PAGE_FILE, certificate_page
from oblivionis.requests.ledger import COVERED, PENDING, REJECTED, Ledger, Request
from oblivionis.runs.directory import RunDirectory

FORMAT, VERSION = "oblivionis erasure certificate", 1
SIGNATURE, PUBLIC_KEY = "signature", "public_key"

Certificate = dict[str, Any]


class CertificateError(OblivionisError):
    """A certificate that cannot be made or read, or a key that cannot be used."""


def create(
    run: RunDirectory, request_id: str, key: Path | None, out: Path | None = None
) -> tuple[Path, dict[str, Any]]:
    """Write `certificate.json` and `certificate.html` for a served request; returns their folder and the certificate.

    Its thresholds are those of the run's own configuration. Without `key`, the file of a private key, it is unsigned.
    Raises CertificateError for a request that is unknown or was not served, an unfinished stage or an unfit key.
    """
    private = None if key is None else read_private_key(key)
    certificate = build(run, request_id)
    if private is not None:
        certificate[PUBLIC_KEY] = private.public_key().public_bytes_raw().hex()
        certificate[SIGNATURE] = private.sign(signed_bytes(certificate)).hex()
    folder = out or run.path / FOLDER / person_slug(request_id)
    write_json(folder / JSON_FILE, certificate)
    write_atomic(folder / PAGE_FILE, certificate_page(certificate))
    return folder, certificate


def build(run: RunDirectory, request_id: str) -> dict[str, Any]:
    """The unsigned certificate of a request, as JSON values. Raises CertificateError as `create`."""
    request = _served(run, request_id)
    text = run.read_config()
    config = configuration.from_yaml(text, str(run.path / "config.yaml"))
    evidence = gather(run, config, request)
    checks = run_checks(evidence, config.certificate)
    return {
        "format": FORMAT,
        "version": VERSION,
        "result": overall(checks),
        "checks": [asdict(check) for check in checks],
        "thresholds": asdict(config.certificate),
        "request": {
            "id": request.id,
            "client": request.client,
            "scope": request.scope,
            "records": len(request.record_ids),
            "record_ids": list(request.record_ids),
            "round": request.round,
            "served_round": request.served_round,
            "state": request.state,
        },
        "evidence": evidence,
        "run": {
            "name": run.name,
            "seed": config.seed,
            "aggregator": config.strategy.name,
            "method": config.unlearning.method,
            "clients": config.federation.clients,
            "config_sha256": hashlib.sha256(text.encode()).hexdigest(),
            "oblivionis": run.environment().get("oblivionis"),
            "packages": run.environment().get("packages", {}),
        },
        "replay": _replay(run, config),
        "issued": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "issued_by": f"oblivionis {__version__}",
        PUBLIC_KEY: None,
        SIGNATURE: None,
    }


def signed_bytes(certificate: Mapping[str, Any]) -> bytes:
    """What a signature is about."""
    body = {name: value for name, value in certificate.items() if name != SIGNATURE}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass")


def verify(path: Path, public_key: Path | None) -> tuple[dict[str, Any], str]:
    """Read a certificate and check it; returns it and the fingerprint of the key that signed it.

    Raises CertificateError for what is no certificate, is unsigned, was changed, is signed by another key than
    `public_key`, or whose result does not follow from its checks.
    """
    certificate = _read(path)
    if not certificate.get(SIGNATURE) or not certificate.get(PUBLIC_KEY):
        raise CertificateError(f"{path} is not signed: anybody may have written it")
    try:
        raw = bytes.fromhex(certificate[PUBLIC_KEY])
        Ed25519PublicKey.from_public_bytes(raw).verify(bytes.fromhex(certificate[SIGNATURE]), signed_bytes(certificate))
    except (InvalidSignature, TypeError, ValueError):
        raise CertificateError(f"{path} was changed after it was signed: the signature does not fit") from None
    if public_key is not None and read_public_key(public_key) != raw:
        raise CertificateError(f"{path} is signed by another key than {public_key}: {fingerprint(raw)}")
    try:
        said = overall([Check(**check) for check in certificate["checks"]])
    except (KeyError, TypeError):
        raise CertificateError(f"{path}: its checks cannot be read") from None
    if said != certificate.get("result"):
        raise CertificateError(f"{path} says {certificate.get('result')}, but its checks say {said}")
    return certificate, fingerprint(raw)


def generate_key(path: Path) -> Path:
    """Write a new private key to `path` (PEM, readable by its owner only) and the public one to `path`.pub, which is
    returned. Raises CertificateError when either is there already."""
    public = path.with_name(f"{path.name}.pub")
    if path.exists() or public.exists():
        raise CertificateError(f"{path if path.exists() else public} exists already; nothing was written")
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
        handle.write(secret)
    shown = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    write_atomic(public, shown)
    public.chmod(0o644)
    return public


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """The private key in a PEM file that only its owner can read. Raises CertificateError for anything else."""
    data = _key_bytes(path)
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise CertificateError(f"{path}: others can read this private key; chmod 600 {path}")
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise CertificateError(
            f"{path}: expected an Ed25519 private key (PEM), such as `oblivionis certificate keygen` makes"
        )
    return key


def read_public_key(path: Path) -> bytes:
    """The 32 bytes of the public key in a PEM file. Raises CertificateError for anything else."""
    try:
        key = serialization.load_pem_public_key(_key_bytes(path))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise CertificateError(f"{path}: expected an Ed25519 public key (PEM), such as the .pub file of `keygen`")
    return key.public_bytes_raw()


def fingerprint(raw: bytes) -> str:
    """The SHA-256 of a public key's 32 bytes, which people compare."""
    return hashlib.sha256(raw).hexdigest()


def _served(run: RunDirectory, request_id: str) -> Request:
    known = {r.id: r for r in Ledger(run.ledger_path)}
    if request_id not in known:
        names = ", ".join(known) if len(known) <= 10 else f"{len(known)} others"
        raise CertificateError(f"{run.path} knows no request {request_id!r}; it has {names or 'none'}")
    request = known[request_id]
    why = {
        PENDING: "is not served yet",
        REJECTED: "was rejected",
        COVERED: "is covered: all its records were asked for by earlier requests, which have certificates",
    }.get(request.state)
    if why is not None:
        raise CertificateError(f"request {request_id!r} {why}")
    if run.stage_summary(STAGE) is None:
        raise CertificateError(f"{run.path}: the stage {STAGE} is unfinished; oblivionis simulate --resume {run.path}")
    return request


def _replay(run: RunDirectory, config: configuration.Config) -> dict[str, str]:
    """How the run is made again: its configuration holds every key and every seed."""
    what = "the same requests must lie in the nodes' ledgers" if config.unlearning.requests.policy == "nodes" else ""
    command = f"oblivionis simulate {run.name}/config.yaml name={run.name}-replay"
    return {"command": command, **({"needs": what} if what else {})}


def _read(path: Path) -> dict[str, Any]:
    file = path / JSON_FILE if path.is_dir() else path
    try:
        found = read_json(file)
    except FileNotFoundError:
        raise CertificateError(f"{file} cannot be read: there is no such file") from None
    except FileError as error:
        raise CertificateError(f"{file} is no erasure certificate: {error}") from None
    if found.get("format") != FORMAT:
        raise CertificateError(f"{file} is no erasure certificate")
    if found.get("version") != VERSION:
        raise CertificateError(f"{file} has version {found.get('version')}; this program reads version {VERSION}")
    return found


def _key_bytes(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except FileNotFoundError:
        raise CertificateError(f"{path} cannot be read: there is no such file") from None
    except FileError as error:
        raise CertificateError(str(error)) from None
