"""The replay of an exact erasure: the rounds that led to the present model are held again, and hashes compared."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord

from clients.training import TrainReport
from oblivionis import seeds
from oblivionis.audits.audited_model import AuditError
from oblivionis.audits.replay import (
    DIFFERS,
    LABELS,
    STAGE,
    Finding,
    NotTestable,
    WorkState,
    as_record,
    as_vector,
    check_held,
    check_own,
    client_folders,
    compared,
    exchange_lines,
    final_model,
    hold_records,
    newest_line,
    of_run,
    other_records,
)
from oblivionis.chain import check_chain
from oblivionis.client.worker import Worker
from oblivionis.config.schema import Config
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.verification_rules import NOT_TESTABLE
from oblivionis.errors import RunError
from oblivionis.models.aggregator import aggregator
from oblivionis.models.assembly import assemble, averaging
from oblivionis.models.update_bounds_settings import bounds_of
from oblivionis.runs.directory import RunDirectory, vector_hash
from oblivionis.runs.known_nodes import FILE as KNOWN_NODES
from oblivionis.runs.known_nodes import KnownNodes
from oblivionis.runs.updates import UpdateStore, open_updates
from strategies import message_keys
from strategies.client_update import ClientUpdate
from strategies.flower_internals import AggregationError
from strategies.protocols.update_history import PastRound
from strategies.rounds.update_bounds import Bounds


def rounds_again(run: RunDirectory, config: Config, node_dirs: Sequence[Path], pieces: int | None) -> Iterator[Finding]:
    """Hold the rounds again that led to the present model of an exact erasure, without the records of all requests."""
    for stage in LABELS:
        check_own(run, stage, "exchange")
    store = open_updates(config, run.path, STAGE)
    lineage = store.rounds() if store is not None else []
    if unknown := {past.stage for past in lineage} - LABELS.keys():
        raise AuditError(f"{run.path}: its stored rounds name the stage {min(unknown)!r}, which trains nobody")
    places = [place for place, past in enumerate(lineage) if past.stored]
    if store is None or not places or places[0] > 0:
        raise NotTestable(
            f"{run.path} holds no model from before the first round: unlearning.updates.keep=null keeps it"
        )
    took_part = {client for past in lineage for client in past.clients}
    if unknown := took_part - set(range(config.federation.clients)):
        raise AuditError(
            f"{run.path}: its stored rounds name client {min(unknown)}, and the run has the clients 0 to "
            f"{config.federation.clients - 1}"
        )
    folders = client_folders(run, config, node_dirs, took_part)
    worker = Worker(config)
    untrained = assemble(config.model, seeds.derive(config.seed, "adapter")).flat.numpy()
    first = as_vector(store.read(lineage[0]).sent)
    yield compared("model before any training", vector_hash(untrained), vector_hash(first))
    for client, folder in sorted(folders.items()):
        yield from _of_client(run, worker, client, folder)
    erased = _newest_exchange(run)
    ends = list(zip(places, [*places[1:], len(lineage)], strict=True))
    for start, end in ends if pieces is None else sorted(random.sample(ends, min(pieces, len(ends)))):
        yield from _piece(run, config, worker, folders, store, lineage[start : end + 1], end < len(lineage), erased)
    yield from _erased(store, lineage, erased, every=pieces is None)


def _of_client(run: RunDirectory, worker: Worker, client: int, folder: Path) -> Iterator[Finding]:
    """Whether a client's ledger is whole, and its records those that it trained on last. NotTestable for others."""
    hold_records(worker, client, folder)
    lines = [e for e in of_run(run, NodeLedger(folder).exchanges()) if e.get("kind") == message_keys.TRAIN]
    state = WorkState.at(folder, newest_line(lines, client, "a training of this run"))
    yield from check_held(run, worker, client, folder, state)


def _piece(
    run: RunDirectory,
    config: Config,
    worker: Worker,
    folders: Mapping[int, Path],
    store: UpdateStore,
    rounds: Sequence[PastRound],
    goes_on: bool,
    erased: tuple[int, str],
) -> Iterator[Finding]:
    """Hold `rounds` again from the first, which is stored, to the last, which is stored, too, or (unless the lineage
    `goes_on` there) to the run's end. On the way the model after the exchange that `erased` names is compared."""
    first, last = rounds[0], rounds[-1]
    what = f"from round {first.round} of {first.stage} on"
    if len(rounds) == 1 + goes_on:
        what = f"round {first.round} of {first.stage}"
    carries_on = config.strategy.server_state_from_finetune == "keep"
    try:
        stored, inner = store.read(first), aggregator(config, averaging(config.model, worker.flat.manifest))
        inner.load_state_dict(stored.state)
        model, stage, bounds = stored.sent, first.stage, _bounds(run, config, worker)
        for past in rounds[:-1] if goes_on else rounds:
            if past.stage != stage and not carries_on:
                inner.reset_state()
            stage = past.stage
            if past is not first and (stage, past.round) == (STAGE, erased[0]) and not past.stored:
                yield compared(_after_exchange(erased), vector_hash(as_vector(model)), erased[1])
            updates = _round_again(run, worker, folders, past, model, bounds)
            for update in updates:
                if vector_hash(as_vector(update.arrays)) != past.hashes.get(update.partition):
                    why = f"client {update.partition} gives another update in round {past.round} of {stage}"
                    yield Finding(what, DIFFERS, why)
                    return
            if updates:
                inner.starts_from(model)
                model = inner.aggregate(model, updates)
        if not goes_on:
            final = final_model(run)
            yield compared(what, vector_hash(as_vector(model)), "" if final is None else vector_hash(final))
            return
        following = store.read(last)
        if last.stage != stage and not carries_on:
            inner.reset_state()
        yield _compared_states(what, inner.state_dict(), following.state) or compared(
            what, vector_hash(as_vector(model)), vector_hash(as_vector(following.sent))
        )
    except NotTestable as error:
        yield Finding(what, NOT_TESTABLE, str(error))
    except (ValueError, KeyError, RunError, AggregationError) as error:
        yield Finding(what, DIFFERS, f"what is stored is not what such a run stores: {error}")


