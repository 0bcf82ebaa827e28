"""A node's own verdict on its hidden requests: what models that it received know of its records.

It is measured at the user's command, outside of any message, and stays on the node: a reply that took longer, or had
numbers, would show who asked. For that a node keeps models: the one that the exchange of a request began with, the one
that it ended with where the node trained in the same round, and the newest that it received. It keeps them whether or
not it asks, and deletes at the next exchange what nobody needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oblivionis.array_files import write_arrays
from oblivionis.client.audit import audit
from oblivionis.client.node_policy import read_policy
from oblivionis.client.node_policy_guard import Guard
from oblivionis.client.worker import Worker
from oblivionis.config import compose as configuration
from oblivionis.erasure.hidden_requests import Opened, open_commitment, unsettled_sessions
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.node_key import SIGNATURE, SIGNED, audit_bytes, audit_key, public_hex
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.node_record_files import read_node
from oblivionis.erasure.verification_rules import VERIFIED, Judgement, Thresholds
from oblivionis.errors import ClientError, OblivionisError
from oblivionis.files import write_json
from oblivionis.measures.audit_numbers import audit_path, check_numbers, judge_numbers, read_audit
from oblivionis.models.fingerprint import fingerprint_model
from oblivionis.runs.directory import Checkpoint, read_checkpoint, vector_hash
from strategies import message_keys

_VERDICTS = ("verified", "verification_failed")
FOLDER, LATEST = "models", "latest.safetensors"
"""Where a node keeps models, and the newest of them."""
STAGE = "unlearn"
_SUFFIX, _AFTER = ".safetensors", ".after.safetensors"


class SelfAuditError(OblivionisError):
    """A request that the node cannot measure: a model is not at hand, or not one of its run."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept with a model: whose message brought it, and what makes it a model again."""

    run: str
    stage: str
    round: int
    settings: str
    fingerprint: str


def keep_model(folder: Path, vector: np.ndarray, about: Kept, session: str | None = None) -> None:
    """Keep a model that a message brought, durably.

    Parameters
    ----------
    folder : Path
        The node's own.
    vector : array (n,), float32
        The flat model.
    about : Kept
        What is kept with it.
    session : str, optional
        Of the cover exchange that the model begins. None: it is kept as the newest model of all, and, where it came in
        the round of a cover exchange, also as the model that this ended with.
    """
    place = folder / FOLDER / (LATEST if session is None else _name(session))
    info = {name: getattr(about, name) for name in Kept.__slots__}
    write_arrays(place, {"adapter": vector}, info)
    if session is None:
        for began in place.parent.glob(f"*{_SUFFIX}"):
            if began.name == LATEST or began.name.endswith(_AFTER):
                continue
            first = read_checkpoint(began)
            if (first.info["run"], first.stage, first.round) == (about.run, about.stage, about.round):
                write_arrays(_after(began), {"adapter": vector}, info)
        return
    began = {place, *(place.with_name(_name(unsettled)) for unsettled in unsettled_sessions(folder).values())}
    needed = {LATEST, *(path.name for model in began for path in (model, _after(model)))}
    for file in place.parent.glob("*.safetensors"):
        if file.name not in needed:
            file.unlink()


def audit_request(
    folder: Path, request_id: str, final: Path | None = None, samples: int | None = None
) -> tuple[Judgement, list[str]]:
    """Measure what the models before its exchange and now know of a request's records, and judge it.

    The verdict goes into the node's ledger, the signed numbers into `audits/` of its folder.

    Parameters
    ----------
    folder : Path
        The node's own.
    request_id : str
    final : Path, optional
        A checkpoint of the run, such as its last; None: the newest model that the node received.
    samples : int, optional
        Answers sampled to a question; None: as many as the run's configuration says.

    Returns
    -------
    judgement : Judgement
    missing : list of str
        What could not be measured, in words.

    Raises
    ------
    SealError
        For a request that no cover exchange has served.
    SelfAuditError
        Where a model is missing, or fewer answers would be sampled than before; else what a message with the same
        configuration would raise.
    """
    opened = open_commitment(folder, request_id)
    first = _kept(folder / FOLDER / _name(opened.session), f"the model before the exchange of request {request_id!r}")
    last = _kept(final or folder / FOLDER / LATEST, "the model to measure now")
    if final is None and last.info["run"] != opened.run:
        raise SelfAuditError(
            f"the newest model here is of run {last.info['run']!r}, the request was served in {opened.run!r}: give "
            "--final, a checkpoint of that run"
        )
    worker = _worker(folder, opened.client, first.info)
    if first.vector.shape != last.vector.shape or last.vector.size != worker.flat.size:
        raise SelfAuditError("the two models are not of one shape: --final is a checkpoint of another run")
    thresholds = Thresholds.of(worker.config.unlearning.requests)
    count = number_of_audit(
        folder, opened, last, worker.config.evaluation.leakage.samples if samples is None else samples
    )
    numbers: dict[str, dict[str, float]] = {}
    after = right_after(folder, opened, request_id)
    moments = {"before": first, **({} if after is None else {"after": after}), "final": last}
    for moment, model in moments.items():
        numbers[moment] = _measure(worker, folder, opened, model.vector, thresholds, samples)
        keep_numbers(folder, opened, moment, numbers[moment], model, count)
    ruined = thresholds.displaced(last.vector, first.vector)
    judged = judge_numbers(thresholds, numbers, len(opened.demand.record_ids), ruined=ruined)
    assert judged is not None
    event = "verified" if judged.outcome == VERIFIED else "verification_failed"
    info = {"outcome": judged.outcome, "why": judged.why, "rouge": judged.recall, "limit": thresholds.max_recall}
    model = vector_hash(last.vector)
    NodeLedger(folder).note(event, request_id, run=opened.run, round=last.round, model=model, **info)
    failed = {moment: reported.get("failed_evaluators", 0.0) for moment, reported in numbers.items()}
    return judged, [f"{n:g} evaluators on the {moment} model" for moment, n in failed.items() if n]


