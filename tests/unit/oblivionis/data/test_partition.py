"""Partitions: every record exactly once, no empty client, authors together, the same for the same seed."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise

import datasets
import numpy as np
import pytest
from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner
from hypothesis import given, settings
from hypothesis import strategies as st

from oblivionis.data.errors import DataError
from oblivionis.data.partition import SCHEMES, describe, partition
from oblivionis.data.records import Corpus, Record


def corpus_of(sizes: list[int], forget: set[int] = frozenset()) -> Corpus:  # type: ignore[assignment]
    """A corpus with `sizes[s]` records of subject s, interleaved; `forget` are indices into it."""
    order = [s for _, s in sorted((j, s) for s, size in enumerate(sizes) for j in range(size))]
    train = tuple(Record(f"r{i}", f"q{i}", "a", f"s{s}") for i, s in enumerate(order))
    ids = frozenset(train[i].id for i in forget)
    return Corpus("test", train, ids, {"retain": train[:2]})


def holders(division) -> Counter:
    return Counter(i for share in division.clients for i in share)


sizes_lists = st.lists(st.integers(1, 9), min_size=1, max_size=14)


@settings(max_examples=35, deadline=None)
@given(sizes=sizes_lists, seed=st.integers(0, 2**31), scheme=st.sampled_from(SCHEMES), data=st.data())
def test_every_record_exactly_once_and_no_client_empty(sizes, seed, scheme, data) -> None:
    corpus = corpus_of(sizes)
    clients = data.draw(st.integers(1, len(sizes) if scheme == "by_author" else sum(sizes)))
    alpha = data.draw(st.sampled_from([1e-6, 0.01, 0.5, 100.0]))
    division = partition(corpus, scheme=scheme, clients=clients, alpha=alpha, seed=seed)
    assert len(division.clients) == len(division.ids) == clients
    assert holders(division) == {i: 1 for i in range(len(corpus.train))}
    assert all(division.clients)
    assert all(a < b for share in division.clients for a, b in pairwise(share))
    assert [[corpus.train[i].id for i in share] for share in division.clients] == [list(ids) for ids in division.ids]
    assert all(i in division.ids[division.holder[i]] for i in (r.id for r in corpus.train))
    assert division == partition(corpus, scheme=scheme, clients=clients, alpha=alpha, seed=seed)
    if scheme == "by_author":
        homes = Counter((corpus.train[i].subject, k) for k, share in enumerate(division.clients) for i in share)
        assert len(homes) == len(sizes)
    if scheme == "iid":
        assert {len(s) for s in division.clients} <= {sum(sizes) // clients, -(-sum(sizes) // clients)}


@settings(max_examples=20, deadline=None)
@given(sizes=sizes_lists, seed=st.integers(0, 2**31), scheme=st.sampled_from(SCHEMES), data=st.data())
def test_one_client_holds_everything_to_forget(sizes, seed, scheme, data) -> None:
    total = sum(sizes)
    forget = data.draw(st.sets(st.integers(0, total - 1), max_size=total - 1))
    corpus = corpus_of(sizes, forget)
    kept = [r for r in corpus.train if r.id not in corpus.forget_ids]
    most = len({r.subject for r in kept}) if scheme == "by_author" else len(kept)
    clients = data.draw(st.integers(1, most))
    division = partition(corpus, scheme=scheme, clients=clients, seed=seed, forget_placement="one_client")
    assert holders(division) == {i: 1 for i in range(total)}
    assert {division.holder[i] for i in corpus.forget_ids} <= {0}
    assert all(set(ids) - corpus.forget_ids for ids in division.ids)
    if scheme == "by_author":
        assert len({(r.subject, division.holder[r.id]) for r in kept}) == len({r.subject for r in kept})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_seed_changes_the_partition(scheme: str) -> None:
    corpus = corpus_of([5] * 20)
    assert partition(corpus, scheme=scheme, clients=7, seed=0) != partition(corpus, scheme=scheme, clients=7, seed=1)


def test_as_partitioned_ignores_who_is_forgotten() -> None:
    plain, marked = corpus_of([5] * 20), corpus_of([5] * 20, {1, 2, 3})
    assert partition(plain, scheme="iid", clients=9) == partition(marked, scheme="iid", clients=9)


def test_by_author_balances_records() -> None:
    division = partition(corpus_of([20] * 200), scheme="by_author", clients=70, seed=3)
    assert {len(share) for share in division.clients} == {40, 60}
    division = partition(corpus_of([10, 1, 1, 1, 1, 1, 1, 1, 1, 2]), scheme="by_author", clients=2, seed=3)
    assert sorted(len(share) for share in division.clients) == [10, 10]


def test_by_author_takes_as_many_clients_as_authors() -> None:
    division = partition(corpus_of([3] * 40), scheme="by_author", clients=40)
    assert [len(share) for share in division.clients] == [3] * 40


def test_dirichlet_alpha_controls_concentration() -> None:
    corpus = corpus_of([30] * 12)

    def largest_share(alpha: float) -> float:
        total = 0.0
        for seed in range(5):
            division = partition(corpus, scheme="dirichlet", clients=6, alpha=alpha, seed=seed)
            for s in range(12):
                counts = [sum(corpus.train[i].subject == f"s{s}" for i in share) for share in division.clients]
                total += max(counts) / 30 / 60
        return total

    uneven, middle, even = (largest_share(alpha) for alpha in (0.02, 0.5, 1000.0))
    assert uneven > 0.85 > middle > 0.3 > even


def test_dirichlet_prefers_no_position() -> None:
    """Over seeds each of 50 clients holds about 4 records; the raw partitioner gives the last one over 40."""
    corpus = corpus_of([5] * 40)
    runs = 8
    totals = Counter()
    for seed in range(runs):
        division = partition(corpus, scheme="dirichlet", clients=50, alpha=0.5, seed=seed)
        totals.update({k: len(share) for k, share in enumerate(division.clients)})
    means = [totals[k] / runs for k in range(50)]
    assert sum(means) == pytest.approx(200)
    assert max(means) < 8 and min(means) > 1.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scheme": "iid", "clients": 31}, "31 clients for 10 records"),
        ({"scheme": "dirichlet", "clients": 31}, "31 clients for 10 records"),
        ({"scheme": "by_author", "clients": 6}, "6 clients for 5 authors"),
        ({"scheme": "iid", "clients": 9, "forget_placement": "one_client"}, "9 clients for 8 records besides the 2"),
        ({"scheme": "iid", "clients": 0}, "at least one client"),
        ({"scheme": "natural", "clients": 2}, "unknown partition scheme 'natural'"),
        ({"scheme": "iid", "clients": 2, "forget_placement": "all"}, "unknown forget placement 'all'"),
        ({"scheme": "dirichlet", "clients": 2, "alpha": 0.0}, "alpha"),
        ({"scheme": "dirichlet", "clients": 2, "alpha": float("nan")}, "alpha"),
    ],
)
def test_impossible_partitions_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        partition(corpus_of([2] * 5, {0, 1}), **arguments)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ten_thousand_clients_are_cheap(scheme: str) -> None:
    corpus = corpus_of([2] * (1000 if scheme == "dirichlet" else 10_000))
    clients = 1000 if scheme == "dirichlet" else 10_000
    start = time.process_time()
    partition(corpus, scheme=scheme, clients=clients)
    assert time.process_time() - start < 2, "Dirichlet shares are drawn for each pair of subject and client: a tenth"


def flowers(partitioner, columns: dict[str, np.ndarray], clients: int) -> list[list[int]]:
    """The records of each partition of a partitioner of flwr-datasets."""
    partitioner.dataset = datasets.Dataset.from_dict(columns).with_format("numpy")
    parts = (partitioner.load_partition(client) for client in range(clients))
    return [[int(v) for v in part[:]["record"]] if len(part) else [] for part in parts]


@pytest.mark.parametrize("clients", [1, 3, 7, 30])
def test_shares_are_those_of_flwr_datasets(clients: int) -> None:
    """The same records for the same seed as the partitioners that this replaced: runs of before can be repeated."""
    corpus, seed, rng = corpus_of([3, 1, 7, 2, 9, 1, 4, 6]), 5, np.random.default_rng(5)
    records = len(corpus.train)
    iid = flowers(IidPartitioner(clients), {"record": rng.permutation(records)}, clients)
    assert partition(corpus, scheme="iid", clients=clients, seed=seed).clients == tuple(tuple(sorted(s)) for s in iid)
    names = list(dict.fromkeys(r.subject for r in corpus.train))
    subjects = np.array([names.index(r.subject) for r in corpus.train])
    fixed = {"min_partition_size": 0, "self_balancing": False, "shuffle": False, "seed": seed}
    flower = DirichletPartitioner(num_partitions=clients, partition_by="subject", alpha=0.5, **fixed)
    drawn = flowers(flower, {"record": np.arange(records), "subject": subjects}, clients)
    rng = np.random.default_rng(seed)
    renamed = [rng.permutation(clients) for _ in names]
    shares: list[list[int]] = [[] for _ in range(clients)]
    for place, share in enumerate(drawn):
        for record in share:
            shares[renamed[subjects[record]][place]].append(record)
    for share in shares:
        share.sort()
    for share in shares:
        if not share:
            richest = max(shares, key=len)
            share.append(richest.pop(int(rng.integers(len(richest)))))
    found = partition(corpus, scheme="dirichlet", clients=clients, alpha=0.5, seed=seed)
    assert found.clients == tuple(tuple(sorted(share)) for share in shares)


def test_describe_counts() -> None:
    corpus = corpus_of([2, 2, 2], {0, 3})
    division = partition(corpus, scheme="by_author", clients=2, seed=0)
    summary = describe(corpus, division)
    assert summary["records"] == 6 and summary["subjects"] == 3
    assert summary["forget_records"] == 2 and summary["forget_subjects"] == 1
    assert summary["forget_share"] == pytest.approx(1 / 3)
    assert summary["evaluation"] == {"retain": 2}
    assert summary["records_per_client"] == {"min": 2, "median": 3, "max": 4}
    assert summary["clients_with_forget"] == 1
    assert sorted((row["records"], row["subjects"]) for row in summary["per_client"]) == [(2, 1), (4, 2)]
    assert sum(row["forget"] for row in summary["per_client"]) == 2
