"""Who holds what, and the requests that simulated clients make of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from oblivionis.config.schema import Config
from oblivionis.data.partition import Partition
from oblivionis.data.records import Corpus
from oblivionis.data.subjects import Subjects
from oblivionis.erasure.ledger import Ledger, NoRequests, Policy, without
from oblivionis.erasure.remote_record_holders import RemoteHoldings
from oblivionis.erasure.request import REJECTED, SERVED, Request
from oblivionis.erasure.unrequested_records import OpenRecords
from oblivionis.erasure.verification_rules import Judgement, Thresholds
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.ledger_run_events import SERVED_AGAIN
from strategies.message_keys import ERASURE, SCOPE_CLIENT
from strategies.metric_schema import UNLEARN
from strategies.rounds.request_source import RequestSource, UnlearnRequest


@dataclass(frozen=True, slots=True)
class Holdings:
    """Record ids per client, those of them that belong to the forget split, and those about each subject."""

    records: Mapping[int, tuple[str, ...]]
    forget: Mapping[int, tuple[str, ...]]
    subjects: Subjects

    @classmethod
    def of(cls, corpus: Corpus, partition: Partition) -> Holdings:
        records = dict(enumerate(partition.ids))
        forget = {c: kept for c, ids in records.items() if (kept := tuple(i for i in ids if i in corpus.forget_ids))}
        return cls(records, forget, Subjects.of(corpus, partition))

    @property
    def clients(self) -> int:
        return len(self.records)

    def count(self, client: int) -> int:
        """Records of `client`."""
        return len(self.records[client])

    def declared(self, client: int) -> int:
        """The same: here the server itself deals the records out."""
        return self.count(client)

    def foreign(self, client: int, record_ids: Sequence[str]) -> list[str]:
        """Those of `record_ids` that `client` does not hold."""
        held = set(self.records[client])
        return [i for i in record_ids if i not in held]

    def live(self, client: int, *, without_forget_split: bool) -> int:
        """How many records `client` can train on, tombstones aside."""
        excluded = len(self.forget.get(client, ())) if without_forget_split else 0
        return self.count(client) - excluded


def demanded(request: Request) -> UnlearnRequest:
    """A request as FedTU knows it."""
    return UnlearnRequest(request.id, request.client, request.record_ids, scope=request.scope)


class LedgerRequests(RequestSource):
    """What a source of requests for FedTU has in common with any other: the ledger remembers what becomes of them."""

    def __init__(
        self, ledger: Ledger, thresholds: Thresholds, last_round: int, again: int = 0, per_round: int | None = None
    ) -> None:
        self._ledger, self._thresholds, self._last_round = ledger, thresholds, last_round
        self._again, self._per_round = again, per_round
        self._repeated: list[str] = []
        self._to_serve_again: list[Request] = []
        self._batch: tuple[int | None, list[Request]] = None, []

    @property
    def ledger(self) -> Ledger:
        """Where it remembers."""
        return self._ledger

    def served(self, request: UnlearnRequest, server_round: int, info: Mapping[str, float]) -> None:
        numbers = {k: float(v) for k, v in info.items() if isinstance(v, int | float)}
        own = {k: v for k, v in numbers.items() if k in ERASURE}
        reported = {k: v for k, v in numbers.items() if k in UNLEARN}
        self._ledger.served(request.request_id, server_round, count=len(request.record_ids), told=reported, **own)

    def failed(self, request: UnlearnRequest, server_round: int, reason: str) -> None:
        self._ledger.failed(request.request_id, server_round, reason)

    def again(self, server_round: int) -> list[UnlearnRequest]:
        """The requests that were served 1, 2, 4, 8, … rounds ago, as far back as the configuration says, since most of
        what comes back does so at once; in the last planned round all of them. The latest ones, which take longest,
        come first."""
        self._repeated, self._to_serve_again = [], []
        ages: Sequence[int] = range(1, min(self._again, server_round - 1) + 1)
        if server_round != self._last_round:
            ages = [age for age in ages if age & (age - 1) == 0]
        self._to_serve_again = [r for age in ages for r in self._ledger.served_in(server_round - age)]
        return [demanded(r) for r in self._to_serve_again]

    def served_again(self, request: UnlearnRequest, server_round: int, info: Mapping[str, float]) -> None:
        """Keep in mind what `applied` enters into the ledger."""
        self._repeated.append(request.request_id)

    def applied(self, server_round: int, before: str, after: str, **parts: Sequence[str]) -> None:
        """The exchange of `round` ended: note the global model's SHA-256 before and after with what it served, and with
        what it served again, also where the model stayed as it was: a client answered so, and that can be checked.

        `parts`: as of `oblivionis.erasure.ledger.Ledger.applied`."""
        if self._repeated:
            self._ledger.note(
                SERVED_AGAIN, round=server_round, requests=list(self._repeated), before=before, after=after
            )
        for request in [r for r in self._ledger.served_in(server_round) if r.state == SERVED]:
            self._ledger.applied(request.id, server_round, before, after, **parts)

    def unrequested(self, server_round: int) -> Mapping[int, Sequence[str]]:
        """By client the records of the forget split that no request up to `round` names; here nobody knows of any."""
        return {}

    def requests_to_serve_again(self) -> list[Request]:
        """The requests that the exchange of this round is to serve again."""
        return self._to_serve_again

    def requests_served_again(self) -> list[Request]:
        """The requests that the exchange of this round served again."""
        return [self._ledger.get(request_id) for request_id in self._repeated]

    def barrier(self, server_round: int, version: int, discarded: int) -> None:
        """Asynchronous rounds: the exchange made this version of the model, and so many clients work on older ones."""
        ids = [r.id for r in self._ledger if r.served_round == server_round] + self._repeated
        self._ledger.note("barrier", round=server_round, version=version, discarded=discarded, requests=ids)

    def waiting(self, server_round: int) -> list[Request]:
        """The requests that are pending in `round`."""
        return self._ledger.pending(server_round)

    def due(
        self, server_round: int, most_of_client: int | None = None, passed_over: Container[str] = ()
    ) -> list[Request]:
        """The batch of `round`: of the pending requests as many as are served in a round, all where nothing limits it.

        `most_of_client`: no more than so many of one client; `passed_over`: ids of some that wait.
        """
        if self._per_round is not None:
            batch = self._ledger.first_pending(server_round, self._per_round, most_of_client, passed_over)
        else:
            counts = Counter[int]()
            batch = []
            for request in (r for r in self._ledger.pending(server_round) if r.id not in passed_over):
                counts[request.client] += 1
                if most_of_client is None or counts[request.client] <= most_of_client:
                    batch.append(request)
        self._batch = server_round, batch
        return batch

    def asked(self, server_round: int) -> list[Request]:
        """The requests that the exchange of `round` is about: its batch if there is one, else all that are pending."""
        if self._batch[0] == server_round:
            return self._batch[1]
        return self.waiting(server_round)

    def served_in(self, server_round: int) -> list[Request]:
        """The requests that were served in `round`, also those verified since, in the order in which they were made."""
        return self._ledger.served_in(server_round)

    def served_so_far(self) -> list[Request]:
        """The requests that were served, also those verified since, in the order in which they were made."""
        return [r for r in self._ledger if r.served_round is not None]

    def leaves(self, client: int) -> bool:
        """Whether `client` has asked to leave."""
        return any(r.scope == SCOPE_CLIENT for r in self._ledger.of_client(client) if r.state != REJECTED)

    def roll_back(self, server_round: int) -> None:
        self._ledger.roll_back(server_round)

    def to_verify(self) -> list[Request]:
        """The requests that were served and not verified yet."""
        return [r for r in self._ledger if r.state == SERVED]

    def verify(self, server_round: int, judgements: Mapping[str, Judgement]) -> dict[str, int]:
        """Enter the judgements of served requests, by id; a request without one stays as it is.

        Returns how many requests have which outcome.
        """
        for request in [r for r in self.to_verify() if r.id in judgements]:
            self._ledger.verified(request.id, server_round, judgements[request.id], self._thresholds.max_recall)
        return dict(Counter(request.outcome for request in self._ledger))

    def judge_again(self, server_round: int, judgements: Mapping[str, Judgement]) -> None:
        """Enter new judgements of served requests, by id, whatever was found of them before."""
        for request in [r for r in self.served_so_far() if r.id in judgements]:
            self._ledger.verified(request.id, server_round, judgements[request.id], self._thresholds.max_recall)

    def close(self, server_round: int) -> None:
        """The stage has ended after `round`."""


class SimulatedRequests(LedgerRequests):
    """FedTU's source of requests in a simulation: a policy plays the clients, the ledger remembers.

    It stands in for the clients' own requests, and so knows their records; the messages carry ids only.
    """

    def __init__(
        self,
        policy: Policy,
        ledger: Ledger,
        holdings: Holdings | RemoteHoldings,
        thresholds: Thresholds,
        last_round: int,
        again: int = 0,
        per_round: int | None = None,
    ) -> None:
        super().__init__(ledger, thresholds, last_round, again, per_round)
        self._policy, self._holdings = policy, holdings
        self._open = OpenRecords(ledger, holdings.forget)

    @classmethod
    def of(
        cls, config: Config, run: RunDirectory, holdings: Holdings | RemoteHoldings, policy: Policy | None
    ) -> SimulatedRequests:
        """The requests of `policy`, kept in the run's ledger; None for stages in which nobody asks."""
        settings = config.unlearning.requests
        ledger = Ledger(run.path / "no-requests.jsonl" if policy is None else run.ledger_path)
        policy = NoRequests() if policy is None else policy
        rounds, again = config.federation.rounds.unlearn, config.unlearning.again
        return cls(policy, ledger, holdings, Thresholds.of(settings), rounds, again, settings.per_round)

    def pending(self, server_round: int) -> Sequence[UnlearnRequest]:
        """Let the policy submit what is due in `round`, then list what is pending.

        No record is asked for twice: of a new request only the records remain that no earlier one names, and one
        without any such record is entered as covered. The policy does not see requests of `round` itself: when a
        resumed run repeats the round, it asks for the same. Nobody asks after the last planned round: the rounds that
        are added then serve what is waiting.
        """
        asked, open_ = self._open.before(server_round)
        now: set[str] = set()
        requests = []
        for request in self._policy.due(server_round, open_) if server_round <= self._last_round else ():
            new = without(request, asked, now)
            now.update(new.record_ids)
            requests.append(new)
        self._ledger.submit(*requests)
        return [demanded(r) for r in self.due(server_round)]

    def unrequested(self, server_round: int) -> Mapping[int, Sequence[str]]:
        """By client the records of the forget split that no request up to `round` names."""
        return {client: ids for client, ids in self._open.before(server_round + 1)[1].items() if ids}

    def live(self, client: int) -> int:
        """Records of `client` that nobody asked to forget; none from the moment on at which it asks to leave.

        That holds for rounds that a resumed run repeats, too: the records lie buried, and who has left stays away.
        """
        if self.leaves(client):
            return 0
        asked = {i for r in self._ledger.of_client(client) if r.state != REJECTED for i in r.record_ids}
        left = self._holdings.count(client) - len(asked)
        return min(left, self._holdings.live(client, without_forget_split=False))
