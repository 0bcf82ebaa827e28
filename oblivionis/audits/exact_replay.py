"""The replay of an exact erasure: the rounds that led to the present model are held again, and hashes compared."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from clients.training import TrainReport
from oblivionis import seeds
from oblivionis.audits.audited_model import AuditError
from oblivionis.audits.replay import (
    DIFFERS,
    EQUAL,
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
from oblivionis.client.worker import Worker
from oblivionis.config.schema import Config
from oblivionis.erasure.exact_machine import machine_here
from oblivionis.erasure.exact_proof import Machine, exchanges, model_after, newest_exchange
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.node_record_files import left_of
from oblivionis.erasure.verification_rules import NOT_TESTABLE
from oblivionis.errors import RunError
from oblivionis.models.aggregator import aggregator
from oblivionis.models.assembly import assemble, averaging
from oblivionis.models.update_bounds_settings import bounds_of
from oblivionis.runs.directory import RunDirectory, part_hashes, vector_hash
from oblivionis.runs.known_nodes import FILE as KNOWN_NODES
from oblivionis.runs.known_nodes import KnownNodes
from oblivionis.runs.updates import LABELS, UpdateStore, open_stores
from strategies import message_keys
from strategies.client_update import ClientUpdate
from strategies.flower_internals import AggregationError
from strategies.protocols.update_history import PastRound
from strategies.rounds.update_bounds import Bounds


@dataclass(frozen=True, slots=True)
class Asked:
    """A request whose `record_ids`, all of one client, are said to be in no round."""

    request: str
    client: int
    record_ids: Set[str]

    @classmethod
    def of_run(cls, run: RunDirectory) -> list[Asked]:
        """The requests that a run served, by its ledger."""
        return [cls(r.id, r.client, frozenset(r.record_ids)) for r in Ledger(run.ledger_path) if r.served_round]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a replay is compared with: by a run's own files, or by a certificate of it.

    Attributes
    ----------
    rounds : sequence of PastRound
        The rounds that the final model depends on.
    exchange : tuple of int and str, or None
        The newest round of unlearn that served a request, and the hash of the model after its exchange; None for one of
        several shards where the ledger has no such hash.
    final : str
        The hash of the final model.
    shard : int
        Whose rounds and model these are.
    """

    rounds: Sequence[PastRound]
    exchange: tuple[int, str] | None
    final: str
    shard: int = 0

    @classmethod
    def of_run(cls, run: RunDirectory, config: Config) -> list[Claim]:
        """As the run's folder and ledger say, one for each shard. NotTestable where it served no request."""
        count, final, line = config.federation.shards, final_model(run), newest_exchange(exchanges(run))
        if line is None:
            raise NotTestable(f"{run.path} served no request")
        hashes = [""] * count if final is None else part_hashes(final, count)
        after = [model_after(line, shard, count) for shard in range(count)]
        left = [(int(line["round"]), model) if model else None for model in after]
        if not (stores := open_stores(config, run.path, STAGE)):
            raise NotTestable(f"{run.path} stores no rounds")
        return [cls(store.rounds(), left[shard], hashes[shard], shard=shard) for shard, store in enumerate(stores)]


def rounds_again(
    run: RunDirectory,
    config: Config,
    node_dirs: Sequence[Path],
    pieces: int | None,
    claims: Sequence[Claim],
    asked: Sequence[Asked],
) -> Iterator[Finding]:
    """Hold the rounds again that led to the present model of an exact erasure, without the records of all requests.

    Parameters
    ----------
    run : RunDirectory
        With the stored models.
    config : Config
        Its configuration, with the places of this machine.
    node_dirs : sequence of Path
        Folders of clients.
    pieces : int, optional
        How many randomly drawn pieces of each shard, each from one stored round to the next; None: all.
    claims : sequence of Claim
        What is compared, of each shard in question; the clients of others are not needed.
    asked : sequence of Asked
        What the rounds must be without, besides what the run's ledger names. The ledger of each client must name its
        requests, too: of records that a client does not hold nothing can be erased.

    Yields
    ------
    Finding

    Raises
    ------
    AuditError
        For rounds that cannot be of this run, and for missing folders; NotTestable where no model is stored.
    """
    for stage in LABELS:
        check_own(run, stage, "exchange")
    rounds = [past for claim in claims for past in claim.rounds]
    if unknown := {past.stage for past in rounds} - LABELS.keys():
        raise AuditError(f"{run.path}: its stored rounds name the stage {min(unknown)!r}, which trains nobody")
    took_part = {client for past in rounds for client in past.clients}
    if strangers := took_part - set(range(config.federation.clients)):
        raise AuditError(
            f"{run.path}: its stored rounds name client {min(strangers)}, and the run has the clients 0 to "
            f"{config.federation.clients - 1}"
        )
    stores = open_stores(config, run.path, STAGE)
    places = [_stored_places(run, stores, claim) for claim in claims]
    folders = client_folders(run, config, node_dirs, took_part, also={of.client for of in asked})
    yield from (_compared_request(run, folders.get(of.client), of) for of in asked)
    for claim, of_claim in zip(claims, places, strict=True):
        of = f"shard {claim.shard}: " if config.federation.shards > 1 else ""
        own = {client: folders[client] for past in claim.rounds for client in past.clients}
        found = _Replay(run, config, own, stores[claim.shard], claim, asked).findings(of_claim, pieces)
        yield from (replace(finding, what=of + finding.what) for finding in found)


