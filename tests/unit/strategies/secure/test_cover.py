"""FedTU under masks: who asks hides among those that cover, and the model is what it would be without."""

from __future__ import annotations

import random

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from statsmodels.stats.proportion import proportion_confint
from support.fedtu_clients import Recorder, Repeating, adapter, flat
from support.secure import SecureClient, vanishing

from strategies import build, message_keys
from strategies.arrays import fingerprint
from strategies.rounds.fedtu import FedTU, NodeMap, Options, RequestList, UnlearnRequest
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rounds.nodes import seeded
from strategies.secure import stage_keys as w
from strategies.secure.agreed_parameters import SecureSettings
from strategies.secure.masks import unpacked
from strategies.secure.secure_exchange import moved

SIZE = 24
START = np.linspace(-0.5, 0.5, SIZE).astype(np.float32)
FORGOTTEN = np.linspace(0.3, -0.2, SIZE)
"""What an asking client adds to the model in order to forget, times its number + 1."""


def _client(me: int, **more) -> SecureClient:
    """Trains by adding 0.01 · (me + 1) with weight me + 1; forgets, if asked, by `FORGOTTEN` · (me + 1)."""

    def asked(message) -> int:
        config = message.content.config_records[message_keys.CONFIG]
        return len(config.get(message_keys.RECORD_IDS, []))

    def update(message):
        if message.metadata.message_type == message_keys.UNLEARN:
            return FORGOTTEN * (me + 1)
        return np.full(SIZE, 0.01 * (me + 1))

    def weight(message):
        return asked(message) if message.metadata.message_type == message_keys.UNLEARN else me + 1

    return SecureClient(me, update, weight, **more)


def _run(grid: MemoryGrid, due, *, rounds: int = 1, strategy: str = "fedavg", **options):
    requests = RequestList(due)
    settings = SecureSettings(clipping=10.0, patience=1.0)
    fedtu = FedTU(
        build(strategy),
        requests=requests,
        nodes=NodeMap(),
        options=Options(secure=settings, **{"cover": 4, **options}),
    )
    return fedtu.start(grid, adapter(START), num_rounds=rounds, timeout=1.0), requests


def _ask(client: int, records: int = 1) -> UnlearnRequest:
    return UnlearnRequest(f"request-{client}", client, tuple(f"{client}-{i}" for i in range(records)))


def test_a_round_of_training_is_the_weighted_mean():
    grid = MemoryGrid({c: _client(c) for c in range(5)})
    result, _ = _run(grid, [])
    weights = np.arange(1, 6)
    np.testing.assert_allclose(flat(result.arrays), START + 0.01 * (weights**2).sum() / weights.sum(), atol=1e-5)
    assert result.train_metrics_clientapp[1]["train-loss"] == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize("each", [False, True], ids=["mean", "sum"])
def test_what_is_forgotten_under_cover_is_what_the_askers_forget(each):
    """Two of six ask, with one record and with three; two others cover them."""
    grid = MemoryGrid({c: _client(c) for c in range(6)}, keep_log=True)
    result, requests = _run(grid, [(1, _ask(0)), (1, _ask(3, 3))], cover_each=each, stage="unlearn")
    assert set(requests.served_in) == {"request-0", "request-3"}
    addressed = [c for kind, c, content in grid.log if kind == message_keys.UNLEARN]
    assert len(addressed) == len(set(addressed)) == 4
    assert {0, 3} < set(addressed)
    sent = next(content for kind, _, content in grid.log if kind == message_keys.TRAIN)
    factor = (1 + 4) if each else (1 * 1 + 3 * 4) / 4
    np.testing.assert_allclose(flat(sent["arrays"]), START + factor * FORGOTTEN, atol=1e-4)
    assert flat(result.arrays).shape == START.shape


def test_who_asks_and_is_not_there_is_covered_by_one_more():
    """The exchange goes to as many clients as cover, of those that are connected."""
    grid = MemoryGrid({c: _client(c) for c in range(6)}, keep_log=True)
    _, requests = _run(grid, [(1, _ask(0)), (1, _ask(9))])
    addressed = {c for kind, c, _ in grid.log if kind == message_keys.UNLEARN}
    assert len(addressed) == 4 and 0 in addressed
    assert set(requests.served_in) == {"request-0"} and requests.reasons == {"request-9": "not connected"}


