"""One exchange between server and clients: messages out, answers judged, the listener told."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from strategies import protocol, told
from strategies.bounds import Bounds, Cut
from strategies.listener import Listener
from strategies.nodes import NodeMap
from strategies.replies import Verdict, answers, judge


@dataclass(frozen=True, slots=True)
class Keys:
    """What a Flower strategy calls the records and the weight of a message."""

    arrays: str
    config: str
    weight: str

    @classmethod
    def of(cls, strategy: object) -> Keys:
        """Those of `strategy`, and Flower's defaults where it names none."""
        return cls(
            getattr(strategy, "arrayrecord_key", protocol.ARRAYS),
            getattr(strategy, "configrecord_key", protocol.CONFIG),
            getattr(strategy, "weighted_by_key", protocol.NUM_EXAMPLES),
        )


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Holds the exchanges of one stage. `timeout` in seconds; `stage` and `seed` go into the config of each message."""

    grid: Grid
    nodes: NodeMap
    listener: Listener
    keys: Keys
    stage: str
    seed: int
    timeout: float
    needs_steps: bool = False
    """Whether a reply to a `train` exchange must tell the number of local steps."""
    numbers: Mapping[str, told.Numbers] = field(default_factory=dict)
    """By kind of exchange, which numbers are taken of replies; all of them for a kind that is not named."""
    bounds: Bounds | None = None
    """What a single client may count at most."""

    def config(self, server_round: int, settings: Mapping[str, Any]) -> ConfigRecord:
        """The ConfigRecord of a message: `settings`, and which round of what this is."""
        return ConfigRecord(
            {
                **settings,
                protocol.SERVER_ROUND: server_round,
                protocol.STAGE: self.stage,
                protocol.RUN_SEED: self.seed,
            }
        )

    def hold(
        self, kind: str, server_round: int, messages: list[Message], expected: ArrayRecord | None
    ) -> list[Verdict]:
        """Send `messages`, judge the answers, tell the listener. `expected`: what the model in a good answer is like,
        None where an answer holds no model.
        """
        if not messages:
            return []
        began = time.monotonic()
        self.listener.exchange_started(kind, sorted(self._partition(m) for m in messages))
        received = answers(messages, self.grid.send_and_receive(messages, timeout=self.timeout))
        verdicts = judge(
            [(self._partition(message), answer) for message, answer in received],
            reference=expected,
            arrays_key=self.keys.arrays,
            weight_key=self.keys.weight,
            needs_steps=self.needs_steps and kind == "train",
            timeout=self.timeout,
            same_metrics=kind != "unlearn",  # never averaged, and a client without retain records measures less
            numbers=self.numbers.get(kind),
        )
        cuts: list[Cut] = []
        if self.bounds is not None:
            verdicts, cuts = self.bounds.apply(kind, verdicts, expected, self.keys.arrays, self.keys.weight)
        for verdict in verdicts:
            self.listener.reply(verdict.partition, verdict.reply is not None, verdict.reason)
            if verdict.reply is None:
                text = "client %d left out of the %s exchange: %s"
                self.warn(server_round, text, verdict.partition, kind, verdict.reason)
        for cut in cuts:
            self.listener.cut(cut.client, cut.what, cut.told, cut.used)
            text = "client %d: the %s %g of its reply counts as %g"
            self.warn(server_round, text, cut.client, cut.what, cut.told, cut.used)
        accepted = sum(v.reply is not None for v in verdicts)
        self.listener.exchange_ended(kind, accepted, len(verdicts) - accepted, time.monotonic() - began)
        return verdicts

    def train_again(
        self,
        server_round: int,
        train_config: Mapping[str, Any],
        clients: Sequence[int],
        arrays: ArrayRecord,
        settings: Mapping[str, Any],
    ) -> list[Verdict]:
        """An exchange of ordinary training from `arrays`, with `settings` on top of the usual `train_config`."""
        config = ConfigRecord({**self.config(server_round, train_config), **settings})
        content = RecordDict({self.keys.arrays: arrays, self.keys.config: config})
        nodes = self.nodes.refresh(self.grid)
        messages = [
            Message(content, dst_node_id=nodes[client], message_type=protocol.TRAIN)
            for client in clients
            if client in nodes
        ]
        return self.hold("calibrate", server_round, messages, arrays)

    def warn(self, server_round: int, text: str, *values: object) -> None:
        """Log a warning about a round."""
        log(WARNING, f"[{self.stage}] round %d: {text}", server_round, *values)

    def _partition(self, message: Message) -> int:
        partition = self.nodes.partition(message.metadata.dst_node_id)
        return -1 if partition is None else partition
