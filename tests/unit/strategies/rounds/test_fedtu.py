"""The FedTU exchange, its events, and resuming, on an in-memory federation."""

from __future__ import annotations

import logging
import random

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.exception import AggregationError
from support.fedtu_clients import (
    SIZE,
    Recorder,
    Repeating,
    adapter,
    content,
    federation,
    flat,
    honest,
    inners,
    label,
    noise,
    request,
)

from strategies import message_keys
from strategies.privacy.private_mean import PrivateMean
from strategies.protocols.base import ByUnlearning, Served
from strategies.rounds.fedtu import FedTU, Listeners, Options, RequestList, UnlearnRequest
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rounds.nodes import seeded
from strategies.rules.factory import build
from strategies.secure.agreed_parameters import SecureSettings


@pytest.mark.parametrize("inner", inners(), ids=label)
def test_next_exchange_starts_from_the_unlearned_model(inner):
    """The trap of cached models: φ_u of round 3 reaches every sampled client bit for bit, and Δ is relative to it."""
    phi_u = noise("unlearned")
    grid = federation(4)
    grid.nodes[2] = honest(2, unlearned=phi_u)
    FedTU(inner, requests=RequestList([(3, request(2))])).start(grid, adapter(noise("start")), num_rounds=3)
    sent = [flat(c["arrays"]) for kind, _, c in grid.log if kind == "train" and c["config"]["server-round"] == 3]
    assert len(sent) == 4
    assert all(np.array_equal(s, phi_u) for s in sent)


@pytest.mark.parametrize("inner", inners(), ids=label)
def test_the_step_after_unlearning_is_relative_to_the_unlearned_model(inner):
    """Clients that answer what they got leave φ_u where it is but for momentum; without momentum exactly."""
    phi_u = noise("unlearned")
    grid = federation(3)
    for p in grid.nodes:
        grid.nodes[p] = lambda m: content(
            phi_u if m.metadata.message_type == message_keys.UNLEARN else flat(m.content["arrays"]),
            **{"train_loss": 0.1, "train-steps": 3},
        )
    result = FedTU(inner, requests=RequestList([(2, request(1))])).start(grid, adapter(noise("start")), num_rounds=2)
    np.testing.assert_allclose(flat(result.arrays), phi_u, rtol=1e-6, atol=1e-6)


def test_flowers_fedavgm_alone_would_undo_it():
    """Why FedTU refreshes copies: FedAvgM steps from the model of its own last round, not from what it is given."""
    inner = flower.FedAvgM(server_learning_rate=0.5, min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0)
    grid = MemoryGrid({0: lambda m: content(flat(m.content["arrays"]) + 1)})
    first = inner.start(grid, adapter([0]), num_rounds=1).arrays
    assert flat(first)[0] == 0.5
    messages = list(inner.configure_train(2, adapter([100]), ConfigRecord(), grid))
    undone, _ = inner.aggregate_train(2, grid.send_and_receive(messages))
    assert undone is not None
    assert flat(undone)[0] == 0.5 + 0.5 * (101 - 0.5), (
        "Flower mended its FedAvgM (100.5): drop the refreshing of copies"
    )


def test_one_client_replaces_the_model_bit_for_bit():
    phi_u = np.array([1e-40, -0.0, 3.4e38, 1 / 3], dtype=np.float32)
    recorder = Recorder()
    grid = MemoryGrid({5: lambda m: content(phi_u) if m.metadata.message_type == message_keys.UNLEARN else None})
    requests = RequestList([(1, request(5, 3))])
    result = FedTU(build("fedavg"), requests=requests, listener=recorder).start(
        grid, adapter(np.zeros(4)), 1, timeout=9
    )
    assert flat(result.arrays).tobytes() == phi_u.tobytes()
    assert requests.served_in == {"r5": 1}
    assert recorder.of("exchange_started")[0] == ("exchange_started", "unlearn", [5])
    assert grid.sent == {"query": 1, "train.unlearn": 1, "train": 1}