@pytest.mark.parametrize("stage", [w.KEYS_TYPE, w.SHARES_TYPE, "vectors"])
def test_an_asker_that_drops_out_stays_pending(stage):
    nodes = {c: _client(c) for c in range(6)}
    nodes[2] = _client(2, spoil=vanishing(stage))
    grid = MemoryGrid(nodes, keep_log=True)
    _, requests = _run(grid, [(1, _ask(2))])
    assert requests.attempts == {"request-2": 1} and requests.reasons == {"request-2": "no reply within 1 s"}
    assert not requests.served_in
    sent = next(content for kind, _, content in grid.log if kind == message_keys.TRAIN)
    assert np.array_equal(flat(sent["arrays"]), START)


def test_too_few_left_leaves_the_model_and_the_requests():
    nodes = {c: _client(c) for c in range(4)} | {c: _client(c, spoil=vanishing("vectors")) for c in (1, 2)}
    grid = MemoryGrid(nodes, keep_log=True)
    result, requests = _run(grid, [(1, _ask(0))])
    assert requests.reasons["request-0"].startswith("the secure sum failed: 2 clients are left")
    assert np.array_equal(flat(result.arrays), START)


@pytest.mark.parametrize("strategy", ["fedavg", "fedavgm", "fedprox", "fedadagrad", "fedadam", "fedyogi"])
def test_every_aggregator_takes_the_sum(strategy):
    """Beside the same clients without masks, round after round."""

    def bare(me):
        client = _client(me)

        def answer(message):
            update, weight = client.update(message), client.weight(message)
            arrays = ArrayRecord(
                {message_keys.ADAPTER: Array((flat(message.content["arrays"]) + update).astype("float32"))}
            )
            metrics = {"num-examples": weight, "train-loss": 0.5}
            return RecordDict({message_keys.ARRAYS: arrays, message_keys.METRICS: MetricRecord(metrics)})

        return answer

    due = [(2, _ask(1))]
    masked, _ = _run(MemoryGrid({c: _client(c) for c in range(4)}), due, rounds=3, strategy=strategy)
    plain = FedTU(build(strategy), requests=RequestList(due)).start(
        MemoryGrid({c: bare(c) for c in range(4)}), adapter(START), num_rounds=3
    )
    np.testing.assert_allclose(flat(masked.arrays), flat(plain.arrays), atol=2e-4)


def test_where_nobody_asks_no_exchange_is_held():
    """The source knows who asks: there is nobody to hide."""
    grid = MemoryGrid({c: _client(c) for c in range(5)}, keep_log=True)
    _run(grid, [])
    assert grid.sent[message_keys.UNLEARN] == 0 and message_keys.TRAIN in grid.sent


def test_fewer_than_are_to_cover_serve_who_asks_openly_but_nobody_that_is_sealed():
    """With three clients of four the exchange is held, unless the source does not know who asks."""
    grid = MemoryGrid({c: _client(c) for c in range(3)}, keep_log=True)
    _, requests = _run(grid, [(1, _ask(0))])
    assert set(requests.served_in) == {"request-0"} and grid.sent[message_keys.UNLEARN] == 3
    source, grid, model = _run_sealed({c: _sealed(c, c == 2, f"{c:064x}") for c in range(3)})
    assert grid.sent[message_keys.UNLEARN] == 0 and np.array_equal(model, START)
    assert source.exchanges == [] == source.failures


@pytest.mark.parametrize("on_unlearn", ["keep", "reset"])
def test_moments_are_reset_after_a_sum_that_served_somebody(on_unlearn):
    inner = build("fedavgm")
    recorder = Recorder()
    options = Options(secure=SecureSettings(clipping=10.0, patience=1.0), cover=3, server_state_on_unlearn=on_unlearn)
    fedtu = FedTU(inner, requests=RequestList([(2, _ask(0))]), listener=recorder, options=options)
    fedtu.start(MemoryGrid({c: _client(c) for c in range(4)}), adapter(START), num_rounds=2, timeout=1.0)
    before, after = recorder.checkpoints[1, "round"][1], recorder.checkpoints[2, "after_unlearn"][1]
    assert before and (after == {} if on_unlearn == "reset" else after.keys() == before.keys())