def number_of_audit(folder: Path, opened: Opened, last: Checkpoint, samples: int) -> int:
    """How many audits of the final model there are with the next one, by the node's ledger.

    SelfAuditError for fewer samples than an earlier one drew.
    """
    name, model = opened.demand.request_id, vector_hash(last.vector)
    of = {"id": name, "run": opened.run, "model": model}
    made = [e for e in NodeLedger(folder).entries() if of.items() <= e.items() and e["event"] in _VERDICTS]
    known = read_audit(folder, name) or {}
    if known.get("signatures", {}).get("final", {}).get("model") == model:
        drawn = int(known["final"].get("leakage_samples", 0))
        if samples < drawn:
            raise SelfAuditError(f"--samples {samples}: {drawn} were drawn before; fewer would hide what those showed")
    return len(made) + 1


def _measure(
    worker: Worker, folder: Path, opened: Opened, vector: np.ndarray, thresholds: Thresholds, samples: int | None
) -> dict[str, float]:
    """The numbers of a request's records in a model, as a message that asks for them would get them."""
    withheld = {*NodeFolder(folder).tombstones(), *NodeLedger(folder).asked()}
    records = set(opened.demand.record_ids)
    numbers = audit(worker, opened.client, vector, records, withheld, folder, samples)
    return check_numbers(numbers, len(records), thresholds)


def keep_numbers(
    folder: Path, opened: Opened, moment: str, numbers: Mapping[str, float], model: Checkpoint, count: int
) -> None:
    """Write the numbers of a `moment`, signed, into the request's audit, in the form that a run keeps audits in; with
    how many audits of the final model this makes, from the second on."""
    name, key = opened.demand.request_id, audit_key(folder)
    known = (read_audit(folder, name) or {}) if moment != "before" else {}
    facts: dict[str, Any] = {
        "run": opened.run,
        "stage": STAGE,
        "round": model.round,
        "model": vector_hash(model.vector),
    }
    signature = key.sign(audit_bytes(name, opened.client, moment, numbers, facts)).hex()
    signed = {SIGNATURE: signature, **{fact: facts[fact] for fact in SIGNED}}
    write_json(
        audit_path(folder, name),
        {
            **known,
            **({"audits": count} if count > 1 else {}),
            "request": name,
            "client": opened.client,
            "round": opened.round,
            moment: dict(numbers),
            "signed_by": public_hex(key),
            "signatures": {**known.get("signatures", {}), moment: signed},
        },
    )


def _worker(folder: Path, client: int, info: Mapping[str, Any]) -> Worker:
    """What measures with the configuration that came with a model, within the node's own policy."""
    config = configuration.from_yaml(info["settings"])
    guard = Guard(read_policy(folder), folder, client, message_keys.AUDIT)
    guard.check_settings(info["settings"], info["run"])
    config = guard.permitted(config, {"fingerprint": info["fingerprint"]})
    actual = fingerprint_model(config.model)
    if actual != info["fingerprint"]:
        raise ClientError(f"the base model here is {actual[:12]}, that of the run {info['fingerprint'][:12]}")
    worker = Worker(config)
    if config.data.on_clients:
        worker.hold(client, read_node(folder))
    return worker


def _kept(path: Path, what: str) -> Checkpoint:
    if not path.is_file():
        raise SelfAuditError(f"{path}: {what} is not here")
    return read_checkpoint(path)


def right_after(folder: Path, opened: Opened, request_id: str) -> Checkpoint | None:
    """The model that the exchange of a request ended with, by its hash; None where no message brought it."""
    path = _after(folder / FOLDER / _name(opened.session))
    lines = (e for e in reversed(NodeLedger(folder).lines("served")) if e.get("id") == request_id)
    recorded = next((e.get("after") for e in lines if e.get("session") == opened.session), None)
    if not path.is_file():
        return None
    checkpoint = read_checkpoint(path)
    return checkpoint if vector_hash(checkpoint.vector) == recorded else None


def _name(session: str) -> str:
    return f"{hashlib.sha256(session.encode()).hexdigest()[:16]}{_SUFFIX}"


def _after(began: Path) -> Path:
    return began.with_name(f"{began.name.removesuffix(_SUFFIX)}{_AFTER}")
