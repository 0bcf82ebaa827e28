"""Which client holds which record.

What flwr-datasets' partitioners give (tests compare), without a table for each client: ten thousand take moments.
"""

from __future__ import annotations

import heapq
import math
import statistics
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from oblivionis.data.errors import DataError
from oblivionis.data.records import Corpus

SCHEMES = ("iid", "by_author", "dirichlet")
FORGET_PLACEMENTS = ("as_partitioned", "one_client")


@dataclass(frozen=True)
class Partition:
    """For each client the ascending indices of its records in `corpus.train`, and their ids in the same order."""

    clients: tuple[tuple[int, ...], ...]
    ids: tuple[tuple[str, ...], ...]

    @cached_property
    def holder(self) -> dict[str, int]:
        """The client that holds a record, by record id."""
        return {i: client for client, ids in enumerate(self.ids) for i in ids}


def partition(
    corpus: Corpus,
    *,
    scheme: str,
    clients: int,
    alpha: float = 0.5,
    seed: int = 0,
    forget_placement: str = "as_partitioned",
) -> Partition:
    """Give every record of `corpus.train` to exactly one of `clients` clients, none of which stays empty.

    - `iid`: a seeded shuffle, cut into shares whose sizes differ by one at most.
    - `by_author`: the records of a subject stay together; subjects are grouped so that clients hold about equally much.
    - `dirichlet`: each subject is divided by shares drawn from Dirichlet(`alpha`) over the clients.

    `forget_placement="one_client"` gives every record to forget to client 0 and divides only the others by the scheme
    over all clients. The result depends on nothing but the arguments. Raises DataError where that is impossible.
    """
    if scheme not in SCHEMES:
        raise DataError(f"unknown partition scheme {scheme!r}; expected one of {', '.join(SCHEMES)}")
    if forget_placement not in FORGET_PLACEMENTS:
        raise DataError(
            f"unknown forget placement {forget_placement!r}; expected one of {', '.join(FORGET_PLACEMENTS)}"
        )
    if clients < 1:
        raise DataError(f"expected at least one client, got {clients}")
    apart = corpus.forget_ids if forget_placement == "one_client" else frozenset()
    moved = [i for i, record in enumerate(corpus.train) if record.id in apart]
    divided = [i for i, record in enumerate(corpus.train) if record.id not in apart]
    names = [corpus.train[i].subject for i in divided]
    number = {name: n for n, name in enumerate(dict.fromkeys(names))}
    subjects = np.array([number[name] for name in names], dtype=np.int64)
    _check_enough(clients, scheme, records=len(divided), authors=len(number), moved=len(moved))
    rng = np.random.default_rng(seed)
    if scheme == "iid":
        shares = _iid(len(divided), clients, rng)
    elif scheme == "by_author":
        shares = _by_author(subjects, clients, rng)
    else:
        shares = _dirichlet(subjects, clients, alpha, seed, rng)
    held = [[divided[i] for i in share] for share in shares]
    held[0] += moved
    indices = tuple(tuple(sorted(share)) for share in held)
    return Partition(indices, tuple(tuple(corpus.train[i].id for i in share) for share in indices))


def describe(corpus: Corpus, division: Partition) -> dict[str, Any]:
    """Plain numbers for `oblivionis data describe`.

    Keys: name, records, subjects, forget_records, forget_subjects, forget_share (in [0, 1]), evaluation (questions by
    set), clients (number), records_per_client (min, median, max), clients_with_forget, and per_client: a list of
    {client, records, subjects, forget}.
    """
    rows = [
        {
            "client": client,
            "records": len(share),
            "subjects": len({corpus.train[i].subject for i in share}),
            "forget": sum(corpus.train[i].id in corpus.forget_ids for i in share),
        }
        for client, share in enumerate(division.clients)
    ]
    sizes = [row["records"] for row in rows]
    return {
        "name": corpus.name,
        "records": len(corpus.train),
        "subjects": len({r.subject for r in corpus.train}),
        "forget_records": len(corpus.forget_ids),
        "forget_subjects": len({r.subject for r in corpus.train if r.id in corpus.forget_ids}),
        "forget_share": len(corpus.forget_ids) / len(corpus.train),
        "evaluation": {name: len(records) for name, records in corpus.evaluation.items()},
        "clients": len(rows),
        "records_per_client": {"min": min(sizes), "median": statistics.median(sizes), "max": max(sizes)},
        "clients_with_forget": sum(row["forget"] > 0 for row in rows),
        "per_client": rows,
    }


