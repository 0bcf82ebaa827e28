"""The spot check: an exchange is computed again from the stored model and a client's folder, and hashes are compared.

Everything is seeded, so that the same work gives the same bits. What must be at hand: the checkpoint before the
exchange, the folder (or a copy) of each client that was served in it, and the same program on hardware that computes
alike. What a client says of itself decides nothing: which records it had to withhold the run's ledger says, too. Where
its folder holds other records than its ledger says it worked with, its work is not testable. What the run's folder
says decides nothing either: it must be as the run's ledger sealed it, and its configuration the one whose hash the
run's and the clients' ledgers have. No code of the run is executed but what the auditor allows by hand.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord

from clients.training import TrainReport
from oblivionis import seeds
from oblivionis.audits.audited_model import AuditError
from oblivionis.chain import check_chain
from oblivionis.client.audit import audit
from oblivionis.client.node_policy import read_policy
from oblivionis.client.update_encoding import packed
from oblivionis.client.worker import Worker, unlearning_metrics
from oblivionis.config import compose as configuration
from oblivionis.config import method_traits
from oblivionis.config.allowed_code import CodeError, allow_code
from oblivionis.config.identity import text_hash
from oblivionis.config.schema import Config
from oblivionis.data.records import Record
from oblivionis.erasure.events import reported_numbers
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.node_ledger import BESIDE, EXCHANGED, RECORDS, RUN_LEARNED, NodeLedger
from oblivionis.erasure.node_record_files import FACTS_FILE, other_files_hash, read_node, read_references, records_hash
from oblivionis.erasure.request import Request
from oblivionis.erasure.unlearn_messages import Demand, forget_set
from oblivionis.erasure.verification_rules import NOT_TESTABLE
from oblivionis.errors import RunError
from oblivionis.measures.audit_numbers import MOMENTS, read_audit
from oblivionis.models.aggregator import aggregator
from oblivionis.models.assembly import assemble, averaging
from oblivionis.models.client_ranks import fitting
from oblivionis.models.update_bounds_settings import bounds_of
from oblivionis.naming import REFERENCES_TABLE, simulated_folder
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory, package_versions, vector_hash
from oblivionis.runs.known_nodes import FILE as KNOWN_NODES
from oblivionis.runs.known_nodes import KnownNodes
from oblivionis.runs.ledger_run_events import served_again
from oblivionis.runs.updates import UpdateStore, open_updates
from strategies import message_keys
from strategies.client_update import ClientUpdate
from strategies.flower_internals import AggregationError
from strategies.metric_schema import UNLEARN
from strategies.protocols.base import Answer, ByUnlearning
from strategies.protocols.update_history import PastRound
from strategies.rounds.update_bounds import Bounds
from strategies.submodel import Submodel

EQUAL, DIFFERS = "equal", "differs"
STAGE = "unlearn"
LABELS = {"finetune": "train", "unlearn": "unlearn"}
"""Of the stages whose training can be replayed, the label of their seeds and messages."""
TOLERANCE = 1e-6
"""Largest difference of a number of an audit that is the same: decimal text and back."""

Outcome = Literal["equal", "differs", "not testable"]

PLACES = (
    *("model.device", "model.source", "model.revision", "model.adapter", "federation.client_threads"),
    *("data.path", "data.nodes", "data.forget_file", "data.holdout_file", "data.reference_file"),
    *("unlearning.alternatives.idk", "evaluation.wikimem.embedder"),
)
"""Keys that a replay may set: where things lie on this machine. Any other one would be another configuration's work."""
ANSWERED = UNLEARN.keys() - {message_keys.LIVE_RECORDS, "unlearn-seconds"}
"""What a client reports of its own unlearning that anybody can compute again."""


