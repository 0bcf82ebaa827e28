"""What is wrong with a configuration: all of it at once, each with its place, what was expected and a hint."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes
    ----------
    path : str
        The dotted key (or the override, or the file) at fault.
    message : str
        What is wrong with it.
    expected : str
        What would be right.
    hint : str
        The nearest known name, or what to do.
    where : str
        The file and line, or the override.
    """

    path: str
    message: str
    expected: str = ""
    hint: str = ""
    where: str = ""

    def __str__(self) -> str:
        line = f"{self.path}: {self.message}"
        line += f"; expected {self.expected}" if self.expected else ""
        line += f"; {self.hint}" if self.hint else ""
        return line + (f"  [{self.where}]" if self.where else "")


class ConfigError(ValueError):
    """A configuration with problems.

    Parameters
    ----------
    problems : iterable of Problem

    Attributes
    ----------
    problems : list of Problem
        Every one of them.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: list[Problem] = list(problems)
        super().__init__(render_problems(self))


def render_problems(error: ConfigError) -> str:
    """The problems as plain text, one line each under a line that counts them."""
    count = len(error.problems)
    head = f"{count} problem{'' if count == 1 else 's'} in the configuration:"
    return "\n".join([head, *(f"  {problem}" for problem in error.problems)])


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name most like `name` (case and `-_.` set aside), or None when none is near."""
    folded = {_fold(candidate): candidate for candidate in known}
    close = difflib.get_close_matches(_fold(name), folded, n=1, cutoff=cutoff)
    return folded[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str], head: str = "") -> str:
    """`did you mean x?` for the nearest known name (after `head`), or an empty text."""
    near = nearest(name, known)
    return f"did you mean {head}{near}?" if near else ""


def _fold(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")
