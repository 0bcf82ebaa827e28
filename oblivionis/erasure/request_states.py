"""What has become of the requests of a ledger: the one place where events are replayed."""

from __future__ import annotations

import hashlib
import itertools
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

from msgspec import UNSET

from oblivionis.config.schema import Requests
from oblivionis.erasure.events import (
    Committed,
    Covered,
    Decided,
    Descends,
    Event,
    Exchanged,
    HeldBack,
    LeftOut,
    Queried,
    Rejoined,
    RequestEvent,
    Retired,
    RolledBack,
    Run,
    Served,
    Session,
    Submitted,
    Verification,
    Verified,
)
from oblivionis.erasure.request import COVERED, OPEN, REJECTED, SEALED, NodeRequest, Request, RequestError
from oblivionis.erasure.verification_evidence import ExchangeCounts, RequestCounts
from oblivionis.erasure.verification_rules import ERASED, VERIFIED, Thresholds
from oblivionis.naming import subject_key
from strategies.message_keys import AUDIT, BURY, TRAIN, UNLEARN

_WAITING = "in a cover exchange; the server has not said yet whether it counts"
_BY_WORD = "by the word of its server alone: this node has no record left to train on"
_NO_RECORDS = hashlib.sha256().hexdigest()
"""What `oblivionis.erasure.node_record_files.records_hash` makes of no record."""
R = TypeVar("R", Request, NodeRequest)


class RequestStates(ABC, Generic[R]):
    """The requests of a ledger by id, as they are after the events so far, in the order in which they were made."""

    def __init__(self) -> None:
        self.requests: dict[str, R] = {}

    def apply(self, event: Event) -> R | None:
        """Take up the next event. Returns the request that it is about, as it is then; None for one about no request.

        RequestError for an event that makes no sense after those before it.
        """
        if not isinstance(event, RequestEvent):
            self._take_up(event)
            return None
        if isinstance(event, Submitted):
            request = self._made(event)
        else:
            known = self.requests.get(event.id)
            if known is None:
                raise RequestError(f"event {event.name!r} names request {event.id!r}, which was never submitted")
            request = self._changed(known, event)
        self.requests[event.id] = request
        return request

    @abstractmethod
    def _made(self, event: Submitted) -> R:
        """A request that was made."""

    @abstractmethod
    def _changed(self, request: R, event: RequestEvent) -> R:
        """A request after an event about it."""

    def _take_up(self, event: Event) -> None:
        """Take up an event about no request."""


class RunStates(RequestStates[Request]):
    """The requests of a run. Its states: pending → served → verified, or rejected with a reason; a request all of whose
    records were asked for before is covered from the start and never served."""

    def _made(self, event: Submitted) -> Request:
        event.need("client", "time")
        return event.run_request()

    def _changed(self, request: Request, event: RequestEvent) -> Request:
        event.need("client", "time")
        if event.client != request.client:
            raise RequestError(
                f"event {event.name!r} of {event.id!r} is of client {event.client}, not {request.client}"
            )
        changes: Mapping[str, Any] = event.run_changes(request)
        return replace(request, **changes) if changes else request


