"""The rounds of a certificate of the class *exact* are held again, and compared with what it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oblivionis.audits.exact_replay import Asked, Claim, compared_machines, rounds_again
from oblivionis.audits.replay import (
    DIFFERS,
    EQUAL,
    Finding,
    NotTestable,
    collected,
    compared,
    final_model,
    hash_of_config,
    opened_run,
    seal_findings,
)
from oblivionis.config import compose as configuration
from oblivionis.config.schema import Config
from oblivionis.erasure.exact_machine import machine_here
from oblivionis.erasure.exact_proof import read_proof
from oblivionis.erasure.ledger import Ledger
from oblivionis.reports.certificate.evidence import gather_exact, request_facts, run_facts
from oblivionis.reports.certificate.exact import EXACT, ROUNDS_FILE, read_rounds, seeds_of
from oblivionis.reports.certificate.scope import CertificateError
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory, part_hashes, vector_hash
from strategies.protocols.update_history import PastRound


def replay(
    file: Path,
    certificate: Mapping[str, Any],
    run: Path | None,
    node_dirs: Sequence[Path],
    overrides: Sequence[str],
    pieces: int | None,
) -> list[Finding]:
    """Hold the rounds of a certificate again, and compare with what it says.

    Parameters
    ----------
    file : Path
        The certificate, or its folder.
    certificate : mapping
        What it says.
    run : Path, optional
        The run, with its stored models; None: the one in whose folder the certificate lies.
    node_dirs, overrides, pieces
        As of `oblivionis.audits.exchange_replay.replay_exchange`.

    Returns
    -------
    list of Finding

    Raises
    ------
    CertificateError
        For a certificate of another class, without its rounds, or without a run.
    AuditError
        For what the run and the folders are not.
    """
    if certificate.get("class") != EXACT:
        raise CertificateError(f"{file} rests on measurements: only a certificate of the class exact can be replayed")
    folder = file if file.is_dir() else file.parent
    rounds = read_rounds(folder, certificate)
    if rounds is None:
        raise CertificateError(
            f"{folder / ROUNDS_FILE} is missing: what is to be held again lies beside the certificate"
        )
    place = run if run is not None else folder.absolute().parent.parent
    if not (place / "config.yaml").is_file():
        raise CertificateError(f"{place} is no run: name the run of the certificate with --run")
    return collected(_again(place, certificate, rounds, node_dirs, overrides, pieces))


def _again(
    place: Path,
    certificate: Mapping[str, Any],
    rounds: Mapping[int, Sequence[PastRound]],
    node_dirs: Sequence[Path],
    overrides: Sequence[str],
    pieces: int | None,
) -> Iterator[Finding]:
    """The findings of `replay`."""
    run, config = opened_run(place, overrides)
    own = configuration.from_yaml(run.read_config(), run.config_place)
    said = certificate["exact"]
    yield from compared_machines(said, machine_here(config))
    told = certificate["run"]["config_sha256"]
    same = compared("configuration, by the certificate", hash_of_config(run), told)
    yield same
    if same.outcome != EQUAL:
        return
    yield from seal_findings(run)
    yield from _by_the_run(run, own, certificate)
    requests = [part["request"] for part in certificate["requests"]]
    asked = [Asked(r["id"], r["client"], frozenset(r["record_ids"])) for r in requests]
    number, whole = said["exchange"]["round"], certificate["requests"][0]["evidence"]["models"]["final"]["sha256"]
    asking, models = {0}, [(said["exchange"]["after"], whole)]
    if (count := config.federation.shards) > 1:
        if (proof := read_proof(run)) is None:
            raise NotTestable(f"{run.path} has no exact.json, which says to which shard each client belongs")
        asking = {proof.shard_of(of.client) for of in asked}
        named = {of["shard"]: (of["after"], of["final"]) for of in said.get("shards", ())}
        models = [named.get(shard, ("", "")) for shard in range(count)]
        yield from _compared_parts(run, [final for _, final in models], whole)
    if rounds.keys() - asking:
        raise CertificateError(f"{ROUNDS_FILE} names rounds of shard {min(rounds.keys() - asking)}, which nobody asked")
    claims = [Claim(rounds.get(k, ()), (number, models[k][0]), models[k][1], k) for k in sorted(asking)]
    yield from rounds_again(run, config, node_dirs, pieces, claims, asked)


def _by_the_run(run: RunDirectory, config: Config, certificate: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether what the certificate says of the run, and of each request, is what the run's own files say."""
    facts = run_facts(run, config, artifact_binding.check(run, with_models=False).files or {})
    facts["config_sha256"] = certificate["run"]["config_sha256"]  # a comparison of its own
    yield _same("seeds", certificate["exact"].get("seeds"), seeds_of(config))
    yield _same("what the certificate says of the run", certificate["run"], facts)
    known = {request.id: request for request in Ledger(run.ledger_path)}
    for part in certificate["requests"]:
        name, evidence = part["request"]["id"], part["evidence"]
        if (request := known.get(name)) is None:
            yield Finding(f"request {name}, by the run's ledger", DIFFERS, "it has no such request")
            continue
        own = gather_exact(run, config, request)
        events = [event for event in own["events"] if event in evidence["events"]]
        here = {**request_facts(request, request.outcome), "events": events, "models": own["models"]}
        said = {**part["request"], "events": evidence["events"], "models": evidence["models"]}
        yield _same(f"request {name}, by the run's ledger", said, here)


def _same(what: str, said: object, here: Mapping[str, Any]) -> Finding:
    """Whether a certificate says what is found here, key by key."""
    claimed = said if isinstance(said, Mapping) else {}
    other = [name for name in sorted({*claimed, *here}) if claimed.get(name) != here.get(name)]
    return Finding(what, DIFFERS if other else EQUAL, f"other {', '.join(other)}" if other else "")


def _compared_parts(run: RunDirectory, parts: Sequence[str], whole: str) -> Iterator[Finding]:
    """Whether the run's final model is the one of the certificate, as a whole and by its `parts`, one of each shard."""
    if (final := final_model(run)) is None:
        raise NotTestable(f"{run.path} holds no final model")
    yield compared("final model of all shards", vector_hash(final), whole)
    for shard, (here, said) in enumerate(zip(part_hashes(final, len(parts)), parts, strict=True)):
        yield compared(f"shard {shard}: final model", here, said)
