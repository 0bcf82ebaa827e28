"""Which rounds a history in memory still stores."""

from __future__ import annotations

import pytest
from flwr.app import ArrayRecord

from strategies.protocols.update_history import MemoryHistory, RoundUpdates


@pytest.mark.parametrize(
    ("keep", "stored"),
    [
        (None, [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5]]),
        (3, [[1], [1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]),
        (1, [[1], [2], [3], [4], [5]]),
        (0, [[], [], [], [], []]),
    ],
)
def test_the_newest_rounds_are_stored_from_the_first_on(keep: int | None, stored: list[list[int]]) -> None:
    history = MemoryHistory(keep=keep)
    for done, expected in enumerate(stored, start=1):
        history.record(RoundUpdates("train", done, ArrayRecord()))
        assert [past.round for past in history.rounds() if past.stored] == expected
        assert [past.round for past in history.rounds()] == list(range(1, done + 1))
