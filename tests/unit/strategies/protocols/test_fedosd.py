"""FedOSD on the server: its direction by hand and by a solver, a federation in plain numpy, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from scipy.optimize import minimize
from support.fedtu_clients import SIZE, Recorder, adapter, federation, flat, noise

from strategies.protocols.base import Answer
from strategies.protocols.fedosd import FedOSDProtocol, orthogonal_update
from strategies.replies import ReplyCheck
from strategies.rounds.fedtu import FedTU, RequestList, UnlearnRequest
from strategies.rules.factory import build

START = np.linspace(1, 2, SIZE).astype(np.float32)


def test_by_hand() -> None:
    """(3, 4, 0) without what lies along (1, 0, 0), as long as before."""
    found = orthogonal_update(adapter([1, 1, 1]), adapter([4, 5, 1]), [adapter([3, 1, 1])])
    assert found is not None and flat(found).tolist() == [1, 6, 1]


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_orthogonal_vector_nearest_to_the_update(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """min ‖d − u‖² subject to ⟨d, a_i⟩ = 0 by SLSQP; one other update occurs twice, one is zero, in pieces of four."""
    monkeypatch.setattr("strategies.arrays.BLOCK", 4)
    rng = np.random.default_rng(seed)
    start, update, first, second = rng.normal(size=(4, 9))

    def record(change: np.ndarray) -> ArrayRecord:
        values = start + change
        return ArrayRecord({"a": Array(values[:6].reshape(2, 3)), "b": Array(values[6:])})

    others = [record(x) for x in (first, second, first, np.zeros(9))]
    constraint = {"type": "eq", "fun": lambda d: np.array([d @ first, d @ second])}
    expected = minimize(lambda d: ((d - update) ** 2).sum(), update, constraints=[constraint], tol=1e-14).x
    found = orthogonal_update(record(np.zeros(9)), record(update), others)
    assert found is not None and found["a"].numpy().shape == (2, 3)
    change = np.concatenate([found["a"].numpy().reshape(-1), found["b"].numpy()]) - start
    assert np.linalg.norm(change) == pytest.approx(np.linalg.norm(update))
    np.testing.assert_allclose(change / np.linalg.norm(change), expected / np.linalg.norm(expected), atol=1e-5)
    assert abs(change @ first) < 1e-9 and abs(change @ second) < 1e-9


def test_nothing_is_left_of_what_the_others_span() -> None:
    assert orthogonal_update(adapter([0, 0]), adapter([1, 1]), [adapter([1, 0]), adapter([0, 2])]) is None


def run(rounds: int, serving: FedOSDProtocol, **more) -> tuple[np.ndarray, FedTU, Recorder]:
    """Three clients, of which client 1 asks in round 1 and answers with half of what it received."""
    recorder = Recorder()
    requests = more.pop("requests", RequestList([(1, UnlearnRequest("r1", 1, ("x",)))]))
    fedtu = FedTU(build("fedavg"), requests=requests, serving=serving, listener=recorder)
    if "state" in more:
        fedtu.load_state_dict(more.pop("state"))
    begun = more.pop("begun", START)
    return flat(fedtu.start(federation(3), adapter(begun), rounds, **more).arrays), fedtu, recorder


def others() -> list[int]:
    return [0, 1, 2]


def along_others(u: np.ndarray, rows: list[np.ndarray]) -> np.ndarray:
    """u without its projection on the rows, by a QR decomposition, as long as u."""
    basis, _ = np.linalg.qr(np.array(rows).T)
    d = u - basis @ (basis.T @ u)
    return d * np.linalg.norm(u) / np.linalg.norm(d)


@pytest.mark.parametrize("recovery", [None, 1, 0])
def test_a_federation_equals_plain_numpy(recovery: int | None) -> None:
    start = START.astype(np.float64)
    model = start + along_others(-0.5 * start, [noise(p, 1).astype(np.float64) for p in (0, 2)])
    for server_round in (1, 2, 3):
        mean = np.sum([(p + 1) * noise(p, server_round).astype(np.float64) for p in range(3)], axis=0) / 6
        if recovery is None or server_round < 1 + recovery:
            mean = along_others(mean, [model - start])
        model = model + mean
    found, _, recorder = run(3, FedOSDProtocol(others, recovery=recovery))
    np.testing.assert_allclose(found, model, rtol=0, atol=2e-5)
    kinds = [event[1:] for event in recorder.events if event[0] == "exchange_started"]
    assert kinds[:3] == [("unlearn", [1]), ("calibrate", [0, 2]), ("train", [0, 1, 2])]


def test_resumed_is_not_stopped() -> None:
    whole, _, _ = run(3, FedOSDProtocol(others))
    first, fedtu, _ = run(1, FedOSDProtocol(others))
    state = fedtu.state_dict()
    assert {name for name in state if name.startswith("serving/")} == {"serving/before/adapter", "serving/since"}
    again = {"requests": RequestList(), "state": state, "begun": first, "start_round": 2}
    found, _, _ = run(3, FedOSDProtocol(others), **again)
    assert found.tobytes() == whole.tobytes()


def test_it_does_not_go_back_to_the_model_before_the_newest_request() -> None:
    """Client 1 asks in round 1 and client 0 in round 3: from then on v is the way since round 3."""
    start = START.astype(np.float64)
    model, before = start, start
    for server_round in (1, 2, 3, 4):
        if (asking := {1: 1, 3: 0}.get(server_round)) is not None:
            rows = [noise(p, server_round).astype(np.float64) for p in range(3) if p != asking]
            before, model = model, model + along_others(-0.5 * model, rows)
        mean = np.sum([(p + 1) * noise(p, server_round).astype(np.float64) for p in range(3)], axis=0) / 6
        model = model + along_others(mean, [model - before])
    asked = [(1, UnlearnRequest("r1", 1, ("x",))), (3, UnlearnRequest("r0", 0, ("y",)))]
    found, _, _ = run(4, FedOSDProtocol(others), requests=RequestList(asked))
    np.testing.assert_allclose(found, model, rtol=0, atol=5e-5)


def test_without_others_the_request_is_refused() -> None:
    found, fedtu, recorder = run(1, FedOSDProtocol(lambda: [1]))
    plain, _, _ = run(1, FedOSDProtocol(others), requests=RequestList())
    assert found.tobytes() == plain.tobytes() and not fedtu.state_dict()
    assert ("reply", 1, False, "FedOSD: no other client trained beside those that unlearn") in recorder.events


@pytest.mark.parametrize(("epochs", "recovery"), [(0, None), (1, -1)])
def test_values_out_of_range(epochs: int, recovery: int | None) -> None:
    with pytest.raises(ValueError, match="expected epochs >= 1"):
        FedOSDProtocol(others, epochs=epochs, recovery=recovery)


@pytest.mark.parametrize(("beside", "left"), [(0.0, False), (1e-9, False), (1e-3, True)])
def test_what_rounding_leaves_of_an_update_is_nothing(beside, left):
    """A combination of the others' updates, and something beside them."""
    rng = np.random.default_rng(2)
    others, own = rng.normal(size=(3, 40)), rng.normal(size=40)
    own -= np.linalg.lstsq(others.T, own, rcond=None)[0] @ others
    unlearned = rng.normal(size=3) @ others + beside * own
    start, *models = (ArrayRecord({"a": Array(x)}) for x in (np.zeros(40), unlearned, *others))
    assert (orthogonal_update(start, models[0], models[1:]) is not None) is left


