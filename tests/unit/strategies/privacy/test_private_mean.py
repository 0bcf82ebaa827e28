"""The private mean against numbers worked out by hand, and FedTU with it around every aggregator that takes a mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from scipy import stats
from support.fedtu_clients import SIZE, Recorder, adapter, content, federation, flat, noise, request

from strategies import message_keys
from strategies.privacy.private_mean import PrivateMean, Release, clipped_mean
from strategies.protocols.base import ByUnlearning
from strategies.protocols.update_history import MemoryHistory
from strategies.rounds.fedtu import FedTU, Options, RequestList
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rounds.update_bounds import Bounds
from strategies.rules.factory import build
from strategies.secure.agreed_parameters import SecureSettings

C = 2.0


def train(private: PrivateMean, vectors, start=None, *, clients=None, population=100, server_round=1) -> np.ndarray:
    start = np.zeros(len(vectors[0])) if start is None else start
    count = clients or len(vectors)
    sent, models = adapter(start), [adapter(v) for v in vectors]
    return flat(private.train(server_round, sent, models, clients=count, population=population))


def unit(place: int, length: float) -> np.ndarray:
    vector = np.zeros(SIZE)
    vector[place] = length
    return vector


def test_without_noise_it_is_the_mean_of_the_clipped_updates():
    start = noise("start")
    new = train(PrivateMean(0.0, C), [start + unit(0, 8.0), start + unit(1, -1.0), start + unit(2, 2.0)], start)
    np.testing.assert_allclose(new - start, [2 / 3, -1 / 3, 2 / 3, *[0] * (SIZE - 3)], atol=1e-6)


def test_an_update_is_clipped_over_all_its_arrays_together():
    """Two arrays of lengths 3 and 4 are one update of length 5; one of length 1 stays; a third client is silent."""

    def model(a, b):
        return ArrayRecord({"a": Array(np.full((1, 1), a)), "b": Array(np.array([b, 0.0], np.float32))})

    mean, shortened = clipped_mean(model(1.0, 1.0), [model(4.0, 5.0), model(1.0, 0.0)], 3, C)
    np.testing.assert_allclose(mean["a"], [[3 * C / 5 / 3]])
    np.testing.assert_allclose(mean["b"], [(4 * C / 5 - 1) / 3, 0.0])
    assert shortened == 1


def test_an_update_too_long_for_float64_moves_the_mean_by_nothing():
    sent = ArrayRecord({"a": Array(np.zeros(3))})
    mean, shortened = clipped_mean(sent, [ArrayRecord({"a": Array(np.array([1e200, 1.0, 0.0]))})], 1, C)
    assert mean["a"].tolist() == [0.0, 0.0, 0.0] and shortened == 1


def test_who_does_not_answer_and_who_sends_nothing_new_count_as_zero():
    vectors = [unit(0, 1.0), unit(1, 0.0), unit(2, 3.0)]
    new = train(PrivateMean(0.0, C), vectors, clients=8)
    np.testing.assert_allclose(new, [1 / 8, 0, 2 / 8, *[0] * (SIZE - 3)], atol=1e-7)


def test_no_client_moves_the_mean_by_more_than_its_share_of_the_norm():
    rng = np.random.default_rng(0)
    others = [rng.normal(size=SIZE) * 5 for _ in range(4)]
    for length in (1e-6, 1.0, 1e20):
        own = rng.normal(size=SIZE)
        own *= length / np.linalg.norm(own)
        moved = train(PrivateMean(0.0, C), [*others, own]) - train(PrivateMean(0.0, C), others, clients=5)
        assert np.linalg.norm(moved) <= C / 5 * (1 + 1e-6)


@pytest.mark.parametrize(("adaptive", "clients"), [(False, 4), (True, 4), (True, 40)])
def test_the_noise_is_gaussian_with_the_deviation_of_the_sum_over_the_clients(adaptive, clients):
    """Of m clients, of which one answers, with z = 1.5: 1.5 · C / m; adaptive clipping spends part of it on the count:
    σ_b = max(m/20, z), so that z_Δ = (z⁻² − (2σ_b)⁻²)^(−1/2)."""
    z, size = 1.5, 20000
    private = PrivateMean(z, C, adaptive=adaptive, seed=7)
    new = train(private, [np.zeros(size)], clients=clients)
    deviation = C / clients * ((z**-2 - (2 * max(clients / 20, z)) ** -2) ** -0.5 if adaptive else z)
    assert stats.kstest(new / deviation, "norm").pvalue > 0.01
    assert stats.kstest(new / (deviation * 1.05), "norm").pvalue < 0.01


def test_the_number_that_tells_who_was_clipped_is_itself_not_clipped():
    """Under masks numbers are cut to ± clipping, half the count's weight among them, however small that is."""
    private, terms = PrivateMean(1.0, 1.0, adaptive=True), SecureSettings(clipping=0.1).terms("train", 5, (), 4)
    shared = private.shared("train", terms, 4)
    assert shared.counting > 0.2 and shared.clipping == shared.counting / 2
    assert private.shared("unlearn", terms, 4).clipping == 0.1
    assert private.shared("train", replace(terms, clipping=5.0), 4).clipping == 1.0


