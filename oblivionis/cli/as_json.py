"""The option `--json` of every command that prints figures: one document on standard output, and nothing else there."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print the figures as one JSON document; all else goes to standard error."),
]
Answer = Callable[[Any], None]
"""Prints the document."""


@contextmanager
def answering(as_json: bool) -> Iterator[Answer]:
    """What a command prints inside goes to standard error where its answer is to be JSON.

    Parameters
    ----------
    as_json : bool
        Whether `--json` was given.

    Yields
    ------
    Answer
        Called once with the document, what `plain` takes.
    """
    out = sys.stdout

    def answer(document: Any) -> None:
        text = json.dumps(plain(document), ensure_ascii=False, indent=1, allow_nan=False)
        print(text, file=out, flush=True)

    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        yield answer


def plain(value: Any) -> Any:
    """A value as JSON has it.

    Parameters
    ----------
    value : Any
        Numbers, texts, collections, dataclasses, paths, NumPy's scalars and arrays, or tables of results.

    Returns
    -------
    Any
        The same of dicts, lists, texts, numbers of full precision, and None for a number that is not finite.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, Collection):
        return [plain(entry) for entry in value]
    if (to_list := getattr(value, "tolist", None)) is not None:  # NumPy's
        return plain(to_list())
    raise TypeError(f"{type(value).__name__} is nothing that JSON has")
