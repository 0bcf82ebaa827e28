"""Which updates pass the barrier, by hand."""

from __future__ import annotations

import pytest

from strategies.rounds.model_versions import Buffer, Versions


def test_only_updates_from_the_newest_unlearning_on_pass() -> None:
    versions = Versions()
    assert versions.admits(0), "nothing was unlearned"
    versions.stepped()
    versions.stepped()
    assert [versions.admits(v) for v in (0, 1, 2)] == [True] * 3
    versions.unlearned()
    assert (versions.now, versions.barrier) == (3, 3)
    versions.stepped()
    assert [versions.admits(v) for v in (2, 3, 4)] == [False, True, True], "version 2 may have known it"
    assert versions.staleness(3) == 1


@pytest.mark.parametrize("wrong", [(0, 1), (1, 0), (1, 1, -0.1), (1, 1, float("inf")), (1, 1, float("nan"))])
def test_a_buffer_out_of_range(wrong: tuple) -> None:
    with pytest.raises(ValueError, match="expected"):
        Buffer(*wrong)


def test_more_answers_may_be_wanted_than_clients_train_at_once() -> None:
    assert Buffer(4, 2).weight(0) == 1.0
