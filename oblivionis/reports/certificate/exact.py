"""Certificates of the class *exact*: they rest on rounds that were held again, on no threshold and no measurement.

`rounds.jsonl` beside such a certificate has a line for each round that the model depends on; the certificate names the
hash of the file, and of each line. With the clients' folders anybody can hold the rounds again (`replay`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import htpy as h

from oblivionis.audits.exact_replay import Claim, compared_machines, newest_exchange, rounds_again
from oblivionis.audits.replay import LABELS, Finding, collected, compared, opened_run, seal_findings
from oblivionis.config import compose as configuration
from oblivionis.config import method_traits
from oblivionis.config.identity import config_hash
from oblivionis.config.schema import Config
from oblivionis.erasure.exact_proof import Proof, machine_here, read_proof
from oblivionis.erasure.request import Request
from oblivionis.errors import FileError
from oblivionis.files import checked, parse_lines, read_bytes
from oblivionis.reports.certificate.checks import INCONCLUSIVE, PASS, Check, check_binding, check_ledger, check_scope
from oblivionis.reports.certificate.scope import CertificateError
from oblivionis.reports.markup import facts_list, html_table
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.updates import Row, past_of, row_of
from strategies.protocols.update_history import PastRound

EXACT = "exact"
"""The value of `class` in such a certificate; others have none."""
ROUNDS_FILE = "rounds.jsonl"
NOT_SAID = (
    "It says nothing of what the base model learned before this run.",
    "It says nothing of copies of the records, or of earlier models, elsewhere.",
    "The same bits come out on the processor and with the versions named here; elsewhere the last bits may differ.",
    "The server saw what clients sent in a round with the records and without them.",
    "Who took part in which round stayed as it was.",
)
"""What such a certificate does not say."""


class _Exchange(TypedDict):
    round: int
    after: str


class _Exact(TypedDict):
    rounds: list[tuple[str, int, str]]
    rounds_sha256: str
    exchange: _Exchange
    software: dict[str, str | None]
    processor: str


class _Run(TypedDict):
    config_sha256: str


class _Certificate(TypedDict):
    exact: _Exact
    run: _Run


def proof_of(run: RunDirectory, config: Config) -> Proof | None:
    """The proof that certificates of a run rest on; None where they rest on measurements."""
    return read_proof(run) if method_traits.replays(config.unlearning.method) else None


def rounds_text(proof: Proof) -> str:
    """What `rounds.jsonl` of a certificate says."""
    return "".join(_line(past) + "\n" for past in proof.rounds)


def _line(past: PastRound) -> str:
    return json.dumps(row_of(past), sort_keys=True, separators=(",", ":"))


def facts_of(run: RunDirectory, config: Config, proof: Proof) -> dict[str, Any]:
    """What a certificate says of the rounds, as JSON values."""
    number, after = newest_exchange(run)
    text = rounds_text(proof)
    return {
        "shown": "recorded in the ledgers",
        "rounds": [[past.stage, past.round, _hash(_line(past))] for past in proof.rounds],
        "held_again": sum(past.replayed > 0 for past in proof.rounds),
        "rounds_sha256": _hash(text),
        "exchange": {"round": number, "after": after},
        "seeds": {"run": config.seed, "labels": dict(LABELS)},
        **proof.machine,
        "not_said": list(NOT_SAID),
    }


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def exact_checks(run: RunDirectory, request: Request, evidence: Mapping[str, Any], proof: Proof) -> list[Check]:
    """The checks of a request: the run's ledger, what it binds, which records it names, and the rounds."""
    why = proof.missing_for(request, run.lines("applied"))
    again = sum(past.replayed >= (request.served_round or 0) for past in proof.rounds)
    figure = {"rounds": len(proof.rounds), "held again since": again}
    shown = f"every round that its records had gone into was held again without them ({again} of {len(proof.rounds)})"
    rounds = Check("rounds", INCONCLUSIVE if why else PASS, figure, why or shown)
    return [
        check_ledger(evidence["ledger"]),
        check_binding(evidence["binding"]),
        check_scope(evidence["unnamed"]),
        rounds,
    ]


