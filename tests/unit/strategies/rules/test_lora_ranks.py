"""Clients of lower LoRA ranks, against numpy's dense matrices: their truncation, and the way back."""

from __future__ import annotations

import re

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from support.fedtu_clients import Recorder, adapter, flat, request

from strategies import message_keys
from strategies.rounds.fedtu import FedTU, Options, RequestList
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rules.factory import build
from strategies.rules.lora_product import Pair, ProductMean
from strategies.rules.lora_ranks import Form, LoraRanks, truncation
from strategies.secure.agreed_parameters import SecureSettings

SHAPES = [(6, 5), (4, 9)]
"""(inputs, outputs) of two modules."""
RANK = 4


def layout(rank):
    pairs, start = [], 0
    for inputs, outputs in SHAPES:
        pairs.append(Pair(start, start + rank * inputs, rank, inputs, outputs))
        start += rank * (inputs + outputs)
    return tuple(pairs), start


PAIRS, SIZE = layout(RANK)
RANKS = [1, 2, 4, 9]


def form(rank):
    pairs, size = layout(rank)
    return Form(rank, size, pairs, {message_keys.LORA_RANK: rank})


FITTING = LoraRanks(SIZE, PAIRS, lambda kind, client: RANKS[client % len(RANKS)], form)


def products(vector, pairs=PAIRS):
    return [b.astype(np.float64) @ a for a, b in (p.factors(vector) for p in pairs)]


def vector(seed, size=SIZE):
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def best(matrix, rank):
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ vt[:rank]


@pytest.mark.parametrize(
    ("rank", "inputs", "outputs", "low"), [(8, 20, 15, 3), (8, 20, 5, 4), (8, 6, 15, 4), (4, 9, 9, 1)]
)
@pytest.mark.parametrize("used", [0, 1, 8])
def test_what_a_client_gets_is_numpys_truncation_and_what_it_changes_is_added_exactly(rank, inputs, outputs, low, used):
    rng = np.random.default_rng(used)
    a, b = rng.normal(size=(rank, inputs)), rng.normal(size=(outputs, rank))
    b[:, used:] = 0
    t, q = truncation(a, b, low)
    np.testing.assert_allclose(t @ q, np.eye(low), atol=1e-12)
    np.testing.assert_allclose(q.T @ q, np.eye(low), atol=1e-12)
    np.testing.assert_allclose((b @ q) @ (t @ a), best(b @ a, low), atol=1e-12)
    new_a, new_b = rng.normal(size=(low, inputs)), rng.normal(size=(outputs, low))
    whole = (b + (new_b - b @ q) @ t) @ (a + q @ (new_a - t @ a))
    np.testing.assert_allclose(whole, b @ a - best(b @ a, low) + new_b @ new_a, atol=1e-11)


def test_where_nothing_was_learned_yet_a_client_gets_the_strongest_directions_of_a():
    a = np.random.default_rng(1).normal(size=(6, 30))
    t, _ = truncation(a, np.zeros((7, 6)), 3)
    np.testing.assert_allclose(
        np.linalg.svd(t @ a, compute_uv=False), np.linalg.svd(a, compute_uv=False)[:3], rtol=1e-12
    )


