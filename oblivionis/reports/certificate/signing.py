"""The erasure certificate of a served request: what was asked, done and measured, signed with Ed25519.

What is signed is the certificate's JSON without `signature`, with sorted keys and no white space, in UTF-8. The public
key is part of it: a certificate can be checked offline, and says whose key it was; that the key is the right one's, the
reader must know from another source.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from oblivionis.audits.people_outcomes import person_slug
from oblivionis.config import compose as configuration
from oblivionis.config.schema import Config
from oblivionis.erasure.exact_proof import Proof, read_proof
from oblivionis.erasure.hidden_requests import Opened
from oblivionis.erasure.ledger_check import Certified
from oblivionis.erasure.request import SERVED, Request
from oblivionis.erasure.verification_rules import Thresholds
from oblivionis.errors import FileError
from oblivionis.files import read_bytes, read_json, write_atomic, write_json
from oblivionis.reports.certificate.checks import Check, of_all, overall, run_checks
from oblivionis.reports.certificate.evidence import (
    STAGE,
    gather,
    gather_exact,
    gather_opened,
    request_facts,
    run_facts,
    run_name,
)
from oblivionis.reports.certificate.exact import (
    EXACT,
    ROUNDS_FILE,
    exact_checks,
    facts_of,
    how_to_replay,
    proof_of,
    read_rounds,
    rounds_text,
)
from oblivionis.reports.certificate.page import FOLDER, JSON_FILE, PAGE_FILE, SUPERSEDED_FILE, certificate_page
from oblivionis.reports.certificate.scope import CertificateError, Named, Scope, not_covered, scope_of
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory, vector_hash
from oblivionis.version import __version__

FORMAT, VERSION = "oblivionis erasure certificate", 2
SIGNATURE, PUBLIC_KEY = "signature", "public_key"

UNSIGNED = "is not signed: anybody may have written it"

Certificate = dict[str, Any]


def create(
    run: RunDirectory, demand: str | Sequence[Opened], key: Path | None, out: Path | None = None
) -> tuple[Path, dict[str, Any]]:
    """Write `certificate.json` and `certificate.html` for a demand; returns their folder and the certificate.

    demand: the id of a request, or of a demand that several clients had requests of: all of them are parts of it, and
    so are earlier requests that name records of it; of requests that the server did not see, what their nodes opened,
    at least one (SealError where the run does not bear it out). The thresholds are those of the run's own
    configuration. Without `key`, the file of a private key, it is unsigned. Raises CertificateError for a demand that
    is unknown or of which a record is named by no served request, an unfinished stage, an unfit key, or a run whose
    files are not those that its ledger names.
    """
    private = None if key is None else read_private_key(key)
    certificate = build(run, demand)
    if private is not None:
        certificate[PUBLIC_KEY] = private.public_key().public_bytes_raw().hex()
        certificate[SIGNATURE] = private.sign(signed_bytes(certificate)).hex()
    folder = out or run.path / FOLDER / person_slug(certificate["demand"]["id"])
    if certificate.get("class") == EXACT and (proof := read_proof(run)) is not None:
        write_atomic(folder / ROUNDS_FILE, rounds_text(proof, certificate["demand"]["clients"]))
    write_json(folder / JSON_FILE, certificate)
    write_atomic(folder / PAGE_FILE, certificate_page(certificate))
    (folder / SUPERSEDED_FILE).unlink(missing_ok=True)
    return folder, certificate


def build(run: RunDirectory, demand: str | Sequence[Opened]) -> dict[str, Any]:
    """The unsigned certificate of a demand, as JSON values. Raises as `create`."""
    opened = {} if isinstance(demand, str) else {request.demand.request_id: request for request in demand}
    scope = scope_of(run, demand) if isinstance(demand, str) else _opened_scope(demand)
    _need_stage(run)
    bound = artifact_binding.check(run)
    if bound.faults:
        named = "\n".join(f"- {fault}" for fault in bound.faults)
        raise CertificateError(f"{run.path} is not as its ledger says, and nothing is certified of it:\n{named}")
    text = run.read_config()
    config = configuration.from_yaml(text, run.config_place)
    name, files = run_name(run), bound.files or {}
    proof, clients = None if opened else proof_of(run, config), sorted({named.client for named in scope.records})
    parts = [
        _part(run, config, request, bound.missing, scope, opened.get(request.id), proof) for request in scope.requests
    ]
    return {
        "format": FORMAT,
        "version": VERSION,
        **({} if proof is None else {"class": EXACT}),
        "result": of_all([part["result"] for part in parts]),
        "demand": {
            "id": demand if isinstance(demand, str) else ", ".join(opened),
            "clients": clients,
            "records": len(scope.records),
        },
        **(
            {"thresholds": asdict(config.certificate)}
            if proof is None
            else {"exact": facts_of(run, config, proof, clients)}
        ),
        "records": [_record(named, parts) for named in scope.records],
        "requests": parts,
        "run": run_facts(run, config, files),
        **({} if opened else not_covered(run, scope, vector_hash(run.load_checkpoint(STAGE).vector))),
        "files": dict(files),
        "replay": _replay(name, config) if proof is None else how_to_replay(),
        "issued": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "issued_by": f"oblivionis {__version__}",
        PUBLIC_KEY: None,
        SIGNATURE: None,
    }


def _opened_scope(opened: Sequence[Opened]) -> Scope:
    """Requests that the server did not see, as they would stand in its ledger. CertificateError for one given twice."""
    requests: dict[str, Request] = {}
    for sealed in opened:
        name, served = sealed.demand.request_id, {"state": SERVED, "served_round": sealed.round}
        if name in requests:
            raise CertificateError(f"two of the opened requests are called {name!r}: give each once, and apart")
        requests[name] = Request(
            name, sealed.client, sealed.demand.record_ids, sealed.round, scope=sealed.demand.scope, **served
        )
    records = [Named(i, r.client, r) for r in requests.values() for i in r.record_ids]
    named = {(record.client, record.record) for record in records}
    left = {r.demand.request_id: len({(r.client, i) for i in r.covered} - named) for r in opened}
    return Scope(tuple(records), tuple(requests.values()), {name: count for name, count in left.items() if count})


def _record(named: Named, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the certificate says of one record of the demand: which request names it, and what was found of it."""
    request = named.request
    part = next(part for part in parts if part["request"]["id"] == request.id)
    judged = part["evidence"]["judgement"].get("records", {})
    outcome = judged[named.record]["outcome"] if named.record in judged else part["request"]["state"]
    place = {"record": named.record, "client": named.client, "request": request.id}
    return place | {"served_round": request.served_round, "found": outcome}