def test_unlearning_sums_the_clipped_updates_or_divides_them_by_those_who_were_asked():
    start, models = noise("start"), [unit(0, 8.0), unit(1, 1.0)]
    for summed, share in ((True, 1.0), (False, 1 / 3)):
        private = PrivateMean(0.0, C)
        sent = [adapter(start + m) for m in models]
        new = flat(private.unlearn(1, adapter(start), sent, clients=3, summed=summed))
        np.testing.assert_allclose(new - start, [2 * share, share, *[0] * (SIZE - 2)], atol=1e-6)
    zeros = adapter(np.zeros(20000))
    for summed, deviation in ((True, 1.5 * C), (False, 1.5 * C / 3)):
        new = flat(PrivateMean(1.5, C, seed=3).unlearn(1, zeros, [zeros], clients=3, summed=summed))
        assert stats.kstest(new / deviation, "norm").pvalue > 0.01


def test_the_norm_follows_the_median_length():
    """Of updates with the lengths 1 to 9 the median is 5, from wherever the norm starts."""
    lengths = [unit(k, k + 1.0) for k in range(9)]
    for first in (0.3, 60.0):
        private = PrivateMean(0.0, first, adaptive=True)
        for server_round in range(1, 80):
            train(private, lengths, server_round=server_round)
        assert 4.0 <= private.clipping_norm <= 6.0


def test_the_noise_of_a_round_is_that_of_the_norm_to_which_its_updates_were_clipped():
    """Flower 1.41 takes that of the next round; here a shrinking norm must not shrink the noise of today."""
    private = PrivateMean(1.0, C, adaptive=True, seed=1)
    new = train(private, [np.zeros(20000)] * 2, clients=2)
    assert private.clipping_norm != C
    assert np.std(new) == pytest.approx(C / 2 / np.sqrt(0.75), rel=0.03)


def test_seeded_noise_is_repeated_and_other_rounds_and_exchanges_have_their_own():
    def draw(server_round, seed=5):
        return train(PrivateMean(1.0, C, seed=seed), [np.zeros(SIZE)], server_round=server_round)

    zero = adapter(np.zeros(SIZE))
    assert draw(1).tobytes() == draw(1).tobytes()
    of_unlearning = flat(PrivateMean(1.0, C, seed=5).unlearn(1, zero, [zero], clients=1))
    drawn = [draw(1), draw(2), draw(1, seed=6), of_unlearning, draw(1, seed=None), draw(1, seed=None)]
    assert len({d.tobytes() for d in drawn}) == len(drawn)


def test_secret_noise_goes_with_secret_sampling():
    assert PrivateMean(1.0, C, seed=5).sampling_seed(9) == 9
    secret = PrivateMean(1.0, C)
    assert len({9, secret.sampling_seed(9), secret.sampling_seed(9)}) == 3


