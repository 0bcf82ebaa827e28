"""Arguments of several commands: those that name an experiment, and those of an audit."""

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

Target = Annotated[
    str,
    typer.Argument(
        metavar="RUN|CHECKPOINT|MODEL",
        help="A run directory, a checkpoint, a name in `conf/model`, a model or adapter folder, a name on the hub.",
    ),
]
Stage = Annotated[str | None, typer.Option(help="Stage of a RUN (default: the last finished one).")]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of the results (default: in the run, or ./audits).")
]


def split_arguments(arguments: list[str] | None) -> tuple[str, list[str]]:
    """The experiment (first argument without `=`) and the overrides."""
    arguments = list(arguments or [])
    if arguments and "=" not in arguments[0]:
        return arguments[0], arguments[1:]
    return "default", arguments
