"""The spot check: an exchange is computed again from the stored model and a client's folder, and hashes are compared.

Everything is seeded, so that the same work gives the same bits. What must be at hand: the checkpoint before the
exchange, the folder (or a copy) of each client that was served in it, and the same program on hardware that computes
alike. What a client says of itself decides nothing: which records it had to withhold the run's ledger says, too. Where
its folder holds other records than its ledger says it worked with, its work is not testable. What the run's folder
says decides nothing either: it must be as the run's ledger sealed it, and its configuration the one whose hash the
run's and the clients' ledgers have. No code of the run is executed but what the auditor allows by hand.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from oblivionis import seeds
from oblivionis.audits.audited_model import AuditError
from oblivionis.audits.exact_replay import Asked, Claim, rounds_again
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
    collected,
    compared,
    exchange_lines,
    final_model,
    hold_records,
    newest_line,
    of_run,
    opened_run,
    other_records,
    seal_findings,
)
from oblivionis.chain import check_chain
from oblivionis.client.audit import audit
from oblivionis.client.node_policy import read_policy
from oblivionis.client.update_encoding import packed
from oblivionis.client.worker import Worker, unlearning_metrics
from oblivionis.config import method_traits
from oblivionis.config.allowed_code import CodeError, allow_code
from oblivionis.config.schema import Config
from oblivionis.data.records import Record
from oblivionis.erasure.events import reported_numbers
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.node_record_files import read_references
from oblivionis.erasure.request import Request
from oblivionis.erasure.unlearn_messages import Demand, forget_set
from oblivionis.erasure.verification_rules import NOT_TESTABLE
from oblivionis.measures.audit_numbers import MOMENTS, read_audit
from oblivionis.models.assembly import averaging
from oblivionis.models.client_ranks import fitting
from oblivionis.runs.directory import RunDirectory, vector_hash
from oblivionis.runs.ledger_run_events import served_again
from oblivionis.runs.updates import LABELS, open_updates
from strategies import message_keys
from strategies.metric_schema import UNLEARN
from strategies.protocols.base import Answer, ByUnlearning
from strategies.submodel import Submodel

TOLERANCE = 1e-6
"""Largest difference of a number of an audit that is the same: decimal text and back."""


ANSWERED = UNLEARN.keys() - {message_keys.LIVE_RECORDS, "unlearn-seconds"}
"""What a client reports of its own unlearning that anybody can compute again."""


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
    return collected(_exchange_again(path, request_id, node_dirs, overrides, server_round, code, pieces))


def _exchange_again(
    path: Path,
    request_id: str,
    node_dirs: Sequence[Path],
    overrides: Sequence[str],
    server_round: int | None,
    code: Path | None,
    pieces: int | None,
) -> Iterator[Finding]:
    run, config = opened_run(path, overrides)
    yield from seal_findings(run)
    served_round, before_hash, after_hash = _applied(run, request_id, server_round)
    if method_traits.replays(config.unlearning.method):
        yield from rounds_again(run, config, node_dirs, pieces, Claim.of_run(run, config), Asked.of_run(run))
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
    folders = client_folders(run, config, node_dirs, {r.client for r in requests})
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
        after = as_vector(serving.serve(served_round, as_record(before), answers, _no_training).arrays)
        yield compared(what, vector_hash(after), after_hash)
    request = next(r for r in requests if r.id == request_id)
    models = {"before": before, "after": after, "final": final_model(run)}
    yield from _numbers(worker, run, request, folders[request.client], models, served_round)


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
        hold_records(worker, client, folders[client])
        try:
            vector = yield from _answered(
                run, worker, client, folders[client], of_client, served_round, before, withheld
            )
        except NotTestable as error:
            yield Finding(error.what, NOT_TESTABLE, str(error))
            continue
        answers.append(Answer(client, as_record(vector), sum(len(r.record_ids) for r in of_client), {}))
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
    return collected(_training_again(path, client, server_round, node_dir, stage, overrides))


def _training_again(
    path: Path, client: int, server_round: int, node_dir: Path | None, stage: str, overrides: Sequence[str]
) -> Iterator[Finding]:
    run, config = opened_run(path, overrides)
    yield from seal_findings(run)
    _check_open(config)
    check_own(run, stage, "training")
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
    folder = client_folders(run, config, [node_dir] if node_dir else [], {client})[client]
    seed = seeds.derive(config.seed, LABELS[stage], client, server_round)
    sent, worker = as_vector(updates.sent), Worker(config)
    submodel = _fitted("train", worker, client, folder, sent)
    received = sent if submodel is None else as_vector(submodel.sent)
    lines = exchange_lines(run, folder, message_keys.TRAIN, server_round, vector_hash(received))
    served = _served_before(run, client, server_round + 1) if stage == STAGE else frozenset()
    state = WorkState.at(folder, newest_line(lines, client, f"the training of round {server_round}"), served)
    hold_records(worker, client, folder)
    yield from check_held(run, worker, client, folder, state)
    vector, _ = worker.finetune(
        client,
        received,
        excluded=state.withheld,
        epochs=config.federation.local_epochs,
        proximal_mu=float(config.strategy.params.get(message_keys.PROXIMAL_MU.replace("-", "_"), 0.0)),
        seed=seed,
    )
    theirs = as_vector(update.arrays)
    if compression.method != "none":
        _, vector = packed(compression, received, vector, seeds.derive(seed, message_keys.TRAIN))
    vector = vector if submodel is None else as_vector(submodel.joined(as_record(vector)))
    finding = compared(f"client {client}'s model of round {server_round}", vector_hash(vector), vector_hash(theirs))
    if finding.outcome == DIFFERS:
        far = float(np.linalg.norm(vector - theirs)) / max(float(np.linalg.norm(theirs - sent)), 1e-30)
        finding = Finding(finding.what, DIFFERS, f"{finding.why}; apart by {far:.2g} of the update's length")
    yield finding


def _check_open(config: Config) -> None:
    """NotTestable where clients hid what they sent from everybody who was not there."""
    if config.federation.secure_aggregation.enabled:
        raise NotTestable("federation.secure_aggregation: clients sent their updates under masks, in one sum")
    if config.privacy.level != "none":
        raise NotTestable(f"privacy.level={config.privacy.level}: the noise in what clients sent is known to nobody")
    if config.federation.shards > 1:
        raise NotTestable(
            f"federation.shards={config.federation.shards}: of runs in shards only exact erasures are held again"
        )


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
    received = before if submodel is None else as_vector(submodel.sent)
    lines = exchange_lines(run, folder, message_keys.UNLEARN, served_round, vector_hash(received))
    lines = [e for e in lines if set(e.get("requests", ())) == {r.id for r in requests}]
    state = WorkState.at(folder, newest_line(lines, client, f"the exchange of round {served_round}"), withheld)
    yield from check_held(run, worker, client, folder, state)
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
    yield compared(f"answer of client {client}, by its own ledger", vector_hash(vector), recorded)
    if (reported := _reported(run, client, served_round)) is not None:
        here = {name: number for name, number in unlearning_metrics(report).items() if name in reported}
        yield _agreed(f"numbers that client {client} told with its answer", here, reported)
    return vector if submodel is None else as_vector(submodel.joined(as_record(vector)))


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
    submodel = None if of_model is None else of_model(kind, as_record(model))(client)
    if submodel is not None:
        worker.fit(int(submodel.settings[message_keys.LORA_RANK]))
    return submodel


def _forget_ids(worker: Worker, client: int, requests: Sequence[Request], state: WorkState) -> set[str]:
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
        sent = of_run(run, NodeLedger(folder).exchanges())
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
        served = newest_line([e for e in sent if request.id in e.get("requests", ())], request.client, what)
        state = WorkState.at(folder, entered[-1] if entered else served)
        if other := other_records(worker, request.client, folder, state):
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


def _no_training(clients: Sequence[int], arrays: ArrayRecord, settings: Mapping[str, Any]) -> list[Any]:
    raise AuditError("serving by unlearning trains nobody")