@pytest.mark.parametrize(("share", "left"), [(3e-7, False), (3e-6, True)])
def test_a_millionth_of_an_update_is_the_least_that_is_left(share: float, left: bool) -> None:
    start, update, other = (ArrayRecord({"a": Array(np.array(x))}) for x in ([0.0, 0.0], [1.0, share], [2.0, 0.0]))
    found = orthogonal_update(start, update, [other])
    assert (found is not None) is left
    if found is not None:
        np.testing.assert_allclose(found["a"].numpy(), [0, 1], atol=1e-9)


def test_an_unlearning_within_what_the_others_learn_is_refused() -> None:
    """Client 2 learns what client 1 forgets: nothing of that is orthogonal, the model stays and the request waits."""
    federation(1)  # gives this process its name, which messages take
    serving, model, way = FedOSDProtocol(lambda: [1, 2]), adapter(START), adapter(START + 0.5)
    reply = ReplyCheck(2, Message(RecordDict({"arrays": adapter(START + 2.0)}), dst_node_id=1, message_type="train"))
    served = serving.serve(3, model, [Answer(1, way, 1, {})], lambda *_: [reply])
    assert served.arrays is model and served.info == {} and not serving.state_dict()
    assert served.refused == {1: "FedOSD: the unlearning lies within what the other clients learn"}
    assert serving.after_training(4, model, way) is way, "nothing is to be kept away from"


def test_training_straight_back_is_let_through() -> None:
    """Nothing of such an update is orthogonal to the way; the round's result then stays as it is."""
    serving = FedOSDProtocol(lambda: [])
    serving.load_state_dict({"before/adapter": START, "since": np.array([1])})
    model, back = adapter(START + 1.0), adapter(START + 0.5)
    assert serving.after_training(2, model, back) is back


def test_others_train_beside_an_exchange_of_its_own_name() -> None:
    seen = []

    def train(clients, arrays, settings):
        seen.append((list(clients), dict(settings)))
        return []

    FedOSDProtocol(lambda: [0, 1, 2], epochs=3).serve(7, adapter(START), [Answer(1, adapter(START), 1, {})], train)
    assert seen == [([0, 2], {"epochs": 3, "stage": "orthogonal/7"})]


def test_others_that_go_nearly_the_same_way_are_all_stood_aside_for():
    """e1 and e1 + e2/10000 span both axes: of e1 + e2 + e3 the last is left, as long as it was."""
    start = ArrayRecord({"a": Array(np.zeros(4))})
    others = [ArrayRecord({"a": Array(np.array(x))}) for x in ([1.0, 0, 0, 0], [1.0, 1e-4, 0, 0])]
    new = orthogonal_update(start, ArrayRecord({"a": Array(np.array([1.0, 1.0, 1.0, 0]))}), others)
    assert new is not None
    np.testing.assert_allclose(new["a"].numpy(), [0, 0, np.sqrt(3), 0], atol=1e-6)
