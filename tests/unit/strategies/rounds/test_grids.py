"""A grid around another hands on what it is asked and told, and changes nothing of either."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
from flwr.app import RecordDict
from flwr.serverapp import Grid

from strategies.rounds.grids import PassingGrid

MESSAGE: Any = object()


@pytest.mark.parametrize(
    ("name", "arguments", "named"),
    [
        ("set_run", (object(),), {}),
        ("create_message", (RecordDict(), "train", 7, "group", 2.5), {}),
        ("get_node_ids", (), {}),
        ("get_nodes", (), {}),
        ("push_messages", ([MESSAGE],), {}),
        ("pull_messages", (["a", "b"],), {}),
        ("send_and_receive", ([MESSAGE],), {"timeout": 1.5}),
        ("send_and_receive", ([MESSAGE],), {"timeout": None}),
    ],
)
def test_every_call_reaches_the_grid_and_every_answer_comes_back(name: str, arguments: Any, named: Any) -> None:
    grid = MagicMock(spec=Grid)
    found = getattr(PassingGrid(grid), name)(*arguments, **named)
    asked = getattr(grid, name)
    asked.assert_called_once_with(*arguments, **named)
    assert found is (None if name == "set_run" else asked.return_value)
    assert PassingGrid(grid).run is grid.run


def test_a_generator_of_messages_is_sent_as_a_list() -> None:
    """A deployed Flower refuses generators."""
    grid = MagicMock(spec=Grid)
    PassingGrid(grid).send_and_receive(iter([MESSAGE]), timeout=3.0)
    grid.send_and_receive.assert_called_once_with([MESSAGE], timeout=3.0)