def test_several_clients_are_merged_by_forget_set_size():
    start = noise("start")
    models = {1: noise("one"), 3: noise("three")}
    grid = federation(4)
    for p, model in models.items():
        grid.nodes[p] = honest(p, unlearned=model)
    recorder = Recorder()
    requests = RequestList([(1, request(1, 1)), (1, request(3, 2, "a")), (1, request(3, 1, "b"))])
    FedTU(build("fedavg"), requests=requests, listener=recorder).start(grid, adapter(start), num_rounds=1)
    after, _ = recorder.checkpoints[1, "after_unlearn"]
    base, one, three = (x.astype(np.float64) for x in (start, models[1], models[3]))
    expected = base + 1 / 4 * (one - base) + 3 / 4 * (three - base)
    np.testing.assert_allclose(after, expected, rtol=1e-6, atol=1e-7)
    assert requests.served_in == {"r1": 1, "a": 1, "b": 1}
    assert grid.sent["train.unlearn"] == 2, "one message per client, not per request"
    config = next(c["config"] for kind, p, c in grid.log if kind == "train.unlearn" and p == 3)
    assert list(config[message_keys.REQUEST_IDS]) == ["a", "b"]
    assert list(config[message_keys.RECORD_IDS]) == ["3-0", "3-1", "3-0"]
    assert list(config[message_keys.RECORD_COUNTS]) == [2, 1]


def test_who_asks_for_the_first_time_is_sent_to_first():
    """In the order of the requests, whatever the clients' numbers; what is asked of one goes by the requests' ids."""
    grid = federation(4)
    requests = Repeating([(1, request(0)), (2, request(2)), (2, request(1, 1, "b")), (2, request(1, 1, "a"))])
    FedTU(build("fedavg"), requests=requests).start(grid, adapter(noise("start")), num_rounds=2)
    sent = [(p, list(c["config"][message_keys.REQUEST_IDS])) for kind, p, c in grid.log if kind == "train.unlearn"]
    assert sent == [(0, ["r0"]), (1, ["a", "b"]), (2, ["r2"]), (0, ["r0"])]


def test_summed_each_client_moves_all_of_its_way():
    start, models = noise("start"), {1: noise("one"), 3: noise("three")}
    grid = federation(4)
    for p, model in models.items():
        grid.nodes[p] = honest(p, unlearned=model)
    recorder = Recorder()
    requests = RequestList([(1, request(1, 1)), (1, request(3, 5))])
    fedtu = FedTU(build("fedavg"), requests=requests, serving=ByUnlearning(summed=True), listener=recorder)
    fedtu.start(grid, adapter(start), num_rounds=1)
    after, _ = recorder.checkpoints[1, "after_unlearn"]
    base, one, three = (x.astype(np.float64) for x in (start, models[1], models[3]))
    np.testing.assert_allclose(after, base + (one - base) + (three - base), rtol=1e-6, atol=1e-6)


def test_what_was_served_is_served_again_for_a_while():
    grid = federation(4)
    requests, recorder, measured = Repeating([(2, request(1)), (3, request(3))]), Recorder(), []
    fedtu = FedTU(
        build("fedavg"),
        requests=requests,
        listener=recorder,
        evaluate_after_unlearn=lambda server_round, arrays: measured.append(server_round),
    )
    fedtu.start(grid, adapter(noise("start")), num_rounds=6)
    assert measured == [2, 3], "where a request is served for the first time"
    assert requests.served_in == {"r1": 2, "r3": 3}
    assert requests.repeated == [("r1", 3), ("r1", 4), ("r3", 4), ("r3", 5)]
    exchanges = [event[2] for event in recorder.of("exchange_started") if event[1] == "unlearn"]
    assert exchanges == [[1], [1, 3], [1, 3], [3]]
    unlearned = [event[1] for event in recorder.of("checkpoint") if event[2] == "after_unlearn"]
    assert unlearned == [2, 3, 4, 5], "a changed model is a checkpoint"


