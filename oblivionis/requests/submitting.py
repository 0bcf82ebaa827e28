"""What a client asks to forget: chosen among the records that it holds, and entered into its ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oblivionis.config.problems import did_you_mean
from oblivionis.data.records import Record
from oblivionis.data.twins import find_twins, with_twins
from oblivionis.errors import OblivionisError
from oblivionis.naming import subject_key
from oblivionis.requests.judgement import of_twins
from oblivionis.requests.node_folder import NodeFolder
from oblivionis.requests.node_ledger import NodeLedger, NodeRequest
from oblivionis.requests.node_records import read_node
from strategies.protocol import SCOPE_CLIENT, SCOPE_RECORDS, SCOPE_SUBJECT


@dataclass(frozen=True, slots=True)
class Submitted:
    """The request that was made, how many of the records were left out because they are asked for already, the ledger
    that it was entered into, how many twins were asked for, and how many of the records stay in others."""

    request: NodeRequest
    left_out: int
    ledger: Path
    twins: int = 0
    held: int = 0

    def lines(self) -> list[str]:
        """The same in words."""
        count = len(self.request.record_ids)
        text = f"request {self.request.id}: {count} record{'s' * (count != 1)}, entered into {self.ledger}"
        more = f"{self.left_out} more {'are' if self.left_out > 1 else 'is'} asked for already"
        lines = [text, more] if self.left_out else [text]
        if self.twins:
            lines.append(f"{self.twins} of them because they say, word for word or nearly, what the others say")
        if self.held:
            lines.append(
                f"warning: {of_twins(self.held)}, word for word or nearly: the request can only be inconclusive; "
                "--with-twins asks for those records, too"
            )
        return lines


def submit(
    node_dir: Path,
    *,
    ids: str | None = None,
    subject: str | None = None,
    everything: bool = False,
    twins: bool = False,
    reason: str,
    identifier: str | None = None,
) -> Submitted:
    """Enter a request into the ledger of the node's folder. One of the first three says what is to be forgotten.

    ids: of records, with commas between; subject: a person's name; everything: the client leaves; twins: also the
    node's own records that say, word for word or nearly, what these say. Raises OblivionisError, which names the option
    of `oblivionis request submit` at fault.
    """
    if [ids is not None, subject is not None, everything].count(True) != 1:
        raise OblivionisError("say what is to be forgotten: one of --ids, --subject and --all")
    if not reason.strip():
        raise OblivionisError("--reason TEXT is missing: why is it to be forgotten? (it stays on this machine)")
    need_folder(node_dir)
    records = read_node(node_dir).records
    if ids is not None:
        wanted, scope = _named(ids, records, node_dir), SCOPE_RECORDS
    elif subject is not None:
        wanted, scope = _about(subject, records, node_dir), SCOPE_SUBJECT
    else:
        wanted, scope = [r.id for r in records], SCOPE_CLIENT
    name = "" if subject is None else next(" ".join(r.subject.split()) for r in records if r.id == wanted[0])
    ledger = NodeLedger(node_dir)
    chosen, gone = set(wanted), ledger.asked() | NodeFolder(node_dir).tombstones()
    more = with_twins(chosen, records) - chosen - gone if twins else frozenset[str]()
    wanted += [r.id for r in records if r.id in more]
    stay = [r for r in records if r.id not in chosen | more | gone]
    held = {twin.forget for twin in find_twins([r for r in records if r.id in chosen | more], stay)}
    made = ledger.submit(wanted, scope=scope, subject=name, reason=reason, identifier=identifier)
    return Submitted(made, len(set(wanted)) - len(made.record_ids), ledger.path, len(more), len(held))


def need_folder(node_dir: Path) -> None:
    """OblivionisError where there is no such folder."""
    if not node_dir.is_dir():
        raise OblivionisError(f"--node-dir {node_dir}: no such folder; expected the node's own folder")


def _named(ids: str, records: Sequence[Record], node_dir: Path) -> list[str]:
    wanted = [name.strip() for name in ids.split(",") if name.strip()]
    if not wanted:
        raise OblivionisError("--ids: expected ids of records, with commas between")
    held = {r.id for r in records}
    where = f"--ids: no record of {node_dir / 'data'} has the id"
    unknown = {i: did_you_mean(i, held) for i in wanted if i not in held}
    if unknown:
        raise OblivionisError("\n".join(f"{where} {i!r}{hint and f'; {hint}'}" for i, hint in unknown.items()))
    return wanted


def _about(subject: str, records: Sequence[Record], node_dir: Path) -> list[str]:
    key = subject_key(subject)
    wanted = [r.id for r in records if subject_key(r.subject) == key]
    if not wanted:
        hint = did_you_mean(subject, {r.subject for r in records})
        message = f"--subject: no record of {node_dir / 'data'} is about {subject!r}"
        raise OblivionisError(f"{message}; {hint}" if hint else message)
    return wanted