def _part(
    run: RunDirectory,
    config: Config,
    request: Request,
    missing: str,
    scope: Scope,
    opened: Opened | None,
    proof: Proof | None,
) -> dict[str, Any]:
    """What the certificate says of one request of the demand; `proof`: that of an exact erasure."""
    bound = {"binding": missing, "unnamed": scope.unnamed.get(request.id, 0)}
    if proof is not None:
        evidence = gather_exact(run, config, request) | bound
        checks = exact_checks(run, request, evidence, proof)
    else:
        evidence = gather(run, config, request) if opened is None else gather_opened(run, config, opened)
        evidence |= bound
        thresholds = Thresholds.of(config.unlearning.requests, config.certificate)
        checks = run_checks(evidence, config.certificate, thresholds)
    return {
        "result": overall(checks),
        "checks": [asdict(check) for check in checks],
        "request": request_facts(request, request.outcome if opened is None else evidence["judgement"]["outcome"]),
        "evidence": evidence,
    }


def mark_superseded(run: RunDirectory) -> list[Path]:
    """Leave a note beside each certificate in the run's own folder that rests on other files than the ledger names now:
    something was measured since. Returns the certificates' folders."""
    made, superseded = list(_certificates(run)), []
    now = (artifact_binding.check(run).files or {}) if made else {}
    for folder, certificate in made:
        files = certificate.get("files", {})
        if newer := sorted(name for name, of in now.items() if files.get(name) != of):
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            write_json(folder / SUPERSEDED_FILE, {"measured_since": newer, "noted": when})
            superseded.append(folder)
    return superseded


def results_of(run: RunDirectory) -> list[str]:
    """What the certificates in the run's own folder say that nothing supersedes, as it follows from the run now.

    What a file says counts for nothing: one whose demand gives none, or another result, is left out, and so is that of
    a sealed request, which only its node can open. Raises as `build` for a run that is not as its ledger says.
    """
    results = []
    for folder, certificate in _certificates(run):
        if (folder / SUPERSEDED_FILE).exists():
            continue
        with suppress(CertificateError, KeyError, TypeError):
            result = build(run, str(certificate["demand"]["id"]))["result"]
            results += [result] if certificate["result"] == result else []
    return results


def _certificates(run: RunDirectory) -> Iterator[tuple[Path, dict[str, Any]]]:
    for file in sorted((run.path / FOLDER).glob(f"*/{JSON_FILE}")):
        with suppress(CertificateError):
            yield file.parent, _read(file)


def signed_bytes(certificate: Mapping[str, Any]) -> bytes:
    """What a signature is about."""
    body = {name: value for name, value in certificate.items() if name != SIGNATURE}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass")


def verify(path: Path, public_key: Path | None) -> tuple[dict[str, Any], str]:
    """Read a certificate and check it; returns it and the fingerprint of the key that signed it.

    Raises CertificateError for what is no certificate, is unsigned, was changed, is signed by another key than
    `public_key`, whose result does not follow from its checks, whose page beside it says something else, or that was
    superseded. `public_key` None: the signature is checked against the key that the certificate itself names, which
    anybody can have made.
    """
    certificate = _read(path)
    raw = _signer(path, certificate, public_key)
    if raw is None:
        raise CertificateError(f"{path} {UNSIGNED}")
    try:
        parts = [(part["result"], overall([Check(**c) for c in part["checks"]])) for part in certificate["requests"]]
        said = of_all([result for _, result in parts])
    except (KeyError, TypeError, AttributeError):
        raise CertificateError(f"{path}: its checks cannot be read") from None
    for stated, follows in ((certificate.get("result"), said), *parts):
        if stated != follows:
            raise CertificateError(f"{path} says {stated}, but its checks say {follows}")
    _check_neighbours(path if path.is_dir() else path.parent, certificate)
    return certificate, fingerprint(raw)


