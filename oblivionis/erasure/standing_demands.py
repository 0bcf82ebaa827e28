"""Demands stand: what comes into a node's folder after a request is not trained on if the request would have named it.

A copy, word for word and about the same subject, of a record that was asked for is buried like it. A record about a
person whose demand stands is held back, and so is one named alike until it is said whether it is about that person.
A record that says nearly what a forgotten one says is trained on, and reported: a reader must judge. All of it goes
into the node's own log and ledger before a record is trained on, so that an audit withholds the same.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from oblivionis.data.records import Record
from oblivionis.data.subjects import Alike, Subjects
from oblivionis.data.twins import Twin, content_key, find_twins
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.node_ledger import HELD_BACK, NEAR_COPIES, NodeLedger
from oblivionis.erasure.node_record_files import contents
from oblivionis.erasure.request import NodeRequest
from oblivionis.naming import subject_key

log = logging.getLogger("flwr")

_SHOWN = 5
"""Ids in a line of the log."""


@dataclass(frozen=True, slots=True)
class Later:
    """What a node's folder holds that came after requests, as far as these do not name it.

    copies: by record id the request whose record it copies; held: by request the ids that it holds back, and those of
    them that are only named alike; near: twins of records that are not to be trained on.
    """

    copies: dict[str, str]
    held: dict[str, tuple[str, ...]]
    alike: dict[str, tuple[Alike, ...]]
    near: tuple[Twin, ...]


def stands_for(request: NodeRequest, name: str) -> bool:
    """Whether a request is a standing demand about the person of that name."""
    return request.stands and subject_key(request.subject) == subject_key(name)


def not_meant(node: NodeFolder, requests: Sequence[NodeRequest], records: Sequence[Record]) -> set[str]:
    """Ids of `records` that `requests` exclude, as long as these say what they said then."""
    ids = {i for request in requests for i in request.excluded}
    then = {(i, content) for content, (i, _) in NodeLedger(node.path).contents(excluded=True).items()}
    noted = {i for i, _ in then}  # earlier versions did not note what they said
    return {r.id for r in records if r.id in ids and (r.id not in noted or (r.id, content_key(r)) in then)}


def find_later(node: NodeFolder, records: Sequence[Record], *, near: bool = True) -> Later:
    """What of the `records` of a node's folder copies, is about, or is near what requests there name.

    near: whether to search for the latter, which takes longest.
    """
    requests, buried = NodeLedger(node.path).requests(), node.tombstones()
    asked = buried.union(*(r.record_ids for r in requests))
    if not asked:
        return Later({}, {}, {}, ())
    free = [r for r in records if r.id not in asked]
    named = {content: request for content, (i, request) in contents(node.path).items() if i in asked}
    copies = {r.id: named[content_key(r)] for r in free if content_key(r) in named}
    held, alike = dict[str, tuple[str, ...]](), dict[str, tuple[Alike, ...]]()
    subjects = _subjects(tuple(r for r in free if r.id not in copies))
    # Of several demands about one person the first that stands holds back.
    for first in {subject_key(r.subject): r for r in reversed(requests) if r.stands}.values():
        of_them = [r for r in requests if subject_key(r.subject) == subject_key(first.subject)]
        others = not_meant(node, of_them, free)
        known = subjects.find(first.subject)
        unsure = tuple(a for a in subjects.alike(first.subject) if a.record_id not in others)
        if ids := (*(known.records[0] if known else ()), *(a.record_id for a in unsure)):
            held[first.id] = ids
            alike[first.id] = unsure
    back = frozenset(i for ids in held.values() for i in ids)
    kept = tuple(r for r in free if r.id not in copies and r.id not in back)
    return Later(copies, held, alike, _near(tuple(r for r in records if r.id in asked), kept) if near else ())


@functools.lru_cache(maxsize=8)
def _subjects(records: tuple[Record, ...]) -> Subjects:
    return Subjects((0, r) for r in records)


@functools.lru_cache(maxsize=8)
def _near(forgotten: tuple[Record, ...], kept: tuple[Record, ...]) -> tuple[Twin, ...]:
    return tuple(find_twins(forgotten, kept))


def hold_back(node: NodeFolder, records: Sequence[Record], *, near: bool = True) -> None:
    """Bury and hold back what came later, durably, and tell the node's log what is new of it; near as `find_later`."""
    later, ledger = find_later(node, records, near=near), NodeLedger(node.path)
    for request in sorted(set(later.copies.values())):
        ids = [i for i, of in later.copies.items() if of == request]
        node.bury(ids, request, {r.id: content_key(r) for r in records if r.id in ids})
        log.warning("%s: buried, they say what records say that request %s asked for", _records(ids), request)
    known = {r.id: r for r in ledger.requests()}
    for request, ids in later.held.items():
        if new := [i for i in ids if i not in known[request].held_back]:
            ledger.note(HELD_BACK, request, record_ids=new)
            log.warning("%s: held back from training, request %s about this person stands", _records(new), request)
            if unsure := [a.record_id for a in later.alike[request] if a.record_id in new]:
                log.warning(
                    "%s: only named alike; `oblivionis request submit` with --include or --exclude says who is meant",
                    _records(unsure),
                )
    if later.near:
        noted = {i for line in ledger.lines(NEAR_COPIES) for i in line.get("record_ids", ())}
        if new := list(dict.fromkeys(twin.kept for twin in later.near if twin.kept not in noted)):
            ledger.note(NEAR_COPIES, record_ids=new)
            log.warning("%s: trained on, and nearly the same as records that were asked for", _records(new))


def _records(ids: Collection[str]) -> str:
    shown = ", ".join([*ids][:_SHOWN])
    return f"{len(ids)} record{'s' * (len(ids) != 1)} ({shown}{', …' if len(ids) > _SHOWN else ''})"
