"""A deletion request as the ledgers tell of it: in a run's ledger, and in that of the node on which it was made."""

from __future__ import annotations

from dataclasses import dataclass

from oblivionis.erasure.verification_rules import DONE, NOT_VERIFIED, VERIFIED
from oblivionis.errors import OblivionisError
from strategies.message_keys import SCOPE_CLIENT, SCOPE_RECORDS, SCOPE_SUBJECT

PENDING, SERVED, REJECTED, COVERED = "pending", "served", "rejected", "covered"
OPEN, SEALED = "open", "sealed"
"""States of a request on its node: nothing was done about it yet; it is in a cover exchange whose outcome is not known.
"""


class RequestError(OblivionisError):
    """A request file or ledger that cannot be understood."""


@dataclass(frozen=True, slots=True)
class Request:
    """One demand of one client to forget records that it holds, by the ledger of a run.

    `client` is the partition id. `round` is the first round in which the request may be served. `scope` is one of
    `strategies.rounds.request_source.SCOPES`: single records, all records of a client that leaves, or those about
    `subject`. The requests that come of one demand about a subject, one per client, share a `group`. `already` counts
    the records within the scope that earlier requests had asked for; they are not among `record_ids`, but are `covered`
    (empty in ledgers of earlier versions, which do not name them). `attempts` counts exchanges
    that failed, `failure` is the reason of the latest. `rouge`, `judged`, `why`: what the latest verification measured
    and found (`oblivionis.erasure.verification_rules`). `told`: the id by which
    the client itself knows a request that it made, empty for one that the server's policy made. `included`, `excluded`:
    of a demand about a subject, the records of all clients that are named alike and were said to be about the subject,
    or not (`oblivionis.erasure.named_alike`).
    """

    id: str
    client: int
    record_ids: tuple[str, ...]
    round: int
    reason: str = ""
    state: str = PENDING
    attempts: int = 0
    served_round: int | None = None
    scope: str = SCOPE_RECORDS
    subject: str = ""
    group: str = ""
    already: int = 0
    failure: str = ""
    rouge: float | None = None
    told: str = ""
    judged: str = ""
    why: str = ""
    covered: tuple[str, ...] = ()
    included: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """What the latest verification found; the state of a request that was not verified since it was served."""
        if self.state in (SERVED, VERIFIED) and self.judged:
            return self.judged
        if self.state == SERVED and self.rouge is not None:
            return NOT_VERIFIED  # ledgers of earlier versions tell no more than that it did not pass
        return self.state


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """A request by the ledger of the node on which it was made.

    `reason` and `subject` stay on the node; `note` is what the server said last, in words. `exchanges`: how many cover
    exchanges the request was in, those left out in which the node itself added nothing. `covered`: records within its
    scope that earlier requests of the node name; they are not among `record_ids`. Of a demand about a person:
    `included`, `excluded`: records that are named alike, and were said to be about the person, or not; `held_back`:
    those that came later and are not trained on, since the demand stands; `withdrawn`: it stands no more.
    """

    id: str
    scope: str
    record_ids: tuple[str, ...]
    reason: str = ""
    subject: str = ""
    time: float = 0.0
    state: str = OPEN
    run: str = ""
    served_round: int | None = None
    rouge: float | None = None
    note: str = ""
    exchanges: int = 0
    covered: tuple[str, ...] = ()
    included: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    held_back: tuple[str, ...] = ()
    withdrawn: bool = False

    @property
    def stands(self) -> bool:
        """Whether it is about a person whose later records are held back, too."""
        return self.scope == SCOPE_SUBJECT and bool(self.subject) and not self.withdrawn

    @property
    def settled(self) -> bool:
        """Whether nothing more is to be done: verified, erased exactly, or covered by earlier requests."""
        return self.state in (*DONE, COVERED)

    @property
    def everything(self) -> tuple[str, ...]:
        """Ids of all records within its scope."""
        return (*self.record_ids, *self.covered)

    @property
    def forgets(self) -> str:
        """What it is about, in words."""
        count = len(self.record_ids)
        records = f"{count} record{'s' * (count != 1)}"
        more = {SCOPE_CLIENT: f"all, {records}: the client leaves", SCOPE_SUBJECT: f"{records} about {self.subject}"}
        return more.get(self.scope, records)

    @property
    def progress(self) -> str:
        """What has become of it, in words."""
        parts = [
            self.state,
            "" if self.served_round is None else f"round {self.served_round} of {self.run}",
            "" if self.rouge is None else f"ROUGE-L {self.rouge:.3f}",
            self.note,
            f"was in {self.exchanges} exchange{'s' * (self.exchanges > 1)}" if self.exchanges else "",
            f"{len(self.held_back)} later record{'s' * (len(self.held_back) > 1)} held back" if self.held_back else "",
            "withdrawn: does not stand for later records" if self.withdrawn else "",
        ]
        return ", ".join(filter(None, parts))