@pytest.mark.parametrize("low", [1, 3, 5])
@pytest.mark.parametrize("make", ["zero", "equal rows", "rank 2", "rank 4", "nearly rank 4", "two inputs"])
def test_an_a_of_few_directions_is_truncated_as_far_as_it_goes_and_nothing_is_lost(make, low):
    rng = np.random.default_rng(low)
    a, b = rng.normal(size=(6, 2 if make == "two inputs" else 9)), rng.normal(size=(7, 6))
    if make == "zero":
        a[:] = 0
    elif make == "equal rows":
        a[:] = a[0]
    elif "rank" in make:
        kept = int(make[-1])
        a[kept:] = rng.normal(size=(6 - kept, kept)) @ a[:kept]
    if make == "nearly rank 4":
        a[4:] += 1e-8 * rng.normal(size=(2, 9))
    t, q = truncation(a, b, low)
    np.testing.assert_allclose(t @ q, np.eye(low), atol=1e-11)
    np.testing.assert_allclose((b @ q) @ (t @ a), best(b @ a, low), atol=1e-6 if "nearly" in make else 1e-11)
    assert np.linalg.norm(t, 2) < 1e3, "no step of B along a direction that A has not"
    new_a, new_b = rng.normal(size=(low, a.shape[1])), rng.normal(size=(7, low))
    whole = (b + (new_b - b @ q) @ t) @ (a + q @ (new_a - t @ a))
    np.testing.assert_allclose(whole, b @ a - (b @ q) @ (t @ a) + new_b @ new_a, atol=1e-9)
    if make == "zero":
        np.testing.assert_allclose(
            np.linalg.svd(b @ q, compute_uv=False), np.linalg.svd(b, compute_uv=False)[:low], rtol=1e-9
        )


def test_clients_of_the_servers_rank_get_the_model_itself():
    of_client = FITTING("train", adapter(vector(0)))
    assert [of_client(client) is None for client in range(4)] == [False, False, True, True]
    assert of_client(1) is of_client(5), "the work is done once for each rank"


@pytest.mark.parametrize("client", [0, 1])
def test_a_client_that_changes_nothing_leaves_the_model_as_it_is(client):
    start = vector(1)
    own = FITTING("train", adapter(start))(client)
    assert flat(own.sent).size == layout(RANKS[client])[1]
    assert np.array_equal(flat(own.joined(own.sent)), start)


def test_the_mean_of_several_ranks_is_that_of_the_dense_products():
    """Stacking the factors = averaging what they stand for, and the nearest matrix of the server's rank."""
    start, weights = vector(2), [0.2, 0.3, 0.5]
    of_client, rows, dense = FITTING("train", adapter(start)), [], []
    for client in range(3):
        own = of_client(client)
        size = SIZE if own is None else flat(own.sent).size
        told = vector(10 + client, size)
        rows.append(told if own is None else flat(own.joined(adapter(told))))
        learned = products(told, layout(min(RANKS[client], RANK))[0])
        lost = [p - best(p, RANKS[client]) for p in products(start)]
        dense.append([new + rest for new, rest in zip(learned, lost, strict=True)])
    mean = ProductMean(SIZE, PAIRS)(rows, weights)
    for i, product in enumerate(products(mean)):
        expected = sum(w * d[i] for w, d in zip(weights, dense, strict=True))
        np.testing.assert_allclose(product, best(expected, RANK), atol=1e-5)


def test_nothing_is_cut_while_the_ranks_of_the_answers_fit_into_the_servers():
    """From B = 0 on, ranks 1, 2 and 1 stack to 4: the mean of the products is exact."""
    start = vector(3)
    for pair in PAIRS:
        start[pair.b_part] = 0
    of_client, rows, dense = FITTING("train", adapter(start)), [], []
    for i, client in enumerate((0, 1, 4)):
        own = of_client(client)
        told = vector(20 + i, flat(own.sent).size)
        rows.append(flat(own.joined(adapter(told))))
        dense.append(products(told, layout(RANKS[client % 4])[0]))
    mean = products(ProductMean(SIZE, PAIRS)(rows, [0.25, 0.25, 0.5]))
    for i, product in enumerate(mean):
        np.testing.assert_allclose(product, 0.25 * dense[0][i] + 0.25 * dense[1][i] + 0.5 * dense[2][i], atol=1e-5)


@pytest.mark.parametrize("change", [{"size": SIZE + 1}, {"pairs": (*PAIRS[:1], Pair(44, 56, 3, 4, 9))}])
def test_a_model_that_is_not_made_of_factors_of_one_rank_is_refused(change):
    settings = {"size": SIZE, "pairs": PAIRS, "rank_of": lambda kind, client: 1, "form_of": form, **change}
    with pytest.raises(ValueError, match="LoRA factors of one rank"):
        LoraRanks(**settings)


