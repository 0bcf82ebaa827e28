"""The Flower ClientApp: the same in a simulation and on a real client machine.

In a deployment every message starts a new process. What needs torch is therefore imported where it is used: a query, by
which all clients are asked each round, is answered without it.
"""

from __future__ import annotations

import functools
import logging
import math
import random
import secrets
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from oblivionis import seeds
from oblivionis.client.node_policy_guard import Guard, Refused, note_refusal
from oblivionis.client.single_participation import Turn, hidden, take_part
from oblivionis.config import compose as configuration
from oblivionis.config.allowed_code import permit_code
from oblivionis.config.identity import config_hash
from oblivionis.config.schema import Config
from oblivionis.data.errors import DataError
from oblivionis.data.twins import content_key
from oblivionis.erasure.hidden_requests import MOST_EXCHANGES, Share, give_up, join, sealed_counts, seals
from oblivionis.erasure.node_key import MOMENT, PUBLIC_KEY, SIGNATURE, audit_bytes, audit_key, public_hex
from oblivionis.erasure.node_ledger import BESIDE, EXCHANGED, RECORDS, NodeLedger
from oblivionis.erasure.node_request_sources import answer_query
from oblivionis.erasure.records_on_node import (
    CONFIG_HASH,
    DATA_NODES,
    NODE_DIR,
    NODES_DIR,
    NodeRecords,
    beside_hash,
    counts,
    node_folder,
    read_node,
    read_references,
    records_hash,
)
from oblivionis.erasure.standing_demands import hold_back
from oblivionis.erasure.unlearn_messages import Demand, DemandError, accept, forget_set, read_demands
from oblivionis.errors import ClientError, OblivionisError
from oblivionis.runtime import client_process
from strategies import message_keys
from strategies.privacy.distributed_noise import contribution, discrete_gaussian, joint_norm, share_sigma
from strategies.secure import stage_keys
from strategies.secure.client import Participant
from strategies.secure.secure_exchange import difference

if TYPE_CHECKING:
    from clients.record_level_dp import Privacy
    from clients.unlearning import UnlearnReport
    from oblivionis.client.worker import Worker
    from oblivionis.data.records import Record
    from oblivionis.erasure.node_folder import NodeFolder

app = ClientApp()
log = logging.getLogger("flwr")

CLIENT_ERROR_CODE = 1001


