"""Who holds what, and the requests that simulated clients make of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from oblivionis.config import Config
from oblivionis.data.partition import Partition
from oblivionis.data.records import Corpus
from oblivionis.requests import (
    SERVED,
    AllAtRound,
    Ledger,
    NoRequests,
    Policy,
    RandomClientPerRound,
    read_schedule,
)
from oblivionis.runs import RunDirectory
from strategies.requests import UnlearnRequest


@dataclass(frozen=True, slots=True)
class Holdings:
    """Record ids per client, and those of them that belong to the forget split."""

    records: Mapping[int, tuple[str, ...]]
    forget: Mapping[int, tuple[str, ...]]

    @classmethod
    def of(cls, corpus: Corpus, partition: Partition) -> Holdings:
        records = dict(enumerate(partition.ids))
        forget = {c: kept for c, ids in records.items() if (kept := tuple(i for i in ids if i in corpus.forget_ids))}
        return cls(records, forget)

    def live(self, client: int, *, without_forget_split: bool) -> int:
        """How many records `client` can train on, tombstones aside."""
        excluded = len(self.forget.get(client, ())) if without_forget_split else 0
        return len(self.records[client]) - excluded


class PerRecord(Protocol):
    """What a verification reads: the ROUGE-L recall of each forget question by record id."""

    def forget_rouge(self) -> Mapping[str, float]: ...


class SimulatedRequests:
    """FedTU's source of requests in a simulation: a policy plays the clients, the ledger remembers.

    It stands in for the clients' own requests, and so knows their records; the messages carry ids only.
    """

    def __init__(self, policy: Policy, ledger: Ledger, holdings: Holdings, max_rouge: float, last_round: int) -> None:
        self._policy, self._ledger, self._holdings = policy, ledger, holdings
        self._max_rouge, self._last_round = max_rouge, last_round

    @classmethod
    def of(cls, config: Config, run: RunDirectory, holdings: Holdings, *, active: bool) -> SimulatedRequests:
        """The policy of `config`, or none for stages in which nobody asks (`active` false)."""
        settings = config.unlearning.requests
        policy: Policy = NoRequests()
        if active and settings.policy == "random_client_per_round":
            policy = RandomClientPerRound(config.seed)
        elif active and settings.policy == "all_at_round":
            policy = AllAtRound(settings.round, tuple(settings.clients) if settings.clients is not None else None)
        elif active and settings.policy == "file":
            policy = read_schedule(Path(str(settings.file)), holdings.records)
        ledger = Ledger(run.ledger_path) if active else Ledger(run.path / "no-requests.jsonl")
        return cls(policy, ledger, holdings, settings.verify_max_rouge, config.federation.rounds.unlearn)

    def pending(self, round: int) -> Sequence[UnlearnRequest]:
        """Let the policy submit what is due in `round`, then list what is pending.

        The policy does not see requests of `round` itself: when a resumed run repeats the round, it asks for the same.
        Nobody asks after the last planned round: the rounds that are added then serve what is waiting.
        """
        asked = {i for request in self._ledger if request.round < round for i in request.record_ids}
        open_ = {c: [i for i in ids if i not in asked] for c, ids in self._holdings.forget.items()}
        for request in self._policy.due(round, open_) if round <= self._last_round else ():
            self._ledger.submit(request)
        return [UnlearnRequest(r.id, r.client, r.record_ids) for r in self._ledger.pending(round)]

    def served(self, request: UnlearnRequest, round: int, info: Mapping[str, float]) -> None:
        numbers = {k: float(v) for k, v in info.items() if isinstance(v, int | float)}
        self._ledger.served(request.request_id, round, count=len(request.record_ids), **numbers)

    def failed(self, request: UnlearnRequest, round: int, reason: str) -> None:
        self._ledger.failed(request.request_id, round, reason)

    def waiting(self, round: int) -> list[str]:
        """Ids of the requests that are still pending after `round`."""
        return [r.id for r in self._ledger.pending(round)]

    def live(self, client: int) -> int:
        """Records of `client` that nobody asked to forget."""
        asked = {i for r in self._ledger if r.client == client for i in r.record_ids}
        return len(self._holdings.records[client]) - len(asked)

    def roll_back(self, round: int) -> None:
        self._ledger.roll_back(round)

    def verify(self, round: int, measured: PerRecord) -> dict[str, int]:
        """Check each served request: is the mean ROUGE-L recall on its records at most the configured limit?

        A request whose records are not among the forget questions cannot be checked and stays served. Returns how many
        requests are in each state.
        """
        rouge = measured.forget_rouge()
        for request in list(self._ledger):
            known = [rouge[i] for i in request.record_ids if i in rouge]
            if request.state == SERVED and len(known) == len(request.record_ids):
                mean = sum(known) / len(known)
                self._ledger.verified(request.id, round, mean <= self._max_rouge, rouge=mean, limit=self._max_rouge)
        return dict(Counter(request.state for request in self._ledger))
