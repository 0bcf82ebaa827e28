"""A Flower grid whose nodes run the real ClientApp in this process, one after another: no Ray, no network."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Tamper = Callable[[int, Message, Message], Message | None]


class InProcessGrid(Grid):
    """`clients` nodes with scattered node ids. `tamper` may change or withhold the answer of a partition."""

    def __init__(self, app: ClientApp, clients: int, tamper: Tamper | None = None) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.contexts = {
            1_000_003 * (partition + 7) % 2_147_483_647: Context(
                run_id=1,
                node_id=partition,
                node_config={"partition-id": partition, "num-partitions": clients},
                state=RecordDict(),
                run_config={},
            )
            for partition in reversed(range(clients))
        }
        self.app, self.tamper = app, tamper
        self.sent: list[tuple[int, str]] = []
        self._numbers = itertools.count(1)
        self._replies: dict[str, Message] = {}

    def set_run(self, run) -> None: ...

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            identifier = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = identifier
            ids.append(identifier)
            context = self.contexts[message.metadata.dst_node_id]
            partition = int(context.node_config["partition-id"])
            self.sent.append((partition, message.metadata.message_type))
            reply = self.app(message=message, context=context)
            if self.tamper is not None:
                reply = self.tamper(partition, message, reply)
            if reply is not None:
                self._replies[identifier] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(i) for i in list(message_ids) if i in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(list(messages)))
