"""How a command that compares ends: its exit code says whether all that was asked was tested, and is equal."""

from __future__ import annotations

import typer

DIFFERS, UNTESTED = 1, 3


def end(*, differs: bool, untested: bool) -> None:
    """End the command with 1 where something differs, else with 3 where something could not be tested."""
    if differs or untested:
        raise typer.Exit(DIFFERS if differs else UNTESTED)