@pytest.mark.parametrize(("timeout", "patience"), [(9.0, 0.5), (0.5, 9.0)])
def test_only_the_stage_in_which_clients_work_may_take_long(timeout, patience):
    waited = {}

    class Waiting(MemoryGrid):
        def send_and_receive(self, messages, *, timeout=None):
            waited.update({message.metadata.message_type: timeout for message in messages})
            return super().send_and_receive(messages, timeout=timeout)

    options = Options(secure=SecureSettings(clipping=10.0, patience=patience))
    fedtu = FedTU(build("fedavg"), options=options)
    fedtu.start(Waiting({c: _client(c) for c in range(4)}), adapter(START), num_rounds=1, timeout=timeout)
    short = [w.KEYS_TYPE, w.SHARES_TYPE, w.CONFIRM_TYPE, w.UNMASK_TYPE]
    assert waited[message_keys.TRAIN] == timeout and {waited[kind] for kind in short} == {0.5}


def test_cover_takes_masks():
    with pytest.raises(ValueError, match="cover takes secure aggregation"):
        Options(cover=3)


EXCHANGES, CLIENTS = 200, 3


def _numbers(record, bits: int) -> list[float]:
    """Everything of one message from a client as numbers: lengths, bytes, and what the masked words look like."""
    found: list[float] = []
    for key in sorted(record):
        value = record[key]
        values = value if isinstance(value, list) else [value]
        raw = b"".join(v for v in values if isinstance(v, bytes))
        found += [len(values), len(raw), float(np.mean([*raw])) if raw else 0.0]
    if w.SUM in record:
        words = unpacked(record[w.SUM], SIZE, bits) / 2.0**bits
        found += [*words, float(np.corrcoef(words, FORGOTTEN)[0, 1]), float(words.std())]
    return found


def _seen() -> tuple[np.ndarray, np.ndarray]:
    """What a server sees of each client in exchanges in each of which one of them asks, and which one that was."""
    rows, asked = [], []
    random = np.random.default_rng(7)
    for _ in range(EXCHANGES):
        views: dict[int, list[float]] = {c: [] for c in range(CLIENTS)}
        bits = SecureSettings(clipping=10.0).terms("unlearn", CLIENTS, (), SIZE).modulus_bits

        def spy(me, views=views, bits=bits):
            def spoil(stage, answer):
                views[me] += _numbers(answer, bits)
                return answer

            return spoil

        asker = int(random.integers(CLIENTS))
        grid = MemoryGrid({c: _client(c, spoil=spy(c)) for c in range(CLIENTS)}, keep_log=True)
        _run(grid, [(1, _ask(asker))], cover=CLIENTS)
        for client in range(CLIENTS):
            rows.append(views[client])
            asked.append(int(client == asker))
    return np.array(rows), np.array(asked)


@pytest.mark.slow
def test_a_server_that_watches_cannot_tell_who_asked():
    """200 exchanges: a classifier trained on half of them guesses the other half at chance.

    Masks are fresh each time: where nothing leaks, a 99 % interval misses chance three times in a row once in 10⁶.
    The same classifier also gets the unmasked updates, which it tells apart without an error: it could do it.
    """
    guesser = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000, C=0.01))
    for _ in range(3):
        rows, asked = _seen()
        half = len(rows) // 2
        guesses = guesser.fit(rows[:half], asked[:half]).predict_proba(rows[half:])[:, 1]
        low, high = _interval(asked[half:], guesses)
        if low <= 0.5 <= high:
            break
    else:
        pytest.fail(f"the classifier is right in {low:.2f} to {high:.2f} of the pairs, and was not at chance before")

    clients = np.arange(len(rows)) % CLIENTS + 1
    bare = asked[:, None] * FORGOTTEN * clients[:, None]
    seen = np.hstack([rows, bare])
    sure = guesser.fit(seen[:half], asked[:half]).predict_proba(seen[half:])[:, 1]
    assert roc_auc_score(asked[half:], sure) == 1.0


