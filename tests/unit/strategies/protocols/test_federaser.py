"""FedEraser against a slow numpy account of the same federation, whose clients fit least squares."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flwr.app import Error, Message, RecordDict
from flwr.app import MetricRecord as Metrics
from support.erasing import EPOCHS, SETTINGS, SIZE, START, federation, fit, learner, steps
from support.fedtu_clients import Recorder, adapter, content, flat, request

from strategies import message_keys
from strategies.client_update import ClientUpdate
from strategies.protocols.base import Answer, ByUnlearning
from strategies.protocols.federaser import FedEraser, FedEraserProtocol
from strategies.protocols.update_history import MemoryHistory, RoundUpdates
from strategies.replies import ReplyCheck
from strategies.rounds.fedtu import FedTU, Options, RequestList
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rules.factory import build


def run(grid, history, stage, rounds, start, *, name="fedavg", due=(), fraction=0.5):
    """One stage; the final vector, the recorder, the requests and FedTU."""
    inner = build(name, fraction_train=fraction, **SETTINGS[name])
    history.stage = stage
    recorder, requests = Recorder(), RequestList(due)
    erasing = (
        FedEraserProtocol(FedEraser(inner, history, local_epochs=EPOCHS)) if due else ByUnlearning(history=history)
    )
    options = Options(stage=stage)
    fedtu = FedTU(inner, requests=requests, serving=erasing, listener=recorder, options=options)
    result = fedtu.start(grid, adapter(start), num_rounds=rounds)
    return flat(result.arrays), recorder, requests, fedtu


def joining(client, first):
    """A client that cannot train before that round of finetune."""

    def answer(message):
        config = message.content["config"]
        early = message.metadata.message_type == message_keys.TRAIN and config["server-round"] < first
        absent = early and config["stage"] == "finetune"
        return Error(code=2, reason="off") if absent else learner(client)(message)

    return answer


def sampled(grid, stage):
    """The clients that trained in each round of a stage, from the messages."""
    found = {}
    for kind, client, record in grid.log:
        if kind == message_keys.TRAIN and record["config"]["stage"] == stage:
            found.setdefault(record["config"]["server-round"], []).append(client)
    return [sorted(found[round]) for round in sorted(found)]


class Account:
    """The federation in plain numpy: what FedTU, the aggregator and FedEraser should come to."""

    def __init__(self, name):
        self.name, self.mu = name, SETTINGS[name].get("proximal_mu", 0.0)
        self.phi, self.state, self.rounds = START, None, []

    def aggregate(self, phi, state, models):
        """Oblivionis eqs. 19-33; `models` are (weight, vector)."""
        total = sum(w for w, _ in models)
        mean = sum(w / total * v.astype(np.float64) for w, v in models)
        s, delta, phi = SETTINGS[self.name], mean - phi, phi.astype(np.float64)
        m, v = state if state is not None else (None, None)
        if self.name in ("fedavg", "fedprox"):
            return mean.astype(np.float32), None
        if self.name == "fednova":  # the weight is the client's number and 2
            moved = [(w / total, steps(w - 2), v - phi) for w, v in models]
            tau_eff = sum(p * tau for p, tau, _ in moved)
            return (phi + tau_eff * sum(p * d / tau for p, tau, d in moved)).astype(np.float32), None
        if self.name == "fedmedian":
            return np.median([v for _, v in models], axis=0).astype(np.float32), None
        if self.name == "krum":
            vectors = [v.astype(np.float64) for _, v in models]
            if len(vectors) < 5:
                return phi.astype(np.float32), None
            scores = [sum(sorted(((a - b) ** 2).sum() for b in vectors)[1 : len(vectors) - 2]) for a in vectors]
            return models[int(np.argmin(scores))][1], None
        if self.name == "fedavgm":
            m = delta if m is None else s["server_momentum"] * m + delta
            return (phi + s["server_learning_rate"] * m).astype(np.float32), (m, None)
        v = s["tau"] ** 2 if v is None else v
        if self.name == "fedadagrad":
            v = v + delta**2
            return (phi + s["eta"] * delta / (np.sqrt(v) + s["tau"])).astype(np.float32), (None, v)
        else:
            m = delta if m is None else s["beta_1"] * m + (1 - s["beta_1"]) * delta
            if self.name == "fedadam":
                v = s["beta_2"] * v + (1 - s["beta_2"]) * delta**2
            else:
                v = v - (1 - s["beta_2"]) * delta**2 * np.sign(v - delta**2)
        return (phi + s["eta"] * m / (np.sqrt(v) + s["tau"])).astype(np.float32), (m, v)

    def train(self, stage, clients):
        models = {c: (c + 2, fit(c, self.phi, EPOCHS, self.mu)) for c in clients}
        self.rounds.append((stage, self.phi, self.state, models))
        self.phi, self.state = self.aggregate(self.phi, self.state, list(models.values()))

    def erase(self, now, asking):
        took_part = [i for i, (_, _, _, models) in enumerate(self.rounds) if set(models) & set(asking)]
        if not took_part:
            return
        first, old = took_part[0], self.rounds
        self.rounds, (before, phi, state, _) = old[:first], old[first]
        for i, (stage, sent, _, models) in enumerate(old[first:]):
            state = state if stage == before else None
            before = stage
            left = {c: m for c, m in models.items() if c not in asking}
            if i > 0:
                for c, (weight, vector) in left.items():
                    u = vector.astype(np.float64) - sent
                    new = fit(c, phi, EPOCHS // 2, self.mu).astype(np.float64) - phi
                    calibrated = phi + math.sqrt((u**2).sum()) * new / math.sqrt((new**2).sum())
                    left[c] = (weight, calibrated.astype(np.float32))
            if left:
                self.rounds.append((stage, phi, state, left))
                phi, state = self.aggregate(phi, state, list(left.values()))
        self.phi, self.state = phi, state if before == now else None


@pytest.mark.parametrize("name", SETTINGS)
def test_against_plain_numpy(name):
    grid, history = federation(), MemoryHistory()
    start, *_ = run(grid, history, "finetune", 5, START, name=name)
    due = [(2, request(1)), (4, request(2)), (4, request(5))]
    final, recorder, requests, _ = run(grid, history, "unlearn", 4, start, name=name, due=due)
    assert requests.served_in == {"r1": 2, "r2": 4, "r5": 4}

    account = Account(name)
    for clients in sampled(grid, "finetune"):
        account.train("finetune", clients)
    np.testing.assert_allclose(start, account.phi, rtol=1e-5, atol=1e-6)
    account.state = None
    for round, clients in enumerate(sampled(grid, "unlearn"), 1):
        if round in (2, 4):
            account.erase("unlearn", {2: {1}, 4: {2, 5}}[round])
            vector, state = recorder.checkpoints[round, "after_unlearn"]
            np.testing.assert_allclose(vector, account.phi, rtol=1e-4, atol=1e-5)
            expected = dict(zip(("m/adapter", "v/adapter"), account.state or (None, None), strict=True))
            expected = {k: m for k, m in expected.items() if m is not None}
            assert state.keys() == expected.keys()
            for moment, values in expected.items():
                np.testing.assert_allclose(state[moment], values, rtol=1e-4, atol=1e-5)
        account.train("unlearn", clients)
    np.testing.assert_allclose(final, account.phi, rtol=1e-4, atol=1e-5)
    assert [past.clients for past in history.rounds()] == [tuple(sorted(models)) for *_, models in account.rounds]


def test_the_paper_s_equation_by_hand():
    """One dimension. Round 1 counts as it is; in round 2 client 0 had moved by +3 and is asked which way now."""
    sent = {1: [1.0, 5.0], 2: [6.0, 7.0]}

    def client(p):
        def answer(message):
            if message.metadata.message_type == message_keys.BURY:
                return RecordDict({"metrics": Metrics({"num-examples": 1})})
            config = message.content["config"]
            if str(config["stage"]).startswith("calibrate"):
                assert (config["epochs"], flat(message.content["arrays"])[0], p) == (2, 1.0, 0)
                return content([0.75], examples=1)
            return content([sent[config["server-round"]][p]], examples=1)

        return answer

    grid, history = MemoryGrid({0: client(0), 1: client(1)}), MemoryHistory()
    start, *_ = run(grid, history, "finetune", 2, np.zeros(1), fraction=1.0)
    assert start == [6.5]
    _, recorder, *_ = run(grid, history, "unlearn", 1, start, due=[(1, request(1))], fraction=1e-9)
    assert recorder.checkpoints[1, "after_unlearn"][0] == [-2.0], "1 + |6 - 3| * (0.75 - 1) / |0.75 - 1|"


def test_a_client_that_never_took_part_costs_nothing():
    grid, history = federation(), MemoryHistory()
    grid.nodes[3] = lambda m: Error(code=2, reason="broken") if m.metadata.message_type == "train" else learner(3)(m)
    start, *_ = run(grid, history, "finetune", 4, START)
    before, sent = history.rounds(), grid.sent["train"]
    _, recorder, requests, _ = run(grid, history, "unlearn", 1, start, due=[(1, request(3))])
    assert recorder.checkpoints[1, "after_unlearn"][0].tobytes() == start.tobytes()
    assert requests.served_in == {"r3": 1} and grid.sent["train"] == sent + 3, "the round's own training only"
    assert history.rounds()[:-1] == before


def test_who_took_part_in_the_last_round_only_is_erased_exactly():
    """All before it stays, and its round is aggregated without it: the same as if it had failed there."""
    models = []
    for failing in (False, True):
        grid, history = federation(), MemoryHistory()

        def last(message, failing=failing):
            is_last = message.content["config"]["server-round"] == 4
            erased_later = message.metadata.message_type == message_keys.BURY or (is_last and not failing)
            return learner(2)(message) if erased_later else Error(code=2, reason="off")

        grid.nodes[2] = last
        start, *_ = run(grid, history, "finetune", 4, START, name="fedadam", fraction=1.0)
        if not failing:
            assert [2 in past.clients for past in history.rounds()] == [False, False, False, True]
            _, recorder, *_ = run(grid, history, "unlearn", 1, start, name="fedadam", due=[(1, request(2))])
            start = recorder.checkpoints[1, "after_unlearn"][0]
        models.append(start)
    np.testing.assert_array_equal(*models)


def test_calibrated_updates_have_the_stored_length_and_the_new_direction():
    grid, history = federation(), MemoryHistory()
    start, *_ = run(grid, history, "finetune", 4, START, fraction=1.0)
    lengths = {}
    for past in history.rounds():
        stored = history.read(past)
        lengths[past.round] = {u.partition: np.linalg.norm(flat(u.arrays) - flat(stored.sent)) for u in stored.clients}
    run(grid, history, "unlearn", 1, start, due=[(1, request(0))], fraction=1.0)
    for past in [past for past in history.rounds() if past.stage == "finetune"]:
        rebuilt = history.read(past)
        assert [u.partition for u in rebuilt.clients] == [1, 2, 3, 4, 5]
        for update in rebuilt.clients:
            moved = flat(update.arrays).astype(np.float64) - flat(rebuilt.sent)
            np.testing.assert_allclose(np.linalg.norm(moved), lengths[past.round][update.partition], rtol=1e-4)
            if past.round > 1:
                new = fit(update.partition, flat(rebuilt.sent), 2).astype(np.float64) - flat(rebuilt.sent)
                assert moved @ new / np.linalg.norm(moved) / np.linalg.norm(new) == pytest.approx(1, abs=1e-4)


def test_a_client_that_does_not_move_adds_nothing():
    grid, history = federation(), MemoryHistory()
    start, *_ = run(grid, history, "finetune", 2, START, fraction=1.0)
    for p in grid.nodes:
        honest = grid.nodes[p]
        grid.nodes[p] = lambda m, honest=honest: (
            content(flat(m.content["arrays"])) if m.metadata.message_type == "train" else honest(m)
        )
    run(grid, history, "unlearn", 1, start, due=[(1, request(0))], fraction=1.0)
    second = history.read(history.rounds()[1])
    assert all(flat(u.arrays).tobytes() == flat(second.sent).tobytes() for u in second.clients)


def test_the_work_of_an_erasure_is_told():
    """Four rounds, of which the first counts as it is: three with five clients each are calibrated."""
    grid, history = federation(), MemoryHistory()
    start, *_ = run(grid, history, "finetune", 4, START, fraction=1.0)
    told = []

    class Source(RequestList):
        def served(self, request, server_round, info):
            told.append([info[name] for name in message_keys.ERASURE])

    inner = build("fedavg", **SETTINGS["fedavg"])
    serving = FedEraserProtocol(FedEraser(inner, history, local_epochs=EPOCHS))
    FedTU(inner, requests=Source([(1, request(0))]), serving=serving).start(grid, adapter(start), num_rounds=1)
    ((rounds, updates, seconds),) = told
    assert (rounds, updates) == (4, 15) and 0 <= seconds < 60


def test_a_stage_begins_without_the_moments_of_the_one_before_also_after_an_erasure():
    grid, history = federation(), MemoryHistory()
    start, *_ = run(grid, history, "finetune", 3, START, name="fedavgm", fraction=1.0)
    _, recorder, *_ = run(grid, history, "unlearn", 1, start, name="fedavgm", due=[(1, request(0))], fraction=1.0)
    assert recorder.checkpoints[1, "after_unlearn"][1] == {}


def test_rounds_between_the_stored_ones_are_left_out():
    """Δt = 2 keeps rounds 1, 3, 5; who came first in round 4 is erased from the model that round 3 began with."""
    grid, history = federation(), MemoryHistory(every=2)
    grid.nodes[4] = joining(4, 4)
    start, *_ = run(grid, history, "finetune", 6, START, fraction=1.0)
    assert [past.stored for past in history.rounds()] == [True, False] * 3
    third = history.read(history.rounds()[2])
    grid.log.clear()
    run(grid, history, "unlearn", 1, start, due=[(1, request(4))], fraction=1.0)
    asked = [
        (c["config"]["server-round"], p)
        for k, p, c in grid.log
        if k == message_keys.TRAIN and c["config"]["stage"] == "calibrate/1/finetune"
    ]
    assert asked == [(5, p) for p in (0, 1, 2, 3, 5)]
    rounds = history.rounds()
    assert [(past.stage, past.round, past.stored) for past in rounds] == [
        ("finetune", 1, True), ("finetune", 2, False), ("finetune", 3, True), ("finetune", 5, True),
        ("unlearn", 1, True),
    ]  # fmt: skip
    again = history.read(rounds[2])
    assert flat(again.sent).tobytes() == flat(third.sent).tobytes()
    assert [u.partition for u in again.clients] == [0, 1, 2, 3, 5]


def test_a_client_from_before_the_stored_rounds_is_refused_and_others_are_served():
    grid, history = federation(), MemoryHistory(keep=2)
    grid.nodes[4] = joining(4, 4)
    start, *_ = run(grid, history, "finetune", 4, START, fraction=1.0)
    due = [(1, request(0)), (1, request(4))]
    _, recorder, requests, _ = run(grid, history, "unlearn", 1, start, due=due)
    assert requests.served_in == {"r4": 1} and requests.attempts == {"r0": 1}
    reason = requests.reasons["r0"]
    assert "round 1 of finetune" in reason and "oldest stored one is round 3 of finetune" in reason
    assert ("reply", 0, False, reason) in recorder.events
    assert [past.clients for past in history.rounds()[:4]] == [(0, 1, 2, 3, 5)] * 4, "all of the refused one stays"
    grid, history = federation(), MemoryHistory(keep=0)
    start, *_ = run(grid, history, "finetune", 2, START, fraction=1.0)
    _, recorder, requests, _ = run(grid, history, "unlearn", 1, start, due=[(1, request(0))])
    assert not requests.served_in and "none is stored" in requests.reasons["r0"]
    assert (1, "after_unlearn") not in recorder.checkpoints


def test_who_fails_to_calibrate_is_left_out_of_that_round():
    grid, history = federation(), MemoryHistory()
    start, *_ = run(grid, history, "finetune", 3, START, fraction=1.0)
    honest = {p: grid.nodes[p] for p in (1, 2, 3)}

    def bad(p, reply):
        def answer(message):
            config = message.content["config"]
            calibrating = str(config["stage"]).startswith("calibrate") and config["server-round"] == 2
            return reply if calibrating else honest[p](message)

        return answer

    grid.nodes[1] = bad(1, None)
    grid.nodes[2] = bad(2, content(np.full(SIZE, np.nan)))
    grid.nodes[3] = bad(3, Error(code=1, reason="no record left"))
    _, recorder, requests, _ = run(grid, history, "unlearn", 1, start, due=[(1, request(0))], fraction=1.0)
    assert requests.served_in == {"r0": 1}
    assert [past.clients for past in history.rounds()][:3] == [(1, 2, 3, 4, 5), (4, 5), (1, 2, 3, 4, 5)]
    assert np.isfinite(recorder.checkpoints[1, "after_unlearn"][0]).all()


@pytest.mark.parametrize("name", ["fedavg", "fedadam"])
def test_a_round_that_nobody_calibrates_is_not_lost(name):
    grid, history = federation(), MemoryHistory()
    start, *_ = run(grid, history, "finetune", 3, START, fraction=1.0, name=name)
    honest, before = dict(grid.nodes), list(history.rounds())

    def deaf(p):
        def answer(message):
            config = message.content["config"]
            lost = str(config["stage"]).startswith("calibrate") and config["server-round"] == 3
            return None if lost else honest[p](message)

        return answer

    grid.nodes = {p: deaf(p) for p in honest}
    due = [(1, request(0))]
    _, recorder, requests, fedtu = run(grid, history, "unlearn", 1, start, due=due, fraction=1.0, name=name)
    assert not requests.served_in and "no client of round 3 of finetune answered" in requests.reasons["r0"]
    assert (1, "after_unlearn") not in recorder.checkpoints and history.rounds()[:3] == before
    history = MemoryHistory()
    again = run(federation(), history, "finetune", 3, START, fraction=1.0, name=name)[0]
    _, recorder_without, _, other = run(federation(), history, "unlearn", 1, again, fraction=1.0, name=name)
    np.testing.assert_array_equal(recorder.checkpoints[1, "round"][0], recorder_without.checkpoints[1, "round"][0])
    state, expected = fedtu.state_dict(), other.state_dict()
    assert state.keys() == expected.keys()
    for key, value in state.items():
        np.testing.assert_array_equal(value, expected[key])


def test_who_fails_to_bury_is_not_erased():
    grid, history = federation(), MemoryHistory()
    start, *_ = run(grid, history, "finetune", 2, START, fraction=1.0)
    honest = grid.nodes[0]
    grid.nodes[0] = lambda m: (
        Error(code=1, reason="disk full") if m.metadata.message_type == "query.bury" else honest(m)
    )
    sent = grid.sent["train"]
    _, recorder, requests, _ = run(grid, history, "unlearn", 1, start, due=[(1, request(0)), (1, request(9))])
    assert requests.reasons["r0"].endswith("disk full") and requests.reasons["r9"] == "not connected"
    assert grid.sent["train"] == sent + 3 and (1, "after_unlearn") not in recorder.checkpoints


def test_an_erased_client_that_goes_on_taking_part_is_erased_from_there():
    grid, history = federation(), MemoryHistory()
    start, *_ = run(grid, history, "finetune", 3, START, fraction=1.0)
    due = [(1, request(0, name="a")), (3, request(0, name="b"))]
    grid.log.clear()
    _, _, requests, _ = run(grid, history, "unlearn", 3, start, due=due, fraction=1.0)
    assert requests.served_in == {"a": 1, "b": 3}
    rounds = [(c["config"]["stage"], c["config"]["server-round"]) for kind, p, c in grid.log if kind == "train"]
    again = dict.fromkeys(rounds)
    assert [r for r in again if "calibrate/1" in r[0]] == [("calibrate/1/finetune", 2), ("calibrate/1/finetune", 3)]
    assert [r for r in again if "calibrate/3" in r[0]] == [("calibrate/3/unlearn", 2)], "round 1 is kept as it is"


@pytest.mark.parametrize(
    ("ratio", "epochs", "expected"), [(0.5, 4, 2), (0.5, 1, 1), (0.01, 5, 1), (0.29, 100, 29), (1, 3, 3)]
)
def test_calibration_epochs(ratio, epochs, expected):
    eraser = FedEraser(build("fedavg"), MemoryHistory(), local_epochs=epochs, calibration_ratio=ratio)
    assert eraser.epochs == expected


def test_bad_arguments():
    for ratio in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match="calibration_ratio"):
            FedEraser(build("fedavg"), MemoryHistory(), local_epochs=5, calibration_ratio=ratio)
    with pytest.raises(TypeError, match="eraser"):
        FedEraserProtocol()


def by_hand() -> MemoryHistory:
    """One number: rounds a1, a2 (of client 0 alone), a3 (the aggregator's state was reset before) and b4."""

    def update(client: int, value: float) -> ClientUpdate:
        return ClientUpdate(client, 1.0, adapter([value]))

    history, moment = MemoryHistory("a"), {"m/adapter": np.array([9.0], np.float32)}
    history.record(RoundUpdates("a", 1, adapter([0.0]), {}, [update(0, 1.0), update(1, 2.0)]))
    history.record(RoundUpdates("a", 2, adapter([1.5]), moment, [update(0, 4.0)]))
    history.record(RoundUpdates("a", 3, adapter([5.0]), {}, [update(1, 7.0)]))
    history.record(RoundUpdates("b", 4, adapter([7.0]), moment, [update(1, 4.0)]))
    history.stage = "b"
    return history


def test_an_erasure_by_hand_with_a_round_that_vanishes_and_moments_that_begin_anew():
    """With momentum ½: φ = 2; a2 has nobody left; a3, whose update is 2 long, gives 4, and b4, of 3, gives 7. Had the
    moments gone on it would be 5 and more. Who never took part is asked for in vain and stands in nobody's way.
    """
    inner, history, asked = build("fedavgm", server_momentum=0.5, server_learning_rate=1.0), by_hand(), []

    def train(clients, model, settings):
        asked.append(
            (list(clients), flat(model).tolist(), settings[message_keys.SERVER_ROUND], settings[message_keys.STAGE])
        )
        message = Message(content(flat(model) + 0.25), dst_node_id=1, message_type="train")
        return [ReplyCheck(client, message) for client in clients]

    federation()  # gives this process its name, which messages take
    found = FedEraser(inner, history, local_epochs=2).erase(6, adapter([8.0]), [9, 0], train)
    assert flat(found.arrays).tolist() == [7.0] and found.refused == {}
    assert asked == [([1], [2.0], 3, "calibrate/6/a"), ([1], [4.0], 4, "calibrate/6/b")]
    assert [found.info[name] for name in message_keys.ERASURE[:2]] == [3, 2]
    assert inner.state_dict()["m/adapter"].tolist() == [3.0], "that of stage b, which goes on"
    assert [(past.round, past.clients) for past in history.rounds()] == [(1, (1,)), (3, (1,)), (4, (1,))]
    assert [history.read(past).state for past in history.rounds()] == [{}, {}, {}]


def test_nothing_is_rebuilt_for_who_never_took_part():
    found = FedEraser(build("fedavg"), by_hand(), local_epochs=2).erase(6, adapter([8.0]), [9], lambda *_: [])
    assert flat(found.arrays).tolist() == [8.0] and found.refused == {}
    assert [found.info[name] for name in message_keys.ERASURE[:2]] == [0, 0] and 0 <= found.info[
        message_keys.ERASURE[2]
    ] < 60


def test_where_nobody_calibrates_only_those_are_refused_that_were_to_be_erased():
    """Client 9 never took part: it is served by doing nothing, whatever becomes of the others."""
    federation()

    def lost(clients, model, settings):
        return [ReplyCheck(client, None, "off") for client in clients]

    found = FedEraser(build("fedavg"), by_hand(), local_epochs=2).erase(6, adapter([8.0]), [9, 0], lost)
    assert found.refused == {0: "FedEraser: no client of round 3 of a answered its calibration"}
    assert flat(found.arrays).tolist() == [8.0]


def test_one_answer_replaces_the_model_bit_for_bit_also_where_several_would_be_summed():
    start, model = adapter([1e8, 1.0]), adapter([0.1, 1e-40])
    served = ByUnlearning(summed=True).serve(1, start, [Answer(3, model, 5, {"x": 1.0})], lambda *_: [])
    assert flat(served.arrays).tobytes() == flat(model).tobytes() and served.info == {3: {"x": 1.0}}
