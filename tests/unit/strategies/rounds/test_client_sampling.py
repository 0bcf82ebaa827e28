"""Whom a round draws, with which probability, and what each counts then."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, MetricRecord, RecordDict
from support.fedtu_clients import Recorder, adapter, content, federation, flat, honest, noise

from strategies import message_keys
from strategies.rounds.client_sampling import Available, BySize, PowerOfChoice, Sampling, by_size
from strategies.rounds.fedtu import FedTU, NodeMap, Options
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rounds.update_bounds import Bounds
from strategies.rules.factory import build
from strategies.secure.agreed_parameters import SecureSettings

SIZES = {0: 1, 1: 2, 2: 3, 3: 6}


class Fixed(random.Random):
    """Shuffles into a given order, and begins at a given place: every outcome can be had once."""

    def __init__(self, order, start):
        super().__init__(0)
        self._order, self._start = order, start

    def shuffle(self, x):
        x.sort(key=self._order.index)

    def randrange(self, start, *_):
        assert self._start < start
        return self._start


def everywhere(clients):
    return clients


def nobody(clients):
    return ()


def outcomes(sizes, count, left):
    """Every order of the clients and every start, all of which are equally likely."""
    for order in itertools.permutations(sizes):
        for start in range(left):
            yield by_size(sizes, count, Fixed(order, start))


@pytest.mark.parametrize(
    ("count", "left", "wanted"),
    [
        (1, 12, [Fraction(n, 12) for n in (1, 2, 3, 6)]),
        (2, 6, [*(Fraction(n, 6) for n in (1, 2, 3)), 1]),  # 2 · 6/12 = 1: the largest for certain, one of the others
        (3, 3, [Fraction(1, 3), Fraction(2, 3), 1, 1]),  # then 2 · 3/6 = 1: the next for certain, too
    ],
)
def test_every_client_is_drawn_with_its_share(count, left, wanted):
    """By enumeration: how often each is drawn is the probability that is told, and it is c · n_k, at most 1."""
    drawn, all_of_them = Counter(), 0
    for found in outcomes(SIZES, count, left):
        assert len(found) == count
        assert all(found[client] == wanted[client] for client in found)
        drawn.update(found.keys())
        all_of_them += 1
    assert [Fraction(drawn[client], all_of_them) for client in SIZES] == wanted


def test_the_sum_over_the_drawn_is_on_average_that_over_all():
    """E Σ (n_k / π_k) x_k = Σ n_k x_k, exactly: what makes the mean of the updates count size once."""
    values = {0: Fraction(5), 1: Fraction(-1, 3), 2: Fraction(7), 3: Fraction(1, 8)}
    sums = [
        sum(SIZES[client] / probability * values[client] for client, probability in found.items())
        for found in outcomes(SIZES, 2, 6)
    ]
    assert sum(sums) / len(sums) == sum(SIZES[client] * values[client] for client in SIZES)


def test_unequal_sizes_among_many_within_a_bound():
    """30 clients, 4,000 seeds: each count within five standard deviations of what its share says."""
    sizes = {client: 1 + client % 7 for client in range(30)}
    seeds = 4000
    drawn = Counter(c for seed in range(seeds) for c in by_size(sizes, 5, random.Random(seed)))
    for client, size in sizes.items():
        share = 5 * size / sum(sizes.values())
        assert abs(drawn[client] - seeds * share) < 5 * math.sqrt(seeds * share * (1 - share))


def test_any_two_clients_of_equal_size_may_be_drawn_together():
    """In one order, two of four in steps of two would only ever be 0 and 2, or 1 and 3."""
    seeds = 1200
    pairs = Counter(tuple(sorted(by_size(dict.fromkeys(range(4), 5), 2, random.Random(s)))) for s in range(seeds))
    assert set(pairs) == set(itertools.combinations(range(4), 2))
    assert all(abs(n - seeds / 6) < 5 * math.sqrt(seeds * 5 / 36) for n in pairs.values())


def test_by_size_takes_all_where_there_are_no_more_and_refuses_an_empty_one():
    assert by_size({1: 3, 2: 4}, 5, random.Random(0)) == {1: 1, 2: 1}
    with pytest.raises(ValueError, match="client 2 has the size 0"):
        by_size({1: 3, 2: 0}, 1, random.Random(0))


def test_the_weights_are_records_over_probability():
    drawn = BySize(SIZES.__getitem__).draw([0, 1, 2, 3], 2, random.Random(3), nobody)
    assert drawn.weights is not None and drawn.weights.keys() == set(drawn.clients)
    assert drawn.weights[3] == 6, "drawn for certain: its own records"
    assert [w for c, w in drawn.weights.items() if c != 3] == [6.0], "the others stand for all: 1 / (1/6)"


def test_power_of_choice_takes_the_largest_losses_of_the_candidates():
    """Against the definition: which candidates a seed draws, then the largest known losses among them."""
    losses = {0: 0.5, 1: 3.0, 2: 1.0, 3: 2.0, 4: 0.1, 5: 2.5}
    sampling = PowerOfChoice(4, lambda client: client + 1)
    sampling.heard((), losses)
    seen = set()
    for seed in range(60):
        candidates = by_size({c: c + 1 for c in range(6)}, 4, random.Random(seed))
        drawn = sampling.draw(range(6), 2, random.Random(seed), nobody)
        assert drawn.clients == tuple(sorted(sorted(candidates, key=lambda c: -losses[c])[:2]))
        assert drawn.weights == dict.fromkeys(drawn.clients, 1.0)
        seen.add(drawn.clients)
    assert len(seen) > 2


def test_power_of_choice_hears_each_once_first():
    """A client that never trained comes before all that did; among them chance decides, with equal sizes equally."""
    sampling, seeds = PowerOfChoice(4, lambda client: 1), 3000
    sampling.heard((3,), {3: 1e9})
    drawn = Counter(c for s in range(seeds) for c in sampling.draw(range(4), 1, random.Random(s), nobody).clients)
    assert drawn.keys() == {0, 1, 2}
    assert all(abs(n - seeds / 3) < 5 * math.sqrt(seeds * 2 / 9) for n in drawn.values())


def test_a_client_that_tells_no_loss_counts_as_the_smallest_known_one():
    """Whether it told one before or not; with none known nobody can be ranked. By hand, and from the saved state."""
    sampling = PowerOfChoice(4, lambda client: 1)
    sampling.heard((0, 1), {})
    assert sampling.state_dict() == {}
    sampling.heard((0, 1, 2), {1: 3.0, 2: 0.5})
    sampling.heard((1, 3), {3: 0.25})
    state = sampling.state_dict()
    assert dict(zip(state["clients"].tolist(), state["losses"].tolist(), strict=True)) == {
        0: 0.5,
        1: 0.25,
        2: 0.5,
        3: 0.25,
    }
    later = PowerOfChoice(4, lambda client: 1)
    later.load_state_dict(state)
    assert all(
        one.draw(range(4), 2, random.Random(seed), nobody).clients == (0, 2)
        for one in (sampling, later)
        for seed in range(20)
    )


def test_power_of_choice_does_not_go_on_asking_clients_that_never_answer():
    """Clients 0 to 2 of eight fail always, the losses of the others fall: two of all in every round.

    Each silent one is asked once for the first time, and again only after the others' losses fell below its own.
    """

    def client(partition):
        def answer(message):
            if message.metadata.message_type == message_keys.TRAIN and partition < 3:
                return Error(5, "node unavailable")
            told = {"train-loss": 100.0 + partition - int(message.content["config"]["server-round"]), "train-steps": 1}
            return content(flat(message.content["arrays"]), examples=2, **told)

        return answer

    grid = MemoryGrid({p: client(p) for p in range(8)}, keep_log=True)
    run(grid, PowerOfChoice(8, lambda c: 1), rounds=24)
    asked = Counter(p for _, p in trained(grid))
    assert sum(asked.values()) == 48 and all(asked[p] >= 1 for p in range(8))
    assert sum(asked[p] for p in range(3)) <= 18, "no more than their share of 3/8; as ∞ they would be in every round"


def test_what_the_largest_share_cuts_of_a_drawn_weight_is_told():
    """Four clients drawn for certain with 1, 1, 1 and 6 records and at most a third each: 6 counts as 1.5."""
    sizes, cuts, recorder = {0: 1, 1: 1, 2: 1, 3: 6}, [], Recorder()
    recorder.cut = lambda *cut: cuts.append(cut)
    fedtu = FedTU(
        build("fedavg", fraction_train=1.0, min_train_nodes=4),
        listener=recorder,
        options=Options(sampling=BySize(sizes.__getitem__), bounds=Bounds(max_weight_share=1 / 3)),
    )
    same = {p: lambda m: content(flat(m.content["arrays"]), examples=2) for p in sizes}
    fedtu.start(MemoryGrid(same), adapter(noise("start")), num_rounds=1)
    ((client, what, told, used),) = cuts
    assert (client, what, told) == (3, "weight", 6.0) and used == pytest.approx(1.5)


def test_power_of_choice_goes_on_from_its_state():
    first = PowerOfChoice(3, lambda client: 1)
    first.heard((1, 4), {4: 0.25, 1: 1e-3})
    second = PowerOfChoice(3, lambda client: 1)
    second.load_state_dict(first.state_dict())
    assert second.state_dict()["losses"].tolist() == [1e-3, 0.25]
    assert second.state_dict()["clients"].tolist() == [1, 4]
    second.load_state_dict({})
    assert second.state_dict() == {}
    with pytest.raises(ValueError, match="cannot load a state"):
        second.load_state_dict({"m/adapter": np.zeros(1)})
    with pytest.raises(ValueError, match="at least 1"):
        PowerOfChoice(0, lambda client: 1)


def test_available_draws_each_set_of_those_that_are_there_equally_often():
    there, seeds = {1, 2, 4, 6}, 6000
    drawn = Counter(
        Available().draw(range(7), 2, random.Random(seed), lambda clients: there & set(clients)).clients
        for seed in range(seeds)
    )
    assert drawn.keys() == set(itertools.combinations(sorted(there), 2))
    assert all(abs(n - seeds / 6) < 5 * math.sqrt(seeds * 5 / 36) for n in drawn.values())


def test_available_asks_as_few_as_it_can_and_all_before_it_gives_up():
    asked = []

    def reach(clients, answer=everywhere):
        asked.append(len(clients))
        return answer(clients)

    assert len(Available().draw(range(1000), 10, random.Random(0), reach).clients) == 10
    assert asked == [10]
    asked.clear()
    assert Available().draw(range(1000), 10, random.Random(0), lambda c: reach(c, nobody)).clients == ()
    assert asked == [10, 10, 20, 40, 80, 160, 320, 360], "no more questions than a few, and to everybody once"


def run(grid, sampling: Sampling | None, rounds: int = 2, nodes: NodeMap | None = None, **options):
    fedtu = FedTU(
        build("fedavg", fraction_train=0.25, min_train_nodes=2),
        nodes=nodes,
        options=Options(seed=3, stage="s", sampling=sampling, **options),
    )
    return fedtu.start(grid, adapter(noise("start")), num_rounds=rounds), fedtu


def trained(grid: MemoryGrid) -> list[tuple[int, int]]:
    return [(int(c["config"]["server-round"]), p) for kind, p, c in grid.log if kind == message_keys.TRAIN]


def test_the_mean_counts_size_once():
    """The model after a round of by_size is Σ w_k φ_k / Σ w_k with w_k = n_k / π_k; the told records do not matter."""
    sizes = {client: 1 + client**2 for client in range(8)}
    grid = federation(8)
    result, _ = run(grid, BySize(sizes.__getitem__), rounds=1)
    seed = "3/s/1/sampling"
    drawn = by_size(sizes, 2, random.Random(seed))
    assert [p for _, p in trained(grid)] == sorted(drawn)
    weights = {c: sizes[c] / float(drawn[c]) for c in drawn}
    models = {c: (noise("start") + noise(c, 1)).astype(np.float64) for c in drawn}
    expected = sum(weights[c] * models[c] for c in drawn) / sum(weights.values())
    np.testing.assert_allclose(flat(result.arrays), expected, rtol=1e-6)


def test_losses_that_are_told_choose_the_next_ones():
    """Two of four each round, all candidates: first each once, then those with the largest loss, which stay large."""

    def client(partition):
        def answer(message):
            examples, told = 2, {"train-loss": float(partition), "train-steps": 1}
            return content(flat(message.content["arrays"]), examples=examples, **told)

        return answer

    grid = MemoryGrid({p: client(p) for p in range(4)}, keep_log=True)
    run(grid, PowerOfChoice(4, lambda c: 1), rounds=4)
    rounds = {r: {p for n, p in trained(grid) if n == r} for r in range(1, 5)}
    assert rounds[1] | rounds[2] == {0, 1, 2, 3}
    assert rounds[3] == rounds[4] == {2, 3}


def test_resumed_is_not_stopped():
    grids = [federation(12) for _ in range(2)]
    for grid in grids:
        for p in grid.nodes:
            grid.nodes[p] = lambda m, p=p: RecordDict(
                {
                    **honest(p)(m).array_records,
                    "metrics": MetricRecord({"num-examples": 1, "train-loss": p * 0.7 % 1, "train-steps": 1}),
                }
            )
    whole, _ = run(grids[0], PowerOfChoice(5, lambda c: 1), rounds=6)
    half, stopped = run(grids[1], PowerOfChoice(5, lambda c: 1), rounds=3)
    later = FedTU(
        build("fedavg", fraction_train=0.25, min_train_nodes=2),
        options=Options(seed=3, stage="s", sampling=PowerOfChoice(5, lambda c: 1)),
    )
    later.load_state_dict(stopped.state_dict())
    resumed = later.start(grids[1], half.arrays, num_rounds=6, start_round=4)
    assert trained(grids[0]) == trained(grids[1])
    assert flat(whole.arrays).tobytes() == flat(resumed.arrays).tobytes()


def test_clients_that_do_not_answer_are_replaced_before_the_round():
    """Five of eight vanish: only the others train, as many as without; with uniform the round is short of them."""

    def away(message):
        return Error(5, "node unavailable") if message.metadata.dst_node_id % 2 else None

    def there(partition):
        def answer(message):
            if message.metadata.message_type == message_keys.NUDGE:
                return RecordDict()
            return honest(partition)(message)

        return answer

    grid = MemoryGrid({p: there(p) if p in (2, 5, 7) else away for p in range(8)}, keep_log=True)
    run(grid, Available(), rounds=5)
    assert {p for _, p in trained(grid)} <= {2, 5, 7}
    assert Counter(r for r, _ in trained(grid)) == dict.fromkeys(range(1, 6), 2)
    nudges = [c["config"] for kind, _, c in grid.log if kind == message_keys.NUDGE]
    assert all(isinstance(c, ConfigRecord) and c[message_keys.SERVER_ROUND] in range(1, 6) for c in nudges)


def test_too_few_that_are_there_train_nothing():
    grid = MemoryGrid({p: lambda m: None for p in range(8)}, keep_log=True)
    result, _ = run(grid, Available(), rounds=1)
    assert trained(grid) == []
    assert flat(result.arrays).tobytes() == noise("start").tobytes()


def test_uniform_is_flowers_own():
    """Without a sampling nothing is drawn twice: the messages of before."""
    first, second = federation(8), federation(8)
    run(first, None)
    FedTU(build("fedavg", fraction_train=0.25, min_train_nodes=2), options=Options(seed=3, stage="s")).start(
        second, adapter(noise("start")), num_rounds=2
    )
    assert trained(first) == trained(second)
    assert first.sent == {"query": 8, "train": 4}


def test_weights_take_single_updates():
    with pytest.raises(ValueError, match="BySize weighs single clients' updates"):
        Options(sampling=BySize(lambda c: 1), secure=SecureSettings(1.0))
    Options(sampling=Available(), secure=SecureSettings(1.0))


def test_one_candidate_is_enough():
    """Of a round of three at least three are candidates."""
    drawn = PowerOfChoice(1, lambda client: 1).draw(range(5), 3, random.Random(0), nobody)
    assert len(drawn.clients) == 3
    with pytest.raises(ValueError, match="candidates is 0, expected at least 1"):
        PowerOfChoice(0, lambda client: 1)


def test_probabilities_are_sizes_over_the_step_and_certain_ones_are_one():
    """Of 1, 2, 3 and 14 two: 14 for certain, then one of 6: a sixth, a third, a half."""
    told = {}
    for seed in range(60):
        told |= by_size({0: 1, 1: 2, 2: 3, 3: 14}, 2, random.Random(seed))
    assert told == {0: Fraction(1, 6), 1: Fraction(1, 3), 2: Fraction(1, 2), 3: 1}
    for seed in range(60):
        told |= by_size({0: 1, 1: 2, 2: 3, 3: 4}, 2, random.Random(seed))
    assert told == {0: Fraction(1, 5), 1: Fraction(2, 5), 2: Fraction(3, 5), 3: Fraction(4, 5)}


def test_no_fewer_candidates_are_drawn_than_are_to_train():
    drawn = PowerOfChoice(1, lambda client: 1).draw(range(5), 3, random.Random(0), nobody)
    assert len(drawn.clients) == 3