def _compared_states(what: str, here: Mapping[str, np.ndarray], stored: Mapping[str, np.ndarray]) -> Finding | None:
    """A finding where the aggregator's state is not the stored one."""
    same = here.keys() == stored.keys() and all(np.array_equal(values, stored[name]) for name, values in here.items())
    return None if same else Finding(what, DIFFERS, "the aggregator's state comes out otherwise")


def _bounds(run: RunDirectory, config: Config, worker: Worker) -> Bounds:
    """What one client may count, as in the run itself."""
    remote = config.data.on_clients
    known = KnownNodes(run.path / KNOWN_NODES)
    count = known.records if remote else lambda client: len(worker.holding(client).records)
    return bounds_of(config, count, worker.flat.size, reported=remote)


def _round_again(
    run: RunDirectory,
    worker: Worker,
    folders: Mapping[int, Path],
    past: PastRound,
    model: ArrayRecord,
    bounds: Bounds,
) -> list[ClientUpdate]:
    """The updates of a round, as they count. NotTestable where a client's cannot be computed here."""
    updates = []
    for client in past.clients:
        vector, report = _trained_again(run, worker, client, folders[client], past, as_vector(model))
        updates.append(ClientUpdate(client, report.num_examples, as_record(vector), report.steps))
    return bounds.of_training(updates, model)


def _newest_exchange(run: RunDirectory) -> tuple[int, str]:
    """The newest round of unlearn in which a request was served that still is, and the hash of the model after it."""
    served = {request.id: request.served_round for request in Ledger(run.ledger_path)}
    lines = [e for e in check_chain(run.ledger_path).entries if e.get("event") == "applied"]
    lines = [e for e in lines if e.get("round") == served.get(str(e.get("id")))]
    newest = max(lines, key=lambda e: int(e["round"]))
    return int(newest["round"]), str([e for e in lines if e["round"] == newest["round"]][-1]["after"])


def _after_exchange(erased: tuple[int, str]) -> str:
    return f"model after the exchange of round {erased[0]}"


def _erased(
    store: UpdateStore, lineage: Sequence[PastRound], erased: tuple[int, str], *, every: bool
) -> Iterator[Finding]:
    """Whether the newest exchange left the model that its stored round has; `every`: all pieces were held again, and
    with them what is not stored."""
    place = next((p for p in lineage if (p.stage, p.round) == (STAGE, erased[0])), None)
    if place is not None and place.stored:
        yield compared(_after_exchange(erased), vector_hash(as_vector(store.read(place).sent)), erased[1])
    elif place is None or not every:
        why = "no round follows it" if place is None else "its round is not stored; without --pieces it is compared"
        yield Finding(_after_exchange(erased), NOT_TESTABLE, why)


def _trained_again(
    run: RunDirectory, worker: Worker, client: int, folder: Path, past: PastRound, received: np.ndarray
) -> tuple[np.ndarray, TrainReport]:
    """What a client's training gives on what was left of its records then. NotTestable without a line of its ledger, or
    where it was done with other records."""
    lines = exchange_lines(run, folder, message_keys.TRAIN, past.round, vector_hash(received))
    wanted = (LABELS[past.stage], past.replayed, "")
    lines = [e for e in lines if (e.get("stage"), e.get("replay", 0), e.get("exclude", "")) == wanted]
    served = frozenset(i for r in Ledger(run.ledger_path).of_client(client) if r.served_round for i in r.record_ids)
    state = WorkState.at(folder, newest_line(lines, client, f"the training of round {past.round}"), served)
    if other := other_records(worker, client, folder, state.line):
        raise NotTestable(f"client {client}, round {past.round} of {past.stage}: {other}")
    return worker.finetune(
        client,
        received,
        excluded=state.withheld,
        epochs=worker.config.federation.local_epochs,
        proximal_mu=float(worker.config.strategy.params.get(message_keys.PROXIMAL_MU.replace("-", "_"), 0.0)),
        seed=seeds.derive(worker.config.seed, LABELS[past.stage], client, past.round),
    )
