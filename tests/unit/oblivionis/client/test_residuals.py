"""What a client keeps back of its updates: by round, by stage, and never beyond one of its records."""

import numpy as np
import pytest

from oblivionis.client.residuals import Residuals
from oblivionis.requests.node_folder import NodeFolder


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