def _compared_request(run: RunDirectory, folder: Path | None, asked: Asked) -> Finding:
    """Whether the run's ledger and that of its client name a request with these records."""
    what = f"request {asked.request} of client {asked.client}"
    if folder is None:
        return Finding(what, NOT_TESTABLE, "whether its client made it only its folder tells: name it with --node-dir")
    why = _unasked(run, folder, asked)
    return Finding(what, DIFFERS if why else EQUAL, why)


def _unasked(run: RunDirectory, folder: Path, asked: Asked) -> str:
    """Why a client was not asked for what a request is said to name; empty where it was."""
    requests = {r.id: r for r in Ledger(run.ledger_path).of_client(asked.client)}
    own, absent = NodeLedger(folder), f"the ledger of client {asked.client} has no such request"
    if (request := requests.get(asked.request)) is None:
        return f"the run's ledger has no such request of client {asked.client}"
    if faults := own.verify().faults:
        return f"the ledger of client {asked.client} was altered: {faults[0]}"
    if request.told:  # the client made it
        if (made := own.states().requests.get(request.told)) is None:
            return absent
        known = wanted = set(made.record_ids)
    else:
        if not any(asked.request in e.get("requests", ()) for e in of_run(run, own.exchanges())):
            return absent
        buried = NodeFolder(folder).buried()
        known, wanted = set(buried), {i for i, of in buried.items() if of == asked.request}
        wanted = wanted if request.scope != message_keys.SCOPE_CLIENT else set()
    if strange := asked.record_ids - known:
        return f"by its client's folder it does not name {min(strange)!r} ({len(strange)} of {len(asked.record_ids)})"
    left = wanted.difference(asked.record_ids, *(r.record_ids for r in requests.values() if r.id != asked.request))
    return f"by its client's folder it names {min(left)!r}, too ({len(left)} more)" if left else ""


def _stored_places(run: RunDirectory, stores: Sequence[UpdateStore], claim: Claim) -> list[int]:
    """The places of the stored ones among a claim's rounds; NotTestable where the first is not stored."""
    stored = stores[claim.shard].rounds() if stores else ()
    kept = {(past.stage, past.round) for past in stored if past.stored}
    places = [place for place, past in enumerate(claim.rounds) if (past.stage, past.round) in kept]
    if not places or places[0] > 0:
        raise NotTestable(
            f"{run.path} holds no model from before the first round: unlearning.updates.keep=null keeps it"
        )
    return places


