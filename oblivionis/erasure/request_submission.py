"""What a client asks to forget: chosen among the records that it holds, and entered into its ledger."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from oblivionis.config.problems import did_you_mean
from oblivionis.data.records import Record
from oblivionis.data.subjects import Subjects
from oblivionis.data.twins import content_key, find_twins, with_twins
from oblivionis.erasure.named_alike import NOTHING_ALIKE, SHOWN, Decision, decide
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.node_ledger import DECIDED, WITHDRAWN, NodeLedger
from oblivionis.erasure.node_record_files import read_node
from oblivionis.erasure.request import NodeRequest
from oblivionis.erasure.standing_demands import not_meant, stands_for
from oblivionis.erasure.verification_rules import of_twins
from oblivionis.errors import OblivionisError
from strategies.message_keys import SCOPE_CLIENT, SCOPE_RECORDS, SCOPE_SUBJECT


@dataclass(frozen=True, slots=True)
class Submitted:
    """The request that was made, how many of the records were left out because they are asked for already, the ledger
    that it was entered into, how many twins were asked for, how many of the records stay in others, and what was said
    of records named alike. `made`: false where this is all that was new, and was entered with an earlier request.
    """

    request: NodeRequest
    left_out: int
    ledger: Path
    twins: int = 0
    held: int = 0
    decision: Decision = NOTHING_ALIKE
    made: bool = True

    def lines(self) -> list[str]:
        """The same in words."""
        count = len(self.request.record_ids)
        text = f"request {self.request.id}: {count} record{'s' * (count != 1)}, entered into {self.ledger}"
        if not self.made:
            text = f"request {self.request.id} asks for all of them already; what is new is entered into {self.ledger}"
        more = f"{self.left_out} more {'are' if self.left_out > 1 else 'is'} asked for already"
        lines = [text, more] if self.left_out and self.made else [text]
        included, excluded = self.decision.included, self.decision.excluded
        if included or excluded:
            yes, no = map(_shown, (included, excluded))
            lines.append(f"of the records named alike, are about {self.request.subject}: {yes}; are not: {no}")
        if self.twins:
            lines.append(f"{self.twins} of them because they say, word for word or nearly, what the others say")
        if self.held:
            lines.append(
                f"warning: {of_twins(self.held)}, word for word or nearly: the request can only be inconclusive; "
                "--with-twins asks for those records, too"
            )
        if self.request.stands and self.made:
            lines.append(
                f"it stands: records about {self.request.subject} that come later are not trained on here until "
                f"`oblivionis request withdraw`; other clients know nothing of it"
            )
        return lines


def submit(
    node_dir: Path,
    *,
    ids: str | None = None,
    subject: str | None = None,
    everything: bool = False,
    include: str | None = None,
    exclude: str | None = None,
    twins: bool = False,
    reason: str,
    identifier: str | None = None,
) -> Submitted:
    """Enter a request into the ledger of the node's folder. One of the first three says what is to be forgotten.

    ids: of records, with commas between; subject: a person's name; everything: the client leaves; include, exclude: ids
    of the records named like the person that are about them, and that are not, or "all"; twins: also the node's own
    records that say, word for word or nearly, what these say. Raises OblivionisError, which names the option of
    `oblivionis request submit` at fault; nothing is entered while it is not said of a record named alike whether it is
    about the person.
    """
    if [ids is not None, subject is not None, everything].count(True) != 1:
        raise OblivionisError("say what is to be forgotten: one of --ids, --subject and --all")
    if subject is None and (include is not None or exclude is not None):
        raise OblivionisError("--include and --exclude say who is meant by --subject")
    if not reason.strip():
        raise OblivionisError("--reason TEXT is missing: why is it to be forgotten? (it stays on this machine)")
    need_folder(node_dir)
    records = read_node(node_dir).records
    ledger = NodeLedger(node_dir)
    requests, buried = ledger.requests(), NodeFolder(node_dir).tombstones()
    name, decision = "", NOTHING_ALIKE
    if ids is not None:
        wanted, scope = _named(ids, records, node_dir), SCOPE_RECORDS
    elif subject is not None:
        asked = buried.union(*(r.record_ids for r in requests))
        wanted, scope, earlier = [], SCOPE_SUBJECT, [r for r in requests if stands_for(r, subject)]
        name, wanted, decision = _about(subject, records, node_dir, asked, earlier, include, exclude)
        if earlier and decision.excluded and asked.issuperset(wanted):
            contents = {r.id: content_key(r) for r in records if r.id in decision.excluded}
            ledger.note(DECIDED, earlier[-1].id, excluded=list(decision.excluded), contents=contents)
            return Submitted(earlier[-1], len(wanted), ledger.path, decision=decision, made=False)
    else:
        wanted, scope = [r.id for r in records], SCOPE_CLIENT
    more, held = _twins_of(wanted, records, ledger.asked() | buried, ask_for=twins)
    wanted += [r.id for r in records if r.id in more]
    named = {*wanted, *decision.excluded}
    made = ledger.submit(
        wanted,
        scope=scope,
        subject=name,
        reason=reason,
        identifier=identifier,
        included=decision.included,
        excluded=decision.excluded,
        contents={r.id: content_key(r) for r in records if r.id in named},
    )
    left_out = len(set(wanted)) - len(made.record_ids)
    return Submitted(made, left_out, ledger.path, len(more), held, decision)


def _twins_of(
    wanted: Collection[str], records: Sequence[Record], gone: Collection[str], *, ask_for: bool
) -> tuple[frozenset[str], int]:
    """Twins of the `wanted` records that are to be asked for, too, where `ask_for` says so, and how many of all these
    have a twin that stays; `gone`: ids of records that were asked for or buried before."""
    more = with_twins(set(wanted), records) - {*wanted, *gone} if ask_for else frozenset[str]()
    forget = {*wanted, *more}
    stay = [r for r in records if r.id not in forget and r.id not in gone]
    return frozenset(more), len({twin.forget for twin in find_twins([r for r in records if r.id in forget], stay)})


def withdraw(node_dir: Path, request_id: str, reason: str) -> tuple[NodeRequest, list[NodeRequest]]:
    """Say that a demand about a person stands no more: records about them that come later are trained on again.

    What it names stays asked for. Returns it as it was, and the others about that person, which stand. Raises
    OblivionisError for one that does not stand.
    """
    need_folder(node_dir)
    ledger = NodeLedger(node_dir)
    known = {r.id: r for r in ledger.requests()}
    if request_id not in known:
        hint = did_you_mean(request_id, known)
        raise OblivionisError(f"no request {request_id!r} was made on this node{hint and f'; {hint}'}")
    if not known[request_id].stands:
        why = "is withdrawn already" if known[request_id].withdrawn else "is not about a person, and holds nothing back"
        raise OblivionisError(f"request {request_id!r} {why}")
    ledger.note(WITHDRAWN, request_id, reason=reason)
    done = known.pop(request_id)
    return done, [r for r in known.values() if stands_for(r, done.subject)]


def need_folder(node_dir: Path) -> None:
    """OblivionisError where there is no such folder."""
    if not node_dir.is_dir():
        raise OblivionisError(f"--node-dir {node_dir}: no such folder; expected the node's own folder")


def _named(ids: str, records: Sequence[Record], node_dir: Path) -> list[str]:
    wanted = _ids(ids)
    if not wanted:
        raise OblivionisError("--ids: expected ids of records, with commas between")
    held = {r.id for r in records}
    where = f"--ids: no record of {node_dir / 'data'} has the id"
    unknown = {i: did_you_mean(i, held) for i in wanted if i not in held}
    if unknown:
        raise OblivionisError("\n".join(f"{where} {i!r}{hint and f'; {hint}'}" for i, hint in unknown.items()))
    return wanted


def _about(
    subject: str,
    records: Sequence[Record],
    node_dir: Path,
    asked: Collection[str],
    earlier: Sequence[NodeRequest],
    include: str | None,
    exclude: str | None,
) -> tuple[str, list[str], Decision]:
    """The person's name as the records write it, the ids of all records about them, and what was said of those that are
    named alike: not of those that are `asked` for, nor again of those that `earlier` requests exclude."""
    subjects = Subjects((0, record) for record in records)
    exact, alike = subjects.find(subject), subjects.alike(subject)
    if exact is None and not alike:
        hint = did_you_mean(subject, {r.subject for r in records})
        message = f"--subject: no record of {node_dir / 'data'} is about {subject!r}"
        raise OblivionisError(f"{message}; {hint}" if hint else message)
    yes, no = _ids(include), _ids(exclude)
    known = not_meant(NodeFolder(node_dir), earlier, records) - {*yes, *no}
    open_ = [a for a in alike if a.record_id not in asked and a.record_id not in known]
    decision = decide(subject, open_, yes, no)
    wanted = [*(exact.records[0] if exact else ()), *decision.included]
    if not wanted and not (earlier and decision.excluded):
        raise OblivionisError(f"--subject: no record is about {subject!r}: those named alike are excluded")
    return " ".join(subject.split()) if exact is None else exact.name, wanted, decision


def _shown(ids: Sequence[str]) -> str:
    more = ", …" if len(ids) > SHOWN else ""
    return f"{len(ids)} ({', '.join(ids[:SHOWN])}{more})" if ids else "none"


def _ids(given: str | None) -> list[str]:
    return [name.strip() for name in (given or "").split(",") if name.strip()]