def _check_enough(clients: int, scheme: str, *, records: int, authors: int, moved: int) -> None:
    have, what = (authors, "authors") if scheme == "by_author" else (records, "records")
    if clients <= have:
        return
    rest = f" besides the {moved} to forget, which client 0 holds" if moved else ""
    raise DataError(
        f"{clients} clients for {have} {what}{rest}: every client needs at least one; "
        f"set federation.clients to {have} or less"
    )


def _iid(records: int, clients: int, rng: np.random.Generator) -> list[list[int]]:
    """As flwr-datasets' IidPartitioner of the shuffled records."""
    return [part.tolist() for part in np.array_split(rng.permutation(records), clients)]


def _by_author(subjects: np.ndarray, clients: int, rng: np.random.Generator) -> list[list[int]]:
    """Subjects from the largest to the smallest (ties shuffled), each into the group that holds least so far.

    flwr-datasets' grouping by a fixed group size gives 67 or 100 groups of 200 authors, but never 70.
    """
    sizes = np.bincount(subjects)
    shuffled = rng.permutation(len(sizes))
    group = np.empty(len(sizes), dtype=np.int64)
    loads = [(0, client) for client in range(clients)]
    for subject in shuffled[np.argsort(-sizes[shuffled], kind="stable")]:
        load, client = loads[0]
        group[subject] = client
        heapq.heapreplace(loads, (load + int(sizes[subject]), client))
    shares: list[list[int]] = [[] for _ in range(clients)]
    for record, client in enumerate(group[subjects].tolist()):
        shares[client].append(record)
    return shares


def _dirichlet(
    subjects: np.ndarray, clients: int, alpha: float, seed: int, rng: np.random.Generator
) -> list[list[int]]:
    """Dirichlet shares of each subject, with the clients renamed at random for each subject.

    The shares are those of flwr-datasets' DirichletPartitioner (unbalanced, not shuffled), which rounds cumulated
    shares down, so that the last partition receives the last record of *every* subject
    and the first ones next to nothing where clients outnumber the records of a subject. The distribution does not
    depend on the order of the clients; renaming them per subject removes the bias. A client that is left
    without a record takes one from the client that holds most.
    """
    if not (math.isfinite(alpha) and alpha >= 1e-6):
        raise DataError(f"alpha of the Dirichlet partition must be a number of at least 1e-6, got {alpha}")
    shares: list[list[int]] = [[] for _ in range(clients)]
    drawn, alphas = np.random.default_rng(seed), np.full(clients, float(alpha))
    order = np.argsort(subjects, kind="stable")
    for records in np.split(order, np.cumsum(np.bincount(subjects))[:-1]):
        ends = (np.cumsum(drawn.dirichlet(alphas)) * len(records)).astype(int)[:-1]
        names = rng.permutation(clients)
        for record, place in zip(
            records.tolist(), np.searchsorted(ends, np.arange(len(records)), "right"), strict=True
        ):
            shares[names[place]].append(record)
    for share in shares:
        share.sort()
    _fill(shares, rng)
    return shares


def _fill(shares: list[list[int]], rng: np.random.Generator) -> None:
    """Give every empty share a record of the largest one, the first of equally large ones."""
    largest = [(-len(share), client) for client, share in enumerate(shares)]
    heapq.heapify(largest)
    for share in shares:
        if share:
            continue
        while -largest[0][0] != len(shares[largest[0][1]]):
            heapq.heappop(largest)
        richest = shares[largest[0][1]]
        share.append(richest.pop(int(rng.integers(len(richest)))))
        heapq.heapreplace(largest, (-len(richest), largest[0][1]))
