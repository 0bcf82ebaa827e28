"""Whole runs whose updates are summed under masks: real server and clients on an in-memory grid, tiny data."""

from __future__ import annotations

import numpy as np
import pytest
from support.churn import QUIET
from support.stages import Recorded, execute, new_run

from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.config.problems import ConfigError
from oblivionis.erasure.ledger import Ledger
from oblivionis.errors import RunFailed
from oblivionis.runs.privacy import read_account
from strategies import message_keys
from strategies.secure import stage_keys
from strategies.secure.agreed_parameters import SecureSettings

PLAIN = (
    *QUIET,
    "federation.min_clients=3",
    "federation.rounds.finetune=1",
    "federation.rounds.unlearn=1",
    "federation.timeout=5",
    "stages=[finetune,unlearn]",
    "unlearning.requests.policy=all_at_round",
    "unlearning.requests.extra_rounds=0",
)
MASKED = (*PLAIN, "federation.secure_aggregation.enabled=true", "unlearning.cover=4")


def model_of(run, stage, number=None):
    return run.load_checkpoint(stage, number).vector


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The same run with bare updates and with sums under masks."""
    found = {}
    for name, settings in (("plain", PLAIN), ("masked", MASKED)):
        config, run = new_run(tmp_path_factory.mktemp(name), name, *settings)
        events, grid = execute(config, run)
        found[name] = (run, events, grid)
    return found


def test_the_model_is_that_of_bare_updates_but_for_half_a_step(both):
    step = SecureSettings(clipping=1.0).terms("train", 3, (), 1).step
    plain, masked = (model_of(both[name][0], "finetune") for name in ("plain", "masked"))
    assert not np.array_equal(plain, masked)
    assert np.abs(plain - masked).max() <= step / 2 + np.spacing(np.abs(plain).max())


def test_requests_are_served_among_those_that_cover(both):
    run, events, _ = both["masked"]
    assert not events.left_out
    assert events.warnings == both["plain"][1].warnings
    assert [len(clients) for _, clients in events.unlearned] == [4]
    assert {r.client for r in Ledger(run.ledger_path)} < {0, 1, 2, 3}
    assert all(r.served_round == 1 for r in Ledger(run.ledger_path))
    served = {r.client for r in Ledger(both["plain"][0].ledger_path) if r.served_round == 1}
    assert {r.client for r in Ledger(run.ledger_path) if r.served_round == 1} == served


def test_no_message_to_the_server_holds_a_model_or_a_number_of_one_client(both):
    """What clients say in exchanges is one record of masked words, shares and keys."""
    kinds = {kind for _, kind in both["masked"][2].sent}
    assert {
        message_keys.TRAIN,
        message_keys.UNLEARN,
        stage_keys.KEYS_TYPE,
        stage_keys.SHARES_TYPE,
        stage_keys.UNMASK_TYPE,
    } <= kinds

    seen = []

    def watch(partition, message, reply):
        if message.metadata.message_type in (message_keys.TRAIN, message_keys.UNLEARN):
            seen.append(reply.content)
        return reply

    execute(*new_run(both["masked"][0].path.parent, "watched", *MASKED), watch)
    assert len(seen) == 3 + 4 + 3
    for content in seen:
        assert not content.array_records
        assert not content.metric_records
        assert set(content.config_records) == {stage_keys.RECORD}
        assert set(content.config_records[stage_keys.RECORD]) == {stage_keys.SUM, stage_keys.TAIL, stage_keys.NUMBERS}


def test_a_client_sends_nothing_bare_in_a_run_with_masks(both, tmp_path):
    """A server that leaves the masks out of its message is refused, and learns nothing."""

    def bare(partition, message, reply):
        if message.metadata.message_type != message_keys.TRAIN:
            return reply
        del message.content[stage_keys.RECORD]
        context = next(c for c in grids[0].contexts.values() if c.node_config["partition-id"] == partition)
        return app(message=message, context=context)

    from support.inprocess import InProcessGrid

    grids: list[InProcessGrid] = []
    config, run = new_run(tmp_path, "bare", *MASKED, "stages=[finetune]")
    events = Recorded()

    class Kept(InProcessGrid):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            grids.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("support.stages.InProcessGrid", Kept)
        with pytest.raises(RunFailed, match="nobody trained, all 3 replies were left out"):
            execute(config, run, bare, events)
    assert len(events.left_out) == 3
    assert all("the message asks for this client's own" in reason for _, _, reason in events.left_out)


def test_noise_comes_in_shares_and_every_sum_is_one_release(tmp_path):
    hidden = ("privacy=client", "privacy.epsilon=null", "privacy.noise_multiplier=2", "privacy.delta=1e-3")
    config, run = new_run(tmp_path, "hidden", *MASKED, *hidden, "privacy.clipping_norm=0.01")
    events, _ = execute(config, run)
    assert not events.left_out
    releases = read_account(run)["releases"]
    assert [(r["stage"], r["kind"], r["clients"], r["population"]) for r in releases] == [
        ("finetune", "train", 3, None),
        ("unlearn", "unlearn", 4, None),
        ("unlearn", "train", 3, None),
    ]
    config, quiet = new_run(tmp_path, "quiet", *MASKED, *hidden, "privacy.clipping_norm=1e-9", "stages=[finetune]")
    execute(config, quiet)
    moved = (model_of(run, "finetune") - model_of(quiet, "finetune")).astype(float)
    expected = 2 * 0.01 / 3
    assert 0.98 < moved.std() / expected < 1.02


def test_a_norm_that_follows_the_updates_moves_under_masks(tmp_path):
    noise = ("privacy=client", "privacy.clipping=adaptive", "privacy.epsilon=null", "privacy.noise_multiplier=2")
    config, run = new_run(tmp_path, "adaptive", *MASKED, *noise, "stages=[finetune]", "federation.rounds.finetune=3")
    events, _ = execute(config, run)
    assert not events.left_out
    norms = [r["clipping_norm"] for r in read_account(run)["releases"]]
    norms.append(run.load_checkpoint("finetune").info["clipping_norm"])
    assert norms[0] == 1.0 and len(set(norms)) == 4, "drawn by noise and by the share that was cut"


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["unlearning.cover=0"], "those that ask alone"),
        (["unlearning.cover=5"], "3 to 4 (federation.clients)"),
        (["federation.min_clients=1", "federation.fraction_train=0.5"], "2 clients fine-tune in a round"),
        (["strategy=fedmedian"], "compares single clients' models"),
        (["strategy=fednova"], "compares single clients' models"),
        (["model.lora.aggregation=product"], "takes every client's factors"),
        (["unlearning=federaser"], "single clients' past models"),
        (["unlearning=pga"], "single clients' past models"),
        (["stages=[finetune,local]"], "leave out local"),
        (["federation.max_weight_share=0.5"], "no client's share can be limited"),
        (
            [
                "federation.secure_aggregation.threshold=3",
                "federation.secure_aggregation.shares=6",
                "federation.clients=6",
                "unlearning.cover=6",
            ],
            "above 3 (half",
        ),
        (["federation.secure_aggregation.bits=31", "federation.secure_aggregation.max_weight=2000000000"], "modulus"),
        (["federation.secure_aggregation.enabled=false"], "the server sees who sends a zero"),
        (
            ["federation.secure_aggregation.enabled=false", "unlearning.cover=0", "unlearning.cover_seconds=1"],
            "cover_s",
        ),
    ],
)
def test_what_means_nothing_under_masks_is_refused_with_a_reason(overrides, text):
    with pytest.raises(ConfigError) as refused:
        configuration.compose("smoke", ["federation.clients=4", *MASKED, *overrides])
    assert text in str(refused.value)