def test_a_client_that_is_gone_when_it_is_asked_again_fails_nothing():
    grid = federation(3)
    requests, recorder = Repeating([(1, request(1)), (2, request(2))]), Recorder()

    def leaves(message):
        if message.content["config"]["server-round"] > 1:
            return Error(code=1, reason="gone")
        return content(flat(message.content["arrays"]))

    grid.nodes[1] = leaves
    FedTU(build("fedavg"), requests=requests, listener=recorder).start(grid, adapter(noise("start")), num_rounds=3)
    assert requests.served_in == {"r1": 1, "r2": 2} and not requests.attempts
    assert requests.repeated == [("r2", 3)]


def test_momentum_is_reset_for_new_requests_alone():
    resets = []
    inner = build("fedavgm")
    inner.reset_state = lambda: resets.append(1)
    options = Options(server_state_on_unlearn="reset")
    fedtu = FedTU(inner, requests=Repeating([(1, request(1))]), options=options)
    fedtu.start(federation(3), adapter(noise("start")), num_rounds=4)
    assert len(resets) == 1


def test_messages_carry_settings_seed_stage_and_round():
    grid = federation(2)
    fedtu = FedTU(
        build("fedprox", proximal_mu=0.5),
        requests=RequestList([(2, request(0))]),
        options=Options(seed=11, stage="unlearn", unlearn_config={"method": "npo"}),
    )
    settings = ConfigRecord({"epochs": 5})
    fedtu.start(grid, adapter(np.zeros(SIZE)), num_rounds=2, train_config=settings)
    by_kind = {(kind, c["config"].get("server-round")): dict(c["config"]) for kind, _, c in grid.log}
    common = {"epochs": 5, "run-seed": 11, "stage": "unlearn"}
    assert by_kind["train", 1] == {**common, "server-round": 1, "proximal-mu": 0.5}
    assert by_kind["train.unlearn", 2] == {
        **common,
        "server-round": 2,
        "method": "npo",
        "request-ids": ["r0"],
        "record-ids": ["0-0"],
        "record-counts": [1],
        "scopes": ["records"],
    }
    assert dict(settings) == {"epochs": 5}, "the caller's settings were changed"


def test_events_come_in_order():
    recorder, second = Recorder(), Recorder()
    FedTU(
        build("fedavg", fraction_evaluate=1.0),
        requests=RequestList([(1, request(1))]),
        listener=Listeners(recorder, second),
        evaluate_after_unlearn=lambda r, a: MetricRecord({"forget": 0.0}),
    ).start(
        federation(2), adapter(np.zeros(SIZE)), num_rounds=1, evaluate_fn=lambda r, a: MetricRecord({"utility": 1.0})
    )
    assert recorder.events == [
        ("evaluating", 0, "initial"),
        ("evaluated", 0, "initial", {"utility": 1.0}),
        ("round_started", 1, 1),
        ("exchange_started", "unlearn", [1]),
        ("reply", 1, True, ""),
        ("exchange_ended", "unlearn", 1, 0),
        ("evaluating", 1, "after_unlearn"),
        ("evaluated", 1, "after_unlearn", {"forget": 0.0}),
        ("checkpoint", 1, "after_unlearn"),
        ("exchange_started", "train", [0, 1]),
        ("reply", 0, True, ""),
        ("reply", 1, True, ""),
        ("exchange_ended", "train", 2, 0),
        ("exchange_started", "evaluate", [0, 1]),
        ("reply", 0, True, ""),
        ("reply", 1, True, ""),
        ("exchange_ended", "evaluate", 2, 0),
        ("evaluating", 1, "round"),
        ("evaluated", 1, "round", {"utility": 1.0}),
        ("checkpoint", 1, "round"),
        ("round_completed", 1, {"train_loss": pytest.approx(0.5 / 3), "train-steps": pytest.approx(8 / 3)}),
    ]
    assert second.events == recorder.events


