"""Around any Flower strategy: its training messages go to the clients that a `Sampling` draws, or to more of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message

from strategies.exact_shares import ceil_of
from strategies.replies import ReplyCheck, metrics_of
from strategies.rounds.client_sampling import Reach, Sampling, Selection
from strategies.rounds.update_bounds import Bounds, Clipped, set_weight

LOSS = "train-loss"
"""Metric of a training reply: the client's mean loss at the end of its local training."""


@dataclass(slots=True)
class Drawing:
    """One round's draw by `sampling`; `labels` seed it."""

    sampling: Sampling
    labels: Sequence[object]
    drawn: Selection = field(default_factory=lambda: Selection(()))

    def redirect(self, messages: Sequence[Message], able: Mapping[int, int], reach: Reach) -> list[Message]:
        """At most as many messages as were given, to clients drawn among `able`, node ids by partition."""
        rng = random.Random("/".join(map(str, self.labels)))
        self.drawn = self.sampling.draw(sorted(able), len(messages), rng, reach)
        return [
            Message(message.content, dst_node_id=able[client], message_type=message.metadata.message_type)
            for message, client in zip(messages, self.drawn.clients, strict=False)
        ]

    def hear(self, verdicts: Sequence[ReplyCheck], bounds: Bounds | None, weight_key: str) -> list[Clipped]:
        """Have each good reply count what the draw says, and tell the sampling who was asked and their losses.

        Returns the weights that `bounds` lowered.
        """
        cuts = list[Clipped]()
        good = {v.partition: v for v in verdicts if v.reply is not None}
        if (weights := self.drawn.weights) is not None:
            used = {client: weights[client] for client in good}
            for client, weight in (used if bounds is None else bounds.shared(used)).items():
                set_weight(good[client], weight_key, weight)
                if weight != used[client]:
                    cuts.append(Clipped(client, "weight", used[client], weight))
        told = {c: metrics_of(v.reply).get(LOSS) for c, v in good.items() if v.reply is not None}
        losses = {c: float(loss) for c, loss in told.items() if isinstance(loss, int | float)}
        self.sampling.heard(self.drawn.clients, losses)
        return cuts


def further(messages: Sequence[Message], nodes: Sequence[int], factor: float) -> list[Message]:
    """Messages like the m `messages` to ⌈m · factor⌉ − m further ones of `nodes`, drawn uniformly by `random`."""
    more = ceil_of(factor, len(messages)) - len(messages)
    if more <= 0:
        return []
    asked = {message.metadata.dst_node_id for message in messages}
    others = [node for node in nodes if node not in asked]
    first = messages[0]
    drawn = random.sample(others, min(more, len(others)))
    return [Message(first.content, dst_node_id=node, message_type=first.metadata.message_type) for node in drawn]
