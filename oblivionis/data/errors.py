"""The error that a faulty source of records raises."""

from __future__ import annotations

from collections.abc import Sequence

from oblivionis.errors import OblivionisError

SHOWN = 20


class DataError(OblivionisError, ValueError):
    """A source of records cannot be used.

    Parameters
    ----------
    summary : str
        First line of the message.
    problems : sequence of str
        Every finding; the message shows the first twenty.

    Attributes
    ----------
    problems : tuple of str
    """

    def __init__(self, summary: str, problems: Sequence[str] = ()) -> None:
        self.problems = tuple(problems)
        lines = [summary, *(f"  {problem}" for problem in self.problems[:SHOWN])]
        if len(self.problems) > SHOWN:
            lines.append(f"  … and {len(self.problems) - SHOWN} more")
        super().__init__("\n".join(lines))


def raise_if_any(source: object, problems: Sequence[str]) -> None:
    """Raise DataError with all `problems` of `source`; do nothing when there are none."""
    if problems:
        count = len(problems)
        raise DataError(f"{source}: {count} problem{'s' if count > 1 else ''}", problems)
