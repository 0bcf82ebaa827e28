"""Certificates of the class *exact*: they rest on rounds that were held again, on no threshold and no measurement.

`rounds.jsonl` beside such a certificate has a line for each round that the model depends on, in a federation in shards
that the models of the asking clients' shards do; the certificate names the hash of the file, and of each line. With the
clients' folders anybody can hold the rounds again (`oblivionis.reports.certificate.exact_replay`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import htpy as h
from msgspec import Meta

from oblivionis.config import method_traits
from oblivionis.config.schema import Config
from oblivionis.erasure.exact_proof import (
    STAGE,
    Proof,
    ShardRow,
    exchanges,
    model_after,
    newest_exchange,
    read_proof,
    rounds_by_shard,
)
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_rules import of_twins
from oblivionis.errors import FileError
from oblivionis.files import checked, parse_lines, read_bytes
from oblivionis.reports.certificate.checks import INCONCLUSIVE, PASS, Check, check_binding, check_ledger, check_scope
from oblivionis.reports.certificate.scope import CertificateError
from oblivionis.reports.markup import facts_list, html_table
from oblivionis.runs.directory import RunDirectory, part_hashes
from oblivionis.runs.updates import LABELS
from strategies.protocols.update_history import PastRound

EXACT = "exact"
"""The value of `class` in such a certificate; others have none."""
ROUNDS_FILE = "rounds.jsonl"
NOT_SAID = (
    "It says nothing of what the base model learned before this run.",
    "It says nothing of copies of the records, or of earlier models, elsewhere, "
    "nor of the same text among records of other clients.",
    "The same bits come out on the processor and with the versions named here; elsewhere the last bits may differ.",
    "The server saw what clients sent in a round with the records and without them.",
    "Who took part in which round stayed as it was.",
)
"""What such a certificate does not say."""
NOT_SAID_OF_SHARDS = (
    "That its clients took part in no round of another shard is what the run recorded: `oblivionis audit exchange` "
    "holds the rounds of all shards again.",
)
"""What it does not say besides where there are several shards."""


class _Exchange(TypedDict):
    round: int
    after: str


class _Shard(TypedDict):
    shard: int
    rounds: int
    after: str
    final: str


class _All(TypedDict):
    rounds: list[tuple[str, int, str]]
    rounds_sha256: str
    exchange: _Exchange
    software: dict[str, str | None]
    processor: str


class _Exact(_All, total=False):
    shards: list[_Shard]


class _Run(TypedDict):
    config_sha256: str


class _Request(TypedDict):
    id: str
    client: int
    record_ids: list[str]


class _Final(TypedDict):
    sha256: str


class _Models(TypedDict):
    final: _Final


class _Evidence(TypedDict):
    events: list[dict[str, Any]]
    models: _Models


class _Part(TypedDict):
    request: _Request
    evidence: _Evidence


class _Certificate(TypedDict):
    exact: _Exact
    run: _Run
    requests: Annotated[list[_Part], Meta(min_length=1)]


def proof_of(run: RunDirectory, config: Config) -> Proof | None:
    """The proof that certificates of a run rest on; None where they rest on measurements."""
    return read_proof(run) if method_traits.replays(config.unlearning.method) else None


def rounds_text(proof: Proof, clients: Collection[int]) -> str:
    """What `rounds.jsonl` of a certificate says: the rounds of the shards of `clients`."""
    return "".join(_line(row) + "\n" for row in _rows(proof, clients))


def _rows(proof: Proof, clients: Collection[int]) -> list[dict[str, Any]]:
    return proof.rows(sorted({proof.shard_of(client) for client in clients}))


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True, separators=(",", ":"))


def _named(rows: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Stage, number and hash of each round."""
    return [[row["stage"], row["round"], _hash(_line(row))] for row in rows]


