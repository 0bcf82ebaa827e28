"""One exchange between server and clients: send messages, check the replies, call the listener."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import WARNING
from types import MappingProxyType
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from strategies import message_keys, metric_schema
from strategies.flower_internals import log
from strategies.replies import ReplyCheck, answers, judge
from strategies.rounds.callbacks import Listener
from strategies.rounds.collection import Collection
from strategies.rounds.encoding import Encoding, FullModels
from strategies.rounds.nodes import NodeMap
from strategies.rounds.update_bounds import Bounds, Clipped
from strategies.secure.masking import Masking, Unmasked
from strategies.secure.secure_exchange import mean_reply
from strategies.secure.server import Summed
from strategies.submodel import Submodel, fitted_messages, join, read_answers


@dataclass(frozen=True, slots=True)
class Keys:
    """Names that a Flower strategy gives to the records of a message and to the weight of a reply.

    Attributes
    ----------
    arrays, config : str
        The ArrayRecord and the ConfigRecord.
    weight : str
        The metric that weights a reply, such as `num-examples`.
    """

    arrays: str
    config: str
    weight: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """How the exchanges of one stage are held.

    Attributes
    ----------
    grid : Grid
    nodes : NodeMap
    listener : Listener
    keys : Keys
    stage : str
    seed : int
        Stage and seed go into the config of each message.
    timeout : float
        Seconds per exchange.
    collection : Collection
        How replies are collected.
    masking : Masking
        Whether models come back one by one or as one sum.
    encoding : Encoding
        The form in which models travel that are not masked.
    needs_steps : bool
        Whether a reply to a `train` exchange must report the number of local steps.
    numbers : mapping
        Accepted metrics by kind of exchange; all of them for a kind that is not named.
    bounds : Bounds or None
        Limits on what a single client contributes; None: none.
    """

    grid: Grid
    nodes: NodeMap
    listener: Listener
    keys: Keys
    stage: str
    seed: int
    timeout: float
    collection: Collection
    masking: Masking = field(default_factory=Unmasked)
    encoding: Encoding = field(default_factory=FullModels)
    needs_steps: bool = False
    numbers: Mapping[str, metric_schema.Numbers] = field(default_factory=dict)
    bounds: Bounds | None = None

    def config(self, server_round: int, settings: Mapping[str, Any]) -> ConfigRecord:
        """ConfigRecord of a message: `settings` with round, stage and seed added."""
        return ConfigRecord(
            {
                **settings,
                message_keys.SERVER_ROUND: server_round,
                message_keys.STAGE: self.stage,
                message_keys.RUN_SEED: self.seed,
            }
        )

    def hold(
        self,
        kind: str,
        server_round: int,
        messages: list[Message],
        expected: ArrayRecord | None,
        *,
        enough: int | None = None,
    ) -> list[ReplyCheck]:
        """Send `messages`, check the replies, and call the listener.

        Parameters
        ----------
        kind : str
            `unlearn`, `train`, `calibrate`, `replay` or `evaluate`.
        server_round : int
        messages : list of Message
        expected : ArrayRecord or None
            Names, shapes and dtypes of the model in a valid reply; None where a reply holds no model.
        enough : int, optional
            How many replies to wait for, where they are collected one by one; None: all.

        Returns
        -------
        list of ReplyCheck, by partition id
            One for each client; with secure sums one for all clients in the sum. Empty without messages.
        """
        if not messages:
            return []
        if self.masking.sums and expected is not None:
            return self._hold_summed(kind, server_round, messages, expected)
        began = time.monotonic()
        clients = [self.partition(message) for message in messages]
        self.listener.exchange_started(kind, sorted(clients))
        submodels = {} if expected is None else self.encoding.submodels(kind, expected, clients)
        messages = fitted_messages(messages, clients, submodels, self.keys.arrays, self.keys.config)
        received, late = self.collection.collect(kind, messages, self.timeout, enough)
        verdicts = self.judged(kind, server_round, received, expected, late, submodels)
        accepted = sum(v.reply is not None for v in verdicts)
        self.listener.exchange_ended(kind, accepted, len(verdicts) - accepted, time.monotonic() - began)
        return verdicts

    def judged(
        self,
        kind: str,
        server_round: int,
        received: Sequence[tuple[int, Message | None]],
        expected: ArrayRecord | None,
        late: Sequence[ReplyCheck] = (),
        submodels: Mapping[int, Submodel] = MappingProxyType({}),
    ) -> list[ReplyCheck]:
        """Decode and check replies, apply the bounds, and call the listener for each reply, also for the `late` ones.

        Parameters
        ----------
        kind : str
        server_round : int
        received : sequence of (client, Message or None)
        expected : ArrayRecord or None
            As in `hold`.
        late : sequence of ReplyCheck
            Replies that are not waited for.
        submodels : mapping of client to Submodel
            What clients received in place of `expected`.

        Returns
        -------
        list of ReplyCheck, by partition id
        """
        sent = {client: own.sent for client, own in submodels.items()}
        faults = dict[int, str]()
        if expected is not None and self.encoding.decodes:
            faults = read_answers(received, lambda c: sent.get(c, expected), self.encoding.read, self.keys.arrays)
        same = kind != "unlearn"  # never averaged, and a client without retain records measures less
        verdicts = self.checked(kind, received, expected, same_metrics=same, own=sent)
        verdicts = [replace(v, reason=faults[v.partition]) if v.partition in faults else v for v in verdicts]
        verdicts = join(verdicts, submodels, self.keys.arrays)
        clipped: list[Clipped] = []
        if self.bounds is not None:
            verdicts, clipped = self.bounds.apply(kind, verdicts, expected, self.keys.arrays, self.keys.weight)
        for verdict in late:
            self.listener.late(verdict.partition, verdict.reason)
        for verdict in verdicts:
            self.listener.reply(verdict.partition, verdict.reply is not None, verdict.reason)
            if verdict.reply is None:
                text = "client %d left out of the %s exchange: %s"
                self.warn(server_round, text, verdict.partition, kind, verdict.reason)
        self.report_clipped(server_round, clipped)
        return sorted([*verdicts, *late], key=lambda verdict: verdict.partition)

    def checked(
        self,
        kind: str,
        received: Sequence[tuple[int, Message | None]],
        expected: ArrayRecord | None,
        *,
        same_metrics: bool,
        own: Mapping[int, ArrayRecord] = MappingProxyType({}),
    ) -> list[ReplyCheck]:
        """Check replies by the rules of a kind of exchange; see `strategies.replies.judge`. The listener is not called.

        Parameters
        ----------
        kind : str
        received : sequence of (client, Message or None)
        expected : ArrayRecord or None
            As in `hold`.
        same_metrics : bool
            Leave out replies whose metrics differ from most.
        own : mapping of client to ArrayRecord
            What to expect of clients that received another model.

        Returns
        -------
        list of ReplyCheck, by partition id
        """
        return judge(
            received,
            reference=expected,
            arrays_key=self.keys.arrays,
            weight_key=self.keys.weight,
            needs_steps=self.needs_steps and kind in ("train", "replay"),
            timeout=self.timeout,
            same_metrics=same_metrics,
            numbers=self.numbers.get(kind),
            own=own,
        )

    def report_clipped(self, server_round: int, clipped: Sequence[Clipped]) -> None:
        """Report to listener and log the weights and norms that were clipped."""
        for one in clipped:
            self.listener.cut(one.client, one.what, one.reported, one.used)
            text = "client %d: the %s %g of its reply counts as %g"
            self.warn(server_round, text, one.client, one.what, one.reported, one.used)

    def sum_up(
        self,
        kind: str,
        server_round: int,
        messages: Sequence[Message],
        sent: ArrayRecord,
        *,
        one_each: bool = False,
        committed: bool = False,
    ) -> Summed:
        """Hold an exchange as a secure sum; see `Masking.sum_up`. The listener is called for each client.

        Parameters
        ----------
        kind : str
        server_round : int
        messages : sequence of Message
        sent : ArrayRecord
            The model that the clients start from.
        one_each : bool
            Every update counts 1, or 0 for a client that only covers others.
        committed : bool
            Leave out clients that send no commitment.

        Returns
        -------
        Summed
            With a `fault` where there is no sum.
        """
        began = time.monotonic()
        clients = sorted(map(self.partition, messages))
        self.listener.exchange_started(kind, clients)
        summed = self.masking.sum_up(kind, messages, sent, self.timeout, one_each=one_each, committed=committed)
        if summed.fault:
            summed = replace(summed, fault=f"the secure sum failed: {summed.fault}")
            self.warn(server_round, "%s exchange: %s", kind, summed.fault)
        for client in clients:
            reason = summed.left_out.get(client, summed.fault)
            self.listener.reply(client, not reason, reason)
            if reason != summed.fault:
                self.warn(server_round, "client %d left out of the %s exchange: %s", client, kind, reason)
        if summed.clipped and summed.terms is not None:
            text = "%d numbers of the clients' updates lay outside of ± %g and were cut (secure aggregation's clipping)"
            self.warn(server_round, text, summed.clipped, summed.terms.clipping)
        if summed.cut and summed.terms is not None:
            text = "%d clients hold more than %d records and count as so many (secure aggregation's max_weight)"
            self.warn(server_round, text, summed.cut, summed.terms.max_weight)
        accepted = len(summed.survivors)
        self.listener.exchange_ended(kind, accepted, len(messages) - accepted, time.monotonic() - began)
        return summed

    def _hold_summed(
        self, kind: str, server_round: int, messages: Sequence[Message], expected: ArrayRecord
    ) -> list[ReplyCheck]:
        """As `hold`, by a secure sum: one check for all clients in the sum, and one for each of the others."""
        summed = self.sum_up(kind, server_round, messages, expected)
        failed = [ReplyCheck(client, None, reason) for client, reason in sorted(summed.left_out.items())]
        if summed.fault or summed.weight == 0:
            return failed
        return [mean_reply(summed, expected, self.keys.arrays, self.keys.weight), *failed]

    def train_again(
        self,
        server_round: int,
        train_config: Mapping[str, Any],
        clients: Sequence[int],
        arrays: ArrayRecord,
        settings: Mapping[str, Any],
    ) -> list[ReplyCheck]:
        """Hold an exchange of ordinary training of given clients, for protocols that calibrate stored updates.

        Parameters
        ----------
        server_round : int
        train_config : mapping
            The usual settings of training messages.
        clients : sequence of int
            Those that are not connected are left out.
        arrays : ArrayRecord
            The model to train from.
        settings : mapping
            Override `train_config`.

        Returns
        -------
        list of ReplyCheck, by partition id
        """
        config = ConfigRecord({**self.config(server_round, train_config), **settings})
        content = RecordDict({self.keys.arrays: arrays, self.keys.config: config})
        kind = "replay" if message_keys.REPLAY in settings else "calibrate"
        return self.hold(kind, server_round, self._messages(clients, content, message_keys.TRAIN), arrays)

    def reach(self, server_round: int, clients: Sequence[int], *, within: float) -> set[int]:
        """Clients that answer an empty message in time.

        Parameters
        ----------
        server_round : int
        clients : sequence of int
        within : float
            Seconds to wait.

        Returns
        -------
        set of int
        """
        content = RecordDict({self.keys.config: self.config(server_round, {})})
        messages = self._messages(clients, content, message_keys.NUDGE)
        received = answers(messages, self.grid.send_and_receive(messages, timeout=within)) if messages else []
        return {self.partition(m) for m, answer in received if answer is not None and not answer.has_error()}

    def _messages(self, clients: Sequence[int], content: RecordDict, message_type: str) -> list[Message]:
        """The same message to each of these clients that is connected."""
        nodes = self.nodes.refresh(self.grid)
        return [Message(content, dst_node_id=nodes[c], message_type=message_type) for c in clients if c in nodes]

    def warn(self, server_round: int, text: str, *values: object) -> None:
        """Log a warning about a round; `values` fill the % fields of `text`."""
        log(WARNING, f"[{self.stage}] round %d: {text}", server_round, *values)

    def partition(self, message: Message) -> int:
        """The client that a message goes to, -1 for an unknown one."""
        return self.nodes.client_of(message)
