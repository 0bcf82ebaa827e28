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
from strategies.rounds.compression import Compression
from strategies.rounds.nodes import NodeMap
from strategies.rounds.reply_stream import Arrivals, collect
from strategies.rounds.update_bounds import Bounds, Clipped
from strategies.secure.agreed_parameters import SecureSettings
from strategies.secure.secure_exchange import SecureExchange
from strategies.secure.server import Summed
from strategies.submodel import Fitting, Submodel, fitted_messages, join, read_answers


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


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Holds the exchanges of one stage.

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
    needs_steps, numbers, bounds, secure, arrivals, deadline, fitting, compression
        Optional; described below.
    """

    grid: Grid
    nodes: NodeMap
    listener: Listener
    keys: Keys
    stage: str
    seed: int
    timeout: float
    needs_steps: bool = False
    """Whether a reply to a `train` exchange must report the number of local steps."""
    numbers: Mapping[str, metric_schema.Numbers] = field(default_factory=dict)
    """Accepted metrics by kind of exchange; all of them for a kind that is not named."""
    bounds: Bounds | None = None
    """Limits on what a single client contributes; None: none."""
    secure: SecureSettings | None = None
    """Settings of secure sums; None: models come back one by one."""
    arrivals: Arrivals | None = None
    """Reply stream that hands out replies one by one; None: the grid waits for all of them."""
    deadline: float | None = None
    """Seconds after which a `train` exchange goes on with the replies that have come; None: `timeout` alone."""
    fitting: Fitting | None = None
    """Which clients receive a submodel; None: nobody."""
    compression: Compression | None = None
    """How clients may compress their updates; None: models alone."""

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
            `unlearn`, `train`, `calibrate` or `evaluate`.
        server_round : int
        messages : list of Message
        expected : ArrayRecord or None
            Names, shapes and dtypes of the model in a valid reply; None where a reply holds no model.
        enough : int, optional
            How many replies to wait for; None: all. Takes effect with a reply stream (`arrivals`).

        Returns
        -------
        list of ReplyCheck, by partition id
            One for each client; with secure sums one for all clients in the sum. Empty without messages.
        """
        if not messages:
            return []
        if self.secure is not None and expected is not None:
            return self._of_all(kind, server_round, messages, expected)
        began = time.monotonic()
        self.listener.exchange_started(kind, sorted(self.partition(m) for m in messages))
        fitted = self._fitted(kind, messages, expected)
        clients = [self.partition(message) for message in messages]
        messages = fitted_messages(messages, clients, fitted, self.keys.arrays, self.keys.config)
        if self.arrivals is None:
            received = answers(messages, self.grid.send_and_receive(messages, timeout=self.timeout))
            late = list[ReplyCheck]()
        else:
            received, late = self._collected(self.arrivals, kind, messages, enough)
        pairs = [(self.partition(message), answer) for message, answer in received]
        verdicts = self.judged(kind, server_round, pairs, expected, late, fitted)
        accepted = sum(v.reply is not None for v in verdicts)
        self.listener.exchange_ended(kind, accepted, len(verdicts) - accepted, time.monotonic() - began)
        return verdicts

    def _collected(
        self, arrivals: Arrivals, kind: str, messages: list[Message], enough: int | None
    ) -> tuple[list[tuple[Message, Message | None]], list[ReplyCheck]]:
        """The messages with the replies that were waited for, and a check for each reply that is late."""
        hurried = kind == "train" and self.deadline is not None and self.deadline < self.timeout
        limit = self.deadline if hurried and self.deadline is not None else self.timeout
        wanted = len(messages) if enough is None else enough
        received, missing = collect(
            arrivals,
            messages,
            arrivals.now + limit,
            wanted,
            progress=lambda count: self.listener.arrived(count, len(messages)),
            too_late=self.listener.discarded,
        )
        came = sum(answer is not None and not answer.has_error() for _, answer in received)
        if not hurried and came < wanted:  # the patience is at an end: these have failed
            return [*received, *((message, None) for message in missing)], []
        reason = f"late: {came} others had answered" if came >= wanted else f"late: no reply within {limit:g} s"
        return received, [ReplyCheck(self.partition(message), None, reason, late=True) for message in missing]

    def judged(
        self,
        kind: str,
        server_round: int,
        received: Sequence[tuple[int, Message | None]],
        expected: ArrayRecord | None,
        late: Sequence[ReplyCheck] = (),
        fitted: Mapping[int, Submodel] = MappingProxyType({}),
    ) -> list[ReplyCheck]:
        """Check replies and apply the bounds; call the listener for each reply, also for the `late` ones.

        Parameters
        ----------
        kind : str
        server_round : int
        received : sequence of (client, Message or None)
        expected : ArrayRecord or None
            As in `hold`.
        late : sequence of ReplyCheck
            Replies that are not waited for.
        fitted : mapping of client to Submodel
            What clients received in place of `expected`.

        Returns
        -------
        list of ReplyCheck, by partition id
        """
        faults = self._read(received, fitted, expected)
        verdicts = judge(
            received,
            reference=expected,
            arrays_key=self.keys.arrays,
            weight_key=self.keys.weight,
            needs_steps=self.needs_steps and kind == "train",
            timeout=self.timeout,
            same_metrics=kind != "unlearn",  # never averaged, and a client without retain records measures less
            numbers=self.numbers.get(kind),
            own={client: one.sent for client, one in fitted.items()},
        )
        verdicts = [replace(v, reason=faults[v.partition]) if v.partition in faults else v for v in verdicts]
        verdicts = join(verdicts, fitted, self.keys.arrays)
        cuts: list[Clipped] = []
        if self.bounds is not None:
            verdicts, cuts = self.bounds.apply(kind, verdicts, expected, self.keys.arrays, self.keys.weight)
        for verdict in late:
            self.listener.late(verdict.partition, verdict.reason)
        for verdict in verdicts:
            self.listener.reply(verdict.partition, verdict.reply is not None, verdict.reason)
            if verdict.reply is None:
                text = "client %d left out of the %s exchange: %s"
                self.warn(server_round, text, verdict.partition, kind, verdict.reason)
        self.tell_cuts(server_round, cuts)
        return sorted([*verdicts, *late], key=lambda verdict: verdict.partition)

    def tell_cuts(self, server_round: int, cuts: Sequence[Clipped]) -> None:
        """Report to listener and log the weights and norms that were clipped."""
        for cut in cuts:
            self.listener.cut(cut.client, cut.what, cut.told, cut.used)
            text = "client %d: the %s %g of its reply counts as %g"
            self.warn(server_round, text, cut.client, cut.what, cut.told, cut.used)

    def _read(
        self,
        received: Sequence[tuple[int, Message | None]],
        fitted: Mapping[int, Submodel],
        expected: ArrayRecord | None,
    ) -> dict[int, str]:
        """Decompress replies in place; returns by client what is wrong with a reply that cannot be read."""
        if self.compression is None or expected is None:
            return {}

        def sent(client: int) -> ArrayRecord:
            return fitted[client].sent if client in fitted else expected

        return read_answers(received, sent, self.compression.read, self.keys.arrays)

    def _fitted(self, kind: str, messages: Sequence[Message], expected: ArrayRecord | None) -> dict[int, Submodel]:
        """The submodel of each addressed client that does not receive the global model itself."""
        if self.fitting is None or expected is None:
            return {}
        of_client = self.fitting(kind, expected)
        found = {client: of_client(client) for client in map(self.partition, messages)}
        return {client: one for client, one in found.items() if one is not None}

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
        """Hold an exchange as a secure sum; see `SecureExchange.hold`. The listener is called for each client.

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
        assert self.secure is not None, "only where sums are secure"
        began = time.monotonic()
        self.listener.exchange_started(kind, sorted(self.partition(m) for m in messages))
        exchange = self._secure_exchange
        summed = exchange.hold(kind, messages, sent, self.timeout, one_each=one_each, committed=committed)
        if summed.fault:
            summed = replace(summed, fault=f"the secure sum failed: {summed.fault}")
            self.warn(server_round, "%s exchange: %s", kind, summed.fault)
        for client in sorted(self.partition(m) for m in messages):
            reason = summed.left_out.get(client, summed.fault)
            self.listener.reply(client, not reason, reason)
            if reason != summed.fault:
                self.warn(server_round, "client %d left out of the %s exchange: %s", client, kind, reason)
        if summed.clipped:
            text = "%d numbers of the clients' updates lay outside of ± %g and were cut (secure aggregation's clipping)"
            self.warn(server_round, text, summed.clipped, self.secure.clipping)
        if summed.cut:
            text = "%d clients hold more than %d records and count as so many (secure aggregation's max_weight)"
            self.warn(server_round, text, summed.cut, self.secure.max_weight)
        accepted = len(summed.survivors)
        self.listener.exchange_ended(kind, accepted, len(messages) - accepted, time.monotonic() - began)
        return summed

    @property
    def _secure_exchange(self) -> SecureExchange:
        """The secure exchange of these settings."""
        assert self.secure is not None
        return SecureExchange(self.grid, self.partition, self.secure)

    def _of_all(
        self, kind: str, server_round: int, messages: Sequence[Message], expected: ArrayRecord
    ) -> list[ReplyCheck]:
        """As `hold`, by a secure sum: one check for all clients in the sum, and one for each of the others."""
        summed = self.sum_up(kind, server_round, messages, expected)
        failed = [ReplyCheck(client, None, reason) for client, reason in sorted(summed.left_out.items())]
        if summed.fault or summed.weight == 0:
            return failed
        good = self._secure_exchange.verdict(kind, summed, expected, self.keys.arrays, self.keys.weight)
        return [good, *failed]

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
        nodes = self.nodes.refresh(self.grid)
        messages = [
            Message(content, dst_node_id=nodes[client], message_type=message_keys.TRAIN)
            for client in clients
            if client in nodes
        ]
        return self.hold("calibrate", server_round, messages, arrays)

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
        nodes = self.nodes.refresh(self.grid)
        content = RecordDict({self.keys.config: self.config(server_round, {})})
        messages = [
            Message(content, dst_node_id=nodes[client], message_type=message_keys.NUDGE)
            for client in clients
            if client in nodes
        ]
        received = answers(messages, self.grid.send_and_receive(messages, timeout=within)) if messages else []
        return {self.partition(m) for m, answer in received if answer is not None and not answer.has_error()}

    def warn(self, server_round: int, text: str, *values: object) -> None:
        """Log a warning about a round; `values` fill the % fields of `text`."""
        log(WARNING, f"[{self.stage}] round %d: {text}", server_round, *values)

    def partition(self, message: Message) -> int:
        """The client that a message goes to, -1 for an unknown one."""
        return self.nodes.client_of(message)