def test_partition_ids_in_replies_are_no_metric():
    """They are checked, and left out of the averages."""
    grid = MemoryGrid({p: lambda m, p=p: content([1.0], loss=0.5, **{"partition-id": p}) for p in range(3)})
    result = FedTU(build("fedavg")).start(grid, adapter([0.0]), num_rounds=1)
    assert dict(result.train_metrics_clientapp[1]) == {"loss": 0.5}


def test_server_state_is_kept_or_reset_after_unlearning():
    def run(mode) -> tuple[Recorder, np.ndarray]:
        recorder = Recorder()
        fedtu = FedTU(
            build("fedavgm"),
            requests=RequestList([(3, request(1))]),
            listener=recorder,
            options=Options(server_state_on_unlearn=mode),
        )
        return recorder, flat(fedtu.start(federation(2), adapter(noise("start")), num_rounds=3).arrays)

    kept, with_momentum = run("keep")
    reset, without = run("reset")
    before, after = kept.checkpoints[2, "round"][1], kept.checkpoints[3, "after_unlearn"][1]
    assert np.array_equal(before["m/adapter"], after["m/adapter"])
    assert reset.checkpoints[3, "after_unlearn"][1] == {}
    assert np.array_equal(reset.checkpoints[2, "round"][1]["m/adapter"], before["m/adapter"])
    np.testing.assert_allclose(with_momentum - without, 0.9 * before["m/adapter"], rtol=1e-4, atol=1e-5)


def test_a_failed_exchange_resets_nothing():
    grid, recorder = federation(2), Recorder()
    good = honest(1)
    grid.nodes[1] = lambda m: Error(code=2) if m.metadata.message_type == message_keys.UNLEARN else good(m)
    fedtu = FedTU(
        build("fedavgm"),
        requests=RequestList([(2, request(1))]),
        listener=recorder,
        options=Options(server_state_on_unlearn="reset"),
    )
    fedtu.start(grid, adapter(noise("start")), num_rounds=2)
    clean = Recorder()
    FedTU(build("fedavgm"), listener=clean).start(federation(2), adapter(noise("start")), num_rounds=2)
    assert np.array_equal(recorder.checkpoints[2, "round"][0], clean.checkpoints[2, "round"][0])


