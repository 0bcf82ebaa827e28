"""The arguments that name an experiment, of several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[EXPERIMENT] [KEY=VALUE]...",
        help="A name in `conf/` or a YAML file (default: `default`), then any option, e.g. `strategy=fedadam` "
        "`unlearning=simnpo` `federation.rounds.unlearn=5`. See `oblivionis config list`.",
        show_default=False,
    ),
]

AllowCode = Annotated[
    Path | None,
    typer.Option(
        "--allow-code",
        metavar="FILE",
        help="Execute this loss, which a configuration names that you did not write, if it is the one (SHA-256).",
    ),
]


def split_arguments(arguments: list[str] | None) -> tuple[str, list[str]]:
    """The experiment (first argument without `=`) and the overrides."""
    arguments = list(arguments or [])
    if arguments and "=" not in arguments[0]:
        return arguments[0], arguments[1:]
    return "default", arguments