def read_certified(path: Path, public_key: Path | None) -> Certified:
    """What a certificate says of its run's ledger, with why it is in doubt: it is unsigned, or, without a `public_key`,
    signed by whom nobody knows.

    Raises CertificateError for what is no certificate, was changed since it was signed, or is not signed with the
    `public_key` that is named.
    """
    certificate = _read(path)
    raw = _signer(path, certificate, public_key)
    if raw is None and public_key is not None:
        raise CertificateError(f"{path} {UNSIGNED}")
    if public_key is not None:
        return Certified(path, certificate)
    reason = UNSIGNED if raw is None else f"is as it was signed, {anybody(fingerprint(raw))}"
    return Certified(path, certificate, reason)


def _signer(path: Path, certificate: Certificate, public_key: Path | None) -> bytes | None:
    """The key whose signature a certificate has, `public_key` where that is named; None where it has none.

    Raises CertificateError for a signature that does not fit, or is by another key.
    """
    if not certificate.get(SIGNATURE) or not certificate.get(PUBLIC_KEY):
        return None
    try:
        raw = bytes.fromhex(certificate[PUBLIC_KEY])
        Ed25519PublicKey.from_public_bytes(raw).verify(bytes.fromhex(certificate[SIGNATURE]), signed_bytes(certificate))
    except (InvalidSignature, TypeError, ValueError):
        raise CertificateError(f"{path} was changed after it was signed: the signature does not fit") from None
    if public_key is not None and read_public_key(public_key) != raw:
        raise CertificateError(f"{path} is signed by another key than {public_key}: {fingerprint(raw)}")
    return raw


def _check_neighbours(folder: Path, certificate: Certificate) -> None:
    """The files that lie beside a certificate must not contradict it. Raises CertificateError."""
    page, superseded = folder / PAGE_FILE, folder / SUPERSEDED_FILE
    if certificate.get("class") == EXACT:
        read_rounds(folder, certificate)
    if page.exists() and certificate.get("issued_by") == f"oblivionis {__version__}":
        try:
            same = read_bytes(page).decode() == certificate_page(certificate)
        except (OSError, FileError, ValueError, KeyError, TypeError, AttributeError):
            same = False
        if not same:
            raise CertificateError(f"{page} does not say what {JSON_FILE} beside it says: it was changed")
    if superseded.exists():
        raise CertificateError(f"{folder} is superseded: more was measured since; `oblivionis certificate create` anew")


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


def anybody(shown: str) -> str:
    """Why a signature by the key of a fingerprint that the reader did not name shows nothing of who signed."""
    return (
        "but anybody could have signed it: name the key of the signer whom you trust by --public-key (it was signed "
        f"with the key {shown})"
    )


def fingerprint(raw: bytes) -> str:
    """The SHA-256 of a public key's 32 bytes, which people compare."""
    return hashlib.sha256(raw).hexdigest()


def _need_stage(run: RunDirectory) -> None:
    if run.stage_summary(STAGE) is None:
        raise CertificateError(f"{run.path}: the stage {STAGE} is unfinished; oblivionis simulate --resume {run.path}")


def _replay(name: str, config: Config) -> dict[str, str]:
    """How the run is made again: its configuration holds every key and every seed."""
    what = "the same requests must lie in the nodes' ledgers" if config.unlearning.requests.policy == "nodes" else ""
    command = f"oblivionis simulate ./config.yaml name={name}-replay output=.."
    return {"command": command, "where": "in the run's own folder", **({"needs": what} if what else {})}


def _read(path: Path) -> dict[str, Any]:
    file = path / JSON_FILE if path.is_dir() else path
    try:
        certificate = read_json(file)
    except FileNotFoundError:
        raise CertificateError(f"{file} cannot be read: there is no such file") from None
    except FileError as error:
        raise CertificateError(f"{file} is no erasure certificate: {error}") from None
    if certificate.get("format") != FORMAT:
        raise CertificateError(f"{file} is no erasure certificate")
    if certificate.get("version") == 1:
        raise CertificateError(
            f"{file} has version 1, whose figures nothing bound to the run; make a new one from the run"
        )
    if certificate.get("version") != VERSION:
        raise CertificateError(f"{file} has version {certificate.get('version')}; this program reads version {VERSION}")
    return certificate


def _key_bytes(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except FileNotFoundError:
        raise CertificateError(f"{path} cannot be read: there is no such file") from None
    except FileError as error:
        raise CertificateError(str(error)) from None