def test_bad_arguments():
    with pytest.raises(ValueError, match="server_state_on_unlearn is 'drop'"):
        FedTU(build("fedavg"), options=Options(server_state_on_unlearn="drop"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="start_round is 0"):
        FedTU(build("fedavg")).start(federation(1), adapter([0.0]), start_round=0)
    with pytest.raises(ValueError, match="names no record"):
        UnlearnRequest("r", 0, ())
    with pytest.raises(ValueError, match="cannot load a state"):
        FedTU(flower.FedAvg()).load_state_dict({"m/adapter": np.zeros(1)})


def test_a_count_alone_weights_a_request_whose_records_stay_private():
    assert UnlearnRequest("r", 0, (), 4).num_records == 4
    assert request(0, 3).num_records == 3


def test_a_leaving_client_need_not_have_its_records_named():
    grid = federation(2)
    leaving = UnlearnRequest("bye", 1, (), 4, message_keys.SCOPE_CLIENT)
    requests = RequestList([(1, leaving), (1, request(1, 2, "a"))])
    FedTU(build("fedavg"), requests=requests).start(grid, adapter(np.zeros(SIZE)), num_rounds=1)
    (config,) = [c["config"] for kind, _, c in grid.log if kind == message_keys.UNLEARN]
    assert list(config[message_keys.REQUEST_IDS]) == ["a", "bye"]
    assert list(config[message_keys.SCOPES]) == ["records", "client"]
    assert list(config[message_keys.RECORD_COUNTS]) == [2, 0] and list(config[message_keys.RECORD_IDS]) == [
        "1-0",
        "1-1",
    ]
    with pytest.raises(ValueError, match="scope 'all'"):
        UnlearnRequest("r", 0, ("a",), scope="all")


def test_too_few_eligible_clients_do_not_make_the_round_wait():
    grid = federation(4)
    start = adapter(noise("start"))
    fedtu = FedTU(build("fedavg", min_train_nodes=3), eligible=lambda partition: partition < 2)
    result = fedtu.start(grid, start, num_rounds=2)
    assert grid.sent["train"] == 0 and np.array_equal(flat(result.arrays), noise("start"))
    FedTU(build("fedavg", min_train_nodes=2), eligible=lambda partition: partition < 2).start(grid, start, num_rounds=1)
    assert grid.sent["train"] == 2


def test_replies_of_an_unlearning_may_measure_different_things():
    """A client without retain records has no retain entropy; nothing is averaged, so both count."""
    grid = federation(2)
    grid.nodes[0] = lambda m: content(flat(m.content["arrays"]), loss=1.0, entropy=2.0)
    grid.nodes[1] = lambda m: content(flat(m.content["arrays"]), loss=1.0)
    requests = RequestList([(1, request(0)), (1, request(1))])
    FedTU(build("fedavg"), requests=requests, eligible=lambda partition: partition == 0).start(
        grid, adapter(np.zeros(SIZE)), num_rounds=1
    )
    assert requests.served_in == {"r0": 1, "r1": 1}


def test_dtype_of_the_model_survives_flowers_fedadam():
    inner = flower.FedAdam(fraction_evaluate=0.0)
    result = FedTU(inner).start(federation(2), adapter(noise("start")), num_rounds=2)
    assert flat(result.arrays).dtype == np.float32
    assert len(result.train_metrics_clientapp) == 2, "the second round was refused for its dtype"


class AlsoAgain(RequestList):
    """Client 1's request is served anew in each round from the second on."""

    def again(self, server_round):
        return [request(1, name="old")] if server_round > 1 else []

    def served_again(self, request, server_round, info):
        self.served_in[f"{request.request_id} again"] = server_round


@pytest.mark.parametrize(
    "due", [[], [(2, request(0))], [(2, request(1, name="new"))]], ids=["none", "another's", "the same client's"]
)
def test_moments_are_reset_where_any_request_is_served_for_the_first_time(due):
    recorder, source = Recorder(), AlsoAgain(due)
    options = Options(server_state_on_unlearn="reset")
    fedtu = FedTU(build("fedavgm"), requests=source, listener=recorder, options=options)
    fedtu.start(federation(3), adapter(noise("start")), num_rounds=2)
    served = {"old again", *(new.request_id for _, new in due)}
    assert recorder.checkpoints[1, "round"][1] and source.served_in.keys() == served
    assert (recorder.checkpoints[2, "after_unlearn"][1] == {}) is bool(due)


def test_rounds_that_are_added_for_a_request_count_as_planned():
    broken = federation(2)
    answers, honest_one = [Error(code=1, reason="busy")] * 3, broken.nodes[0]
    broken.nodes[0] = lambda m: (
        answers.pop() if answers and m.metadata.message_type == message_keys.UNLEARN else honest_one(m)
    )
    recorder, requests = Recorder(), RequestList([(1, request(0))])
    options = Options(extra_rounds=4)
    FedTU(build("fedavg"), requests=requests, listener=recorder, options=options).start(
        broken, adapter(noise("start")), num_rounds=2
    )
    assert requests.served_in == {"r0": 4}
    assert [e[1:] for e in recorder.of("round_started")] == [(1, 2), (2, 2), (3, 3), (4, 4)]


def test_a_round_that_is_none_is_refused():
    with pytest.raises(ValueError, match="start_round is 0, expected at least 1"):
        FedTU(build("fedavg")).start(federation(1), adapter(noise("start")), start_round=0)


def test_a_model_that_is_not_finite_ends_the_stage_with_its_name():
    """Of an aggregator that does not look itself."""
    grid = MemoryGrid({0: lambda message: content(np.full(SIZE, 3e38))})
    inner = flower.FedAvgM(server_learning_rate=5.0, min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0)
    fedtu = FedTU(inner, options=Options(stage="finetune"))
    with pytest.raises(AggregationError, match="round 1: the aggregated model is not finite; finetune diverged"):
        fedtu.start(grid, adapter(np.zeros(SIZE)), num_rounds=1)


def test_who_is_drawn_is_secret_where_the_noise_is():
    """With a public seed of the noise the drawing follows from the run's seed; with none it does not."""

    def drawn(noise_seed):
        grid, recorder = federation(30), Recorder()
        options = Options(seed=4, private_mean=PrivateMean(0.0, 1e6, seed=noise_seed))
        fedtu = FedTU(build("fedavg", fraction_train=0.2), listener=recorder, options=options)
        fedtu.start(grid, adapter(np.zeros(SIZE)), num_rounds=2)
        return [event[2] for event in recorder.of("exchange_started")]

    assert drawn(1) == drawn(2) != drawn(None) != drawn(None)


def test_moments_go_on_from_another_stage_without_what_that_knew_of_its_exchanges():
    fedtu = FedTU(build("fedavgm"))
    moment = np.ones(SIZE)
    fedtu.go_on_from({"m/adapter": moment, "serving/x": moment, "clock/now": moment, "sampling/y": moment})
    state = fedtu.state_dict()
    assert state.keys() == {"m/adapter"} and np.array_equal(state["m/adapter"], moment)


@pytest.mark.parametrize(("heard", "warned"), [(0, True), (1, False), (3, False)])
def test_a_round_without_any_valid_reply_is_warned_of_and_no_other(heard, warned, caplog):
    grid = federation(3)
    grid.nodes = {p: node if p < heard else lambda _: Error(code=1, reason="off") for p, node in grid.nodes.items()}
    FedTU(build("fedavg")).start(grid, adapter(noise("start")), num_rounds=1)
    assert ("no valid reply, the model stays as it is" in caplog.text) is warned


def test_the_seconds_of_a_round_and_of_an_evaluation_are_those_that_they_took(monkeypatch):
    """By a clock that each evaluation moves on by ten, and each listing of the nodes by a hundredth."""
    now, told = [1000.0], {}

    class Seconds(Recorder):
        def evaluated(self, server_round, moment, metrics, seconds):
            told[server_round, moment] = seconds

        def round_completed(self, server_round, arrays, metrics, seconds):
            told[server_round] = seconds

        def exchange_ended(self, kind, accepted, left_out, seconds):
            told[kind] = seconds

    def evaluate(server_round, arrays):
        now[0] += 10.0
        return MetricRecord({"loss": 1.0})

    grid = federation(2)
    answer = grid.nodes[0]

    def slow(message):
        now[0] += 3.0
        return answer(message)

    grid.nodes[0] = slow
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    FedTU(build("fedavg"), listener=Seconds()).start(grid, adapter(noise("s")), num_rounds=2, evaluate_fn=evaluate)
    assert told == {(0, "initial"): 10, (1, "round"): 10, (2, "round"): 10, 1: 13, 2: 13, "train": 3}


@pytest.mark.parametrize(
    ("inner", "mode", "warned"),
    [(flower.FedAvg, "reset", True), (flower.FedAvg, "keep", False), (lambda: build("fedavgm"), "reset", False)],
)
def test_who_cannot_forget_its_moments_is_named_where_they_are_to_be_forgotten(inner, mode, warned, caplog):
    FedTU(inner(), options=Options(server_state_on_unlearn=mode))
    named = [r for r in caplog.records if "FedAvg has no reset_state(): its state is kept" in r.getMessage()]
    assert [r.levelno for r in named] == [logging.WARNING] * warned


def test_the_settings_are_logged(caplog):
    with caplog.at_level(logging.INFO):
        FedTU(build("fedavgm"), options=Options(stage="retrain", seed=31, server_state_on_unlearn="reset")).summary()
    assert "FedTU: stage retrain, seed 31, server state on unlearn: reset" in caplog.text
    assert "FedAvgM: " in caplog.text


def test_masked_requests_take_a_cover():
    """A source of requests alone is refused: a cover of none would have them served openly, or not at all."""
    options = {"secure": SecureSettings(clipping=1.0)}
    with pytest.raises(ValueError, match="cover must say how many"):
        FedTU(build("fedavg"), requests=RequestList(), options=Options(**options))
    FedTU(build("fedavg"), options=Options(**options))
    FedTU(build("fedavg"), requests=RequestList(), options=Options(**options, cover=3))


def test_a_state_of_a_sampling_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="sampling/losses"):
        FedTU(build("fedavg")).load_state_dict({"sampling/losses": np.ones(1)})