def test_a_release_is_told_before_it_leaves():
    told: list[Release] = []
    private = PrivateMean(1.0, C, seed=0, on_release=told.append)
    train(private, [np.zeros(SIZE)] * 2, clients=3, population=10, server_round=4)
    zero = adapter(np.zeros(SIZE))
    private.unlearn(5, zero, [zero], clients=2)
    assert told == [Release("train", 4, 3, 10, 1.0, C), Release("unlearn", 5, 2, None, 1.0, C)]
    private.announce("unlearn", 6, 3, 8)
    assert told[2:] == [Release("unlearn", 6, 3, 8, 1.0, C)]

    def full(release):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        train(PrivateMean(1.0, C, on_release=full), [np.zeros(SIZE)])


@pytest.mark.parametrize("values", [(-1, 1), (np.nan, 1), (np.inf, 1), (1, 0), (1, np.inf), (1, np.nan)])
def test_values_out_of_range(values):
    with pytest.raises(ValueError, match=r"noise_multiplier is|clipping_norm is"):
        PrivateMean(*values)


def test_more_models_than_clients():
    with pytest.raises(ValueError, match="3 models of 2 clients out of 9"):
        train(PrivateMean(1.0, C), [np.zeros(2)] * 3, clients=2, population=9)
    with pytest.raises(ValueError, match="2 models of 4 clients out of 3"):
        train(PrivateMean(1.0, C), [np.zeros(2)] * 2, clients=4, population=3)
    zero = adapter(np.zeros(2))
    with pytest.raises(ValueError, match="2 models of 1 clients"):
        PrivateMean(1.0, C).unlearn(1, zero, [zero, zero], clients=1)


def test_the_noise_of_the_share_that_was_cut_is_that_of_the_count_over_the_clients():
    """σ_b = max(m/20, z) clients: 2 of 40 for small z, 3 of 10 for z = 3. Nobody is cut: C e^(−0.2 (1 + noise − ½))."""
    for z, clients, deviation in ((0.1, 40, 2 / 40), (3.0, 10, 3 / 10)):
        found = []
        for seed in range(40):
            private = PrivateMean(z, C, adaptive=True, seed=seed)
            train(private, [np.zeros(1)] * clients)
            found.append(-np.log(private.clipping_norm / C) / 0.2 - 0.5)
        low, high = (np.sqrt(q / 40) for q in stats.chi2.ppf([1e-4, 1 - 1e-4], 40))
        assert low < np.sqrt(np.mean(np.square(found))) / deviation < high


@pytest.mark.parametrize(("adaptive", "kind"), [(False, "train"), (True, "unlearn"), (True, "train")])
def test_terms_of_a_secure_sum_have_the_noise_of_all_its_numbers(adaptive, kind):
    """Where the norm moves, of one number more and of a longer vector, by the paper's formula with the threshold."""
    terms = SecureSettings(clipping=5.0).terms(kind, 12, (), 3)
    z = 0.8
    shared = PrivateMean(z, C, adaptive=adaptive).shared(kind, terms, 3)
    moving = adaptive and kind == "train"
    count = C / np.sqrt((max(12 / 20, z) / z) ** 2 - 0.25) if moving else 0.0
    step = max(C, count / 2) / (2**21 - 1)
    longest = np.hypot(C, count / 2) / step + np.sqrt(3 + moving) / 2
    assert (shared.norm, shared.counting) == (C, pytest.approx(count))
    assert shared.step == pytest.approx(step) and terms.threshold == 8
    assert shared.noise == pytest.approx(z * longest / np.sqrt(8), rel=1e-12)


def test_the_reply_of_all_is_of_no_client_and_tells_no_number_of_theirs():
    reply = PrivateMean(1.0, C).reply(adapter(np.arange(3)), "model", "n")
    assert flat(reply.content["model"]).tolist() == [0, 1, 2]
    assert [dict(record) for record in reply.content.metric_records.values()] == [{"n": 1, "partition-id": -1}]


# -- around an aggregator ------------------------------------------------------------------------------------------


