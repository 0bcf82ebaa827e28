"""The error of models and adapters that cannot be used."""

from __future__ import annotations

from collections.abc import Sequence

from oblivionis.errors import OblivionisError


class ModelError(OblivionisError):
    """A base model or an adapter cannot be loaded or does not fit."""


def one_line(error: BaseException) -> str:
    """The first line of what a library says of an error, or its kind where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def some(names: Sequence[str], most: int = 3) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
