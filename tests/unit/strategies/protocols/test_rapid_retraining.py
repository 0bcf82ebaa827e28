"""Rapid retraining: a federation in plain numpy, who takes part, what is refused, what it does not go with."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict
from support.fedtu_clients import SIZE, Recorder, adapter, content, flat, honest, noise

from strategies import message_keys
from strategies.protocols.auxiliary_rounds import AuxiliaryRounds
from strategies.protocols.rapid_retraining import RapidRetrainingProtocol
from strategies.rounds.fedtu import FedTU, RequestList, UnlearnRequest
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rules.factory import build

BEGINNING = np.linspace(-1, 1, SIZE).astype(np.float32)
ASKED = np.full(SIZE, 3.0, dtype=np.float32)


def client(partition: int, left: int = 1, fails: bool = False):
    """As an honest client; buries what is asked for, which leaves it `left` records."""

    def answer(message: Message) -> RecordDict:
        if message.metadata.message_type == message_keys.BURY:
            assert "arrays" not in message.content.array_records
            return RecordDict({"metrics": MetricRecord({"num-examples": 3, message_keys.LIVE_RECORDS: left})})
        if fails and message.content["config"][message_keys.STAGE] == "retraining/1":
            return content(np.full(SIZE, np.nan))
        return honest(partition)(message)

    return answer


def run(clients, *, rounds=3, per_round=3, aggregator="fedavg", **options):
    """One round in which client 1 asks; the model after it, who was asked for what, and what was told."""
    grid = MemoryGrid(dict(enumerate(clients)), keep_log=True)
    inner, recorder = build(aggregator, **options), Recorder()
    beside = AuxiliaryRounds("rapid retraining", inner, lambda: range(len(clients)), rounds, per_round, 7)
    serving = RapidRetrainingProtocol(beside, adapter(BEGINNING))
    requests = RequestList([(1, UnlearnRequest("r1", 1, ("x",)))])
    fedtu = FedTU(inner, requests=requests, serving=serving, listener=recorder)
    return flat(fedtu.start(grid, adapter(ASKED), 1).arrays), recorder, fedtu


def exchanges(recorder: Recorder) -> list[tuple[str, list[int]]]:
    return [event[1:] for event in recorder.events if event[0] == "exchange_started"]


def mean(partitions, server_round: int) -> np.ndarray:
    total = sum(p + 1 for p in partitions)
    return sum((p + 1) * noise(p, server_round).astype(np.float64) for p in partitions) / total


@pytest.mark.parametrize(("left", "partitions"), [(1, (0, 1, 2)), (0, (0, 2))])
def test_nothing_of_the_old_model_is_left(left: int, partitions: tuple[int, ...]) -> None:
    """FedAvg from the beginning for three rounds, by all who have records left, then the round's own training."""
    found, recorder, _ = run([client(0), client(1, left), client(2)])
    expected = BEGINNING + sum(mean(partitions, number) for number in (1, 2, 3)) + mean((0, 1, 2), 1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert exchanges(recorder) == [("unlearn", [1]), *[("calibrate", list(partitions))] * 3, ("train", [0, 1, 2])]


def test_the_work_is_told_with_the_request() -> None:
    told = []

    class Source(RequestList):
        def served(self, request, server_round, info):
            super().served(request, server_round, info)
            told.append(info)

    grid = MemoryGrid({p: client(p) for p in range(3)})
    inner = build("fedavg")
    serving = RapidRetrainingProtocol(
        AuxiliaryRounds("rapid retraining", inner, lambda: range(3), 4, 2, 7), adapter(BEGINNING)
    )
    source = Source([(1, UnlearnRequest("r1", 1, ("x",)))])
    FedTU(inner, requests=source, serving=serving).start(grid, adapter(ASKED), 1)
    ((rounds, updates, seconds),) = [[info[name] for name in message_keys.ERASURE] for info in told]
    assert (rounds, updates) == (4, 8) and 0 <= seconds < 60 and told[0][message_keys.LIVE_RECORDS] == 1


def test_as_many_clients_as_in_a_round_are_drawn_by_the_seed() -> None:
    runs = [exchanges(run([client(p) for p in range(6)], rounds=8, per_round=2)[1]) for _ in range(2)]
    drawn = [tuple(clients) for kind, clients in runs[0] if kind == "calibrate"]
    assert runs[0] == runs[1] and all(len(clients) == 2 for clients in drawn)
    assert len(set(drawn)) > 3


def test_the_aggregator_begins_anew_and_its_moments_belong_to_the_new_model() -> None:
    """FedAvgM by hand: v ← v/2 + mean, φ ← φ + v, from v = 0 in the first round of the retraining."""
    found, _, _ = run([client(p) for p in range(3)], rounds=2, aggregator="fedavgm", server_momentum=0.5)
    model, velocity = BEGINNING.astype(np.float64), np.zeros(SIZE)
    for number in (1, 2, 1):
        velocity = 0.5 * velocity + mean((0, 1, 2), number)
        model = model + velocity
    np.testing.assert_allclose(found, model, rtol=0, atol=1e-5)


@pytest.mark.parametrize("able", [range(3), ()], ids=["no answer is valid", "nobody has anything left"])
def test_a_retraining_that_fails_leaves_the_model_its_moments_and_the_request(able) -> None:
    grid = MemoryGrid({p: client(p, left=0, fails=True) for p in range(3)}, keep_log=True)
    inner, recorder = build("fedavgm", server_momentum=0.5), Recorder()
    inner.load_state_dict({"m/adapter": np.ones(SIZE, dtype=np.float32)})
    beside = AuxiliaryRounds("rapid retraining", inner, lambda: able, 2, 3, 7)
    serving = RapidRetrainingProtocol(beside, adapter(BEGINNING))
    requests = RequestList([(1, UnlearnRequest("r1", 1, ("x",)))])
    fedtu = FedTU(inner, requests=requests, serving=serving, listener=recorder)
    found = flat(fedtu.start(grid, adapter(ASKED), 1).arrays)
    np.testing.assert_allclose(found, ASKED + 0.5 + mean(range(3), 1), rtol=0, atol=1e-5)
    assert ("reply", 1, False, "rapid retraining: no client trained in its round 1") in recorder.events


def test_an_aggregator_gets_as_many_as_it_needs_or_the_request_fails() -> None:
    """Krum with one liar needs five: more than a round has; with four it would leave the model as it began."""
    _, recorder, _ = run([client(p) for p in range(6)], per_round=2, aggregator="krum", num_malicious_nodes=1)
    assert [len(clients) for kind, clients in exchanges(recorder) if kind == "calibrate"] == [5] * 3
    reached = [client(p) for p in range(5)] + [client(5, fails=True)]
    reached[0] = client(0, fails=True)
    _, recorder, _ = run(reached, per_round=6, aggregator="krum", num_malicious_nodes=1)
    (refused,) = [event[3] for event in recorder.events if event[0] == "reply" and event[1] == 1 and not event[2]]
    assert refused == "rapid retraining: 4 clients trained in its round 1, and Krum needs 5"


@pytest.mark.parametrize(("rounds", "per_round"), [(0, 1), (1, 0)])
def test_values_out_of_range(rounds: int, per_round: int) -> None:
    with pytest.raises(ValueError, match="expected rounds >= 1"):
        AuxiliaryRounds("rapid retraining", build("fedavg"), list, rounds, per_round, 0)


def test_the_moments_of_the_old_model_take_no_part_and_those_of_the_new_one_go_on() -> None:
    """FedAvgM by hand: two rounds from no velocity, then the round's own training with that of the new model."""
    grid = MemoryGrid({p: client(p) for p in range(3)})
    inner = build("fedavgm", server_momentum=0.5)
    inner.load_state_dict({"m/adapter": np.full(SIZE, 9, dtype=np.float32)})
    serving = RapidRetrainingProtocol(
        AuxiliaryRounds("rapid retraining", inner, lambda: range(3), 2, 3, 7), adapter(BEGINNING)
    )
    requests = RequestList([(1, UnlearnRequest("r1", 1, ("x",)))])
    result = FedTU(inner, requests=requests, serving=serving).start(grid, adapter(ASKED), 1)
    model, velocity = BEGINNING.astype(np.float64), np.zeros(SIZE)
    for number in (1, 2, 1):
        velocity = 0.5 * velocity + mean((0, 1, 2), number)
        model = model + velocity
    np.testing.assert_allclose(flat(result.arrays), model, rtol=0, atol=1e-5)
