"""FedTU's sources of requests in a federation whose clients make their own: each round the server asks them, or, where
the requests are sealed, tells them only."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from oblivionis.chain import HASH
from oblivionis.erasure.hidden_requests import enter_outcomes
from oblivionis.erasure.ledger import EXCHANGE, EXCHANGE_FAILED, EXCHANGE_UNDONE, Ledger, without
from oblivionis.erasure.node_ledger import NodeLedger, not_held
from oblivionis.erasure.query_schema import (
    COUNTED,
    LEFT_OUT,
    MOST_LINES,
    MOST_RECORDS,
    ROLLED_BACK,
    Answer,
    Question,
    Reported,
    SessionOutcome,
    as_many_as_fit,
    outcome_of,
    read_answer,
    read_question,
    write_answer,
    write_question,
)
from oblivionis.erasure.record_holders import LedgerRequests, demanded
from oblivionis.erasure.request import REJECTED, Request
from oblivionis.erasure.verification_rules import Thresholds
from oblivionis.errors import OblivionisError
from oblivionis.runs.ancestry import Descent
from strategies import message_keys
from strategies.message_keys import SCOPE_CLIENT
from strategies.rounds.nodes import NodeMap
from strategies.rounds.request_source import UnlearnRequest

Warn = Callable[[str], None]


class AskingNodes(LedgerRequests):
    """A source that asks all connected nodes and tells them what they have not confirmed.

    Every query leaves the newest hash of either ledger in the other, so that neither can be cut or written anew without
    the other showing it. `settings` also go into each query: where the folders of nodes lie that were started without
    one, in a simulation. `live`: how many records a client can be trained on. `descent`: of the run's first model,
    where others made that.
    """

    def __init__(
        self,
        ledger: Ledger,
        thresholds: Thresholds,
        *,
        run: str,
        nodes: NodeMap,
        grid: Grid,
        settings: Mapping[str, object],
        live: Callable[[int], int],
        warn: Warn,
        last_round: int,
        again: int = 0,
        per_round: int | None = None,
        descent: Descent | None = None,
    ) -> None:
        super().__init__(ledger, thresholds, last_round, again, per_round)
        self._descent = descent
        self._run, self.nodes, self._grid, self._settings = run, nodes, grid, dict(settings)
        self._live, self._warn = live, warn

    def close(self, server_round: int) -> None:
        """Tell the nodes the last outcomes. What they ask for now waits for another run: no round is left."""
        self._ask(server_round)

    def tell_again(self, server_round: int) -> None:
        """Tell the nodes of a stage that ended after `round` earlier what they have not confirmed, if anything."""
        if self._has_unconfirmed:
            self._ask(server_round)

    def _ask(self, server_round: int) -> dict[int, Answer]:
        if not self._ledger.notes("opened"):
            self._ledger.note("opened", run=self._run)
        replies = self.nodes.ask(self._grid, lambda client: self.question(client, server_round))
        answered: dict[int, Answer] = {}
        for client, content in replies.items():
            try:
                answered[client] = read_answer(content.config_records[message_keys.REQUESTS])
            except KeyError:
                self._warn(f"client {client} does not say which requests were made on it: its program is too old")
            except OblivionisError as error:
                self._warn(f"what client {client} says of its requests is set aside: {error}")
        if answered:
            self._ledger.note("asked", round=server_round, heads={str(c): a.head for c, a in answered.items()})
        for client, answer in answered.items():
            self._confirmed(client, answer.acknowledged)
        return answered

    @property
    def _has_unconfirmed(self) -> bool:
        """Whether any node has yet to confirm something."""
        return self._ledger.has_unacknowledged

    def _confirmed(self, client: int, lines: Sequence[str]) -> None:
        """Note which lines `client` has entered."""
        self._ledger.acknowledged(client, lines)

    def question(self, client: int, server_round: int) -> dict[str, object]:
        """What the query to `client` says."""
        raise NotImplementedError

    def _question(self, server_round: int, **said: Any) -> dict[str, object]:
        """The same with what every query says: of which run, and of which models that comes."""
        ledger, descent = self._ledger, self._descent
        models = () if descent is None else descent.models[-MOST_LINES:]
        comes_of = {} if descent is None else {"model": descent.model, "models": models, "runs": descent.runs}
        question = Question(self._run, ledger.first, ledger.head, server_round, lines=ledger.count, **comes_of, **said)
        return {**self._settings, **write_question(question)}


class NodeRequests(AskingNodes):
    """At the start of every round all connected nodes are asked for requests and get the outcomes of earlier ones.

    An id is entered once for each client, however often it is reported; when two clients chose the same id, the later
    one is called `<id>-client-0003` here. No record is asked for twice: a request keeps those that no earlier one of
    its client names. What a node has not confirmed is sent again. A request that its node no longer reports waits: an
    exchange that names one record too many serves none of its client's requests.

    `most`: how many requests of one client are taken up, and how many are served, in a round; what is beyond waits, and
    a warning and a line of the ledger say so. The rest as for `AskingNodes`.
    """

    def __init__(self, ledger: Ledger, thresholds: Thresholds, *, most: int = 100, **asking: Any) -> None:
        super().__init__(ledger, thresholds, **asking)
        self._most, self._round = most, 0
        self._unreported = frozenset[str]()

    def pending(self, server_round: int) -> Sequence[UnlearnRequest]:
        """Ask the nodes, enter what is new, then list what is pending."""
        self._round = server_round
        unreported = set[str]()
        for client, answer in self._ask(server_round).items():
            self._enter(client, answer.requests, server_round)
            reported = {r.id for r in answer.requests}
            unreported.update(r.id for r in self._ledger.of_client(client) if r.told not in reported)
        self._unreported = frozenset(unreported)
        return [demanded(r) for r in self.due(server_round, self._most, self._unreported)]

    def again(self, server_round: int) -> list[UnlearnRequest]:
        return [r for r in super().again(server_round) if r.request_id not in self._unreported]

    def live(self, client: int) -> int:
        """Records of `client` as far as the server knows; none from the moment on at which it asks to leave."""
        if self.leaves(client):
            return 0
        # What is asked for in this round was still counted when the client was asked at its beginning.
        new = [r for r in self._ledger.of_client(client) if r.served_round in (None, self._round)]
        return self._live(client) - len({i for r in new if r.state != REJECTED for i in r.record_ids})

    def question(self, client: int, server_round: int) -> dict[str, object]:
        """The outcomes that `client` has not confirmed, `MOST_LINES` of them at most."""
        outcomes = [
            outcome_of(line, self._ledger.get(line["id"]).told, line[HASH])
            for line in self._ledger.unacknowledged(client)[:MOST_LINES]
        ]
        return self._question(server_round, outcomes=tuple(outcomes))

    def _enter(self, client: int, reported: Sequence[Reported], server_round: int) -> None:
        """Take up what is new, but no more than `most` requests, and in a run no more than name `MOST_RECORDS` records;
        the node tells of the others again."""
        earlier = self._ledger.of_client(client)
        known = {r.told for r in earlier}
        new = [r for r in reported if r.id not in known]
        taken = as_many_as_fit(new, self._most, sum(len(r.record_ids) + len(r.covered) for r in earlier))
        if left := len(new) - len(taken):
            full = f"for at most {MOST_RECORDS:,} records of one client in a run"
            why = "unlearning.requests.max_per_round" if len(taken) == self._most else full
            text = f"client {client} made {len(new)} requests at once: {len(taken)} are taken up, {left} wait"
            self._warn(f"{text} ({why})")
            self._ledger.note("waiting", client=client, round=server_round, count=left)
        if not taken:
            return
        asked = {i for r in earlier if r.state != REJECTED for i in r.record_ids}
        entered: dict[str, Request] = {}
        for one in taken:
            name = self._free_id(client, one.id, entered)
            made = Request(name, client, one.record_ids, server_round, scope=one.scope, told=one.id)
            entered[name] = without(made, asked)
            asked.update(one.record_ids)
        self._ledger.submit(*entered.values())

    def _free_id(self, client: int, wanted: str, taken: Container[str]) -> str:
        """The node's own id, unless another client's request has it: ids are chosen on machines that know no other."""
        others = (f"{wanted}-client-{client:04d}-{n}" for n in itertools.count(2))
        names = itertools.chain((wanted, f"{wanted}-client-{client:04d}"), others)
        return next(name for name in names if name not in self._ledger and name not in taken)


class SealedRequests(AskingNodes):
    """FedTU's source of requests where the server sees none: they are served in cover exchanges.

    Nobody is asked for requests, and none is ever pending. In each round up to `last_round` an exchange is due; of each
    the ledger has one line with the commitments of all clients that were addressed
    (`oblivionis.erasure.hidden_requests`), of which the next queries tell these clients until they confirm it.
    """

    hidden = True

    def __init__(self, ledger: Ledger, thresholds: Thresholds, **asking: Any) -> None:
        super().__init__(ledger, thresholds, **asking)
        self._unconfirmed: dict[int, list[SessionOutcome]] = {}

    def pending(self, server_round: int) -> Sequence[UnlearnRequest]:
        """Tell the nodes what became of earlier exchanges; there is never anything that the server could name."""
        self._ask(server_round)
        return ()

    def live(self, client: int) -> int:
        """Records of `client` as it reported them: with a sealed node what it ever held, whatever it has asked for."""
        return self._live(client)

    def cover_due(self, server_round: int) -> bool:
        """Whether a cover exchange is held in `round`: always, so that none shows that there was a request."""
        return server_round <= self._last_round

    def covered(
        self,
        server_round: int,
        session: str,
        commitments: Mapping[int, str],
        survivors: Sequence[int],
        before: str,
        after: str,
        records: int,
    ) -> None:
        """Enter an exchange whose sum became part of the global model.

        `commitments`: by addressed client; `survivors`: whose part is in the sum; `before`, `after`: SHA-256 of the
        model; `records`: how many were forgotten in all. ValueError for survivors who committed to nothing, and for
        what is no commitment.
        """
        if strangers := set(survivors) - commitments.keys():
            raise ValueError(f"client {min(strangers)} is in the sum of session {session!r} without a commitment")
        self._ledger.note(
            EXCHANGE,
            round=server_round,
            session=session,
            commitments=_by_client(commitments),
            survivors=sorted(survivors),
            before=before,
            after=after,
            count=records,
        )

    def cover_failed(self, server_round: int, session: str, commitments: Mapping[int, str], reason: str) -> None:
        """Enter an exchange that came to no sum: what its clients asked for stays open."""
        sealed = _by_client(commitments)
        self._ledger.note(EXCHANGE_FAILED, round=server_round, session=session, commitments=sealed, reason=reason)

    def roll_back(self, server_round: int) -> None:
        """Undo the exchanges after `round`: their clients learn of it, and ask again."""
        super().roll_back(server_round)
        undone = {entry["of"] for entry in self._ledger.notes(EXCHANGE_UNDONE)}
        for entry in self._ledger.notes(EXCHANGE):
            if entry["round"] > server_round and entry[HASH] not in undone:
                self._ledger.note(EXCHANGE_UNDONE, round=entry["round"], session=entry["session"], of=entry[HASH])

    def _ask(self, server_round: int) -> dict[int, Answer]:
        self._unconfirmed = unconfirmed_sessions(self._ledger, self._run)
        answered = super()._ask(server_round)
        for client, answer in answered.items():
            if answer.requests:
                self._warn(
                    f"client {client} tells its requests although they are sealed, and they are set aside: its program "
                    "is too old"
                )
        return answered

    def question(self, client: int, server_round: int) -> dict[str, object]:
        """The exchanges whose outcome `client` has not heard, and nothing about requests."""
        return self._question(server_round, sealed=True, sessions=tuple(self._unconfirmed.get(client, ())))

    @property
    def _has_unconfirmed(self) -> bool:
        return any(unconfirmed_sessions(self._ledger, self._run).values())

    def _confirmed(self, client: int, lines: Sequence[str]) -> None:
        known = {outcome.line for outcome in self._unconfirmed.get(client, ())}
        if confirmed := [line for line in lines if line in known]:
            self._ledger.note("acknowledged", client=client, lines=confirmed)


def unconfirmed_sessions(ledger: Ledger, run: str) -> dict[int, list[SessionOutcome]]:
    """By client its cover exchanges that it has not confirmed and is to be sent, in the order of the ledger."""
    confirmed = {(entry["client"], line) for entry in ledger.notes("acknowledged") for line in entry["lines"]}
    outcomes: dict[int, list[SessionOutcome]] = {}
    exchanges: dict[str, Mapping[str, Any]] = {}
    for entry in ledger.notes(EXCHANGE, EXCHANGE_FAILED, EXCHANGE_UNDONE):
        about = exchanges[entry["of"]] if entry["event"] == EXCHANGE_UNDONE else entry
        exchanges[entry[HASH]] = about
        for name, commitment in about["commitments"].items():
            client = int(name)
            if (client, entry[HASH]) in confirmed:
                continue
            counts = client in about.get("survivors", ())
            what = COUNTED if counts and about is entry else ROLLED_BACK if about is not entry else LEFT_OUT
            models = {name: about[name] for name in ("before", "after") if what == COUNTED}
            outcome = SessionOutcome(about["session"], run, about["round"], what, entry[HASH], commitment, **models)
            outcomes.setdefault(client, []).append(outcome)
    return outcomes


def _by_client(commitments: Mapping[int, str]) -> dict[str, str]:
    return {str(client): commitments[client] for client in sorted(commitments)}


def answer_query(
    config: Mapping[str, object],
    client: int,
    folder: Path,
    *,
    sealed: bool = False,
    audits: bool = True,
    held: Collection[str] | None = None,
) -> ConfigRecord | None:
    """What a node says of its requests when a query asks for them, after entering what the query says; None if it does
    not ask. `folder` is the node's own; audits: whether it may measure; `held`: ids of the client's records. A request
    that names another one is not reported, unless the client leaves by it, and the ledger says why. Where an answer has
    no room for all requests, those that were not served come first, and those made first. Raises OblivionisError.

    With `sealed`, or where the server does not want to know, it names no request, and confirms nothing that is said
    about one: that alone would tell that it exists. In the newest line, whose hash it tells, is a number that nobody
    guesses.
    """
    question = read_question(config)
    if question is None:
        return None
    ledger = NodeLedger(folder)
    about = {"client": client, "round": question.round, "server_head": question.head, "server_lines": question.lines}
    descent = Descent(question.model, question.models, question.runs) if question.model else None
    if sealed or question.sealed:
        lines = enter_outcomes(folder, question.sessions, run=question.run) if question.sealed else []
        ledger.heard(question.run, question.ledger, (), descent=descent, **about, nonce=secrets.token_hex(16))
        return write_answer(Answer((), ledger.head(), tuple(lines)))
    confirmed = ledger.heard(question.run, question.ledger, question.outcomes, audits=audits, descent=descent, **about)
    waiting = sorted(ledger.unsettled(question.run), key=lambda request: request.served_round is not None)
    if held is not None:
        unserved = {r.id: why for r in waiting if r.scope != SCOPE_CLIENT and (why := not_held(r.everything, held))}
        for request in waiting:
            why = unserved.get(request.id, "")
            if why and request.served_round is None and not request.note.endswith(why):
                ledger.note("failed", request.id, run=question.run, reason=why)
        waiting = [r for r in waiting if r.id not in unserved]
    requests = as_many_as_fit(Reported(r.id, r.scope, r.everything) for r in waiting)
    return write_answer(Answer(requests, ledger.head(), tuple(confirmed)))