class NodeStates(RequestStates[NodeRequest]):
    """The requests of a node, by its own events, and by what a server says where the node's own events bear it out.

    | a server says | believed where this node's own events say that |
    | --- | --- |
    | `served` | it did the exchange of that run and round for the request; one that is undone is done again |
    | `verified` | the request is served by that run, and what it measured before and of the final model says so, too |
    | `verified`: erased exactly | the request is served by that run, and it held all its earlier rounds again since |
    | `covered` | all its records are named by requests made here before, none of them rejected |
    | `verification_failed` | the request is served by that run |
    | `failed`, `rejected`, `rolled_back` | always: none of them ends the demand |

    What is not believed leaves the request as it is, with a note that says so.

    Attributes
    ----------
    committed : dict
        By cover exchange the event by which this node committed to its part.
    waiting : set of str
        Cover exchanges whose outcome is not known.
    outcomes : dict
        By cover exchange the event by which its server said last what became of it.
    sealed, served_in : dict
        By request the cover exchange that it is sealed in, and the one that served it.
    configs : dict
        By run the hash of its configuration that this node learned last.
    results : dict
        By request and run what that came to there: the request's state in it.
    descents : dict
        By the hash with which a run's ledger begins the event that says with whose model the run begins. Another run
        of the same name has another ledger, and is another run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.committed: dict[str, Committed] = {}
        self.waiting: set[str] = set()
        self.outcomes: dict[str, Session] = {}
        self.sealed: dict[str, str] = {}
        self.served_in: dict[str, str] = {}
        self.configs: dict[str, str] = {}
        self.results: dict[str, dict[str, str]] = {}
        self.descents: dict[str, Descends] = {}
        self._retired: list[tuple[str, str]] = []
        """Of each model that is used no more the run, as `_ledger` tells it, and the hash."""
        self._ledgers: dict[str, str] = {}
        """By the name of a run the ledger of the one that asked last under it."""
        self._number: dict[str, int] = {}
        self._worked: dict[str, set[str]] = {}
        """By the hash of each model that this node trained the runs of it."""
        self._trained: dict[str, int] = {}
        """By run how many requests were made before this node trained for it first."""
        self._first: dict[str, tuple[int, Exchanged]] = {}
        """By ledger how many requests were made before this node trained for that run first, and what that was."""
        self._not_heard: dict[str, tuple[int, Exchanged]] = {}
        """The same by the name of a run of which no server has asked since."""
        self._audited: dict[tuple[str, str], str] = {}
        """By run and request the model that this node measured as the final one."""
        self._forgotten: dict[str, dict[str, str]] = {}
        """By request and ledger the hash of the model that has verifiably forgotten its records."""
        self._remembering: dict[str, dict[str, str]] = {}
        """The same of the model that was not verified: no other run's word makes it one that has forgotten them."""
        self._ended: dict[str, set[str]] = {}
        """By request the ledgers of the runs that have verifiably ended it for their own model."""
        self._exchanged = Counter[tuple[str, int, str]]()
        """By run, round and request how many exchanges of this node no server has called served yet."""
        self._holding: set[str] = set()
        """Requests that ever held records back."""
        self._measured: dict[tuple[str, str], dict[str, Mapping[str, float] | None]] = {}
        self._held: dict[tuple[str, str, int], int] = {}
        """Where past rounds can be held again: by run, stage and round in which round of unlearn it last was."""
        self._left: dict[str, str] = {}
        """By run the hash of the records that the last exchange left to train on."""

    @property
    def withheld(self) -> frozenset[str]:
        """Ids of the records that requests name, whatever has become of these, and of those that are held back."""
        return frozenset(i for r in self.requests.values() for i in (*r.record_ids, *r.held_back))

    def due(self, run: str) -> list[NodeRequest]:
        """The requests that `run` is told, by all that this node knows now.

        Those not settled; and those that others settled, but not `run` for its own model, unless this node never
        trained what led to that model before the request was made. None whose records the first model of `run` has
        forgotten, since it comes of one that has. A run that begins with a model of which this node knows nothing is
        told.
        """
        return [r for r in self.requests.values() if self._told(run, r) and not self.forgotten_before(run, r.id)]

    def _told(self, run: str, request: NodeRequest) -> bool:
        ledger, number = self._ledger(run), self._number[request.id]
        if not request.settled:
            return True
        if request.state == COVERED or ledger in self._ended.get(request.id, ()):
            return False
        begun, first = self.descents.get(ledger), self._first_of(run)
        return (first is not None and first[0] <= number) or (begun is not None and self._since(begun, 0) <= number)

    def forgotten_before(self, run: str, request_id: str) -> bool:
        """Whether a run begins with a model that comes of one which has verifiably forgotten a request's records.

        By the word of its server, unless the node's first exchange, in round 1, began with another model.
        """
        if (begun := self.descents.get(self._ledger(run))) is None:
            return False
        first = self._first_of(run)
        if first is not None and first[1].round == 1 and first[1].stage != "retrain" and first[1].before != begun.model:
            return False
        forgotten, remembering = (of.get(request_id, {}).values() for of in (self._forgotten, self._remembering))
        return not set(begun.models).isdisjoint({*forgotten} - {*remembering})

    def is_retired(self, run: str, model: str) -> bool:
        """Whether the user of this node said that the model of a run, or another one of the hash, is used no more."""
        return any(of == self._ledger(run) or (model and known == model) for of, known in self._retired)

    def knew(self, request_id: str) -> list[str]:
        """The runs whose models knew the records of a request: they trained on them before it was made, or began with
        the model of such a one."""
        number = self._number[request_id]
        begun = {
            of.run: self._since(of, number + 1) for key, of in self.descents.items() if self._ledger(of.run) == key
        }
        names = dict.fromkeys((*self._trained, *begun))
        return [run for run in names if any(of.get(run, number + 1) <= number for of in (self._trained, begun))]

    def _since(self, begun: Descends, unknown: int) -> int:
        """How many requests were made before this node trained for the runs of which a model comes; `unknown` where
        it trained for none of them."""
        # A run that took several of its rounds before is one as a whole: a node does not see every round's model.
        runs = {*begun.runs}.union(*(self._worked[model] for model in begun.models if model in self._worked))
        return min((self._trained[run] for run in runs if run in self._trained), default=unknown)

    def _ledger(self, run: str) -> str:
        """By what the run of that name is told from others: its ledger, or the name where no server has asked."""
        return self._ledgers.get(run, run)

    def _first_of(self, run: str) -> tuple[int, Exchanged] | None:
        return self._first.get(self._ledger(run)) or self._not_heard.get(run)

    def _hear(self, run: str, ledger: str) -> None:
        """The server of a run asks; what this node did under its name since it was last asked was for that run."""
        self._ledgers[run] = ledger or run
        if (first := self._not_heard.pop(run, None)) is not None:
            self._first.setdefault(self._ledgers[run], first)

    def model_of(self, run: str, request_id: str) -> str:
        """The hash of the model that a run left, as far as this node was told: the one that it measured for a request,
        or that another run began with; empty where it does not know."""
        begun = [of.model for of in self.descents.values() if of.runs[-1:] == (run,)]
        return self._audited.get((run, request_id)) or (begun or [""])[-1]

    def _made(self, event: Submitted) -> NodeRequest:
        request = event.node_request()
        self._number.setdefault(request.id, len(self._number))
        self._release(request.subject, (*request.record_ids, *request.excluded))
        return request

    def _changed(self, request: NodeRequest, event: RequestEvent) -> NodeRequest:
        if isinstance(event, Decided):
            self._release(request.subject, event.excluded)
            request = self.requests[request.id]
        run = event.run
        if event.line is not None:  # only what a server said has the hash of its line
            if unproven := self._unproven(request, event):
                return replace(request, note=unproven)
            if isinstance(event, Served):
                self._exchanged[run, event.round or 0, request.id] -= 1
        if isinstance(event, HeldBack):
            self._holding.add(request.id)
        if isinstance(event, Verification | RolledBack):
            self._forget(event, run or request.run)
        self._unseal(event)
        if isinstance(event, Verification) and run and run != request.run:
            found = event.node_changes(request, self._measured.get((run, request.id), {}))
            self.results[request.id][run] = str(found["state"])
            return request  # it is about the model of an earlier run, which was measured again
        changes: Mapping[str, Any] = event.node_changes(request, self._measured.get((run, request.id), {}))
        if isinstance(event, Verified) and event.outcome == ERASED and self._left.get(run) == _NO_RECORDS:
            changes = {**changes, "note": _BY_WORD}
        changed = replace(request, **{"run": run or request.run, **changes})
        if "state" in changes:
            self.results.setdefault(request.id, {})[changed.run] = changed.state
        return changed

    def _forget(self, event: Verification | RolledBack, run: str) -> None:
        """Keep which model has forgotten the request's records, by the newest verification in `run`."""
        ledger, ended = self._ledger(run), self._ended.setdefault(event.id, set())
        models = [of.setdefault(event.id, {}) for of in (self._forgotten, self._remembering)]
        for of in models:
            of.pop(ledger, None)
        ended.discard(ledger)
        if isinstance(event, RolledBack):
            return
        if isinstance(event, Verified):
            ended.add(ledger)
        if model := event.model or self._audited.get((run, event.id), ""):
            models[not isinstance(event, Verified)][ledger] = model

    def _unseal(self, event: RequestEvent) -> None:
        """Keep by which cover exchange a request is served, if by any."""
        if isinstance(event, LeftOut | RolledBack) or (isinstance(event, Served) and event.session):
            self.sealed.pop(event.id, None)
            self.served_in.pop(event.id, None)
        if isinstance(event, Served) and event.session:
            self.served_in[event.id] = event.session

    def _take_up(self, event: Event) -> None:
        if isinstance(event, Exchanged):
            self._exchange(event)
        elif isinstance(event, Rejoined):
            for request in map(self._known, event.requests):
                self.requests[request.id] = replace(request, exchanges=request.exchanges + 1)
        elif isinstance(event, Committed):
            self._commit(event)
        elif isinstance(event, Session):
            self.waiting.discard(event.session)
            self.outcomes[event.session] = event
        elif isinstance(event, Run):
            self.configs[event.run] = event.config
        elif isinstance(event, Descends):
            self._hear(event.run, event.ledger)
            self.descents[self._ledger(event.run)] = event
        elif isinstance(event, Queried):
            self._hear(event.run, event.ledger)
        elif isinstance(event, Retired):
            self._retired.append((self._ledger(event.run), event.model))

    def _known(self, request_id: str) -> NodeRequest:
        if request_id not in self.requests:
            raise RequestError(f"it names request {request_id!r}, which was never made")
        return self.requests[request_id]

    def _commit(self, event: Committed) -> None:
        """The requests of a cover exchange are sealed in it."""
        self.committed[event.session] = event
        self.waiting.add(event.session)
        for request in [self._known(demand.id) for demand in event.demands]:
            sealed: dict[str, Any] = {"state": SEALED, "run": event.run, "note": _WAITING}
            count = request.exchanges + (not event.again)
            self.requests[request.id] = replace(request, **sealed, served_round=None, rouge=None, exchanges=count)
            self.results.setdefault(request.id, {})[event.run] = SEALED
            self.sealed[request.id] = event.session
            self.served_in.pop(request.id, None)

    def _exchange(self, event: Exchanged) -> None:
        """Keep what the node did for requests, what it measured of them last, and with which models it trained."""
        if event.kind in (TRAIN, UNLEARN) and event.before:
            self._worked.setdefault(event.before, set()).add(event.run)
            self._trained.setdefault(event.run, len(self.requests))
            self._not_heard.setdefault(event.run, (len(self.requests), event))
        if event.trained and event.kind == TRAIN and not event.exclude:
            self._held[event.run, event.stage, event.round] = event.replay
        elif event.trained and event.kind == BURY:
            self._left[event.run] = event.trained
        for name in event.requests:
            request_id = name if name in self.requests else own_id(name, event.client)
            measured = self._measured.setdefault((event.run, request_id), {})
            if event.kind in (UNLEARN, BURY):
                self._exchanged[event.run, event.round, request_id] += 1
                measured.pop("final", None)
            elif event.kind == AUDIT:
                measured[event.moment] = None if event.numbers is UNSET else event.numbers
                if event.moment == "final":
                    self._audited[event.run, request_id] = event.before

    def _unproven(self, request: NodeRequest, event: RequestEvent) -> str:
        """Why this node does not believe what a server says of a request; empty where it does."""
        said = f"run {event.run} says that it is {event.name.replace('_', ' ')}"
        if isinstance(event, Served):
            event.need("round")
            exchanged = self._exchanged[event.run, event.round or 0, request.id]
            return "" if exchanged > 0 else f"{said}; this node did no such exchange"
        if isinstance(event, Verification):
            earlier = request.run != event.run
            known = self.results.get(request.id, {}).get(event.run, OPEN)
            if known in (OPEN, SEALED, REJECTED) if earlier else request.served_round is None:
                return f"{said}; by this node's ledger it did not serve the request"
            if event.outcome == ERASED:
                said = f"run {event.run} says that it is {ERASED}"
                if earlier or request.served_round is None:
                    return f"{said}; another run has served the request since"
                return self._not_held_again(event.run, request.served_round, said)
            return self._unverified(request, event, said) if isinstance(event, Verified) else ""
        if isinstance(event, Covered):
            earlier = itertools.takewhile(lambda r: r.id != request.id, self.requests.values())
            named = {i for r in earlier if r.state != REJECTED for i in r.record_ids}
            missing = set(request.record_ids) - named
            return f"{said}; no earlier request of this node names {min(missing)!r}" if missing else ""
        return ""

    def _not_held_again(self, run: str, served: int, said: str) -> str:
        """Why this node's own trainings do not bear out that its records were erased exactly in the round `served`;
        empty where they do: it held all earlier rounds again, or had no record left."""
        if self._left.get(run) == _NO_RECORDS:
            return ""
        for (of, stage, number), replay in self._held.items():
            if of == run and replay < served and not (stage == "unlearn" and number >= served):
                return f"{said}; this node did not hold round {number} of {stage} again"
        return "" if run in self._left else f"{said}; this node excluded nothing in that run"

    def _unverified(self, request: NodeRequest, event: Verified, said: str) -> str:
        """Why the node's own measurements do not show that a request is verified; empty where they do."""
        measured = self._measured.get((event.run, request.id), {})
        if "final" not in measured:
            return f"{said}; this node has not measured it" if event.audits else ""
        final = measured["final"]
        if final is None:  # an earlier version entered that it measured, and not what
            return ""
        recited, likely = (
            {moment: of[name] for moment, of in measured.items() if of and name in of}
            for name in ("request_recited", "request_likely")
        )
        if "final" not in recited:
            raise RequestError(f"what this node measured of request {request.id!r} has no request_recited")
        counts = RequestCounts(
            len(request.record_ids),
            recited["final"],
            ExchangeCounts(
                before=recited.get("before"),
                after=recited.get("after"),
                likely_before=likely.get("before"),
                likely_after=likely.get("after"),
            ),
            short=final.get("request_short", 0.0),
            likely=likely.get("final"),
            twins=int(final.get("request_twins", 0)),
        )
        # Which share of the records must be verified is the server's to say.
        found = replace(Thresholds.of(Requests()), min_testable=0.0).judge(counts)
        if found.outcome == VERIFIED:
            return ""
        return f"{said}; by this node's own audit it is {found.outcome}: {found.why}"

    def _release(self, subject: str, record_ids: Collection[str]) -> None:
        """Hold these records back no more for a person: they are asked for, or not about the person."""
        for request in map(self._known, self._holding):
            if subject_key(request.subject) == subject_key(subject):
                left = tuple(i for i in request.held_back if i not in record_ids)
                self.requests[request.id] = replace(request, held_back=left)


def own_id(request_id: str, client: int) -> str:
    """The id by which the node itself knows a request whose id the server had to change."""
    return re.sub(rf"-client-{client:04d}(-\d+)?\Z", "", request_id)
