"""What is told to several listeners."""

from __future__ import annotations

import inspect

import pytest

from strategies.rounds.callbacks import Listener, Listeners

HOOKS = [name for name, _ in inspect.getmembers(Listener, inspect.isfunction)]


@pytest.mark.parametrize("hook", HOOKS)
def test_each_of_several_listeners_hears_everything_in_turn(hook: str) -> None:
    heard: list[tuple] = []

    def listener(number: int) -> Listener:
        one = Listener()
        setattr(one, hook, lambda *told: heard.append((number, *told)))
        return one

    told = range(len(inspect.signature(getattr(Listener, hook)).parameters) - 1)
    getattr(Listeners(listener(1), listener(2)), hook)(*told)
    assert heard == [(1, *told), (2, *told)]