class _Replay:
    """The rounds of a claim, held again in the folders of their clients."""

    def __init__(
        self,
        run: RunDirectory,
        config: Config,
        folders: Mapping[int, Path],
        store: UpdateStore,
        claim: Claim,
        asked: Sequence[Asked],
    ) -> None:
        self._served: dict[int, set[str]] = {}
        for of in (*Asked.of_run(run), *asked):
            self._served.setdefault(of.client, set()).update(of.record_ids)
        self._run, self._config, self._folders, self._store, self._claim = run, config, folders, store, claim
        self._worker = Worker(config)
        self._carries_on = config.strategy.server_state_from_finetune == "keep"
        since, rounds = claim.exchange[0] if claim.exchange is not None else 0, claim.rounds
        self._next = next((past for past in rounds if past.stage == STAGE and past.round >= since), None)
        self._exchange_compared = False

    def findings(self, places: Sequence[int], pieces: int | None) -> Iterator[Finding]:
        """Compare `pieces` of those that begin at `places` with what is claimed, or all."""
        rounds = self._claim.rounds
        untrained = assemble(self._config.model, seeds.derive(self._config.seed, "adapter")).flat.numpy()
        first = rounds[0].model or vector_hash(as_vector(self._store.read(rounds[0]).sent))
        yield compared("model before any training", vector_hash(untrained), first)
        for client, folder in sorted(self._folders.items()):
            yield from self._of_client(client, folder)
        ends = list(zip(places, [*places[1:], len(rounds)], strict=True))
        for start, end in ends if pieces is None else sorted(random.sample(ends, min(pieces, len(ends)))):
            yield from self._piece(rounds[start : end + 1], end < len(rounds))
        if self._claim.exchange is not None and not self._exchange_compared:
            yield self._stored_exchange(*self._claim.exchange)

    def _of_client(self, client: int, folder: Path) -> Iterator[Finding]:
        """Whether a client's ledger is whole, its records those that it trained on last, and this machine like its own.
        NotTestable for other records."""
        hold_records(self._worker, client, folder)
        lines = of_run(self._run, NodeLedger(folder).exchanges())
        lines = [e for e in lines if e.get("kind") == message_keys.TRAIN and not e.get("exclude")]
        state = WorkState.at(folder, newest_line(lines, client, "a training of this run"))
        yield from check_held(self._run, self._worker, client, folder, state)
        if isinstance(machine := state.line.get("machine"), Mapping):
            differing = compared_machines(machine, machine_here(self._config), f" of client {client}")
            yield from (finding for finding in differing if finding.outcome != EQUAL)

    def _piece(self, rounds: Sequence[PastRound], goes_on: bool) -> Iterator[Finding]:
        """Hold `rounds` again from the first, which is stored, to the last, which is stored, too, or (unless they go on
        there) to the run's end."""
        first, last = rounds[0], rounds[-1]
        what = f"from round {first.round} of {first.stage} on"
        if len(rounds) == 1 + goes_on:
            what = f"round {first.round} of {first.stage}"
        try:
            yield from self._compared_piece(what, rounds, last if goes_on else None)
        except NotTestable as error:
            yield Finding(what, NOT_TESTABLE, str(error))
        except _Differs as error:
            yield Finding(what, DIFFERS, str(error))
        except (ValueError, KeyError, RunError, AggregationError) as error:
            yield Finding(what, DIFFERS, f"what is stored is not what such a run stores: {error}")

    def _compared_piece(self, what: str, rounds: Sequence[PastRound], following: PastRound | None) -> Iterator[Finding]:
        """The finding of a piece, and of the model after the newest exchange where it is on the way."""
        first, worker = rounds[0], self._worker
        stored = self._store.read(first)
        inner = aggregator(self._config, averaging(self._config.model, worker.flat.manifest))
        inner.load_state_dict(stored.state)
        model, stage, bounds = stored.sent, first.stage, self._bounds()
        for past in rounds if following is None else rounds[:-1]:
            if past.stage != stage and not self._carries_on:
                inner.reset_state()
            stage, here = past.stage, vector_hash(as_vector(model))
            if past.model and here != past.model:
                whose = "the stored model" if past is first else "the model"
                raise _Differs(f"{whose} at the beginning of round {past.round} of {stage} is another one")
            if past is not first and past is self._next:
                yield from self._compared_exchange(here)
            updates = self._round(past, model, bounds)
            if updates:
                inner.starts_from(model)
                model = inner.aggregate(model, updates)
        here = vector_hash(as_vector(model))
        if following is None:
            yield compared(what, here, self._claim.final)
            if self._next is None:
                yield from self._compared_exchange(here)
            return
        if following.stage != stage and not self._carries_on:
            inner.reset_state()
        kept = self._store.read(following)
        if not _same_state(inner.state_dict(), kept.state):
            raise _Differs("the aggregator's state comes out otherwise")
        yield compared(what, here, following.model or vector_hash(as_vector(kept.sent)))
        if following is self._next:
            yield from self._compared_exchange(here)

    def _compared_exchange(self, here: str) -> Iterator[Finding]:
        """Whether the newest exchange left the model with which the next round begins, or the final one."""
        if (exchange := self._claim.exchange) is not None:
            self._exchange_compared = True
            yield compared(f"model after the exchange of round {exchange[0]}", here, exchange[1])

    def _stored_exchange(self, number: int, model: str) -> Finding:
        """The same by the list of rounds, where no piece came by it."""
        what = f"model after the exchange of round {number}"
        if self._next is None:
            same = self._claim.final == model
            why = "it is the final one; without --pieces that is computed" if same else "the final model is another one"
            return Finding(what, EQUAL if same else DIFFERS, why)
        listed, number = self._next.model, self._next.round
        if listed == model:
            return Finding(what, EQUAL, "by the list of rounds; without --pieces it is computed")
        if listed:
            return Finding(what, DIFFERS, f"round {number} of {STAGE} begins with another one, by the list of rounds")
        return Finding(what, NOT_TESTABLE, "its round is not stored; without --pieces it is compared")

    def _bounds(self) -> Bounds:
        """What one client may count, as in the run itself."""
        worker, remote = self._worker, self._config.data.on_clients
        known = KnownNodes(self._run.path / KNOWN_NODES)
        count = known.records if remote else lambda client: len(worker.holding(client).records)
        return bounds_of(self._config, count, worker.flat.size, reported=remote)

    def _round(self, past: PastRound, model: ArrayRecord, bounds: Bounds) -> list[ClientUpdate]:
        """The updates of a round, as they count. NotTestable where a client's cannot be computed here, _Differs where
        one comes out otherwise."""
        updates = []
        for client in past.clients:
            vector, report = self._trained(client, past, as_vector(model))
            updates.append(ClientUpdate(client, report.num_examples, as_record(vector), report.steps))
        updates = bounds.of_training(updates, model)
        for update in updates:
            if vector_hash(as_vector(update.arrays)) != past.hashes.get(update.partition):
                raise _Differs(f"client {update.partition} gives another update in round {past.round} of {past.stage}")
        return updates

    def _trained(self, client: int, past: PastRound, received: np.ndarray) -> tuple[np.ndarray, TrainReport]:
        """What a client's training gives on what was left of its records then. NotTestable without a line of its
        ledger, or where it was done with other records; _Differs where it withheld others than it had to."""
        worker, folder, where = self._worker, self._folders[client], f"round {past.round} of {past.stage}"
        lines = exchange_lines(self._run, folder, message_keys.TRAIN, past.round, vector_hash(received))
        wanted = (LABELS[past.stage], past.replayed, "")
        lines = [e for e in lines if (e.get("stage"), e.get("replay", 0), e.get("exclude", "")) == wanted]
        if (entry := past.entries.get(client)) is not None:
            lines = [e for e in lines if e.get("hash") == entry]
            if not lines:
                raise _Differs(f"the ledger of client {client} has no line {entry[:12]}… about {where}")
        served = self._served.get(client, set())
        state = WorkState.at(folder, newest_line(lines, client, f"the training of round {past.round}"), served)
        if other := other_records(worker, client, folder, state):
            raise NotTestable(f"client {client}, {where}: {other}")
        left = left_of(worker.holding(client).identified(), state.withheld)
        if state.line.get("trained", left) != left:
            raise _Differs(
                f"client {client} trained on other records in {where} than the requests leave it, by its own ledger"
            )
        return worker.finetune(
            client,
            received,
            excluded=state.withheld,
            epochs=worker.config.federation.local_epochs,
            proximal_mu=float(worker.config.strategy.params.get(message_keys.PROXIMAL_MU.replace("-", "_"), 0.0)),
            seed=seeds.derive(worker.config.seed, LABELS[past.stage], client, past.round),
        )


