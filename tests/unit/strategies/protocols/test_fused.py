"""FUSED: the layers it finds by hand, a federation in plain numpy, who lies, and what it does not go with."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from support.fedtu_clients import SIZE, Recorder, adapter, content, flat, honest, noise

from strategies import message_keys
from strategies.client_update import ClientUpdate
from strategies.protocols.auxiliary_rounds import AuxiliaryRounds
from strategies.protocols.fused import FusedProtocol, adapter_places, kept_outside, sensitivity
from strategies.rounds.fedtu import FedTU, RequestList, UnlearnRequest
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rules.factory import build

START = np.linspace(-1, 1, SIZE).astype(np.float32)
LAYERS = np.arange(SIZE) // 4
"""Three layers of four numbers."""


def places(config) -> np.ndarray:
    return np.unpackbits(np.frombuffer(config[message_keys.MOVING], np.uint8), count=SIZE).astype(bool)


def client(partition: int, lies: bool = False):
    """Moves the second layer most when all may move; then adds noise where it is told to; everywhere, if it lies."""

    def answer(message: Message) -> RecordDict:
        if message.metadata.message_type == message_keys.BURY:
            return RecordDict({"metrics": MetricRecord({"num-examples": 3, message_keys.LIVE_RECORDS: 1})})
        config, received = message.content["config"], flat(message.content["arrays"])
        if message_keys.MOVING not in config and str(config[message_keys.STAGE]).startswith("overwriting"):
            assert config[message_keys.EPOCHS] == 1
            return content(received + np.where(LAYERS == 1, 1, 0.1) * (-1) ** partition, examples=partition + 1)
        if message_keys.MOVING not in config:
            return honest(partition)(message)
        change = noise(partition, int(config[message_keys.SERVER_ROUND])) * (1 if lies else places(config))
        return content(received + change, examples=partition + 1)

    return answer


def run(*, lies: bool = False, share: float = 0.5, layers: int = 1):
    """One round in which client 1 asks; the checkpoint after its exchange, and the settings of training messages."""
    grid = MemoryGrid({p: client(p, lies and p == 2) for p in range(3)}, keep_log=True)
    inner, recorder = build("fedavgm", server_momentum=0.5), Recorder()
    inner.load_state_dict({"m/adapter": np.ones(SIZE, dtype=np.float32)})
    beside = AuxiliaryRounds("FUSED", inner, lambda: range(3), 2, 3, 7)
    serving = FusedProtocol(beside, LAYERS, layers=layers, share=share)
    requests = RequestList([(1, UnlearnRequest("r1", 1, ("x",)))])
    fedtu = FedTU(inner, requests=requests, serving=serving, listener=recorder, evaluate_after_unlearn=None)
    fedtu.start(grid, adapter(START), 1)
    sent = [content["config"] for kind, _, content in grid.log if kind == message_keys.TRAIN]
    return recorder.checkpoints[1, "after_unlearn"], sent


def test_the_sensitivity_of_layers_by_hand() -> None:
    """Two layers over two arrays: means of |1, 2, 0| and |3|, then of |0, 0, 3| and |1|."""
    layer_of = np.array([0, 0, 1, 0])
    sent = ArrayRecord({"a": Array(np.zeros((1, 2), np.float32)), "b": Array(np.ones(2, np.float32))})

    def update(a, b) -> ClientUpdate:
        arrays = {"a": Array(np.array([a], np.float32)), "b": Array(np.array(b, np.float32))}
        return ClientUpdate(0, 1.0, ArrayRecord(arrays))

    found = sensitivity(sent, [update([1, -2], [4, 1]), update([0, 0], [2, -2])], layer_of)
    assert found.tolist() == pytest.approx([((1 + 2 + 0) / 3 + (0 + 0 + 3) / 3) / 2, (3 + 1) / 2])


@pytest.mark.parametrize(("share", "each"), [(0.5, 2), (0.01, 1), (1.0, 4)])
def test_adapters_lie_in_the_most_sensitive_layers(share: float, each: int) -> None:
    where = adapter_places(np.array([0.1, 0.7, 0.3]), LAYERS, layers=2, share=share, seed="x")
    assert [int(where[layer == LAYERS].sum()) for layer in range(3)] == [0, each, each]
    again = adapter_places(np.array([0.1, 0.7, 0.3]), LAYERS, layers=2, share=share, seed="x")
    others = [adapter_places(np.array([0.1, 0.7, 0.3]), LAYERS, layers=2, share=share, seed=f"{i}") for i in range(9)]
    assert np.array_equal(where, again)
    assert share == 1 or any(not np.array_equal(where, other) for other in others)


def test_of_equal_layers_the_first_counts() -> None:
    assert adapter_places(np.ones(3), LAYERS, layers=1, share=1, seed="").nonzero()[0].tolist() == [0, 1, 2, 3]


def test_what_is_kept_outside() -> None:
    old = ArrayRecord({"a": Array(np.array([[1.0, 2.0]], np.float32)), "b": Array(np.array([3.0]))})
    new = ArrayRecord({"a": Array(np.array([[9.0, 8.0]], np.float32)), "b": Array(np.array([7.0]))})
    found = kept_outside(old, new, np.array([False, True, True]))
    assert found["a"].numpy().tolist() == [[1.0, 8.0]] and found["b"].numpy().tolist() == [7.0]
    assert found["a"].numpy().dtype == np.float32


@pytest.mark.parametrize("lies", [False, True])
def test_the_adapters_alone_change_whatever_a_client_sends(lies: bool) -> None:
    """By hand: FedAvgM from no momentum over two rounds at two places of the second layer; its old momentum is back."""
    (model, state), sent = run(lies=lies)
    masks = [places(config) for config in sent if message_keys.MOVING in config]
    assert len(masks) == 6 and all(np.array_equal(mask, masks[0]) for mask in masks)
    where = masks[0]
    assert where.sum() == 2 and set(LAYERS[where]) == {1}
    expected, velocity = START.astype(np.float64), np.zeros(SIZE)
    for number in (1, 2):
        velocity = 0.5 * velocity + sum((p + 1) * noise(p, number).astype(np.float64) for p in range(3)) / 6
        expected = np.where(where, expected + velocity, START)
    np.testing.assert_allclose(model, expected, rtol=0, atol=1e-5)
    assert np.array_equal(model[~where], START[~where]), "bit for bit"
    assert np.array_equal(state["m/adapter"], np.ones(SIZE, dtype=np.float32))


def test_the_work_is_told_with_the_request() -> None:
    """Two rounds of three clients each; the pass that finds the layers trains no adapter."""
    grid, told = MemoryGrid({p: client(p) for p in range(3)}), []

    class Source(RequestList):
        def served(self, request, server_round, info):
            told.append([info[name] for name in message_keys.ERASURE])

    inner = build("fedavg")
    serving = FusedProtocol(AuxiliaryRounds("FUSED", inner, lambda: range(3), 2, 3, 7), LAYERS, layers=1, share=0.5)
    source = Source([(1, UnlearnRequest("r1", 1, ("x",)))])
    FedTU(inner, requests=source, serving=serving).start(grid, adapter(START), 1)
    ((rounds, updates, seconds),) = told
    assert (rounds, updates) == (2, 6) and 0 <= seconds < 60


def test_without_anybody_the_request_is_refused() -> None:
    grid = MemoryGrid({p: client(p) for p in range(2)}, keep_log=True)
    inner, recorder = build("fedavg"), Recorder()
    serving = FusedProtocol(AuxiliaryRounds("FUSED", inner, lambda: [], 2, 3, 7), LAYERS, layers=1, share=0.5)
    requests = RequestList([(1, UnlearnRequest("r1", 1, ("x",)))])
    FedTU(inner, requests=requests, serving=serving, listener=recorder).start(grid, adapter(START), 1)
    assert ("reply", 1, False, "FUSED: no client trained in its round 0") in recorder.events


@pytest.mark.parametrize(("layers", "share"), [(0, 0.5), (1, 0.0), (1, 1.5)])
def test_values_out_of_range(layers: int, share: float) -> None:
    beside = AuxiliaryRounds("FUSED", build("fedavg"), list, 1, 1, 0)
    with pytest.raises(ValueError, match="expected layers >= 1"):
        FusedProtocol(beside, LAYERS, layers=layers, share=share)


def test_places_are_drawn_layer_by_layer_in_their_order_and_their_number_is_rounded() -> None:
    """Of nine and seven numbers three tenths, 2.7 and 2.1, are three and two; layer 0 is drawn before layer 2."""
    layer_of = np.repeat([2, 1, 0], [7, 5, 9])
    where = adapter_places(np.array([0.2, 0.1, 0.9]), layer_of, layers=2, share=0.3, seed="run/3")
    rng = np.random.default_rng([*b"run/3"])
    expected = {*rng.choice(np.arange(12, 21), 3, replace=False), *rng.choice(np.arange(7), 2, replace=False)}
    assert set(np.flatnonzero(where)) == expected


def test_the_places_of_an_exchange_go_by_the_run_s_seed_and_its_round() -> None:
    """Seed 7, round 1; the second layer moves most."""
    _, sent = run()
    (mask, *_) = [places(config) for config in sent if message_keys.MOVING in config]
    wanted = adapter_places(np.array([0.1, 1.0, 0.1]), LAYERS, layers=1, share=0.5, seed="7/overwriting/1")
    assert np.array_equal(mask, wanted)