# -- in the exchanges ------------------------------------------------------------------------------------------------


def reply(values, **metrics):
    return RecordDict({"arrays": adapter(values), "metrics": MetricRecord({"num-examples": 2, **metrics})})


def run(answer, fitting=FITTING, clients=4, requests=()):
    """One round from `vector(5)`, in which client p trains by `answer(p, message)`; the recorder and what was sent."""
    seen = {}

    def node(partition):
        def respond(message):
            seen[partition, message.metadata.message_type] = message.content
            return answer(partition, message)

        return respond

    recorder = Recorder()
    fedtu = FedTU(
        build("fedavg", mean=ProductMean(SIZE, PAIRS)),
        requests=RequestList([(1, r) for r in requests]),
        listener=recorder,
        options=Options(fitting=fitting),
    )
    grid = MemoryGrid({p: node(p) for p in range(clients)})
    result = fedtu.start(grid, adapter(vector(5)), num_rounds=1)
    return flat(result.arrays), recorder, seen


def test_each_client_is_sent_its_own_form_and_says_what_it_learned_in_it():
    def answer(partition, message):
        return reply(flat(message.content["arrays"]) + np.float32(0.01))

    new, recorder, seen = run(answer)
    sizes = [flat(seen[p, "train"]["arrays"]).size for p in range(4)]
    assert sizes == [layout(r)[1] for r in (1, 2, 4, 4)]
    assert [seen[p, "train"]["config"].get(message_keys.LORA_RANK) for p in range(4)] == [1, 2, None, None]
    assert all(ok for _, _, ok, _ in recorder.of("reply"))
    of_client, start = FITTING("train", adapter(vector(5))), vector(5)
    rows = []
    for client in range(4):
        own = of_client(client)
        rows.append(
            start + np.float32(0.01) if own is None else flat(own.joined(adapter(flat(own.sent) + np.float32(0.01))))
        )
    np.testing.assert_array_equal(new, ProductMean(SIZE, PAIRS)(rows, [0.25] * 4).astype(np.float32))


def test_ranks_that_are_all_the_servers_change_nothing():
    def answer(partition, message):
        return reply(flat(message.content["arrays"]) * np.float32(1 + 0.1 * partition))

    same = LoraRanks(SIZE, PAIRS, lambda kind, client: RANK, form)
    assert np.array_equal(run(answer, same)[0], run(answer, None)[0])


def test_what_a_client_of_a_low_rank_unlearned_becomes_the_global_model():
    def answer(partition, message):
        if message.metadata.message_type == message_keys.UNLEARN:
            return reply(flat(message.content["arrays"]) * np.float32(-1))
        return None

    new, _, _ = run(answer, requests=[request(0)])
    own = FITTING("train", adapter(vector(5)))(0)
    assert np.array_equal(new, flat(own.joined(adapter(-flat(own.sent)))))
    for got, old in zip(products(new), products(vector(5)), strict=True):
        np.testing.assert_allclose(got, old, atol=1e-5)  # (−B')(−A') is B'A'
    assert np.abs(new - vector(5)).max() > 0.1


@pytest.mark.parametrize(
    ("client", "values", "reason"),
    [
        (0, np.zeros(SIZE), "has shape"),
        (0, np.full(layout(1)[1], np.nan), "NaN or infinite"),
        (1, 3.4e38 * np.sign(vector(9, layout(2)[1])), "not finite in the global model's form"),
    ],
)
def test_a_bad_answer_in_a_clients_own_form_is_left_out(client, values, reason):
    def answer(partition, message):
        return reply(values) if partition == client else reply(flat(message.content["arrays"]))

    new, recorder, _ = run(answer)
    ((_, node, _, why),) = [e for e in recorder.of("reply") if not e[2]]
    assert node == client
    assert np.isfinite(new).all()
    assert re.search(reason, why)