class _Differs(Exception):
    """Something comes out otherwise than it is claimed."""


def _same_state(here: Mapping[str, np.ndarray], stored: Mapping[str, np.ndarray]) -> bool:
    return here.keys() == stored.keys() and all(np.array_equal(values, stored[name]) for name, values in here.items())


def compared_machines(there: Mapping[str, Any], here: Machine, whose: str = "") -> list[Finding]:
    """Whether software and processor are those of a machine that computed before.

    Parameters
    ----------
    there : mapping
        A `Machine`, as a file has it.
    here : Machine
    whose : str
        Whose machine that was, for the name of the finding.

    Returns
    -------
    list of Finding
        One on the software, one on the processor.
    """
    software = there.get("software")
    versions = software if isinstance(software, Mapping) else {}
    other = [
        f"{name} {versions.get(name)} there, {here['software'].get(name)} here"
        for name in sorted({*versions, *here["software"]})
        if versions.get(name) != here["software"].get(name)
    ]
    processors = f"{there.get('processor')} there, {here['processor']} here"
    same = there.get("processor") == here["processor"]
    return [
        Finding(f"software{whose}", DIFFERS if other else EQUAL, "; ".join(other)),
        Finding(f"processor{whose}", EQUAL if same else DIFFERS, here["processor"] if same else processors),
    ]