def test_clients_are_evaluated_under_settings_and_a_draw_of_their_own():
    """Of thirty three a round, by round and stage, and not those that train; the average is that round's."""
    grid = federation(30)
    options = Options(seed=5, stage="s")
    fedtu = FedTU(build("fedavg", fraction_train=0.1, fraction_evaluate=0.1), options=options)
    settings = {"train_config": ConfigRecord({"epochs": 3}), "evaluate_config": ConfigRecord({"epochs": 8})}
    result = fedtu.start(grid, adapter(np.zeros(SIZE)), num_rounds=2, **settings)
    drawn = {}
    for kind in ("train", "evaluate"):
        for server_round in (1, 2):
            with seeded(5, "s", server_round, kind):
                drawn[kind, server_round] = random.sample(range(30), 3)
    found = {key: [] for key in drawn}
    for kind, partition, c in grid.log:
        if kind != "query":
            config = dict(c["config"])
            found[kind, config["server-round"]].append(partition)
            common = {"server-round": config["server-round"], "stage": "s", "run-seed": 5}
            assert config == {**common, "epochs": 3 if kind == "train" else 8}
    assert found == drawn and len({tuple(clients) for clients in drawn.values()}) == 4
    assert {r: dict(m) for r, m in result.evaluate_metrics_clientapp.items()} == {
        1: {"accuracy": 0.25},
        2: {"accuracy": 0.25},
    }