def answers(lengths):
    """Clients that move number p by so much; who is to forget moves it back by twice that."""

    def client(p):
        def answer(m):
            sign = -2.0 if m.metadata.message_type == message_keys.UNLEARN else 1.0
            moved = flat(m.content["arrays"]) + unit(p, sign * lengths[p])
            return content(moved, examples=10 * p + 1, train_loss=0.5)

        return answer

    return MemoryGrid({p: client(p) for p in range(len(lengths))})


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedadam", "fedyogi", "fedadagrad", "fedavgm"])
def test_the_server_step_takes_the_private_mean_as_its_only_update(name):
    """An oracle by hand: the mean of the clipped updates with equal weights goes through a fresh aggregator alone."""
    lengths, rounds = [0.5, 5.0, 1.0], 3
    fedtu = FedTU(build(name), options=Options(private_mean=PrivateMean(0.0, C)))
    got = flat(fedtu.start(answers(lengths), adapter(np.zeros(SIZE)), num_rounds=rounds).arrays)
    mean = np.zeros(SIZE)
    mean[:3] = [0.5 / 3, 2.0 / 3, 1.0 / 3]
    alone = FedTU(build(name))
    grid = MemoryGrid({0: lambda m: content(flat(m.content["arrays"]) + mean, train_loss=0.5)})
    want = flat(alone.start(grid, adapter(np.zeros(SIZE)), num_rounds=rounds).arrays)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


def test_a_whole_run_of_both_exchanges():
    told: list[Release] = []
    private = PrivateMean(0.0, C, on_release=told.append)
    recorder = Recorder()
    requests = RequestList([(2, request(0)), (2, request(1))])
    fedtu = FedTU(
        build("fedavg", fraction_train=0.67),
        requests=requests,
        serving=ByUnlearning(summed=True),
        listener=recorder,
        options=Options(private_mean=private),
    )
    fedtu.start(answers([0.5, 5.0, 1.0]), adapter(np.zeros(SIZE)), num_rounds=2)
    assert [(r.kind, r.server_round, r.clients, r.population) for r in told] == [
        ("train", 1, 2, 3),
        ("unlearn", 2, 2, None),
        ("train", 2, 2, 3),
    ]
    before, after = (recorder.checkpoints[key][0] for key in ((1, "round"), (2, "after_unlearn")))
    np.testing.assert_allclose(after - before, [-1.0, -2.0, *[0] * (SIZE - 2)], atol=1e-6)
    assert sorted(requests.served_in) == ["r0", "r1"]
    metrics = [e[2] for e in recorder.of("round_completed")]
    assert all("train_loss" not in m for m in metrics), "the clients' mean loss was not noised"


def test_a_round_without_an_answer_releases_nothing():
    told: list[Release] = []
    fedtu = FedTU(build("fedavg"), options=Options(private_mean=PrivateMean(1.0, C, on_release=told.append)))
    start = noise("start")
    result = fedtu.start(MemoryGrid({0: lambda m: content(np.full(SIZE, np.nan))}), adapter(start), num_rounds=1)
    assert told == [] and flat(result.arrays).tobytes() == start.tobytes()


def test_a_lost_client_still_counts_in_the_divisor():
    grid = answers([1.0, 1.0])
    grid.nodes[1] = lambda m: content(np.full(SIZE, np.inf))
    fedtu = FedTU(build("fedavg"), options=Options(private_mean=PrivateMean(0.0, C)))
    new = flat(fedtu.start(grid, adapter(np.zeros(SIZE)), num_rounds=1).arrays)
    np.testing.assert_allclose(new[:2], [0.5, 0.0], atol=1e-7)


def test_what_goes_by_single_clients_models_is_refused():
    options = Options(private_mean=PrivateMean(1.0, C))
    with pytest.raises(ValueError, match="goes by single clients' models"):
        FedTU(build("fedavg"), serving=ByUnlearning(history=MemoryHistory()), options=options)
    with pytest.raises(ValueError, match=r"set bounds[.]max_update_norm"):
        Options(private_mean=PrivateMean(1.0, C), bounds=Bounds(max_update_norm=10.0))


def test_without_a_private_mean_nothing_changes():
    plain = FedTU(build("fedavg")).start(federation(4), adapter(noise("start")), num_rounds=2)
    again = FedTU(build("fedavg"), options=Options()).start(federation(4), adapter(noise("start")), num_rounds=2)
    assert flat(plain.arrays).tobytes() == flat(again.arrays).tobytes()
