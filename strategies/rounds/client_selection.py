"""Redirects a Flower strategy's training messages to the clients that a `Sampling` selects, or to further clients."""

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
    """The client selection of one round.

    Attributes
    ----------
    sampling : Sampling
        How clients are selected.
    labels : sequence
        Together they seed the selection.
    drawn : Selection
        The selection, after `redirect`.
    """

    sampling: Sampling
    labels: Sequence[object]
    drawn: Selection = field(default_factory=lambda: Selection(()))

    def redirect(self, messages: Sequence[Message], able: Mapping[int, int], reach: Reach) -> list[Message]:
        """Address messages to selected clients instead of those that the strategy sampled.

        Parameters
        ----------
        messages : sequence of Message
        able : mapping of int
            Node ids by partition of the clients that may train.
        reach : Reach
            Asks clients whether they are there.

        Returns
        -------
        list of Message
            At most as many as were given.
        """
        rng = random.Random("/".join(map(str, self.labels)))
        self.drawn = self.sampling.draw(sorted(able), len(messages), rng, reach)
        return [
            Message(message.content, dst_node_id=able[client], message_type=message.metadata.message_type)
            for message, client in zip(messages, self.drawn.clients, strict=False)
        ]

    def hear(self, verdicts: Sequence[ReplyCheck], bounds: Bounds | None, weight_key: str) -> list[Clipped]:
        """Give each good reply the weight of the selection, and report clients and losses to the sampling.

        Parameters
        ----------
        verdicts : sequence of ReplyCheck
            Their replies are changed in place.
        bounds : Bounds or None
            Caps the weights' shares.
        weight_key : str

        Returns
        -------
        list of Clipped
            The weights that `bounds` lowered.
        """
        clipped = list[Clipped]()
        good = {v.partition: v for v in verdicts if v.reply is not None}
        if (weights := self.drawn.weights) is not None:
            used = {client: weights[client] for client in good}
            for client, weight in (used if bounds is None else bounds.shared(used)).items():
                set_weight(good[client], weight_key, weight)
                if weight != used[client]:
                    clipped.append(Clipped(client, "weight", used[client], weight))
        reported = {c: metrics_of(v.reply).get(LOSS) for c, v in good.items() if v.reply is not None}
        losses = {c: float(loss) for c, loss in reported.items() if isinstance(loss, int | float)}
        self.sampling.heard(self.drawn.clients, losses)
        return clipped


def further(messages: Sequence[Message], nodes: Sequence[int], factor: float) -> list[Message]:
    """Messages to further clients, sampled uniformly with Python's global `random`.

    Parameters
    ----------
    messages : sequence of m Message
    nodes : sequence of int
        Node ids to sample from; those that `messages` go to are passed over.
    factor : float, at least 1
        ⌈m · factor⌉ − m messages are added, or as many as there are nodes.

    Returns
    -------
    list of Message
        With the content of the first message.
    """
    more = ceil_of(factor, len(messages)) - len(messages)
    if more <= 0:
        return []
    asked = {message.metadata.dst_node_id for message in messages}
    others = [node for node in nodes if node not in asked]
    first = messages[0]
    drawn = random.sample(others, min(more, len(others)))
    return [Message(first.content, dst_node_id=node, message_type=first.metadata.message_type) for node in drawn]
