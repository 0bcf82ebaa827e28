"""FedTU's source of requests in a federation whose clients make their own: each round the server asks them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path

from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from oblivionis.chain import HASH
from oblivionis.errors import OblivionisError
from oblivionis.requests.holdings import LedgerRequests
from oblivionis.requests.ledger import REJECTED, Ledger, Request
from oblivionis.requests.node_ledger import NodeLedger
from oblivionis.requests.wire import (
    Answer,
    Question,
    Told,
    outcome_of,
    read_answer,
    read_question,
    write_answer,
    write_question,
)
from strategies import protocol
from strategies.nodes import NodeMap
from strategies.requests import UnlearnRequest

Warn = Callable[[str], None]


class NodeRequests(LedgerRequests):
    """At the start of every round all connected nodes are asked for requests and told what became of earlier ones.

    An id is entered once for each client, however often it is told; when two clients chose the same id, the later one
    is called `<id>-client-0003` here. No record is asked for twice: a request keeps those that no earlier one of its
    client names. What a node has not confirmed it is told again. Every query leaves the newest hash of either ledger in
    the other, so that neither can be cut or written anew without the other showing it.

    `settings` also go into each query: where the folders of nodes lie that were started without one, in a simulation.
    `live`: how many records a client can be trained on. `most`: how many requests of one client are taken up, and how
    many are served, in a round; what is beyond waits, and a warning and a line of the ledger say so.
    """

    def __init__(
        self,
        ledger: Ledger,
        max_rouge: float,
        *,
        run: str,
        nodes: NodeMap,
        grid: Grid,
        settings: Mapping[str, object],
        live: Callable[[int], int],
        warn: Warn,
        most: int = 100,
        again: int = 0,
    ) -> None:
        super().__init__(ledger, max_rouge, again)
        self._most = most
        self._run, self._nodes, self._grid, self._settings = run, nodes, grid, dict(settings)
        self._live, self._warn, self._round = live, warn, 0

    def pending(self, server_round: int) -> Sequence[UnlearnRequest]:
        """Ask the nodes, enter what is new, then list what is pending."""
        self._round = server_round
        for client, answer in self._ask(server_round).items():
            self._enter(client, answer.requests, server_round)
        served = Counter[int]()
        chosen = []
        for request in self._ledger.pending(server_round):
            served[request.client] += 1
            if served[request.client] <= self._most:
                chosen.append(request)
        return [UnlearnRequest(r.id, r.client, r.record_ids, scope=r.scope) for r in chosen]

    def live(self, client: int) -> int:
        """Records of `client` as far as the server knows; none from the moment on at which it asks to leave."""
        if self.leaves(client):
            return 0
        # What is asked for in this round was still counted when the client was asked at its beginning.
        new = [r for r in self._ledger.of_client(client) if r.served_round in (None, self._round)]
        return self._live(client) - len({i for r in new if r.state != REJECTED for i in r.record_ids})

    def close(self, server_round: int) -> None:
        """Tell the nodes the last outcomes. What they ask for now waits for another run: no round is left."""
        self._ask(server_round)

    def tell_again(self, server_round: int) -> None:
        """Tell the nodes of a stage that ended after `round` earlier what they have not confirmed, if anything."""
        if self._ledger.has_unacknowledged:
            self._ask(server_round)

    def _ask(self, server_round: int) -> dict[int, Answer]:
        if not self._ledger.notes("opened"):
            self._ledger.note("opened", run=self._run)
        replies = self._nodes.ask(self._grid, lambda client: self._question(client, server_round))
        answered: dict[int, Answer] = {}
        for client, content in replies.items():
            try:
                answered[client] = read_answer(content.config_records[protocol.REQUESTS])
            except KeyError:
                self._warn(f"client {client} does not say which requests were made on it: its program is too old")
            except OblivionisError as error:
                self._warn(f"what client {client} says of its requests is set aside: {error}")
        if answered:
            self._ledger.note("asked", round=server_round, heads={str(c): a.head for c, a in answered.items()})
        for client, answer in answered.items():
            self._ledger.acknowledged(client, answer.acknowledged)
        return answered

    def _question(self, client: int, server_round: int) -> dict[str, object]:
        outcomes = [
            outcome_of(line, self._ledger.get(line["id"]).told, line[HASH])
            for line in self._ledger.unacknowledged(client)
        ]
        ledger = self._ledger
        question = Question(self._run, ledger.first, ledger.head, server_round, tuple(outcomes))
        return {**self._settings, **write_question(question)}

    def _enter(self, client: int, told: Sequence[Told], server_round: int) -> None:
        """Take up what is new, but no more than `most` requests; the node tells of the others again."""
        mine = self._ledger.of_client(client)
        known = {r.told for r in mine}
        new = [t for t in told if t.id not in known]
        if left := len(new[self._most :]):
            text = f"client {client} made {len(new)} requests at once: {self._most} are taken up, {left} wait"
            self._warn(f"{text} (unlearning.requests.max_per_round)")
            self._ledger.note("waiting", client=client, round=server_round, count=left)
        if not new:
            return
        asked = {i for r in mine if r.state != REJECTED for i in r.record_ids}
        entered: dict[str, Request] = {}
        for one in new[: self._most]:
            records = tuple(i for i in one.record_ids if i not in asked)
            asked.update(records)
            already, name = len(one.record_ids) - len(records), self._free_id(client, one.id, entered)
            entered[name] = Request(name, client, records, server_round, scope=one.scope, already=already, told=one.id)
        self._ledger.submit(*entered.values())

    def _free_id(self, client: int, wanted: str, taken: Container[str]) -> str:
        """The node's own id, unless another client's request has it: ids are chosen on machines that know no other."""
        others = (f"{wanted}-client-{client:04d}-{n}" for n in itertools.count(2))
        names = itertools.chain((wanted, f"{wanted}-client-{client:04d}"), others)
        return next(name for name in names if name not in self._ledger and name not in taken)


def answer_query(config: Mapping[str, object], client: int, folder: Path) -> ConfigRecord | None:
    """What a node says of its requests when a query asks for them, after entering what the query told; None if it does
    not ask. `folder` is the node's own. Raises OblivionisError."""
    question = read_question(config)
    if question is None:
        return None
    ledger = NodeLedger(folder)
    confirmed = ledger.heard(
        question.run,
        question.ledger,
        question.outcomes,
        client=client,
        round=question.round,
        server_head=question.head,
    )
    told = tuple(Told(r.id, r.scope, r.record_ids) for r in ledger.unsettled())
    return write_answer(Answer(told, ledger.head(), tuple(confirmed)))