def answering(handler: Callable[[Message, Context], Message]) -> Callable[[Message, Context], Message]:
    """Turn any exception into an error reply with its reason, so that one bad record never takes down the process."""

    @functools.wraps(handler)
    def wrapped(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except Exception as error:
            expected = isinstance(error, OblivionisError | ValueError | FloatingPointError)
            if isinstance(error, Refused):
                _note_refusal(error, message, context)
            log.error("client %s: %s", context.node_config.get("partition-id"), error, exc_info=not expected)
            reason = str(error) if expected else f"{type(error).__name__}: {error}"
            if _confidential(message, context):
                reason = _without_content(error)
            return Message(Error(code=CLIENT_ERROR_CODE, reason=reason[:2000]), reply_to=message)

    return wrapped


def _confidential(message: Message, context: Context) -> bool:
    """Whether this client's records are its own, so that no error message, which may quote them, may leave it."""
    if context.node_config.get(NODE_DIR):
        return True
    return bool(_settings(message).get(DATA_NODES))


def _settings(message: Message) -> Mapping[str, Any]:
    """The config of a message, empty where it has none."""
    return message.content.config_records.get(message_keys.CONFIG, ConfigRecord()) if message.has_content() else {}


def _note_refusal(error: Refused, message: Message, context: Context) -> None:
    config = _settings(message)
    if context.node_config.get(NODE_DIR) or _has_folder(config):
        folder = node_folder(context.node_config, config, _partition(context)).path
        note_refusal(folder, message.metadata.message_type, error, config)


def _without_content(error: Exception) -> str:
    """What the server may know of an error: what names ids and numbers only is told, of all else the kind."""
    if isinstance(error, ClientError | DemandError):
        return str(error)
    if isinstance(error, DataError):
        count = len(error.problems)
        found = f" ({count} problem{'s' if count > 1 else ''})" if count else ""
        return f"its records cannot be used{found}; the log of this node says which"
    return f"{type(error).__name__}; the log of this node says more"


@app.query()
@answering
def query(message: Message, context: Context) -> Message:
    """Who is this node? Its partition id, so that the server can address clients by a name that outlives a run.

    Where the records are the clients' own, also how many it holds, and how many of them it may be trained on. A server
    that keeps a ledger of requests is told of those that were made here, unless they are sealed.
    """
    client = _partition(context)
    config = _settings(message)
    guard = Guard.of(context.node_config, client, message.metadata.message_type)
    node = node_folder(context.node_config, config, client)
    if message_keys.LEDGER in config:
        if guard is not None:
            guard.count()
        _learn(node.path, config, str(config.get(CONFIG_HASH, "")), client, guard)
    answer = MetricRecord({message_keys.PARTITION_ID: client})
    if guard is not None and guard.most_rank is not None:
        answer[message_keys.LORA_RANK] = guard.most_rank
    sealed = bool(config.get(message_keys.SEALED)) or (guard is not None and guard.sealed)
    held = None
    if config.get("data") == "node":
        found = None if sealed else _records(node)
        held = None if found is None else {record.id for record in found.records}
        told = sealed_counts(node) if found is None else counts(node, found)
        answer[message_keys.NUM_RECORDS], answer[message_keys.LIVE_RECORDS] = told
    content = RecordDict({message_keys.METRICS: answer})
    audits = guard is None or guard.audits
    requests = answer_query(config, client, node.path, sealed=sealed, audits=audits, held=held)
    if requests is not None:
        content[message_keys.REQUESTS] = requests
    return Message(content, reply_to=message)


def _records(node: NodeFolder) -> NodeRecords:
    """The client's own records, once what came later is held back."""
    found = read_node(node.path)
    hold_back(node, found.records, near=False)
    return found


@app.query("nudge")
def nudge(message: Message, context: Context) -> Message:
    """Answer with nothing; nothing is counted or written."""
    return Message(RecordDict(), reply_to=message)


@app.query("secure_keys")
@answering
def secure_keys(message: Message, context: Context) -> Message:
    """Secure aggregation, stage 1: accept its terms and make keys. A session that was begun before is forgotten."""
    return _say(message, _participant(context).keys(_asked(message)))


@app.query("secure_shares")
@answering
def secure_shares(message: Message, context: Context) -> Message:
    """Secure aggregation, stage 2: divide the secrets of this client's masks among its neighbours."""
    return _say(message, _participant(context).shares(_asked(message)))


@app.query("secure_confirm")
@answering
def secure_confirm(message: Message, context: Context) -> Message:
    """Secure aggregation, stage 4: tell the neighbours who is said to be left."""
    return _say(message, _participant(context).confirm(_asked(message)))


@app.query("secure_unmask")
@answering
def secure_unmask(message: Message, context: Context) -> Message:
    """Secure aggregation, stage 5: give back the shares by which the masks in the sum come off."""
    return _say(message, _participant(context).unmask(_asked(message)))


def _participant(context: Context) -> Participant:
    if stage_keys.RECORD not in context.state.config_records:
        context.state[stage_keys.RECORD] = ConfigRecord()
    return Participant(context.state.config_records[stage_keys.RECORD], _partition(context))


def _asked(message: Message) -> ConfigRecord:
    records = message.content.config_records if message.has_content() else {}
    return records.get(stage_keys.RECORD, ConfigRecord())


def _say(message: Message, answer: ConfigRecord) -> Message:
    return Message(RecordDict({stage_keys.RECORD: answer}), reply_to=message)


@app.train()
@answering
def train(message: Message, context: Context) -> Message:
    """FedFT: local epochs on the current data: without tombstones, open requests and whatever the stage excludes.

    A client that left the federation refuses. In a sum under masks it adds a zero, as one does that has no record left.
    """
    task = Task(message, context)
    request = task.node.left_by()
    if request is not None and not task.masks:
        by = "" if task.sealed else f" by request {request!r}"
        raise ClientError(f"client {task.client} has left the federation{by} and trains no more")
    excluded = task.withheld()
    if task.text("exclude") == "forget-split":
        excluded |= task.worker.holding(task.client).marked
    task.keep_model()
    excluded = task.rested(excluded, least=0 if task.masks else 1)
    if task.masks and (request is not None or not task.worker.holding(task.client).select(excluded)):
        return task.reply(task.vector, {message_keys.NUM_EXAMPLES: task.counted(0)})
    vector, report = task.worker.finetune(
        task.client,
        task.vector,
        excluded=excluded,
        epochs=task.number("epochs", task.config.federation.local_epochs),
        proximal_mu=task.real(message_keys.PROXIMAL_MU, 0.0),
        seed=task.seed,
        moving=task.moving(),
        privacy=task.privacy(),
    )
    vector = task.compressed(vector, excluded)
    task.note(vector)
    return task.reply(
        vector,
        {
            message_keys.NUM_EXAMPLES: task.counted(report.num_examples),
            **({} if math.isnan(report.last_loss) else {"train-loss": report.last_loss}),
            "train-seconds": report.seconds,
            message_keys.TRAIN_STEPS: report.steps,
        },
    )


@app.train("unlearn")
@answering
def unlearn(message: Message, context: Context) -> Message:
    """FedTU: forget the named records, or all if the client leaves.

    They are buried first: whatever happens next, no exchange trains on them. A client that only covers those that ask
    does the same work on records that it keeps, and sends a zero.
    """
    from oblivionis.client.worker import told_of

    task = Task(message, context)
    if task.covering:
        return _unlearn_covered(task)
    record_ids = task.bury()
    vector, report = task.forget(record_ids)
    vector = task.compressed(vector)
    told = told_of(report)
    task.note(vector, requests=task.requests(), numbers=told)
    return task.reply(vector, {**told, "unlearn-seconds": report.seconds})


def _unlearn_covered(task: Task) -> Message:
    """Forget what this client is asked for, or asks for itself, or do the same work in vain and add a zero.

    Where requests are sealed nothing that a server sees depends on whether there is one, nor on whether it fails.
    """
    share = task.join()
    task.keep_model(share)
    demands = task.demands() if share is None else share.demands
    task.commitment = "" if share is None else share.commitment
    held = [record.id for record in task.worker.holding(task.client).records]
    forget = set[str]()
    try:
        forget = accept(demands, held, task.node, task.contents()) if demands else forget
        vector, report = task.forget(forget or task.decoy())
        if forget:
            task.note(vector, requests=[demand.request_id for demand in demands])
    except Exception as error:  # an error reply would tell who asks
        if share is None and demands:
            raise
        log.error("client %s: %s", task.client, error)
        if share is not None and demands:
            give_up(task.node.path, share.session, str(error))
        forget, vector, report = set[str](), task.vector, None
    if not forget or report is None:
        return task.reply(task.vector, {message_keys.NUM_EXAMPLES: 0})
    return task.reply(vector, {message_keys.NUM_EXAMPLES: report.num_examples})


@app.query("bury")
@answering
def bury(message: Message, context: Context) -> Message:
    """Bury the named records. The server changes the model; nothing is trained here."""
    task = Task(message, context)
    record_ids = task.bury()
    live = len(task.worker.holding(task.client).select(task.node.tombstones()))
    task.note(None, requests=task.requests())
    return task.reply(None, {message_keys.NUM_EXAMPLES: len(record_ids), message_keys.LIVE_RECORDS: live})


@app.evaluate("audit")
@answering
def audit(message: Message, context: Context) -> Message:
    """Measure what the received model knows of the named records, all if the client leaves; numbers leave, no record.

    The same before and after they are buried.
    """
    from oblivionis.client import audit as node_audit

    task = Task(message, context)
    demands = task.demands()
    if len(demands) != 1:
        raise DemandError(f"an audit is about one request, got {len(demands)}")
    held = [record.id for record in task.worker.holding(task.client).records]
    forget = forget_set(demands, held, task.node.buried())
    numbers = node_audit.audit(task.worker, task.client, task.vector, forget, task.withheld(), folder=task.node.path)
    task.note(None, requests=task.requests(), moment=task.text(MOMENT), numbers=numbers)
    reply = task.reply(None, {message_keys.NUM_EXAMPLES: len(forget), **numbers})
    reply.content[SIGNATURE] = task.signed(demands[0].request_id, numbers)
    return reply


class Task:
    """A message unpacked and checked, with the worker that serves it."""

    def __init__(self, message: Message, context: Context) -> None:
        from oblivionis.client.worker import resident
        from oblivionis.models.fingerprint import fingerprint_model

        self._message = message
        self.message_config: ConfigRecord = message.content.config_records[message_keys.CONFIG]
        self.client = _partition(context)
        kind = message.metadata.message_type
        self._began = time.monotonic()
        self._secure = stage_keys.RECORD in message.content.config_records
        self._participant = _participant(context)
        self.commitment = ""
        self._packed: ArrayRecord | None = None
        self.node = node_folder(context.node_config, self.message_config, self.client)
        self._guard = Guard.of(context.node_config, self.client, kind)
        self._simulated = self._guard is None and _simulated()
        if self._guard is not None:
            self._guard.check_settings(self.text("settings"), self.text(message_keys.RUN))
            self._guard.count()
        self.config, digest = _parse(self.text("settings"))
        if self._guard is not None:
            self.config = self._guard.permitted(self.config, self.message_config)
        else:
            permit_code(self.config)
        self._check_secure(kind)
        if kind != message_keys.TRAIN:
            self.demands()
        _learn(self.node.path, self.message_config, digest, self.client, self._guard)
        expected = self.text("fingerprint")
        actual = fingerprint_model(self.config.model)
        if actual != expected:
            raise ClientError(
                f"client {self.client} has another base model: fingerprint {actual[:12]}, the server's is "
                f"{expected[:12]}; install the same {self.config.model.source!r} on this node"
            )
        self.worker: Worker = resident(self.config)
        self.worker.fit(self._rank())
        if self.text("manifest-hash") != self.worker.assembled.manifest_hash:
            raise ClientError(f"client {self.client} would train other parameters than the server sends")
        if self.config.data.on_clients:
            hold_back(self.node, self.worker.hold(self.client, read_node(self.node.path)).records)
        self._seed = seeds.derive(
            self.config.seed, self.text(message_keys.STAGE), self.client, self.number(message_keys.SERVER_ROUND, 0)
        )
        self._turn = self._take_part(kind)
        self.seed = self._turn.seed

    def _take_part(self, kind: str) -> Turn:
        """How this client does the work of the message; the same work once only, where its folder is its own."""
        if self._guard is None or kind not in (message_keys.TRAIN, message_keys.UNLEARN):
            return Turn(self._seed)
        place = self.number(message_keys.SERVER_ROUND, 0)
        about = {"run": self.text(message_keys.RUN), "stage": self.text(message_keys.STAGE), "round": place}
        turn = take_part(self.node.path, self._seed, {"kind": kind, **about}, masked=self._secure)
        if turn.again:
            text = "client %d did the work of round %d before: now by another seed and on half of its records"
            log.warning(text, self.client, place)
        return turn

    def rested(self, excluded: Collection[str], least: int) -> set[str]:
        """`excluded`, and what the client goes without where it does the same work again; `least`: so many records
        stay. With noise on all that it learned that is nothing: the noise is another one."""
        if hidden(self.config.privacy.level, self.real(message_keys.NOISE_MULTIPLIER, 0.0)):
            return set(excluded)
        live = [r.id for r in self.worker.holding(self.client).records if r.id not in excluded]
        return {*excluded, *self._turn.left_out(live, least)}

    def _rank(self) -> int:
        """The rank of the LoRA factors in the message. ClientError for one that the run cannot have."""
        lora = self.config.model.lora
        rank = self.message_config.get(message_keys.LORA_RANK, lora.rank)
        if not isinstance(rank, int) or not 1 <= rank <= lora.rank or (rank != lora.rank and lora.ranks is None):
            raise ClientError(f"client {self.client} was sent LoRA factors of rank {rank!r}, which the run has not")
        return rank

    def _check_secure(self, kind: str) -> None:
        """Refuse to send a model by itself where the configuration says that the server sees sums alone."""
        if kind not in (message_keys.TRAIN, message_keys.UNLEARN):
            return
        terms = self._participant.check(_asked(self._message)) if self._secure else None
        if self._guard is not None:
            self._guard.check_masks(terms)
            if self._guard.sealed and terms is None and kind == message_keys.TRAIN:
                raise Refused(
                    "requests.sealed",
                    f"client {self.client} refuses: what it learned says when records are no more trained on, and its "
                    "requests are sealed: it goes into sums under masks only (requests.sealed)",
                )
        if terms is not None:
            return
        if self.config.federation.secure_aggregation.enabled:
            raise Refused(
                "federation.secure_aggregation",
                f"client {self.client} refuses: the run's updates are summed under masks, and the message asks for "
                "this client's own",
            )

    @property
    def covering(self) -> bool:
        """Whether the message also goes to clients that ask for nothing."""
        return self._secure and bool(self.message_config.get(message_keys.COVER))

    def counted(self, records: int) -> int:
        """The weight of what was trained on so many records: where requests are sealed, of all that there ever were.

        Sums of several rounds among other clients would otherwise tell whose number has fallen.
        """
        if not (self._rooted and seals(self.config)):
            return records
        return sealed_counts(self.node)[0] if self.config.data.on_clients else self._held

    @property
    def _held(self) -> int:
        return len(self.worker.holding(self.client).records)

    @property
    def masks(self) -> bool:
        """Whether the answer goes into a sum under masks."""
        return self._secure

    def moving(self) -> np.ndarray | None:
        """Which numbers of the model training may change, (size,), bool; None for all. ClientError for other than a bit
        for each."""
        bits = self.message_config.get(message_keys.MOVING)
        if bits is None:
            return None
        if not isinstance(bits, bytes) or len(bits) != -(-self.vector.size // 8):
            raise ClientError(f"client {self.client} was not sent a bit for each of {self.vector.size} numbers")
        return np.unpackbits(np.frombuffer(bits, np.uint8), count=self.vector.size).astype(bool)

    def forget(self, record_ids: Collection[str]) -> tuple[np.ndarray, UnlearnReport]:
        """Unlearn these records from the received model."""
        arrays = self._message.content.array_records
        return self.worker.forget(
            self.client,
            self.vector,
            record_ids=record_ids,
            tombstones=self.rested({*self.withheld(), *record_ids}, least=1),
            proximal_mu=0.0,
            seed=self.seed,
            reference=self.read(message_keys.REFERENCE) if message_keys.REFERENCE in arrays else None,
            own_references=self.own_references(),
            privacy=self.privacy(),
        )

    def compressed(self, vector: np.ndarray, excluded: Collection[str] | None = None) -> np.ndarray:
        """The model as the server will read it in the reply, which sends as much of it as the configuration says.

        `excluded`: what was not trained on; None for what was unlearned, of which nothing is kept back: it would be
        what was just to be forgotten.
        """
        from oblivionis.client.compression_residuals import Residuals
        from oblivionis.client.update_encoding import packed

        how = self.config.federation.compression
        if how.method == "none" or (excluded is None and not how.unlearning):
            return vector
        kind, kept = self._message.metadata.message_type, None
        stage = self.text(message_keys.STAGE)
        once = "/" in stage  # an exchange beside the rounds, a calibration say, that no later one goes on from
        if excluded is not None and how.error_feedback and self._rooted and not once:
            trained = [r for r in self.worker.holding(self.client).identified() if r[0] not in excluded]
            label = f"{stage}/{self.text('exclude')}"
            kept = Residuals(
                self.node,
                self.text(message_keys.RUN),
                label,
                records_hash(trained),
                since=self.number(message_keys.UNLEARNED_ROUND, 0),
                current=lambda: self.node.left_by() is None and self.withheld() <= set(excluded),
            )
        place = self.number(message_keys.SERVER_ROUND, 0)
        self._packed, model = packed(how, self.vector, vector, seeds.derive(self.seed, kind), kept, place)
        return model

    def join(self) -> Share | None:
        """This node's share in a cover exchange: its sealed requests; None where the server names them."""
        if message_keys.REQUEST_IDS in self.message_config or not (self._rooted and seals(self.config)):
            return None
        held = [record.id for record in self.worker.holding(self.client).records]
        most = MOST_EXCHANGES if self._guard is None else self._guard.most_exchanges
        session = self._participant.terms.session
        return join(self.node.path, self.text(message_keys.RUN), session, self.client, held=held, most_exchanges=most)

    def keep_model(self, share: Share | None = None) -> None:
        """Keep the received model where requests are sealed: only by it can this node measure what was forgotten."""
        if not (self._rooted and seals(self.config)):
            return
        from oblivionis.client.self_audit import Kept, keep_model

        place = self.text(message_keys.STAGE), self.number(message_keys.SERVER_ROUND, 0)
        about = Kept(self.text(message_keys.RUN), *place, self.text("settings"), self.text("fingerprint"))
        keep_model(self.node.path, self.vector, about)
        if share is not None:
            keep_model(self.node.path, self.vector, about, share.session)

    def decoy(self) -> set[str]:
        """Records to do with, in place of some to forget, what takes as long: up to half of what is trained on."""
        withheld, chance = self.withheld(), random.SystemRandom()
        live = [r.id for r in self.worker.holding(self.client).records if r.id not in withheld]
        return set(chance.sample(live, chance.randint(1, max(1, len(live) // 2)))) if live else set()

    @property
    def vector(self) -> np.ndarray:
        """The global model that the server sent."""
        return self.read(message_keys.ARRAYS)

    def read(self, record: str) -> np.ndarray:
        """The flat parameters in an ArrayRecord of the message."""
        return np.array(self._message.content.array_records[record][message_keys.ADAPTER].numpy(), dtype=np.float32)

    def bury(self) -> set[str]:
        """Bury what the message asks for, all if the client leaves; the ids of the forget set."""
        held = [record.id for record in self.worker.holding(self.client).records]
        return accept(self.demands(), held, self.node, self.contents())

    def contents(self) -> dict[str, str]:
        """By id what the client's records say, by which buried ones are known again."""
        return {record.id: content_key(record) for record in self.worker.holding(self.client).records}

    def own_references(self) -> tuple[Record, ...] | None:
        """The client's own records that nobody trains on; None where its records are dealt out, and these with them."""
        if not self.config.data.on_clients or self.config.unlearning.target is None:
            return None
        return read_references(self.node.path, self.worker.holding(self.client).records)

    def privacy(self) -> Privacy | None:
        """How the client hides its records, None where nobody asks it to. ClientError where no noise was told.

        A simulated client takes its noise from the run's seed; any other one from its own machine, for whoever knows
        the seed could take the noise away again.
        """
        from clients.record_level_dp import Privacy

        wanted = self.config.privacy
        if wanted.level != "record":
            return None
        multiplier = self.real(message_keys.NOISE_MULTIPLIER, 0.0)
        if not multiplier > 0 or wanted.clipping_norm is None:
            raise ClientError(
                f"client {self.client} is to hide its records, and the server's message does not say by how much noise"
            )
        exchange = (self._message.metadata.message_type, self.text("exclude"))  # none shares its noise with another
        seed = seeds.derive(self.seed, "noise", *exchange) if self._simulated else None
        return Privacy(multiplier, wanted.clipping_norm, seed)

    def demands(self) -> tuple[Demand, ...]:
        """What the message asks to bury or to audit. DemandError; Refused for what nobody asked for here."""
        if self.covering and message_keys.REQUEST_IDS not in self.message_config:
            return ()  # an exchange that goes to others, too, names none; sealed ones come by `join`
        demands = read_demands(self.message_config)
        if self._guard is not None:
            self._guard.check_demands(demands)
        return demands

    def requests(self) -> list[str]:
        """Ids of the requests that the message is about."""
        return [demand.request_id for demand in read_demands(self.message_config)]

    def note(
        self,
        vector: np.ndarray | None,
        requests: Sequence[str] = (),
        moment: str = "",
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        """Enter into the node's own ledger what is sent: by it, and a copy of the folder, anybody can do it again.

        `before`, `after`: SHA-256 of the model received, and of the one sent back; `tombstones`: how many lines of them
        there were; `records`, `beside`: SHA-256 of what the client holds, and of what it reads beside that; `numbers`:
        what it tells of the model.
        """
        from oblivionis.runs.directory import vector_hash

        if not self._rooted:
            return
        told = {name: value for name, value in (numbers or {}).items() if math.isfinite(value)}
        NodeLedger(self.node.path).note(
            EXCHANGED,
            None,
            kind=self._message.metadata.message_type,
            run=self.text(message_keys.RUN),
            client=self.client,
            stage=self.text(message_keys.STAGE),
            round=self.number(message_keys.SERVER_ROUND, 0),
            **(
                {"before": vector_hash(self.vector)}
                if message_keys.ARRAYS in self._message.content.array_records
                else {}
            ),
            **({} if vector is None else {"after": vector_hash(vector)}),
            tombstones=len(self.node.tombstone_lines()),
            **{
                RECORDS: records_hash(self.worker.holding(self.client).identified()),
                BESIDE: beside_hash(self.node.path),
            },
            **({"requests": list(requests)} if requests else {}),
            **({"moment": moment} if moment else {}),
            **({} if self._secure or vector is None else {"seed": self._seed}),
            **({"again": True} if self._turn.again else {}),
            **({} if numbers is None else {"numbers": told}),
        )

    def signed(self, request: str, numbers: Mapping[str, float]) -> ConfigRecord:
        """The client's signature of an audit."""
        from oblivionis.runs.directory import vector_hash

        key = audit_key(self.node.path)
        facts = {
            "run": self.text(message_keys.RUN),
            "stage": self.text(message_keys.STAGE),
            "round": self.number(message_keys.SERVER_ROUND, 0),
            "model": vector_hash(self.vector),
        }
        body = audit_bytes(request, self.client, self.text(MOMENT), numbers, facts)
        return ConfigRecord({SIGNATURE: key.sign(body).hex(), PUBLIC_KEY: public_hex(key)})

    @property
    def sealed(self) -> bool:
        """Whether no server is told the name of a request."""
        return self._guard is not None and self._guard.sealed

    @property
    def _rooted(self) -> bool:
        """Whether the client has a folder at all: hand-made messages may name none."""
        return self._guard is not None or _has_folder(self.message_config)

    def withheld(self) -> set[str]:
        """Ids of records not to be trained on: those buried, and those that somebody asked for on this node, served or
        not."""
        return {*self.node.tombstones(), *NodeLedger(self.node.path).asked()}

    def text(self, key: str) -> str:
        return str(self.message_config.get(key, ""))

    def number(self, key: str, default: int) -> int:
        return int(self.message_config.get(key, default))  # type: ignore[arg-type]

    def real(self, key: str, default: float) -> float:
        return float(self.message_config.get(key, default))  # type: ignore[arg-type]

    def reply(self, vector: np.ndarray | None, metrics: dict[str, int | float]) -> Message:
        """Numbers, and a model; in a secure sum both under masks, and the model as what it adds to the one received."""
        if self._secure:
            assert vector is not None, "no secure sum without a model"
            return self._masked(vector, metrics)
        content = RecordDict({message_keys.METRICS: MetricRecord({**metrics, message_keys.PARTITION_ID: self.client})})
        if vector is not None:
            content[message_keys.ARRAYS] = self._packed or ArrayRecord({message_keys.ADAPTER: Array(vector)})
        return Message(content, reply_to=self._message)

    def _noised(self, update: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """`update` and this client's share of the noise, in steps; where single clients are hidden it is clipped.

        ClientError where the terms have less noise than the configuration asks for.
        """
        terms, wanted = self._participant.terms, self.config.privacy
        if wanted.level != "client":
            return update, None
        multiplier = self.real(message_keys.NOISE_MULTIPLIER, 0.0)
        moves = wanted.clipping == "adaptive"
        known = (wanted.noise_multiplier or multiplier, terms.norm if moves else wanted.clipping_norm)
        if not multiplier > 0 or known != (multiplier, terms.norm) or not terms.norm > 0 or terms.names:
            raise ClientError(
                f"client {self.client} is to be hidden, and the sum has another norm or noise than the run"
            )
        numbers = update.size + bool(terms.counting)
        longest = joint_norm(terms.norm, terms.counting)
        least = share_sigma(multiplier, longest, terms.step, numbers, terms.threshold)
        if terms.noise < least * (1 - 1e-9):
            raise ClientError(f"client {self.client} is to be hidden, and the sum has less noise than the run asks for")
        labels = ("noise", self._message.metadata.message_type, self.text("exclude"))
        seed = seeds.derive(self.seed, *labels) if self._simulated else secrets.randbits(256)
        noise = discrete_gaussian(numbers, terms.noise, np.random.default_rng(seed))
        return contribution(update, terms.norm, terms.counting), noise

    def _masked(self, vector: np.ndarray, metrics: Mapping[str, int | float]) -> Message:
        asked = _asked(self._message)
        weight = int(metrics[message_keys.NUM_EXAMPLES])
        terms = self._participant.terms
        if terms.one_each:
            weight = min(weight, 1)
        tallies = [float(metrics.get(name, 0.0)) for name in terms.names]
        update, noise = self._noised(difference(vector, self.vector))
        answer = self._participant.masked(asked, update, weight, tallies, noise)
        if self.commitment:
            answer[stage_keys.COMMITMENT] = self.commitment
        if self.covering:
            time.sleep(max(0.0, self.config.unlearning.cover_seconds - (time.monotonic() - self._began)))
        return _say(self._message, answer)


def _simulated() -> bool:
    """Whether this is a process of a simulation, this program's or Flower's own on Ray: a SuperNode's is none."""
    ray = sys.modules.get("ray")
    return client_process.simulated() or (ray is not None and ray.is_initialized())


def _partition(context: Context) -> int:
    if "partition-id" not in context.node_config:
        raise ClientError('this node has no partition-id; start it with --node-config "partition-id=…"')
    return int(context.node_config["partition-id"])


@functools.lru_cache(maxsize=4)
def _parse(settings: str) -> tuple[Config, str]:
    """The configuration in a message, and its hash."""
    config = configuration.from_yaml(settings)
    return config, config_hash(config)


def _has_folder(config: Mapping[str, Any]) -> bool:
    return bool(config.get(NODES_DIR) or config.get(DATA_NODES))


def _learn(folder: Path, config: Mapping[str, Any], digest: str, client: int, guard: Guard | None) -> None:
    """Note which configuration the message's run has. Refused where it had another one before.

    Folders that simulated runs share (`data.nodes`) see runs of one name and several configurations: these are noted.
    """
    run = str(config.get(message_keys.RUN, ""))
    if run and digest and (guard is not None or _has_folder(config)):
        strict = guard is not None or not config.get(DATA_NODES)
        known = NodeLedger(folder).learn(run, digest, client, strict=strict)
        if known is not None and strict:
            raise Refused(
                "run",
                f"client {client} refuses: run {run!r} changed its configuration: its hash is {digest[:12]}, and was "
                f"{known[:12]} when this node learned of it; start it under another name",
            )
