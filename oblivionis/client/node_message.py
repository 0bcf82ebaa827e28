"""A server's message as it reaches one client."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from oblivionis.client.node_policy_guard import Guard
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.node_record_files import DATA_NODES, NODE_DIR, NODES_DIR, node_folder
from oblivionis.erasure.unlearn_messages import Demand, read_demands
from oblivionis.errors import ClientError
from oblivionis.runtime import client_process
from strategies import message_keys
from strategies.secure import stage_keys
from strategies.secure.client import Participant


class NodeMessage:
    """A message with the client that it reached: that client's number, folder, policy and state between messages."""

    def __init__(self, message: Message, context: Context) -> None:
        self.message, self._context = message, context
        self.kind = message.metadata.message_type
        self._records = message.content if message.has_content() else RecordDict()
        self.config: Mapping[str, Any] = self._records.config_records.get(message_keys.CONFIG, ConfigRecord())
        self.partition_id = context.node_config.get("partition-id")

    @property
    def client(self) -> int:
        """The client's partition id; ClientError where its node was started without one."""
        if self.partition_id is None:
            raise ClientError('this node has no partition-id; start it with --node-config "partition-id=…"')
        return int(self.partition_id)

    @cached_property
    def node(self) -> NodeFolder:
        """The client's folder."""
        return node_folder(self._context.node_config, self.config, self.client)

    @cached_property
    def guard(self) -> Guard | None:
        """The policy of a client that names its own folder; Refused where the policy is faulty."""
        return Guard.of(self._context.node_config, self.client, self.kind)

    @property
    def has_folder(self) -> bool:
        """Whether the client has a folder at all: hand-made messages may name none."""
        return any((self._context.node_config.get(NODE_DIR), self.config.get(NODES_DIR), self.config.get(DATA_NODES)))

    @property
    def has_own_records(self) -> bool:
        """Whether the client's records are its own, so that no error message, which may quote them, may leave it."""
        return any((self._context.node_config.get(NODE_DIR), self.config.get(DATA_NODES)))

    @property
    def simulated(self) -> bool:
        """Whether this is a process of a simulation, this program's or Flower's own on Ray; a SuperNode's is none."""
        ray = sys.modules.get("ray")
        return self.guard is None and (client_process.simulated() or (ray is not None and ray.is_initialized()))

    @property
    def sealed(self) -> bool:
        """Whether the client's policy reveals no request to any server."""
        return self.guard is not None and self.guard.sealed

    def text(self, key: str) -> str:
        """A text of the message's settings, empty where it has none."""
        return str(self.config.get(key, ""))

    def integer(self, key: str, default: int) -> int:
        """An integer of the message's settings."""
        return int(self.config.get(key, default))

    def real(self, key: str, default: float) -> float:
        """A number of the message's settings."""
        return float(self.config.get(key, default))

    @property
    def run(self) -> str:
        """The name of the run."""
        return self.text(message_keys.RUN)

    @property
    def stage(self) -> str:
        """The stage of the run."""
        return self.text(message_keys.STAGE)

    @property
    def round(self) -> int:
        """The round of the stage."""
        return self.integer(message_keys.SERVER_ROUND, 0)

    @property
    def replay(self) -> int | None:
        """In which round of unlearn this past round is held again; None for a round of its own."""
        return self.integer(message_keys.REPLAY, 0) if message_keys.REPLAY in self.config else None

    @property
    def trains(self) -> bool:
        """Whether a model comes back, changed by training or unlearning."""
        return self.kind in (message_keys.TRAIN, message_keys.UNLEARN)

    @property
    def has_model(self) -> bool:
        """Whether the message has a model."""
        return message_keys.ARRAYS in self._records.array_records

    @property
    def vector(self) -> np.ndarray:
        """The model that the server sent, (n,) float32."""
        return self._array(message_keys.ARRAYS)

    @property
    def reference(self) -> np.ndarray | None:
        """The model of the clients without requests, (n,) float32; None where the server sent none."""
        return self._array(message_keys.REFERENCE) if message_keys.REFERENCE in self._records.array_records else None

    def _array(self, record: str) -> np.ndarray:
        """The flat parameters in an ArrayRecord of the message."""
        return np.array(self._records.array_records[record][message_keys.ADAPTER].numpy(), dtype=np.float32)

    def moving(self) -> np.ndarray | None:
        """Which numbers of the model training may change, (n,), bool; None for all. ClientError for other than a bit
        for each."""
        bits = self.config.get(message_keys.MOVING)
        if bits is None:
            return None
        size = self.vector.size
        if not isinstance(bits, bytes) or len(bits) != -(-size // 8):
            raise ClientError(f"client {self.client} was not sent a bit for each of {size} numbers")
        return np.unpackbits(np.frombuffer(bits, np.uint8), count=size).astype(bool)

    @property
    def masked(self) -> bool:
        """Whether the reply goes into a sum under masks."""
        return stage_keys.RECORD in self._records.config_records

    @property
    def stage_record(self) -> ConfigRecord:
        """What the message says of the secure sum, empty where it belongs to none."""
        return self._records.config_records.get(stage_keys.RECORD, ConfigRecord())

    @property
    def participant(self) -> Participant:
        """The client's side of the secure sum, whose state lies in Flower's context."""
        state = self._context.state
        if stage_keys.RECORD not in state.config_records:
            state[stage_keys.RECORD] = ConfigRecord()
        return Participant(state.config_records[stage_keys.RECORD], self.client)

    @property
    def covering(self) -> bool:
        """Whether the message also goes to clients without requests."""
        return self.masked and bool(self.config.get(message_keys.COVER))

    @property
    def names_requests(self) -> bool:
        """Whether the message names the requests that it serves."""
        return message_keys.REQUEST_IDS in self.config

    def demands(self) -> tuple[Demand, ...]:
        """The requests that the message serves or audits, none in a cover exchange that names none.

        DemandError where they make no sense; Refused for what nobody asked for on this node.
        """
        if self.covering and not self.names_requests:
            return ()
        demands = read_demands(self.config)
        if self.guard is not None:
            self.guard.check_demands(demands)
        return demands

    def request_ids(self) -> list[str]:
        """Ids of the requests that the message is about."""
        return [demand.request_id for demand in read_demands(self.config)]

    def reply(self, content: RecordDict) -> Message:
        """A reply with this content."""
        return Message(content, reply_to=self.message)

    def stage_reply(self, answer: ConfigRecord) -> Message:
        """A reply that belongs to a secure sum."""
        return self.reply(RecordDict({stage_keys.RECORD: answer}))