def _interval(truth: np.ndarray, score: np.ndarray) -> tuple[float, float]:
    """A 99 % interval of the AUC: of pairs of one asker and one other in the same exchange, how often it is right."""
    right = total = 0
    for start in range(0, len(truth), CLIENTS):
        part, scores = truth[start : start + CLIENTS], score[start : start + CLIENTS]
        other = np.random.default_rng(start).choice(np.flatnonzero(part == 0))
        right += int(scores[part == 1][0] > scores[other])
        total += 1
    low, high = proportion_confint(right, total, alpha=0.01, method="beta")
    return float(low), float(high)


def test_without_cover_the_server_knows_who_asked():
    """Only who asks is addressed: the AUC of "was addressed" is 1."""
    addressed, asked = [], []
    for asker in range(CLIENTS):
        grid = MemoryGrid({c: lambda _: None for c in range(CLIENTS)}, keep_log=True)
        FedTU(build("fedavg"), requests=RequestList([(1, _ask(asker))])).start(grid, adapter(START), num_rounds=1)
        to = {c for kind, c, _ in grid.log if kind == message_keys.UNLEARN}
        addressed += [int(c in to) for c in range(CLIENTS)]
        asked += [int(c == asker) for c in range(CLIENTS)]
    assert roc_auc_score(asked, addressed) == 1.0


class Sealed(RequestList):
    """A source that knows nobody who asks, and writes down what it is told."""

    hidden = True

    def __init__(self):
        super().__init__()
        self.exchanges, self.failures = [], []

    def cover_due(self, server_round):
        return True

    def covered(self, *told):
        self.exchanges.append(told)

    def cover_failed(self, *told):
        self.failures.append(told)


def _sealed(me: int, asks: bool, commitment: str | None) -> SecureClient:
    """A client that brings its own request, and commits itself."""

    def commit(stage, answer):
        if stage == "vectors" and commitment is not None:
            answer[w.COMMITMENT] = commitment
        return answer

    honest = _client(me)

    def weight(message):
        return int(asks) if message.metadata.message_type == message_keys.UNLEARN else me + 1

    return SecureClient(me, honest.update, weight, spoil=commit)


def _run_sealed(clients: dict[int, SecureClient], cover: int = 4):
    source, grid = Sealed(), MemoryGrid(clients, keep_log=True)
    settings = SecureSettings(clipping=10.0, patience=1.0)
    options = Options(secure=settings, cover=cover, stage="unlearn")
    FedTU(build("fedavg"), requests=source, options=options).start(grid, adapter(START), num_rounds=1, timeout=1.0)
    sent = next(content for kind, _, content in grid.log if kind == message_keys.TRAIN)
    return source, grid, flat(sent["arrays"])


def test_sealed_requests_are_served_without_a_name():
    """One of four asks by itself: no message says so, the model forgets, the source has the commitments of all."""
    hexes = {c: f"{c:064x}" for c in range(4)}
    source, grid, model = _run_sealed({c: _sealed(c, c == 2, hexes[c]) for c in range(4)})
    np.testing.assert_allclose(model, START + 3 * FORGOTTEN, atol=1e-4)
    ((server_round, session, commitments, survivors, before, after, records),) = source.exchanges
    assert (server_round, commitments, survivors, records) == (1, hexes, (0, 1, 2, 3), 1)
    assert len(session) == 32
    assert (before, after) == (fingerprint(adapter(START)), fingerprint(adapter(model)))
    assert before != after
    asked = [
        content.config_records[message_keys.CONFIG] for kind, _, content in grid.log if kind == message_keys.UNLEARN
    ]
    assert len({tuple(sorted(config.items())) for config in asked}) == 1
    assert message_keys.REQUEST_IDS not in asked[0]


def test_an_exchange_in_which_nobody_asks_changes_nothing():
    source, _, model = _run_sealed({c: _sealed(c, False, f"{c:064x}") for c in range(4)})
    assert np.array_equal(model, START)
    ((*_, before, after, records),) = source.exchanges
    assert before == after
    assert records == 0


@pytest.mark.parametrize("commitment", [None, "0" * 63, "G" * 64, "0" * 200])
def test_who_commits_itself_to_nothing_is_left_out(commitment):
    clients = {c: _sealed(c, c == 2, commitment if c == 2 else f"{c:064x}") for c in range(5)}
    source, _, model = _run_sealed(clients, cover=5)
    assert source.exchanges[0][3] == (0, 1, 3, 4)
    assert np.array_equal(model, START)


