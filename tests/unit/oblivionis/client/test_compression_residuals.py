"""What a client keeps back of its updates: by round, by stage, and never beyond one of its records."""

import numpy as np
import pytest

from oblivionis.client.compression_residuals import Residuals
from oblivionis.erasure import node_folder
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.models.adapters import save_vector


def residuals(tmp_path, stage="train/", records="a", run="run"):
    return Residuals(NodeFolder(tmp_path), run, stage, records)


def rest(value):
    return np.full(3, value, np.float32)


def test_a_round_goes_on_from_the_newest_before_it(tmp_path):
    own = residuals(tmp_path)
    assert own.before(1, 3) is None
    own.keep(1, rest(1))
    own.keep(4, rest(4))
    assert residuals(tmp_path).before(6, 3).tolist() == [4, 4, 4]


def test_a_round_that_is_repeated_goes_on_from_what_it_went_on_from(tmp_path):
    own = residuals(tmp_path)
    for server_round in (1, 4, 6):
        own.keep(server_round, rest(server_round))
    assert own.before(6, 3).tolist() == [4, 4, 4]
    own.keep(6, rest(9))
    assert own.before(7, 3).tolist() == [9, 9, 9]
    assert len(list(NodeFolder(tmp_path).residuals_path.iterdir())) == 2, "older ones are gone"


@pytest.mark.parametrize("other", [{"stage": "train/forget-split"}, {"stage": "unlearn/"}, {"run": "other"}])
def test_stages_and_runs_keep_their_own(tmp_path, other):
    residuals(tmp_path).keep(1, rest(1))
    assert residuals(tmp_path, **other).before(2, 3) is None
    assert residuals(tmp_path).before(2, 3) is not None


def test_what_came_of_other_records_is_dropped(tmp_path):
    residuals(tmp_path).keep(1, rest(1))
    assert residuals(tmp_path, records="b").before(2, 3) is None
    assert residuals(tmp_path).before(2, 3) is None, "for good"


@pytest.mark.parametrize("damage", [b"", b"rubbish"])
def test_a_damaged_file_counts_as_none(tmp_path, damage):
    residuals(tmp_path).keep(1, rest(1))
    (file,) = NodeFolder(tmp_path).residuals_path.iterdir()
    file.write_bytes(damage)
    assert residuals(tmp_path).before(2, 3) is None
    assert not file.exists()


def test_another_models_is_dropped(tmp_path):
    residuals(tmp_path).keep(1, rest(1))
    assert residuals(tmp_path).before(2, 4) is None


@pytest.mark.parametrize("forget", ["bury", "bury again", "leave"])
def test_forgetting_drops_all_of_it(tmp_path, forget):
    node = NodeFolder(tmp_path)
    if forget == "bury again":
        node.bury(["r1"], "q1")
    for stage in ("train/", "train/forget-split", "unlearn/"):
        residuals(tmp_path, stage).keep(1, rest(1))
    node.leave("q1") if forget == "leave" else node.bury(["r1"], "q1")
    assert not node.residuals_path.exists()


def test_what_a_model_left_that_still_knew_what_was_unlearned_is_dropped_for_good(tmp_path):
    node, own = NodeFolder(tmp_path), residuals(tmp_path)
    own.keep(1, rest(1))
    own.keep(2, rest(2))
    assert Residuals(node, "run", "train/", "a", since=2).before(3, 3).tolist() == [2, 2, 2]
    assert Residuals(node, "run", "train/", "a", since=3).before(3, 3) is None
    assert residuals(tmp_path).before(3, 3) is None and not list(node.residuals_path.iterdir())


@pytest.mark.parametrize("when", ["before", "while it is written", "while the folder is dropped"])
@pytest.mark.parametrize("leaves", [False, True])
def test_a_training_that_ends_after_the_burial_keeps_nothing(tmp_path, monkeypatch, when, leaves):
    node = NodeFolder(tmp_path)

    def forget():
        node.leave("q1") if leaves else node.bury(["r1"], "q1")

    def save(path, *values):
        if when == "while the folder is dropped":
            path.parent.mkdir(parents=True)
            forget()
            raise FileNotFoundError(path)
        forget()
        save_vector(path, *values)

    own = Residuals(node, "run", "train/", "a", current=lambda: not node.tombstones() and node.left_by() is None)
    forget() if when == "before" else monkeypatch.setattr("oblivionis.client.compression_residuals.save_vector", save)
    own.keep(1, rest(1))
    if when == "before":
        assert not node.residuals_path.exists(), "it was not even written"
    assert not node.residuals_path.exists() or not list(node.residuals_path.iterdir())


@pytest.mark.parametrize("leaves", [False, True])
def test_what_was_kept_between_the_first_drop_and_the_tombstone_goes_too(tmp_path, monkeypatch, leaves):
    name = "write_json" if leaves else "append_lines"
    write = getattr(node_folder, name)

    def late(path, value):
        residuals(tmp_path).keep(1, rest(1))
        write(path, value)

    monkeypatch.setattr(node_folder, name, late)
    node = NodeFolder(tmp_path)
    node.leave("q1") if leaves else node.bury(["r1"], "q1")
    assert not node.residuals_path.exists()
