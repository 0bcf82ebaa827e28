"""The clients' updates on disk: what is kept, what is deleted, and resuming after a kill at any moment."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord
from support.erasing import EPOCHS, SETTINGS, START, federation
from support.fedtu_clients import adapter, flat, request

from oblivionis.config import compose as configuration
from oblivionis.errors import RunError
from oblivionis.runs import updates as module
from oblivionis.runs.updates import UpdateStore, kept_on_disk, open_updates, past_of, row_of, stored_rounds
from strategies.client_update import ClientUpdate
from strategies.protocols.base import ByUnlearning
from strategies.protocols.federaser import FedEraser, FedEraserProtocol
from strategies.protocols.update_history import MemoryHistory, PastRound, RoundUpdates
from strategies.rounds.fedtu import FedTU, Listener, Options, RequestList
from strategies.rules.factory import build


def store(path, stage="finetune", keep=None, every=1):
    return UpdateStore(path / "updates", stage, keep=keep, every=every)


def updates(round, stage="finetune", clients=(3, 7), state=None):
    rng = np.random.default_rng(round)
    replies = [ClientUpdate(c, c + 0.5, adapter(rng.normal(size=9)), 2.0 * c) for c in clients]
    return RoundUpdates(stage, round, adapter(rng.normal(size=9)), state or {}, replies)


def files(path):
    return sorted(str(p.relative_to(path / "updates")) for p in path.rglob("*.safetensors"))


def content(path):
    """Every stored number of the present generation."""
    history = store(path, "unlearn")
    found = []
    for past in history.rounds():
        found.append((past.stage, past.round, past.clients, past.stored))
        if past.stored:
            read = history.read(past)
            found.append(
                (flat(read.sent).tobytes(), [(u.partition, u.weight, flat(u.arrays).tobytes()) for u in read.clients])
            )
            found.append({name: array.tobytes() for name, array in read.state.items()})
    return found


def test_what_is_written_is_read(tmp_path):
    written = updates(12, state={"m/adapter": np.arange(9.0), "v/adapter": np.full(9, 1e-30, np.float32)})
    store(tmp_path).record(written)
    history = store(tmp_path)
    (past,) = history.rounds()
    assert (past.stage, past.round, past.clients, past.stored) == ("finetune", 12, (3, 7), True)
    read = history.read(past)
    assert (read.stage, read.round) == ("finetune", 12)
    assert flat(read.sent).tobytes() == flat(written.sent).tobytes()
    assert [(u.partition, u.weight, u.steps) for u in read.clients] == [(3, 3.5, 6.0), (7, 7.5, 14.0)]
    for a, b in zip(read.clients, written.clients, strict=True):
        assert flat(a.arrays).tobytes() == flat(b.arrays).tobytes()
    assert read.state.keys() == written.state.keys()
    for name, array in written.state.items():
        assert read.state[name].dtype == array.dtype
        np.testing.assert_array_equal(read.state[name], array)


@pytest.mark.parametrize(
    ("keep", "every", "expected"), [(None, 1, range(1, 8)), (2, 1, [6, 7]), (2, 3, [4, 7]), (None, 4, [1, 5])]
)
def test_which_rounds_are_kept(tmp_path, keep, every, expected):
    history, memory = store(tmp_path, keep=keep, every=every), MemoryHistory(keep=keep, every=every)
    for round in range(1, 8):
        history.record(updates(round))
        memory.record(updates(round))
        history.settle()
        assert [past.stored for past in history.rounds()] == [past.stored for past in memory.rounds()]
    assert files(tmp_path) == [f"0000/finetune/round-{r:04d}.safetensors" for r in expected]
    assert [past.round for past in history.rounds()] == list(range(1, 8)), "who took part is never forgotten"


def test_a_new_generation_shares_what_did_not_change_and_the_old_one_goes(tmp_path):
    history = store(tmp_path, "unlearn")
    for round in (1, 2, 3):
        history.record(updates(round))
    first, second, third = history.rounds()
    with history.rewriting(4) as new:
        new.keep(first)
        new.write(updates(3, clients=(7,)))
        assert history.rounds() == [first, second, third], "the old one until all went well"
    assert [past.clients for past in history.rounds()] == [(3, 7), (7,)]
    inodes = {p.stat().st_ino for p in tmp_path.rglob("round-0001.safetensors")}
    assert len(inodes) == 1 and len(files(tmp_path)) == 5
    history.settle()
    assert files(tmp_path) == [f"0004/finetune/round-000{r}.safetensors" for r in (1, 3)]


def test_a_failed_rewriting_changes_nothing(tmp_path):
    history = store(tmp_path, "unlearn")
    history.record(updates(1))
    before = content(tmp_path)
    with pytest.raises(OSError, match="disk full"), history.rewriting(2) as new:
        new.write(updates(1, clients=(3,)))
        raise OSError("disk full")
    assert content(tmp_path) == before and files(tmp_path) == ["0000/finetune/round-0001.safetensors"]


def test_rolling_back(tmp_path):
    for round in (1, 2, 3):
        store(tmp_path).record(updates(round))
    store(tmp_path).roll_back(2)
    assert [past.round for past in store(tmp_path).rounds()] == [1, 2] and len(files(tmp_path)) == 2
    for round in (1, 2):
        store(tmp_path, "unlearn").record(updates(round, "unlearn"))
    with store(tmp_path, "unlearn").rewriting(3) as new:
        new.write(updates(1))
    store(tmp_path, "unlearn").roll_back(1)
    expected = [("finetune", 1), ("finetune", 2), ("unlearn", 1)]
    assert [(past.stage, past.round) for past in store(tmp_path).rounds()] == expected
    store(tmp_path).roll_back(0)
    assert store(tmp_path).rounds() == [] and files(tmp_path) == []


def test_a_moment_whose_updates_were_deleted_cannot_be_returned_to(tmp_path):
    history = store(tmp_path, "unlearn")
    history.record(updates(1))
    with history.rewriting(3) as new:
        new.write(updates(1))
    history.settle()
    before = files(tmp_path)
    with pytest.raises(RunError, match=r"round 2 of unlearn.*start a new run"):
        history.roll_back(2)
    assert files(tmp_path) == before
    history.roll_back(3)


def test_a_damaged_file_is_named(tmp_path):
    history = store(tmp_path)
    history.record(updates(1))
    (file,) = tmp_path.rglob("*.safetensors")
    file.write_bytes(b"torn")
    with pytest.raises(RunError, match=f"{file} is no readable file"):
        history.read(history.rounds()[0])


def test_taking_over_another_run_s_finetune_rounds(tmp_path):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for round in range(1, 6):
        store(theirs).record(updates(round))
    store(theirs, "unlearn").record(updates(1, "unlearn"))
    source = store(theirs, every=2)
    assert source.missing() == ""
    store(ours).record(updates(9))  # left over from an attempt that was interrupted
    store(ours, every=2).adopt(source)
    assert files(ours) == [f"0000/finetune/round-000{r}.safetensors" for r in (1, 3, 5)]
    assert [(p.stage, p.round, p.stored) for p in store(ours).rounds()] == [
        ("finetune", r, r % 2 == 1) for r in range(1, 6)
    ]
    few = tmp_path / "few"
    store(few, keep=2).adopt(store(theirs))
    assert files(few) == [f"0000/finetune/round-000{r}.safetensors" for r in (4, 5)]
    assert store(few, keep=2).missing() == "" and store(few, keep=1).missing() == ""
    assert store(few).missing() == "the clients' updates of round 1 of finetune (3 of 5 rounds)"
    assert store(tmp_path / "none").missing() == "the clients' updates of any round of finetune"
    with store(theirs, "unlearn").rewriting(2) as new:
        new.write(updates(1, clients=(7,)))
    store(theirs, "unlearn").settle()
    found = store(theirs).missing()
    assert found == "the clients' updates of any round of finetune", "calibrated updates are not those of finetune"


@pytest.mark.parametrize(
    ("models_only", "missing"),
    [
        (False, "the hashes of the clients' updates of finetune (it holds the updates in their place)"),
        (True, "the clients' updates of finetune (it holds models only)"),
    ],
)
def test_a_store_of_the_other_kind_is_not_taken_for_a_complete_one(tmp_path, models_only, missing):
    path = tmp_path / "updates"
    theirs = UpdateStore(path, "finetune", keep=None, every=1, models_only=models_only)
    theirs.record(updates(1, clients=()))
    theirs.record(updates(2))
    assert theirs.missing() == ""
    assert UpdateStore(path, "finetune", keep=None, every=1, models_only=not models_only).missing() == missing


def test_a_file_without_the_updates_of_its_round_is_not_read_as_a_round_in_which_nobody_trained(tmp_path):
    UpdateStore(tmp_path / "updates", "finetune", keep=None, every=1, models_only=True).record(updates(1))
    history = store(tmp_path)
    with pytest.raises(RunError, match=r"round-0001\.safetensors does not hold the updates of all clients"):
        history.read(history.rounds()[0])


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("", 0),
        ("unlearning.updates.keep=4", 4),
        ("unlearning=federaser", None),
        ("unlearning=federaser unlearning.updates.keep=7", 7),
        ("unlearning=pga federation.keep_checkpoints=5", 5),
    ],
)
def test_how_many_rounds_a_method_needs(tmp_path, overrides, expected):
    config = configuration.compose("default", overrides)
    assert stored_rounds(config) == expected
    assert (open_updates(config, tmp_path, "unlearn") is None) == (expected == 0)
    assert open_updates(config, tmp_path, "retrain") is None


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        ("unlearning=federaser unlearning.updates.keep=0", "unlearning.updates.keep"),
        ("unlearning=pga unlearning.updates.keep=0", "unlearning.updates.keep"),
        ("unlearning=pga unlearning.updates.every=2", "unlearning.updates.every"),
        ("unlearning=federaser unlearning.entropy.forget=1", "unlearning.entropy"),
        ("unlearning=federaser stages=[local]", "stages"),
        ("unlearning=pga stages=[finetune,unlearn,local]", "stages"),
        ("unlearning=federaser unlearning.params.calibration_ratio=0", "unlearning.params.calibration_ratio"),
        ("unlearning=federaser unlearning.params.ratio=1", "unlearning.params.ratio"),
        ("unlearning=pga unlearning.params.radius=-1", "unlearning.params.radius"),
    ],
)
def test_settings_that_cannot_be(overrides, path):
    with pytest.raises(configuration.ConfigError) as error:
        configuration.compose("default", overrides)
    assert [problem.path for problem in error.value.problems] == [path]


class Interrupted(Listener):
    """Saves a checkpoint after each round, as a stage does."""

    def __init__(self, history):
        self._history, self.saved = history, {}

    def checkpoint(self, round, moment, arrays: ArrayRecord, state):
        if moment == "round":
            self.saved = {**self.saved, round: (flat(arrays).copy(), dict(state))}
            self._history.settle()


def unlearn_stage(path, saved, name):
    """FedTU for what is left of unlearn after the last checkpoint, with its listener."""
    done = max(saved, default=0)
    history = store(path, "unlearn")
    history.roll_back(done)
    inner = build(name, fraction_train=0.5, **SETTINGS[name])
    if done:
        inner.load_state_dict(saved[done][1])
    listener = Interrupted(history)
    listener.saved = dict(saved)
    due = [(round, asked) for round, asked in ((1, request(1)), (2, request(4)), (3, request(0))) if round > done]
    fedtu = FedTU(
        inner,
        requests=RequestList(due),
        listener=listener,
        serving=FedEraserProtocol(FedEraser(inner, history, local_epochs=EPOCHS)),
        options=Options(stage="unlearn"),
    )
    return fedtu, listener


@pytest.mark.slow
def test_a_kill_at_any_moment_changes_nothing_in_the_end(tmp_path, monkeypatch):
    """Copies the folder before each operation on it; whatever the copy, the run ends as the whole one."""
    whole, name = tmp_path / "whole", "fedadam"
    inner = build(name, fraction_train=0.5, **SETTINGS[name])
    fedtu = FedTU(inner, serving=ByUnlearning(history=store(whole)), options=Options(stage="finetune"))
    start = flat(fedtu.start(federation(), adapter(START), num_rounds=3).arrays)

    fedtu, listener = unlearn_stage(whole, {}, name)
    copies: list[tuple[Path, dict]] = []

    def observed(operation):
        def wrapped(*args, **kwargs):
            take_copy()
            return operation(*args, **kwargs)

        return wrapped

    def take_copy():
        target = tmp_path / f"copy-{len(copies)}"
        shutil.copytree(whole, target)
        copies.append((target, dict(listener.saved)))

    with monkeypatch.context() as patched:
        for place, operation in ((module, "write_atomic"), (module, "append_lines"), (module, "link_or_copy"),
                                 (module.os, "replace"), (module.shutil, "rmtree"), (Path, "unlink")):  # fmt: skip
            patched.setattr(place, operation, observed(getattr(place, operation)))
        fedtu.start(federation(), adapter(start), num_rounds=3)
    assert len(copies) > 30 and any(list(copy.rglob(".*.tmp")) for copy, _ in copies), "also within an erasure"
    expected, final = content(whole), listener.saved[3][0].tobytes()
    assert {past.stage for past in store(whole, "unlearn").rounds()} == {"finetune", "unlearn"}

    for copy, saved in copies:
        fedtu, listener = unlearn_stage(copy, saved, name)
        if max(saved, default=0) < 3:
            vector = saved[max(saved)][0] if saved else start
            fedtu.start(federation(), adapter(vector), num_rounds=3, start_round=max(saved, default=0) + 1)
        store(copy, "unlearn").settle()
        assert listener.saved[3][0].tobytes() == final
        assert content(copy) == expected
        assert [p.name for p in (copy / "updates").iterdir()] == [p.name for p in (whole / "updates").iterdir()]


def test_what_two_generations_share_counts_once(tmp_path):
    history = store(tmp_path)
    for number in (1, 2):
        history.record(updates(number))
    sizes = [file.stat().st_size for file in sorted((tmp_path / "updates").rglob("*.safetensors"))]
    assert kept_on_disk(tmp_path) == (2, sum(sizes))
    with store(tmp_path, "unlearn").rewriting(1) as new:
        first, second = history.rounds()
        new.keep(first)
        new.write(updates(2))
    assert second.stored
    assert kept_on_disk(tmp_path) == (3, sum(sizes) + sizes[1])


def test_a_line_of_the_lineage_keeps_all_that_a_round_says():
    past = PastRound("finetune", 2, (0, 3), True, {0: "a", 3: "b"}, 4, "c", {0: "d"})
    assert past_of(row_of(past), stored=True) == past
    assert row_of(PastRound("finetune", 2, (), False)) == {"stage": "finetune", "round": 2, "clients": []}
