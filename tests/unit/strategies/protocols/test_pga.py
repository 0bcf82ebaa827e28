"""PGA: the model of the clients that do not ask, and what the asking ones are sent."""

from __future__ import annotations

import numpy as np
import pytest
from support.erasing import START, federation, learner
from support.fedtu_clients import Recorder, adapter, content, flat, request

from strategies import message_keys
from strategies.client_update import ClientUpdate
from strategies.protocols.base import ByUnlearning
from strategies.protocols.pga import PGAProtocol
from strategies.protocols.update_history import MemoryHistory, RoundUpdates, mean_of_others
from strategies.rounds.fedtu import FedTU, Options, RequestList
from strategies.rules.factory import build


def run(grid, history, stage, rounds, start):
    """The final vector of a stage in which all train in each round and nobody asks."""
    history.stage = stage
    fedtu = FedTU(
        build("fedavg", fraction_train=1.0),
        requests=RequestList(()),
        serving=ByUnlearning(history=history),
        options=Options(stage=stage),
    )
    return flat(fedtu.start(grid, adapter(start), num_rounds=rounds).arrays)


def test_the_model_of_the_others_for_pga():
    grid, history = federation(), MemoryHistory()
    start = run(grid, history, "finetune", 2, START)
    stored = history.read(history.rounds()[-1])
    models = {u.partition: flat(u.arrays).astype(np.float64) for u in stored.clients}
    weights = {p: p + 2 for p in models}
    for asking in ({1}, {0, 4}):
        others = [p for p in models if p not in asking]
        expected = np.average([models[p] for p in others], axis=0, weights=[weights[p] for p in others])
        np.testing.assert_allclose(flat(mean_of_others(history, asking)), expected, rtol=1e-6, atol=1e-7)
    assert flat(mean_of_others(history, set(models))).tobytes() == flat(stored.sent).tobytes()
    with pytest.raises(ValueError, match="newest round"):
        mean_of_others(MemoryHistory(), {1})

    received = {}

    def forgetful(message):
        if message.metadata.message_type == message_keys.UNLEARN:
            received["reference"] = flat(message.content["reference"])
            received["arrays"] = flat(message.content["arrays"])
            return content(received["reference"] - 1)
        return learner(1)(message)

    grid.nodes[1] = forgetful
    history.stage, recorder = "unlearn", Recorder()
    fedtu = FedTU(
        build("fedavg"),
        requests=RequestList([(1, request(1))]),
        serving=PGAProtocol(history),
        listener=recorder,
    )
    fedtu.start(grid, adapter(start), num_rounds=1)
    expected = np.average([models[p] for p in (0, 2, 3, 4, 5)], axis=0, weights=[2, 4, 5, 6, 7])
    np.testing.assert_allclose(received["reference"], expected, rtol=1e-6, atol=1e-7)
    assert received["arrays"].tobytes() == start.tobytes()
    assert recorder.checkpoints[1, "after_unlearn"][0].tobytes() == (received["reference"] - 1).tobytes()


def test_a_round_without_answers_is_remembered_with_the_model_of_that_moment():
    """So that PGA never goes back to a model from before another client was unlearned."""
    grid, history = federation(), MemoryHistory()
    start = run(grid, history, "finetune", 1, START)
    for p in grid.nodes:
        grid.nodes[p] = lambda m: None
    run(grid, history, "unlearn", 1, start * 2)
    assert history.rounds()[-1].clients == ()
    np.testing.assert_array_equal(flat(mean_of_others(history, {1})), start * 2)


def test_the_reference_of_pga_is_by_the_mean_that_was_chosen():
    seen = []

    def largest(rows, weights):
        seen.append(([row.tolist() for row in rows], list(weights)))
        return np.max(rows, axis=0)

    history = MemoryHistory()
    clients = [ClientUpdate(p, p + 1.0, adapter([float(p), -float(p)])) for p in range(4)]
    history.record(RoundUpdates("train", 1, adapter([0.0, 0.0]), {}, clients))
    (reference,) = PGAProtocol(history, largest).further_records({2}).values()
    assert flat(reference).tolist() == [3, 0]
    assert seen == [([[0, 0], [1, -1], [3, -3]], [1 / 7, 2 / 7, 4 / 7])]


def test_there_is_no_model_of_the_others_where_the_newest_round_is_not_stored():
    history = MemoryHistory(every=2)
    for server_round in (1, 2):
        update = ClientUpdate(0, 1.0, adapter([1.0]))
        history.record(RoundUpdates("train", server_round, adapter([0.0]), {}, [update]))
    with pytest.raises(ValueError, match="the newest round is not stored"):
        mean_of_others(history, {1})


def test_there_is_no_protocol_without_a_history():
    with pytest.raises(TypeError, match="history"):
        PGAProtocol()  # pyright: ignore[reportCallIssue]