def test_a_sealed_exchange_that_fails_is_told():
    clients = {c: _sealed(c, c == 2, f"{c:064x}") for c in range(4)}
    for c in (0, 1):
        clients[c] = _client(c, spoil=vanishing("vectors"))
    source, _, model = _run_sealed(clients)
    ((_, _, commitments, reason),) = source.failures
    assert commitments == {2: f"{2:064x}", 3: f"{3:064x}"}
    assert "2 clients are left" in reason
    assert np.array_equal(model, START)


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("on_unlearn", ["keep", "reset"])
def test_moments_are_reset_after_a_sealed_sum_in_which_somebody_forgets(on_unlearn, asks):
    """Nobody is named, but records were forgotten; where none were, the round goes on as if nothing had been asked."""
    recorder, settings = Recorder(), SecureSettings(clipping=10.0, patience=1.0)
    options = Options(secure=settings, cover=4, stage="unlearn", server_state_on_unlearn=on_unlearn)
    fedtu = FedTU(build("fedavgm"), requests=Sealed(), listener=recorder, options=options)
    grid = MemoryGrid({c: _sealed(c, asks and c == 2, f"{c:064x}") for c in range(4)})
    fedtu.start(grid, adapter(START), num_rounds=2, timeout=1.0)
    before = recorder.checkpoints[1, "round"][1]
    if not asks:
        assert set(recorder.checkpoints) == {(1, "round"), (2, "round")}
        return
    after = recorder.checkpoints[2, "after_unlearn"][1]
    assert before and (after == {} if on_unlearn == "reset" else after.keys() == before.keys())


def test_an_update_moves_all_arrays_one_after_the_other():
    """Each in its own form and number format, integers to the nearest."""
    arrays = {"a": np.ones((2, 3), np.float32), "b": np.array([5, 7], np.int32), "c": np.zeros(1, np.float64)}
    new = moved(ArrayRecord({name: Array(numbers) for name, numbers in arrays.items()}), np.arange(9) + 0.6)
    np.testing.assert_allclose(new["a"].numpy(), 1.6 + np.arange(6).reshape(2, 3), rtol=1e-6)
    assert new["b"].numpy().tolist() == [12, 15] and new["c"].numpy().tolist() == [8.6]
    assert [new[name].dtype for name in "abc"] == ["float32", "int32", "float64"]


def test_terms_that_cannot_be_serve_nobody_that_is_sealed():
    """No session began: there is nothing to tell of it, and the round goes on with the model as it was."""
    source, grid = Sealed(), MemoryGrid({c: _sealed(c, True, f"{c:064x}") for c in range(4)})
    options = Options(secure=SecureSettings(clipping=0.0, patience=1.0), cover=4, stage="unlearn")
    result = FedTU(build("fedavg"), requests=source, options=options).start(grid, adapter(START), num_rounds=1)
    assert np.array_equal(flat(result.arrays), START) and source.exchanges == [] == source.failures


def test_where_a_sum_fails_no_client_counts_as_heard(caplog):
    """Not those either whose part came: what they sent is in no model."""
    nodes = {c: _client(c) for c in range(4)} | {c: _client(c, spoil=vanishing("vectors")) for c in (1, 2)}
    recorder, settings = Recorder(), SecureSettings(clipping=10.0, patience=1.0)
    fedtu = FedTU(build("fedavg"), listener=recorder, options=Options(secure=settings))
    fedtu.start(MemoryGrid(nodes), adapter(START), num_rounds=1, timeout=1.0)
    heard = {client: (ok, reason) for _, client, ok, reason in recorder.of("reply")}
    assert heard.keys() == set(range(4)) and not any(ok for ok, _ in heard.values())
    assert all(heard[client][1].startswith("the secure sum failed: 2 clients are left") for client in (0, 3))
    assert recorder.of("exchange_ended") == [("exchange_ended", "train", 0, 4)]
    named = [c for c in range(4) if f"client {c} left out of the train exchange" in caplog.text]
    assert named == [1, 2] and caplog.text.count("the secure sum failed") == 1, "the fault itself is told once"