def read_rounds(folder: Path, certificate: Mapping[str, Any]) -> tuple[PastRound, ...] | None:
    """The rounds in the file beside a certificate; None where there is no such file.

    Raises
    ------
    CertificateError
        For another file than the certificate names.
    """
    path = folder / ROUNDS_FILE
    try:
        data = read_bytes(path)
        rows = [checked(row, Row) for row in parse_lines(path, data)]
        rounds = tuple(past_of(row, stored=False) for row in rows)
    except FileNotFoundError:
        return None
    except (FileError, ValueError, KeyError) as error:
        raise CertificateError(f"{path}: it cannot be read: {error}") from None
    claimed = _claimed(path, certificate)
    found = [[past.stage, past.round, _hash(_line(past))] for past in rounds]
    if found != claimed["rounds"] or hashlib.sha256(data).hexdigest() != claimed["rounds_sha256"]:
        named = claimed["rounds"]
        first = next((f for f, c in zip(found, named, strict=False) if f != c), None)
        which = f"round {first[1]} of {first[0]}" if first else f"{len(found)} rounds, not {len(named)}"
        raise CertificateError(f"{path} is not the one that the certificate names: it has another line about {which}")
    return rounds


def _claimed(path: Path, certificate: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a certificate says of its rounds. CertificateError where it does not."""
    try:
        checked(certificate, _Certificate)
    except ValueError as error:
        raise CertificateError(f"{path.parent / 'certificate.json'}: {error}") from None
    return certificate["exact"]


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
    rounds: Sequence[PastRound],
    node_dirs: Sequence[Path],
    overrides: Sequence[str],
    pieces: int | None,
) -> Iterator[Finding]:
    """The findings of `replay`."""
    run, config = opened_run(place, overrides)
    own = configuration.from_yaml(run.read_config(), run.config_place)
    said = certificate["exact"]
    yield from compared_machines(said, machine_here(config))
    same = compared("configuration, by the certificate", config_hash(own), certificate["run"]["config_sha256"])
    yield same
    if same.outcome != "equal":
        return
    yield from seal_findings(run)
    withheld: dict[int, set[str]] = {}
    for part in certificate["requests"]:
        withheld.setdefault(part["request"]["client"], set()).update(part["request"]["record_ids"])
    exchange = (said["exchange"]["round"], said["exchange"]["after"])
    final = certificate["requests"][0]["evidence"]["models"]["final"]["sha256"]
    yield from rounds_again(run, config, node_dirs, pieces, Claim(rounds, exchange, final, withheld))


def proof_section(certificate: Mapping[str, Any]) -> list[h.Node]:
    """The part of a certificate's page about the rounds, and about what it does not say."""
    said = certificate["exact"]
    software = ", ".join(f"{name} {version}" for name, version in said["software"].items())
    labels = ", ".join(f"{stage}: {label}" for stage, label in said["seeds"]["labels"].items())
    facts: list[tuple[h.Node, h.Node]] = [
        ("Shown", f"{said['shown']}; computed again with --replay"),
        ("Rounds", f"{len(said['rounds'])}, of which {said['held_again']} were held again"),
        (f"SHA-256 of {ROUNDS_FILE}", h.code[said["rounds_sha256"]]),
        (f"Model after the exchange of round {said['exchange']['round']}", h.code[said["exchange"]["after"]]),
        ("Seeds", f"of the run {said['seeds']['run']}, with labels of stage, client and round ({labels})"),
        ("Software", software),
        ("Processor", said["processor"]),
    ]
    rows = [[stage, str(number), h.code[digest]] for stage, number, digest in said["rounds"]]
    table = html_table(["stage", "round", f"its line in {ROUNDS_FILE}"], ["", "n", ""], rows, "Rounds of the model")
    about = h.p[
        "Each line names who took part, the model that the clients got, the hash of each update, and of each client "
        "the line of its own ledger that says on which records it trained."
    ]
    return [
        h.h2["Rounds that the model depends on"],
        facts_list(facts),
        about,
        table,
        h.h2["What it does not say"],
        h.ul[[h.li[line] for line in said["not_said"]]],
    ]