class NotTestable(AuditError):
    """Something that cannot be replayed. `what`: which comparison is missing."""

    def __init__(self, why: str, what: str = "exchange") -> None:
        super().__init__(why)
        self.what = what


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison: what was compared, its outcome, and why."""

    what: str
    outcome: Outcome
    why: str = ""


@dataclass(frozen=True, slots=True)
class _State:
    """What a client withheld when it sent something: its tombstones then, and what requests named there by then."""

    tombstones: Mapping[str, str]
    withheld: frozenset[str]
    line: Mapping[str, Any]

    @classmethod
    def at(cls, folder: Path, line: Mapping[str, Any], served: Collection[str] = ()) -> _State:
        """As the line of the client's ledger says; `served`: what it had to withhold by the run's ledger."""
        tombstones = dict(NodeFolder(folder).tombstone_lines()[: int(line["tombstones"])])
        return cls(tombstones, frozenset({*line["asked"], *tombstones, *served}), line)


def replay_exchange(
    path: Path,
    request_id: str,
    node_dirs: Sequence[Path] = (),
    overrides: Sequence[str] = (),
    *,
    server_round: int | None = None,
    code: Path | None = None,
    pieces: int | None = None,
) -> list[Finding]:
    """Serve a request again, and measure again what its client reported of it.

    Of an exact erasure the rounds that led to the present model are held again, from the model before any training on.

    Parameters
    ----------
    path : Path
        The run.
    request_id : str
    node_dirs : sequence of Path
        Folders (or copies) of the clients that the round of the request served; those of a simulated run are found by
        themselves.
    overrides : sequence of str
        Settings of `PLACES`, as `key=value`.
    looked_at : int, optional
        A later round that served the request again; then it is that exchange.
    code : Path, optional
        The file of a loss of the run's own, which is executed.
    pieces : int, optional
        Of an exact erasure only so many randomly drawn pieces, each from one stored round to the next; None: all.

    Returns
    -------
    list of Finding
        What came out equal and what did not, and what cannot be replayed, with the reason.

    Raises
    ------
    AuditError
        For a mistake of who asks.
    """
    return _collected(_exchange_again(path, request_id, node_dirs, overrides, server_round, code, pieces))


def _exchange_again(
    path: Path,
    request_id: str,
    node_dirs: Sequence[Path],
    overrides: Sequence[str],
    server_round: int | None,
    code: Path | None,
    pieces: int | None,
) -> Iterator[Finding]:
    run, config = _opened(path, overrides)
    yield from _sealed(run)
    served_round, before_hash, after_hash = _applied(run, request_id, server_round)
    if method_traits.replays(config.unlearning.method):
        yield from _rounds_again(run, config, node_dirs, pieces)
        return
    # With a target or a limit who has nothing to do leaves it so: that only the replay can tell.
    may_be_idle = config.unlearning.target is not None or config.unlearning.forget_nll_limit is not None
    if before_hash == after_hash and not may_be_idle:
        yield Finding("exchange", DIFFERS, f"round {served_round} left the model as it was: nothing was unlearned")
        return
    _check_open(config)
    _check_method(config.unlearning.method)
    before = _model_before(run, config, served_round)
    if vector_hash(before) != before_hash:
        yield Finding("model before", DIFFERS, "the stored model is not the one that the ledger names")
        return
    bound = config.unlearning.code is not None
    config = _with_code(config, code)
    if code is not None and not bound:
        yield Finding("code of the loss", NOT_TESTABLE, "the run does not name its hash: an earlier version made it")
    requests = [*Ledger(run.ledger_path).served_in(served_round), *requests_served_again(run, served_round)]
    folders = _folders(run, config, node_dirs, {r.client for r in requests})
    worker = Worker(config)
    answers = yield from _answers(run, worker, requests, folders, served_round, before)
    worker.fit(config.model.lora.rank)
    after, what = None, "model after the exchange"
    if missing := sorted(folders.keys() - {answer.client for answer in answers}):
        whose = f"client{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        yield Finding(what, NOT_TESTABLE, f"it needs the answer of {whose}, which cannot be computed here")
    else:
        mean, summed = averaging(config.model, worker.flat.manifest), config.unlearning.merge == "sum"
        serving = ByUnlearning(mean, summed=summed)
        after = _vector(serving.serve(served_round, _record(before), answers, _no_training).arrays)
        yield _compared(what, vector_hash(after), after_hash)
    request = next(r for r in requests if r.id == request_id)
    models = {"before": before, "after": after, "final": _final(run)}
    yield from _numbers(worker, run, request, folders[request.client], models, served_round)


def _rounds_again(
    run: RunDirectory, config: Config, node_dirs: Sequence[Path], pieces: int | None
) -> Iterator[Finding]:
    """Hold the rounds again that led to the present model of an exact erasure, without the records of all requests."""
    for stage in LABELS:
        _check_own(run, stage, "exchange")
    store = open_updates(config, run.path, STAGE)
    lineage = store.rounds() if store is not None else []
    if unknown := {past.stage for past in lineage} - LABELS.keys():
        raise AuditError(f"{run.path}: its stored rounds name the stage {min(unknown)!r}, which trains nobody")
    places = [place for place, past in enumerate(lineage) if past.stored]
    if store is None or not places or places[0] > 0:
        raise NotTestable(
            f"{run.path} holds no model from before the first round: unlearning.updates.keep=null keeps it"
        )
    folders = _folders(run, config, node_dirs, {client for past in lineage for client in past.clients})
    worker = Worker(config)
    untrained = assemble(config.model, seeds.derive(config.seed, "adapter")).flat.numpy()
    first = _vector(store.read(lineage[0]).sent)
    yield _compared("model before any training", vector_hash(untrained), vector_hash(first))
    for client, folder in sorted(folders.items()):
        yield from _of_client(run, worker, client, folder)
    erased = _newest_exchange(run)
    ends = list(zip(places, [*places[1:], len(lineage)], strict=True))
    for start, end in ends if pieces is None else sorted(random.sample(ends, min(pieces, len(ends)))):
        yield from _piece(run, config, worker, folders, store, lineage[start : end + 1], end < len(lineage), erased)
    yield from _erased(store, lineage, erased, every=pieces is None)


def _of_client(run: RunDirectory, worker: Worker, client: int, folder: Path) -> Iterator[Finding]:
    """Whether a client's ledger is whole, and its records those that it trained on last. NotTestable for others."""
    _hold(worker, client, folder)
    lines = [e for e in _of_run(run, NodeLedger(folder).exchanges()) if e.get("kind") == message_keys.TRAIN]
    state = _State.at(folder, _newest(lines, client, "a training of this run"))
    yield from _held(run, worker, client, folder, state)


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
                yield _compared(_after_exchange(erased), vector_hash(_vector(model)), erased[1])
            updates = _round_again(run, worker, folders, past, model, bounds)
            for update in updates:
                if vector_hash(_vector(update.arrays)) != past.hashes.get(update.partition):
                    why = f"client {update.partition} gives another update in round {past.round} of {stage}"
                    yield Finding(what, DIFFERS, why)
                    return
            if updates:
                inner.starts_from(model)
                model = inner.aggregate(model, updates)
        if not goes_on:
            final = _final(run)
            yield _compared(what, vector_hash(_vector(model)), "" if final is None else vector_hash(final))
            return
        following = store.read(last)
        if last.stage != stage and not carries_on:
            inner.reset_state()
        yield _compared_states(what, inner.state_dict(), following.state) or _compared(
            what, vector_hash(_vector(model)), vector_hash(_vector(following.sent))
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
        vector, report = _trained_again(run, worker, client, folders[client], past, _vector(model))
        updates.append(ClientUpdate(client, report.num_examples, _record(vector), report.steps))
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
        yield _compared(_after_exchange(erased), vector_hash(_vector(store.read(place).sent)), erased[1])
    elif place is None or not every:
        why = "no round follows it" if place is None else "its round is not stored; without --pieces it is compared"
        yield Finding(_after_exchange(erased), NOT_TESTABLE, why)


def _trained_again(
    run: RunDirectory, worker: Worker, client: int, folder: Path, past: PastRound, received: np.ndarray
) -> tuple[np.ndarray, TrainReport]:
    """What a client's training gives on what was left of its records then. NotTestable without a line of its ledger, or
    where it was done with other records."""
    lines = _lines(run, folder, message_keys.TRAIN, past.round, vector_hash(received))
    wanted = (LABELS[past.stage], past.replayed, "")
    lines = [e for e in lines if (e.get("stage"), e.get("replay", 0), e.get("exclude", "")) == wanted]
    served = frozenset(i for r in Ledger(run.ledger_path).of_client(client) if r.served_round for i in r.record_ids)
    state = _State.at(folder, _newest(lines, client, f"the training of round {past.round}"), served)
    if other := _other_records(worker, client, folder, state.line):
        raise NotTestable(f"client {client}, round {past.round} of {past.stage}: {other}")
    return worker.finetune(
        client,
        received,
        excluded=state.withheld,
        epochs=worker.config.federation.local_epochs,
        proximal_mu=float(worker.config.strategy.params.get(message_keys.PROXIMAL_MU.replace("-", "_"), 0.0)),
        seed=seeds.derive(worker.config.seed, LABELS[past.stage], client, past.round),
    )


def _check_own(run: RunDirectory, stage: str, what: str) -> None:
    """NotTestable where a stage is that of another run, whose name its clients' ledgers have."""
    if source := (run.stage_summary(stage) or {}).get("reused_from"):
        raise NotTestable(f"the stage {stage} is that of the run {source}: audit it there", what)


def _check_method(method: str) -> None:
    """NotTestable where no client computes the exchange by itself."""
    if method_traits.updates(method) is not None or method_traits.asks_others(method):
        raise NotTestable(
            f"unlearning.method {method} serves requests from the other clients' updates: one "
            "exchange cannot be replayed by itself; run the whole configuration again"
        )
    if not method_traits.is_loss(method):
        raise NotTestable(
            f"unlearning.method {method} changes the model on the server: no client computes an "
            "exchange that could be replayed"
        )


def _with_code(config: Config, code: Path | None) -> Config:
    """The configuration with the run's own code allowed. NotTestable where it needs some and none was given."""
    try:
        return allow_code(config, code)
    except CodeError as error:
        if code is not None:
            raise
        raise NotTestable(str(error)) from None


def _answers(
    run: RunDirectory,
    worker: Worker,
    requests: Sequence[Request],
    folders: Mapping[int, Path],
    served_round: int,
    before: np.ndarray,
) -> Generator[Finding, None, list[Answer]]:
    """The answers of the clients that an exchange asked, of those whose work can be replayed."""
    answers = list[Answer]()
    for client in sorted(folders):
        of_client = [r for r in requests if r.client == client]
        withheld = _served_before(run, client, served_round)
        _hold(worker, client, folders[client])
        try:
            vector = yield from _answered(
                run, worker, client, folders[client], of_client, served_round, before, withheld
            )
        except NotTestable as error:
            yield Finding(error.what, NOT_TESTABLE, str(error))
            continue
        answers.append(Answer(client, _record(vector), sum(len(r.record_ids) for r in of_client), {}))
    return answers


def replay_training(
    path: Path,
    client: int,
    server_round: int,
    node_dir: Path | None = None,
    stage: str = STAGE,
    overrides: Sequence[str] = (),
) -> list[Finding]:
    """Train a client again as in a round of FedFT, without the records that it must withhold, and compare the models.

    The run must keep the clients' updates of that round (`unlearning.updates.keep`).

    Parameters
    ----------
    path : Path
        The run.
    client, server_round : int
    node_dir : Path, optional
        The client's folder, or a copy; that of a simulated run is found by itself.
    stage : str
        `finetune` or `unlearn`.
    overrides : sequence of str
        Settings of `PLACES`, as `key=value`.

    Returns
    -------
    list of Finding
        With what cannot be replayed, and the reason.

    Raises
    ------
    AuditError
        For a mistake of who asks.
    """
    return _collected(_training_again(path, client, server_round, node_dir, stage, overrides))


def _training_again(
    path: Path, client: int, server_round: int, node_dir: Path | None, stage: str, overrides: Sequence[str]
) -> Iterator[Finding]:
    run, config = _opened(path, overrides)
    yield from _sealed(run)
    _check_open(config)
    _check_own(run, stage, "training")
    compression = config.federation.compression
    if compression.method != "none" and compression.error_feedback:
        raise NotTestable(
            "federation.compression.error_feedback: what a client sent depends on what it had kept back until then, "
            "which is gone; only a run without it can be replayed",
            "training",
        )
    store = open_updates(config, run.path, stage) if stage in LABELS else None
    past = [p for p in store.rounds() if (p.stage, p.round) == (stage, server_round)] if store is not None else []
    if store is None or not past or not past[0].stored:
        raise NotTestable(
            f"{run.path} holds no clients' updates of round {server_round} of {stage}; a run keeps those of the newest "
            "N rounds with unlearning.updates.keep=N",
            "training",
        )
    if past[0].hashes:
        raise NotTestable(f"{run.path} stores models only: `audit exchange` holds its rounds again", "training")
    updates = store.read(past[0])
    update = next((u for u in updates.clients if u.partition == client), None)
    if update is None:
        raise AuditError(f"client {client} did not train in round {server_round} of {stage}")
    folder = _folders(run, config, [node_dir] if node_dir else [], {client})[client]
    seed = seeds.derive(config.seed, LABELS[stage], client, server_round)
    sent, worker = _vector(updates.sent), Worker(config)
    submodel = _fitted("train", worker, client, folder, sent)
    received = sent if submodel is None else _vector(submodel.sent)
    lines = _lines(run, folder, message_keys.TRAIN, server_round, vector_hash(received))
    served = _served_before(run, client, server_round + 1) if stage == STAGE else frozenset()
    state = _State.at(folder, _newest(lines, client, f"the training of round {server_round}"), served)
    _hold(worker, client, folder)
    yield from _held(run, worker, client, folder, state)
    vector, _ = worker.finetune(
        client,
        received,
        excluded=state.withheld,
        epochs=config.federation.local_epochs,
        proximal_mu=float(config.strategy.params.get(message_keys.PROXIMAL_MU.replace("-", "_"), 0.0)),
        seed=seed,
    )
    theirs = _vector(update.arrays)
    if compression.method != "none":
        _, vector = packed(compression, received, vector, seeds.derive(seed, message_keys.TRAIN))
    vector = vector if submodel is None else _vector(submodel.joined(_record(vector)))
    finding = _compared(f"client {client}'s model of round {server_round}", vector_hash(vector), vector_hash(theirs))
    if finding.outcome == DIFFERS:
        far = float(np.linalg.norm(vector - theirs)) / max(float(np.linalg.norm(theirs - sent)), 1e-30)
        finding = Finding(finding.what, DIFFERS, f"{finding.why}; apart by {far:.2g} of the update's length")
    yield finding


def machine_remarks(path: Path) -> list[str]:
    """Why equal work may differ in the last bits here: other versions, or another platform, than the run's."""
    environment = artifact_binding.opened(path, with_models=False).environment()
    here = package_versions()
    other = [
        f"{name} {theirs} there, {here.get(name)} here"
        for name, theirs in (environment.get("packages") or {}).items()
        if name in ("torch", "transformers", "peft", "numpy") and theirs != here.get(name)
    ]
    return other


def _collected(findings: Iterator[Finding]) -> list[Finding]:
    """All findings, up to what cannot be replayed, and that as one."""
    collected = list[Finding]()
    try:
        for finding in findings:
            collected.append(finding)
    except NotTestable as error:
        collected.append(Finding(error.what, NOT_TESTABLE, str(error)))
    return collected


def _opened(path: Path, overrides: Sequence[str]) -> tuple[RunDirectory, Config]:
    run = artifact_binding.opened(path)
    if wrong := next((o for o in overrides if o.partition("=")[0].strip() not in PLACES), None):
        raise AuditError(
            f"--set {wrong}: a replay goes by the run's own configuration; what may be set is where things lie on this "
            f"machine: {', '.join(PLACES)}"
        )
    if overrides:
        return run, configuration.compose(run.path / "config.yaml", list(overrides))
    return run, configuration.from_yaml(run.read_config())


def _sealed(run: RunDirectory) -> Iterator[Finding]:
    """Whether the run's ledger binds its folder, and its configuration in the form that nodes get."""
    missing, stages = artifact_binding.check(run, with_models=False).missing, run.lines(artifact_binding.STAGE)
    yield Finding("the run's seal", NOT_TESTABLE if missing else EQUAL, f"not sealed: {missing}" if missing else "")
    what = "configuration, by the run's ledger"
    if not stages:
        yield Finding(what, NOT_TESTABLE, "not sealed: no line of the ledger names it")
    for recorded in {str(entry.get("config")) for entry in stages}:
        yield _compared(what, _text_hash(run), recorded)


def _text_hash(run: RunDirectory) -> str:
    try:
        return text_hash(run.read_config())
    except ValueError as error:
        raise AuditError(f"{run.config_place}: {error}") from None


def _check_open(config: Config) -> None:
    """NotTestable where clients hid what they sent from everybody who was not there."""
    if config.federation.secure_aggregation.enabled:
        raise NotTestable("federation.secure_aggregation: clients sent their updates under masks, in one sum")
    if config.privacy.level != "none":
        raise NotTestable(f"privacy.level={config.privacy.level}: the noise in what clients sent is known to nobody")


def _applied(run: RunDirectory, request_id: str, server_round: int | None) -> tuple[int, str, str]:
    """The round that served `request_id`, or `looked_at` where that served it again, and the model's hashes before and
    after, by the run's ledger."""
    if not run.ledger_path.is_file():
        raise AuditError(f"{run.path} has no ledger of requests")
    checked = check_chain(run.ledger_path)
    known = {r.id: r for r in Ledger(run.ledger_path)}
    if request_id not in known:
        raise AuditError(f"{run.path} knows no request {request_id!r}; it has {', '.join(known) or 'none'}")
    served_round = known[request_id].served_round
    if server_round is not None and server_round != served_round:
        later = _later_exchanges(run, request_id)
        if server_round not in later:
            rounds = ", ".join(map(str, later)) or "none"
            raise AuditError(
                f"request {request_id!r} was not looked at again in round {server_round}; "
                f"rounds in which it was: {rounds}"
            )
        return server_round, str(later[server_round]["before"]), str(later[server_round]["after"])
    lines = [e for e in checked.entries if e.get("event") == "applied" and e.get("id") == request_id]
    lines = [e for e in lines if e.get("round") == served_round]
    if served_round is None or not lines:
        raise NotTestable(f"request {request_id!r} was not served, or by a version that kept no hashes of its models")
    return served_round, str(lines[-1]["before"]), str(lines[-1]["after"])


def requests_served_again(run: RunDirectory, server_round: int) -> list[Request]:
    """The requests of earlier rounds that the exchange of a round served again."""
    known = {r.id: r for r in Ledger(run.ledger_path)}
    line = served_again(check_chain(run.ledger_path).entries, STAGE).get(server_round)
    return [known[i] for i in line["requests"] if i in known] if line is not None else []


def _later_exchanges(run: RunDirectory, request_id: str) -> dict[int, Mapping[str, Any]]:
    """The ledger's line of each later round whose exchange served a request again."""
    lines = served_again(check_chain(run.ledger_path).entries, STAGE)
    return {number: line for number, line in lines.items() if request_id in line["requests"]}


def _served_before(run: RunDirectory, client: int, server_round: int) -> frozenset[str]:
    """Ids of the records of `client` that requests served before `round` named, by the run's ledger."""
    if not run.ledger_path.is_file():
        return frozenset()
    requests = Ledger(run.ledger_path).of_client(client)
    return frozenset(i for r in requests if (r.served_round or server_round) < server_round for i in r.record_ids)


def _model_before(run: RunDirectory, config: Config, served_round: int) -> np.ndarray:
    """The global model that the exchange of `round` began with. AuditError where its checkpoint is gone."""
    stage, wanted = ("finetune", None) if served_round == 1 else (STAGE, served_round - 1)
    kept = run.checkpoint_rounds(stage)
    if not kept or (wanted is not None and wanted not in kept):
        can = [str(r + 1) for r in run.checkpoint_rounds(STAGE)]
        can = ["1", *can] if run.checkpoint_rounds("finetune") else can
        raise NotTestable(
            f"the model before the exchange of round {served_round} is gone: a run keeps the newest "
            f"federation.keep_checkpoints={config.federation.keep_checkpoints} of a stage; exchanges of these rounds "
            f"can be replayed here: {', '.join(can) or 'none'}"
        )
    return run.load_checkpoint(stage, wanted).vector


def _final(run: RunDirectory) -> np.ndarray | None:
    try:
        return run.load_checkpoint(STAGE).vector
    except RunError:
        return None


def _folders(run: RunDirectory, config: Config, given: Sequence[Path], clients: Collection[int]) -> dict[int, Path]:
    """The folder of each of `clients`. AuditError where one is missing or says that it is another client's."""
    by_client: dict[int, Path] = {}
    for folder in given:
        if not folder.is_dir():
            raise AuditError(f"--node-dir {folder}: no such folder; expected a client's own folder, or a copy")
        ledger = NodeLedger(folder)
        lines = _of_run(run, (*ledger.lines(RUN_LEARNED), *ledger.lines(EXCHANGED)))
        named = [c for c in clients if any(e.get("client") == c for e in lines)]
        if len(named) != 1:
            raise AuditError(f"--node-dir {folder}: its ledger is of none of the clients {sorted(clients)}")
        by_client[named[0]] = folder
    for client in clients:
        places = [run.nodes_path / str(client)]
        places += [simulated_folder(config.data.nodes, client)] if config.data.nodes else []
        if client not in by_client and (place := next((p for p in places if p.is_dir()), None)) is not None:
            by_client[client] = place
    if missing := sorted(set(clients) - by_client.keys()):
        raise AuditError(
            f"the folders of clients {', '.join(map(str, missing))} are needed: name each, or a copy, with --node-dir "
            f"(the exchange merged the answers of {len(clients)} clients)"
        )
    return by_client


def _of_run(run: RunDirectory, lines: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those lines of a node's ledger that are about a run: another one by the same seed may begin alike.

    It goes by the names that its ledger tells, of which that of an earlier version may have none, and by its folder's.
    """
    names = {e["run"] for e in run.lines("opened", artifact_binding.STAGE) if isinstance(e.get("run"), str)}
    return [e for e in lines if not names or e.get("run") in {*names, run.name}]


def _lines(run: RunDirectory, folder: Path, kind: str, server_round: int, before: str) -> list[Mapping[str, Any]]:
    """The lines of a node's ledger that say what it sent in answer to a model with the hash `before`."""
    lines = _of_run(run, NodeLedger(folder).exchanges())
    return [e for e in lines if (e.get("kind"), e.get("round"), e.get("before")) == (kind, server_round, before)]


def _newest(lines: Sequence[Mapping[str, Any]], client: int, what: str) -> Mapping[str, Any]:
    if not lines:
        raise NotTestable(
            f"the ledger of client {client} has no line about {what}: it is of a program that writes none, or the "
            "client did not do the work",
            what,
        )
    if lines[-1].get("again"):
        raise NotTestable(f"client {client} did this work before, for a sum under masks: now by a secret seed", what)
    return lines[-1]


def _hold(worker: Worker, client: int, folder: Path) -> None:
    """Give `worker` the client's records as they are in its folder now; dealt ones it has by its configuration."""
    if worker.config.data.on_clients:
        worker.hold(client, read_node(folder))


def _held(run: RunDirectory, worker: Worker, client: int, folder: Path, state: _State) -> Iterator[Finding]:
    """Compare the run's configuration and the client's records with those that its ledger names. NotTestable where the
    work was done with other records than `worker` holds."""
    if faults := NodeLedger(folder).verify().faults:
        yield Finding(f"ledger of client {client}", DIFFERS, f"it was altered: {faults[0]}")
    recorded, what = state.line.get("config"), f"configuration, by the ledger of client {client}"
    if recorded is None:
        yield Finding(what, NOT_TESTABLE, "the ledger does not say by which configuration the run went")
    else:
        yield _compared(what, _text_hash(run), str(recorded))
    what = f"records of client {client}"
    if other := _other_records(worker, client, folder, state.line):
        raise NotTestable(other, what)
    yield Finding(what, EQUAL)


def _other_records(worker: Worker, client: int, folder: Path, line: Mapping[str, Any]) -> str:
    """Why what `worker` and the folder hold is not what the client did the work of a line of its ledger with; empty
    where it is. Lines of earlier versions bind no more than the records."""
    here = {RECORDS: records_hash(worker.holding(client).identified()), BESIDE: other_files_hash(folder)}
    if RECORDS not in line:
        return "its ledger does not say with which records it worked"
    for name, what in ((RECORDS, "records"), (BESIDE, f"{REFERENCES_TABLE} and {FACTS_FILE}")):
        if (then := str(line.get(name, here[name]))) != here[name]:
            return (
                f"its ledger says that it worked with {what} of the hash {then[:12]}…, and those here have "
                f"{here[name][:12]}…: some were added, removed or reworded since, or it worked with others"
            )
    return ""


def _answered(
    run: RunDirectory,
    worker: Worker,
    client: int,
    folder: Path,
    requests: Sequence[Request],
    served_round: int,
    before: np.ndarray,
    withheld: Collection[str],
) -> Generator[Finding, None, np.ndarray]:
    """The model with which a client answers requests, and how it compares with what its ledger says; withheld: what
    its earlier requests named."""
    submodel = _fitted("unlearn", worker, client, folder, before)
    received = before if submodel is None else _vector(submodel.sent)
    lines = _lines(run, folder, message_keys.UNLEARN, served_round, vector_hash(received))
    lines = [e for e in lines if set(e.get("requests", ())) == {r.id for r in requests}]
    state = _State.at(folder, _newest(lines, client, f"the exchange of round {served_round}"), withheld)
    yield from _held(run, worker, client, folder, state)
    seed = seeds.derive(worker.config.seed, LABELS[STAGE], client, served_round)
    vector, report = worker.forget(
        client,
        received,
        record_ids=_forget_ids(worker, client, requests, state),
        tombstones=state.withheld,
        proximal_mu=0.0,
        seed=seed,
        own_references=_references(worker, client, folder),
    )
    compression = worker.config.federation.compression
    if compression.method != "none" and compression.unlearning:
        _, vector = packed(compression, received, vector, seeds.derive(seed, message_keys.UNLEARN))
    recorded = str(state.line.get("after"))
    yield _compared(f"answer of client {client}, by its own ledger", vector_hash(vector), recorded)
    if (reported := _reported(run, client, served_round)) is not None:
        here = {name: number for name, number in unlearning_metrics(report).items() if name in reported}
        yield _agreed(f"numbers that client {client} told with its answer", here, reported)
    return vector if submodel is None else _vector(submodel.joined(_record(vector)))


def _reported(run: RunDirectory, client: int, served_round: int) -> Mapping[str, float] | None:
    """The numbers of its own work that a client reported with the answer that served its requests in a round; None
    where none is known."""
    lines = [e for e in check_chain(run.ledger_path).entries if e.get("event") == "served"]
    lines = [e for e in lines if (e.get("client"), e.get("round")) == (client, served_round)]
    numbers = {name: n for name, n in reported_numbers(lines[-1]).items() if name in ANSWERED} if lines else {}
    return numbers or None


def _references(worker: Worker, client: int, folder: Path) -> Sequence[Record] | None:
    """The client's own records that nobody trains on, as `oblivionis.client.exchange` reads them."""
    if not worker.config.data.on_clients or worker.config.unlearning.target is None:
        return None
    return read_references(folder, worker.holding(client).records)


def _fitted(kind: str, worker: Worker, client: int, folder: Path, model: np.ndarray) -> Submodel | None:
    """The global model in the form of a client of a lower LoRA rank, which `worker` then has; None for all others."""
    lora = worker.config.model.lora
    worker.fit(lora.rank)
    of_model = fitting(worker.config.model, worker.flat.manifest, lambda _: read_policy(folder).limits.lora_rank)
    submodel = None if of_model is None else of_model(kind, _record(model))(client)
    if submodel is not None:
        worker.fit(int(submodel.settings[message_keys.LORA_RANK]))
    return submodel


def _forget_ids(worker: Worker, client: int, requests: Sequence[Request], state: _State) -> set[str]:
    held = [record.id for record in worker.holding(client).records]
    return forget_set([Demand(r.id, r.scope, r.record_ids) for r in requests], held, state.tombstones)


def _numbers(
    worker: Worker,
    run: RunDirectory,
    request: Request,
    folder: Path,
    models: Mapping[str, np.ndarray | None],
    server_round: int,
) -> Iterator[Finding]:
    """Compare the numbers that the client reported of `request` with those that its records give, and with its ledger.

    Of the final model, and, where its audit is of the exchange of this round, of the models right before and after.
    Without the model that it measured there is no more than what it says, so that nothing was tested.
    """
    reported = read_audit(run.path, request.id) or {}
    of_round = reported.get("round", request.served_round)
    for moment in MOMENTS:
        numbers, vector, what = reported.get(moment), models[moment], f"numbers of the client's audit, {moment}"
        if not isinstance(numbers, Mapping):
            continue
        if moment != "final" and of_round not in (request.served_round, *_later_exchanges(run, request.id)):
            yield Finding(what, DIFFERS, f"they are said to be of round {of_round}, in which it was not served")
            continue
        if moment != "final" and of_round != server_round:
            yield Finding(what, NOT_TESTABLE, f"they are of the exchange of round {of_round}: --round {of_round}")
            continue
        model = vector_hash(vector) if vector is not None else ""
        sent = _of_run(run, NodeLedger(folder).exchanges())
        lines = [e for e in sent if e.get("kind") == message_keys.AUDIT]
        lines = [e for e in lines if e.get("moment") == moment and e.get("requests") == [request.id]]
        entered = [e for e in lines if e.get("before") == model]
        if vector is None or not (entered or _signed_model(reported, moment) == model):
            unrecorded = "" if lines else ", and its ledger has no line about them"
            yield Finding(what, NOT_TESTABLE, f"the model that it measured is not at hand{unrecorded}")
            continue
        if entered and "numbers" in entered[-1] and entered[-1]["numbers"] != dict(numbers):
            yield Finding(what, DIFFERS, "its own ledger has other numbers")
            continue
        served = _newest([e for e in sent if request.id in e.get("requests", ())], request.client, what)
        state = _State.at(folder, entered[-1] if entered else served)
        if other := _other_records(worker, request.client, folder, state.line):
            yield Finding(what, NOT_TESTABLE, other)
            continue
        forget = _forget_ids(worker, request.client, [request], state)
        here = audit(worker, request.client, vector, forget, state.withheld, folder)
        finding = _agreed(what, here, numbers)
        alone = finding.outcome == EQUAL and not entered
        yield Finding(what, EQUAL, "computed here; its own ledger has no line about them") if alone else finding


def _signed_model(audit: Mapping[str, Any], moment: str) -> str | None:
    """The model that the signature of an audit's numbers names, whoever signed."""
    try:
        return audit["signatures"][moment]["model"]
    except (KeyError, TypeError):
        return None


def _agreed(what: str, here: Mapping[str, float], reported: Mapping[str, Any]) -> Finding:
    """Whether numbers that a client reported are those computed here, each by its name."""
    wrong = [n for n in sorted({*here, *reported}) if not _same(here.get(n), reported.get(n))]
    shown = ", ".join(f"{n}: told {reported.get(n)}, found {here.get(n)}" for n in wrong[:3])
    return Finding(what, DIFFERS if wrong else EQUAL, f"{len(wrong)} of {len(here)} ({shown})" if wrong else "")


def _same(here: float | None, reported: object) -> bool:
    if here is None or not isinstance(reported, int | float):
        return False
    return abs(here - reported) <= TOLERANCE * max(1.0, abs(here))


def _compared(what: str, here: str, recorded: str) -> Finding:
    """Whether a hash is the one computed here."""
    if here == recorded:
        return Finding(what, EQUAL, f"{here[:12]}…")
    return Finding(what, DIFFERS, f"computed here {here[:12]}…, told {recorded[:12]}…")


def _record(vector: np.ndarray) -> ArrayRecord:
    return ArrayRecord({message_keys.ADAPTER: Array(vector)})


def _vector(arrays: ArrayRecord) -> np.ndarray:
    return np.array(arrays[message_keys.ADAPTER].numpy(), dtype=np.float32)


def _no_training(clients: Sequence[int], arrays: ArrayRecord, settings: Mapping[str, Any]) -> list[Any]:
    raise AuditError("serving by unlearning trains nobody")