@pytest.mark.parametrize("answers", [True, False])
def test_what_was_served_under_cover_is_served_again_beside_new_requests(answers):
    """Client 0 is asked again with 3 and two that cover them; where its part does not come, nothing new has failed."""
    nodes, rounds = {c: _client(c) for c in range(6)}, []

    def gone(stage, answer):
        return None if stage == "vectors" and len(rounds) > 1 and not answers else answer

    asked = _client(0, spoil=gone)

    def leaving(message):
        if message.metadata.message_type == message_keys.UNLEARN:
            rounds.append(message.content["config"]["server-round"])
        return asked(message)

    nodes[0] = leaving
    grid, settings = MemoryGrid(nodes, keep_log=True), SecureSettings(clipping=10.0, patience=1.0)
    requests = Repeating([(1, _ask(0, 2)), (2, _ask(3))])
    options = Options(secure=settings, cover=4, unlearn_config={"method": "npo"})
    FedTU(build("fedavg"), requests=requests, options=options).start(grid, adapter(START), num_rounds=2, timeout=1.0)
    assert requests.served_in == {"request-0": 1, "request-3": 2} and not requests.attempts
    assert requests.repeated == ([("request-0", 2)] if answers else [])
    sent = {c: content["config"] for kind, c, content in grid.log if kind == message_keys.UNLEARN and len(rounds) == 2}
    second = {c: config for c, config in sent.items() if config["server-round"] == 2}
    assert len(second) == 4 and {c for c, config in second.items() if message_keys.REQUEST_IDS in config} == {0, 3}
    assert all(config[message_keys.COVER] and config["method"] == "npo" for config in second.values())


@pytest.mark.slow
def test_who_covers_is_drawn_by_seed_stage_and_round():
    """Two of those that do not ask, in partition order, by Python's own sampler; another stage draws others."""
    found = []
    for seed, stage in ((3, "s"), (4, "s"), (3, "t")):
        grid = MemoryGrid({c: _client(c) for c in range(9)}, keep_log=True)
        due = [(1, _ask(7)), (2, UnlearnRequest("later", 7, ("7-1",)))]
        _run(grid, due, rounds=2, cover=3, seed=seed, stage=stage, unlearn_config={"x": 1})
        sent = {1: {}, 2: {}}
        for kind, client, content in grid.log:
            if kind == message_keys.UNLEARN:
                sent[content["config"]["server-round"]][client] = dict(content["config"])
        for server_round, configs in sent.items():
            with seeded(seed, stage, server_round, "cover"):
                drawn = random.sample([c for c in range(9) if c != 7], 2)
            found.append(tuple(sorted(drawn)))
            assert configs.keys() == {7, *drawn}
            common = {"server-round": server_round, "stage": stage, "run-seed": seed, "x": 1, message_keys.COVER: True}
            assert [configs[c] for c in drawn] == [common] * 2 and common.items() <= configs[7].items()
    assert len(set(found)) > 3


def test_moments_stay_where_a_sum_served_nobody_for_the_first_time():
    """Once for a request, neither when it is served again nor when it asks for nothing: a sum of no records."""
    resets, settings = [], SecureSettings(clipping=10.0, patience=1.0)
    inner = build("fedavgm")
    inner.reset_state = lambda: resets.append(1)
    options = Options(secure=settings, cover=3, server_state_on_unlearn="reset")
    requests = Repeating([(1, _ask(0))])
    fedtu = FedTU(inner, requests=requests, options=options)
    fedtu.start(MemoryGrid({c: _client(c) for c in range(4)}), adapter(START), num_rounds=2, timeout=1.0)
    assert requests.repeated == [("request-0", 2)] and len(resets) == 1
    nobody = SecureClient(0, _client(0).update, lambda m: int(m.metadata.message_type == message_keys.TRAIN))
    fedtu = FedTU(inner, requests=RequestList([(1, _ask(0))]), options=options)
    nodes = {0: nobody} | {c: _client(c) for c in range(1, 4)}
    fedtu.start(MemoryGrid(nodes), adapter(START), num_rounds=1, timeout=1.0)
    assert len(resets) == 1