def facts_of(run: RunDirectory, config: Config, proof: Proof, clients: Collection[int]) -> dict[str, Any]:
    """What a certificate says of the rounds of the shards of `clients`, as JSON values."""
    rows, line = _rows(proof, clients), newest_exchange(exchanges(run)) or {"round": 0, "after": ""}
    facts = {
        "shown": "recorded in the ledgers",
        "rounds": _named(rows),
        "held_again": sum(row.get("replayed", 0) > 0 for row in rows),
        "rounds_sha256": _hash(rounds_text(proof, clients)),
        "exchange": {"round": int(line["round"]), "after": str(line["after"])},
        "seeds": seeds_of(config),
        **proof.machine,
        "not_said": list(NOT_SAID),
    }
    if proof.shards == 1:
        return facts
    listed = Counter(row["shard"] for row in rows)
    shards = [
        {"shard": shard, "rounds": listed[shard], "after": model_after(line, shard, proof.shards), "final": final}
        for shard, final in enumerate(part_hashes(run.load_checkpoint(STAGE).vector, proof.shards))
    ]
    return {**facts, "shards": shards, "not_said": [*NOT_SAID, *NOT_SAID_OF_SHARDS]}


def seeds_of(config: Config) -> dict[str, Any]:
    """From what the seeds of a run come: its own, and the label of each stage."""
    return {"run": config.seed, "labels": dict(LABELS)}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def how_to_replay() -> dict[str, str]:
    """The command that holds the rounds of a certificate again, and what it needs."""
    command = "oblivionis certificate verify certificate.json --public-key FILE --replay"
    needs = "the run with its stored models (--run), and the folder of each client (--node-dir)"
    return {"command": command, "where": f"beside {ROUNDS_FILE}", "needs": needs}


def exact_checks(run: RunDirectory, request: Request, evidence: Mapping[str, Any], proof: Proof) -> list[Check]:
    """The checks of a request: the run's ledger, what it binds, which records it names, and the rounds."""
    why, listed = proof.missing_for(request, exchanges(run)), proof.rounds.get(proof.shard_of(request.client), ())
    again = [past for past in listed if past.replayed >= (request.served_round or 0)]
    own = sum(request.client in past.clients for past in again)
    figure = {"rounds": len(listed), "held again since": len(again), "with its client": own}
    shown = "every earlier round in which its client took part was held again without its records"
    if not own:
        shown = "no earlier round that the model depends on has an update of its client"
    if held := evidence["judgement"].get("twins", 0):
        figure["records also held by records that stay"] = held
        shown = f"{shown}; {of_twins(held)}"
    rounds = Check("rounds", INCONCLUSIVE if why else PASS, figure, why or shown)
    return [
        check_ledger(evidence["ledger"]),
        check_binding(evidence["binding"]),
        check_scope(evidence["unnamed"]),
        rounds,
    ]


def read_rounds(folder: Path, certificate: Mapping[str, Any]) -> dict[int, list[PastRound]] | None:
    """The rounds in the file beside a certificate, by shard; None where there is no such file.

    Raises
    ------
    CertificateError
        For another file than the certificate names.
    """
    path = folder / ROUNDS_FILE
    try:
        data = read_bytes(path)
        rows = [checked(row, ShardRow) for row in parse_lines(path, data)]
        rounds = rounds_by_shard(rows)
    except FileNotFoundError:
        return None
    except (FileError, ValueError, KeyError) as error:
        raise CertificateError(f"{path}: it cannot be read: {error}") from None
    claimed = _claimed(path, certificate)
    found = _named(rows)
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


def _shards(shards: Sequence[Mapping[str, Any]]) -> h.Node:
    """The shards' parts of the model, and how many of the rounds above are of each; nothing where there is one."""
    if not shards:
        return None
    rows = [[str(s["shard"]), str(s["rounds"]), h.code[s["after"]], h.code[s["final"]]] for s in shards]
    heads = ["shard", "of the rounds above", "its model after the exchange", "and at the end"]
    return html_table(heads, ["n", "n", "", ""], rows, "Models of the shards")


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
        "the line of its own ledger that says on which records it trained, and with which software and processor."
    ]
    return [
        h.h2["Rounds that the model depends on"],
        facts_list(facts),
        about,
        table,
        _shards(said.get("shards", ())),
        h.h2["What it does not say"],
        h.ul[[h.li[line] for line in said["not_said"]]],
    ]