def test_what_clients_measure_is_averaged_over_those_that_answer_well():
    grid = federation(3)
    answers = {0: 0.1, 1: 0.7, 2: 0.9}
    for p, node in list(grid.nodes.items()):

        def answer(message, p=p, node=node):
            if message.metadata.message_type != message_keys.EVALUATE:
                return node(message)
            measured = {"num-examples": p + 1, "accuracy": answers[p]}
            return Error(code=1, reason="off") if p == 1 else RecordDict({"metrics": MetricRecord(measured)})

        grid.nodes[p] = answer
    result = FedTU(build("fedavg", fraction_evaluate=1.0)).start(grid, adapter(np.zeros(SIZE)), num_rounds=1)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx((1 * 0.1 + 3 * 0.9) / 4)


def test_of_a_client_that_cannot_be_erased_the_new_requests_fail_alone():
    """It is named once; what was served before fails nothing, and the model stays."""

    class Refusing(ByUnlearning):
        def serve(self, server_round, arrays, answers, train):
            return Served(arrays, {}, {answer.client: f"not in round {server_round}" for answer in answers})

    source, recorder = AlsoAgain([(2, request(1, name="new"))]), Recorder()
    fedtu = FedTU(build("fedavg"), requests=source, serving=Refusing(), listener=recorder)
    fedtu.start(federation(2), adapter(noise("start")), num_rounds=2)
    assert source.attempts == {"new": 1} and source.reasons == {"new": "not in round 2"}
    assert not source.served_in and not [event for event in recorder.of("checkpoint") if event[2] == "after_unlearn"]
    assert [event for event in recorder.of("reply") if not event[2]] == [("reply", 1, False, "not in round 2")]


