"""The `oblivionis export` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from oblivionis.errors import OblivionisError

FORMATS = ("hf",)


def export(
    target: Annotated[Path, typer.Argument(metavar="RUN|CHECKPOINT", help="A run directory or a checkpoint file.")],
    stage: Annotated[
        str | None, typer.Option(help="Which stage's final model of a RUN (default: the last finished one).")
    ] = None,
    to: Annotated[str, typer.Option(help="hf: a folder that transformers and peft read, with a model card.")] = "hf",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new folder (default: export/STAGE in the run).", show_default=False),
    ] = None,
    merged: Annotated[
        bool, typer.Option("--merged", help="The whole model, the adapter added to its weights; it needs no base.")
    ] = False,
    push: Annotated[
        str | None, typer.Option(metavar="USER/NAME", help="Also upload it to the Hugging Face hub, with your token.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Let anybody see what is uploaded.")] = False,
) -> None:
    """Write a run's model for use elsewhere: a PEFT adapter with tokenizer and model card.

    The card says how it was trained, which deletion requests it was made to serve, what came of each and what was
    measured. No record and no person is named.
    """
    if to not in FORMATS:
        raise OblivionisError(f"--to {to}: expected {' or '.join(FORMATS)}")
    from oblivionis.runs.checkpoints import find_checkpoint

    run, checkpoint, _, _ = find_checkpoint(target, stage, [])
    folder = out or run.path / "export" / checkpoint.stage
    from oblivionis.reports import exported_model

    kind = exported_model.export(target, stage, folder, merged=merged)
    print(f"{folder}: {exported_model.WHAT[kind]}, tokenizer and {exported_model.CARD}")
    if left := exported_model.still_known(run, checkpoint):
        Console(stderr=True).print(left, style="yellow", markup=False, highlight=False, soft_wrap=True)
    if push is not None:
        print(exported_model.push(folder, push, private=not public))