def test_a_direction_that_only_a_huge_b_keeps_alive_stays_out_and_as_it_is():
    """Else T had the length of B over that of A there, and float32 no digits left for what a client learns."""
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(6, 9)), rng.normal(size=(7, 6))
    u, s, vt = np.linalg.svd(a, full_matrices=False)
    a = (u * np.append(s[:5], 1e-8)) @ vt
    b += 1e9 * np.outer(rng.normal(size=7), u[:, 5])
    t, q = truncation(a, b, 3)
    assert np.linalg.norm(t, 2) < 1e2
    np.testing.assert_allclose(t @ q, np.eye(3), atol=1e-11)
    strong = (u[:, :5] * s[:5]) @ vt[:5]
    np.testing.assert_allclose(b @ q @ t @ strong, best(b @ strong, 3), atol=1e-5)


@pytest.mark.parametrize("kind", ["train", message_keys.UNLEARN])
@pytest.mark.parametrize("values", [0.0, 1.0])
def test_one_client_that_leaves_a_without_directions_stops_nobody(kind, values):
    """It alone answers, or asks to forget, and its answer is the global model of round 2."""
    sent = []

    def node(partition):
        def respond(message):
            start, at = flat(message.content["arrays"]), message.content["config"]["server-round"]
            sent.append((at, partition, start.size, message.metadata.message_type))
            liar = (at, partition, message.metadata.message_type) == (1, 2, kind)
            if at == 1 and kind == "train" and partition != 2:
                return None
            return reply(np.full(SIZE, values) if liar else start)

        return respond

    fedtu = FedTU(
        build("fedavg", mean=ProductMean(SIZE, PAIRS)),
        requests=RequestList([] if kind == "train" else [(1, request(2))]),
        options=Options(fitting=FITTING),
    )
    result = fedtu.start(MemoryGrid({p: node(p) for p in range(3)}), adapter(vector(5)), num_rounds=2)
    assert {(p, size) for at, p, size, _ in sent if at == 2} == {(p, layout(RANKS[p])[1]) for p in range(3)}
    for got in products(flat(result.arrays)):
        np.testing.assert_allclose(got, RANK * values, atol=1e-4)


def test_masks_and_several_forms_exclude_each_other():
    with pytest.raises(ValueError, match="no sum under masks"):
        Options(fitting=FITTING, secure=SecureSettings(clipping=1.0))


@pytest.mark.parametrize("client", [0, 1])
def test_factors_in_float64_come_back_in_float64(client):
    """The client's product takes the place of its own one to the last digits, small changes of large numbers too."""
    rng = np.random.default_rng(8)
    start = 100 * rng.normal(size=SIZE)
    own = FITTING("train", ArrayRecord({"adapter": Array(start)}))(client)
    sent = own.sent["adapter"].numpy()
    told = sent + 1e-9 * rng.normal(size=sent.size)
    new = own.joined(ArrayRecord({"adapter": Array(told)}))["adapter"].numpy()
    assert sent.dtype == new.dtype == np.float64
    low = layout(RANKS[client])[0]
    moved = [after - before for after, before in zip(products(new), products(start), strict=True)]
    wanted = [after - before for after, before in zip(products(told, low), products(sent, low), strict=True)]
    for found, expected in zip(moved, wanted, strict=True):
        assert np.linalg.norm(expected) > 1e-8
        np.testing.assert_allclose(found, expected, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize(("of_a", "of_b"), [(1e-5, 1.0), (1e6, 1.0), (1.0, 1e-14), (1e-9, 1e-9)])
def test_what_counts_as_nothing_goes_by_the_scale_of_the_factors(of_a, of_b):
    rng = np.random.default_rng(3)
    a, b = of_a * rng.normal(size=(6, 9)), of_b * rng.normal(size=(7, 6))
    t, q = truncation(a, b, 2)
    found, wanted = (b @ q) @ (t @ a), best(b @ a, 2)
    np.testing.assert_allclose(found, wanted, atol=1e-10 * np.abs(wanted).max())
    assert np.linalg.svd(t @ a, compute_uv=False)[-1] > 1e-3 * np.linalg.svd(a, compute_uv=False)[0]