def test_a_client_that_does_not_answer_counts_in_the_private_mean_of_an_unlearning():
    """Three are asked, two answer: a third of their sum, and one release of three clients."""
    grid, start, releases = federation(4), noise("start"), []
    models = {p: noise("unlearned", p) for p in (1, 2)}
    for p, model in models.items():
        grid.nodes[p] = honest(p, unlearned=model)
    grid.nodes[3] = lambda message: Error(code=1, reason="off")
    private, recorder = PrivateMean(0.0, 1e6, seed=1, on_release=releases.append), Recorder()
    requests = RequestList([(1, request(p, p)) for p in (1, 2, 3)])
    options = Options(private_mean=private)
    FedTU(build("fedavg"), requests=requests, listener=recorder, options=options).start(grid, adapter(start), 1)
    after, _ = recorder.checkpoints[1, "after_unlearn"]
    np.testing.assert_allclose(after, start + sum(model - start for model in models.values()) / 3, atol=1e-5)
    assert [(r.kind, r.clients) for r in releases] == [("unlearn", 3), ("train", 4)]


def test_a_client_that_asks_and_is_not_connected_fails_what_is_new_alone():
    source, recorder = AlsoAgain([(2, request(1, name="new"))]), Recorder()
    grid = federation(2)
    del grid.nodes[1]
    FedTU(build("fedavg"), requests=source, listener=recorder).start(grid, adapter(noise("start")), num_rounds=3)
    assert source.attempts == {"new": 2} and source.reasons == {"new": "not connected"} and not source.served_in
    assert recorder.of("reply").count(("reply", 1, False, "not connected")) == 2


def test_what_several_requests_of_a_client_count_is_the_sum_of_what_each_says():
    """Ten records that are not named and one that is, against one: 11/12 and 1/12 of the way. Lists are no numbers."""
    start, models, told = noise("start"), {1: noise("one"), 2: noise("two")}, {}

    class Telling(RequestList):
        def served(self, request, server_round, info):
            super().served(request, server_round, info)
            told[request.request_id] = dict(info)

    grid = federation(3)
    for p, model in models.items():
        node = honest(p)
        grid.nodes[p] = lambda m, p=p, model=model, node=node: (
            content(model, loss=p / 4, gaps=[1.0, 2.0]) if m.metadata.message_type == message_keys.UNLEARN else node(m)
        )
    leaving = UnlearnRequest("bye", 1, (), 10, message_keys.SCOPE_CLIENT)
    requests, recorder = Telling([(1, leaving), (1, request(1, 1, "a")), (1, request(2, 1))]), Recorder()
    options = Options(unlearn_config={"epochs": 9})
    fedtu = FedTU(build("fedavg"), requests=requests, listener=recorder, options=options)
    fedtu.start(grid, adapter(start), num_rounds=1, train_config=ConfigRecord({"epochs": 2, "batch": 3}))
    after, _ = recorder.checkpoints[1, "after_unlearn"]
    np.testing.assert_allclose(after, start + (11 * (models[1] - start) + models[2] - start) / 12, atol=1e-5)
    assert told["bye"] == told["a"] == {"num-examples": 2, "loss": 0.25} and told["r2"]["loss"] == 0.5
    settings = {kind: (c["config"]["epochs"], c["config"]["batch"]) for kind, _, c in grid.log if kind != "query"}
    assert settings == {message_keys.UNLEARN: (9, 3), message_keys.TRAIN: (2, 3)}, (
        "an unlearning's own settings count first"
    )
