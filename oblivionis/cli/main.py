"""The `oblivionis` command."""

from __future__ import annotations

import errno
import functools
import os
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.main import get_command

from oblivionis.cli.arguments import AllowCode, Arguments, split_arguments
from oblivionis.cli.as_json import AsJson, answering
from oblivionis.cli.attack import attack
from oblivionis.cli.certificate import certificate_cli
from oblivionis.cli.deploy import deploy_cli
from oblivionis.cli.export import export
from oblivionis.cli.interrupts import leave, signals, stopping
from oblivionis.cli.leakage import LeakageCommand, audit_leakage
from oblivionis.cli.model import model_cli
from oblivionis.cli.person_audits import audit_person, request_from_audit
from oblivionis.cli.progress_display import following
from oblivionis.cli.replay_audits import audit_exchange, audit_training
from oblivionis.cli.request import request_cli
from oblivionis.cli.view import view
from oblivionis.cli.wikimem import wikimem_cli
from oblivionis.config import compose as configuration
from oblivionis.config.allowed_code import allow_code, permit_named, resuming
from oblivionis.errors import OblivionisError, RunFailed, RunInterrupted, to_mend
from oblivionis.runs.progress import LineEvents, for_console
from oblivionis.server.client_fork_server import client_fork_server
from oblivionis.version import __version__

if TYPE_CHECKING:
    from oblivionis.config.schema import Config
    from oblivionis.data.subjects import Subjects
    from oblivionis.measures.assessor import Measured
    from oblivionis.runs.directory import RunDirectory
    from oblivionis.runtime.fork_server import ForkServer

COMMANDS = "oblivionis.commands"
"""Entry points of packages above this one, Typer groups or commands: `bench` and `tune` come from `benchmarks`."""

cli = typer.Typer(
    name="oblivionis",
    help="Federated fine-tuning and targeted unlearning of language models.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
config_cli = typer.Typer(help="Show, check and list configurations.", no_args_is_help=True)
data_cli = typer.Typer(help="Look at the data before a run.", no_args_is_help=True)
audit_cli = typer.Typer(help="Measure thoroughly what a model still knows.", no_args_is_help=True)
runs_cli = typer.Typer(help="Look at finished and unfinished runs.", no_args_is_help=True)
cli.add_typer(config_cli, name="config")
cli.add_typer(data_cli, name="data")
cli.add_typer(model_cli, name="model")
cli.add_typer(audit_cli, name="audit")
cli.add_typer(request_cli, name="request")
cli.add_typer(certificate_cli, name="certificate")
cli.add_typer(runs_cli, name="runs")
cli.add_typer(wikimem_cli, name="wikimem")
cli.add_typer(deploy_cli, name="deploy")
cli.command("attack")(attack)
cli.command("export")(export)
cli.command("view")(view)
audit_cli.command("leakage", cls=LeakageCommand)(audit_leakage)
audit_cli.command("person")(audit_person)
audit_cli.command("exchange")(audit_exchange)
audit_cli.command("training")(audit_training)
request_cli.command("from-audit")(request_from_audit)


def add_commands(to: typer.Typer) -> None:
    """Add the commands that installed packages bring; of one that cannot be loaded a line says so."""
    for entry in entry_points(group=COMMANDS):
        try:
            found = entry.load()
        except (ImportError, AttributeError) as error:
            text = f"the command {entry.name} is left out, {entry.value} cannot be loaded: {error}"
            print(f"oblivionis: {text}; install its package again (here: pip install -e .)", file=sys.stderr)
            continue
        if isinstance(found, typer.Typer):
            to.add_typer(found, name=entry.name)
        else:
            to.command(entry.name)(found)


add_commands(cli)

Answers = Annotated[bool, typer.Option("--answers", help="Also sample answers of the models, side by side.")]
FIRST_STEPS = """Federated fine-tuning and targeted unlearning of language models. Three things to do first:

  oblivionis simulate smoke    a whole run in seconds, without network or GPU (without `smoke`: the default, minutes)
  oblivionis data describe     who holds which records before a run; with your own: data=records data.path=FILE
  oblivionis view              look at finished runs in a browser

All commands: oblivionis --help"""

USER_ERROR, FAILURE, INTERRUPTED = 2, 1, 130
_WRITABLE = "Choose a place that can be written to, or make this one so, and repeat the command"
_ROOM = "Make room and repeat the command"
OF_THE_MACHINE = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: _ROOM,
    errno.EROFS: _WRITABLE,
    errno.EACCES: _WRITABLE,
    errno.EPERM: _WRITABLE,
    errno.ENOTDIR: _WRITABLE,
    errno.EISDIR: _WRITABLE,
    errno.EEXIST: _WRITABLE,
    errno.ENAMETOOLONG: _WRITABLE,
    errno.EIO: "Look after the disk and repeat the command",
}
"""Errors of the operating system that are no fault of the program, and what helps."""


def main() -> None:
    """Entry point: a user's mistake is one message and exit code 2, a failed run 1, Ctrl-C 130."""
    with signals():
        code = _guard(_command)
        stopping.finish(code)
    leave(code)


def _command() -> object:
    """Carry out what the arguments say. OblivionisError for one that is no text and names nothing that is there."""
    for number, argument in enumerate(sys.argv[1:], start=1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            if not any(os.path.lexists(part) for part in (argument, argument.partition("=")[2])):
                raise OblivionisError(
                    f"argument {number}, {argument!a}, is no UTF-8 text; type it again in a UTF-8 terminal"
                ) from None
    return _built()(standalone_mode=False)


@functools.cache
def _built() -> Callable[..., object]:
    """The commands as click has them, which takes a while to build."""
    return get_command(cli)


def _guard(command: Callable[[], object]) -> int:
    errors = Console(stderr=True)
    try:
        result = command()
        return result if isinstance(result, int) else 0
    except configuration.ConfigError as error:
        errors.print(configuration.render_problems(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return USER_ERROR
    except RunInterrupted as error:
        errors.print(str(error), style="yellow", markup=False, highlight=False, soft_wrap=True)
        return INTERRUPTED
    except OblivionisError as error:
        errors.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return FAILURE if isinstance(error, RunFailed) else USER_ERROR
    except typer.Exit as error:
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except OSError as error:
        if error.errno not in OF_THE_MACHINE:
            return _fault(errors)
        where = f"{error.filename}: " if error.filename else ""
        errors.print(
            f"error: {where}{error.strerror}; what was complete before is kept. {OF_THE_MACHINE[error.errno]}",
            style="red",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        return FAILURE
    except Exception as error:
        if isinstance(code := getattr(error, "exit_code", None), int):  # a mistake in the arguments: click's own text
            getattr(error, "show", lambda: None)()
            return code
        return _fault(errors)


def _fault(errors: Console) -> int:
    traceback.print_exc()
    errors.print("\nThis is a fault of oblivionis, not of your input.", style="red")
    return FAILURE


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit()


@cli.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(FIRST_STEPS)


@cli.command()
def simulate(
    arguments: Arguments = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Continue this run from its last complete round.")
    ] = None,
    allow_code_: AllowCode = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Tell of warnings alone while it goes on.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line for every event.")] = False,
    full: Annotated[bool, typer.Option("--full", help="At the end, all measures instead of the chief ones.")] = False,
    answers: Answers = False,
    as_json: AsJson = False,
) -> None:
    """Run the stages of an experiment on simulated clients and compare the models that come out.

    Without arguments: the embedded default (made-up authors, a tiny Llama; no network, no GPU, a few minutes).
    """
    if quiet and verbose:
        raise OblivionisError("--quiet and --verbose exclude each other")
    verbosity = "quiet" if quiet else "verbose" if verbose else "normal"
    with answering(as_json) as answer:
        run, config = _simulated(arguments, resume, verbosity, allow_code_)
        from oblivionis.reports import json_documents
        from oblivionis.reports import run_summary as report
        from oblivionis.reports.warnings import check_done

        if as_json:
            answer(json_documents.run_document(run, config))
        else:
            report.print_summary(run, config, Console(), full=full, answers=answers)
        check_done(run)


def _simulated(
    arguments: list[str] | None, resume: Path | None, verbosity: str, code: Path | None
) -> tuple[RunDirectory, Config]:
    """Begin a run or go on with one, to its end; `code`: what of its own may be executed then."""
    from oblivionis.runs import artifact_binding
    from oblivionis.runs.directory import RunDirectory, check_output

    console = Console()
    if resume is not None:
        if arguments:
            raise OblivionisError("--resume takes the run's own configuration; leave the other arguments out")
        run = artifact_binding.opened(resume)
        config = configuration.from_yaml(run.read_config(), run.config_place)
        allow_code(config, code)
    else:
        experiment, overrides = split_arguments(arguments)
        config = configuration.compose(experiment, overrides)
        permit_named(config, overrides, code)
        check_output(Path(config.output), config.name)
        if config.start_from:
            from oblivionis.runs.reuse import check_source

            check_source(config)
        run = None
    try:
        with client_fork_server(config) as forks:  # it loads what clients need while this process loads its own
            check_before_run(config, console, new=run is None)
            if run is None:
                run = RunDirectory.create(Path(config.output), config.name)
                run.write_config(configuration.to_yaml(config))
            console.print(f"run directory: {run.path}", highlight=False, soft_wrap=True)
            _run(config, run, console, verbosity, forks, new=resume is None)
    except KeyboardInterrupt:  # the second Ctrl-C comes while the processes end
        if stopping.hint:
            raise RunInterrupted(f"stopped; {stopping.hint}") from None
        raise
    return run, config


def _run(config: Config, run: RunDirectory, console: Console, verbosity: str, forks: ForkServer, *, new: bool) -> None:
    """Simulate, and say how to go on where it breaks off."""
    with run.lock():
        hint = stopping.hint = f"continue with: {resuming(run.path, config)}"
        try:
            start_simulation(config, run, console, verbosity, forks)
            stopping.hint = ""
        except (RunInterrupted, KeyboardInterrupt):
            raise RunInterrupted(f"stopped; {hint}") from None
        except BaseException as error:
            said = f"the run failed; see {run.path / 'flower.log'}\n{hint}"
            if to_mend(error):
                said = f"the run broke off; if what follows can be mended, {hint}"
                if new and not run.begun:
                    # Another attempt must not find the name taken by settings that do not work.
                    run.remove()
                    stopping.hint = ""
                    raise
            Console(stderr=True).print(said, highlight=False, soft_wrap=True)
            raise


def check_before_run(config: Config, console: Console, *, new: bool) -> None:
    """What needs torch and flwr to be known before a run; mistakes in a configuration are reported without them."""
    from oblivionis.erasure.schedule import check_requests
    from oblivionis.server.preflight import preflight

    if new:
        check_requests(config)
    preflight(config, console)


def start_simulation(config: Config, run: RunDirectory, console: Console, verbosity: str, forks: ForkServer) -> None:
    """Run a simulation, show how it goes, and write the run's page."""
    from oblivionis.server.simulation import simulate as run_simulation
    from oblivionis.server.stages import planned_rounds

    events = for_console(console, planned_rounds(config), verbosity)
    try:
        run_simulation(config, run, events, forks)
    finally:
        events.close()
    from oblivionis.reports.html import run_page  # matplotlib takes time to import

    run_page.write_html(run, config)


@cli.command()
def evaluate(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|CHECKPOINT|MODEL",
            help="A run directory, a checkpoint, a name in conf/model, a model or adapter folder, a name on the hub.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="E.g. `data=tofu` `evaluation=full` `evaluation.truth_ratio=arithmetic`."
        ),
    ] = None,
    stage: Annotated[
        str | None, typer.Option(help="Which stage's final model of a RUN (default: the last finished one).")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="The same, repeatable.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a run's model anew, or any model on any data, with the full profile, and print its metrics."""
    from oblivionis.audits.audited_model import is_model

    given = [*(overrides or []), *(set_ or [])]
    with answering(as_json) as answer:
        of, title, measured = (_evaluated_model if is_model(target) else _evaluated_run)(target, stage, given)

        from oblivionis.reports import json_documents
        from oblivionis.reports import run_summary as report
        from oblivionis.runs.failed_evaluators import not_measured, one_line

        failed = {name: one_line(reason) for name, reason in measured.report.failed.items()}
        if as_json:
            metrics, notes = json_documents.with_left_out(measured.metrics, measured.notes), measured.notes
            answer({**of, "metrics": metrics, "notes": notes, "failed": failed})
        else:
            place = of.get("stage", "base")
            found = json_documents.failed_now(place, of.get("round", 0), failed)
            table = report.comparison({place: measured.metrics}, title, failed=found, notes={place: measured.notes})
            Console().print(table.rich())
        if failed:
            raise not_measured([f"{name}: {reason}" for name, reason in failed.items()])


def _evaluated_run(target: str, stage: str | None, overrides: list[str]) -> tuple[dict[str, Any], str, Measured]:
    """What was measured, the title of its table, and the figures."""
    from oblivionis.runs.checkpoints import find_checkpoint

    find_checkpoint(Path(target), stage, overrides)  # a mistake is reported before anything heavy is imported

    from oblivionis.measures.assessor import evaluate_checkpoint

    console = Console()
    with following(console, "evaluating"):
        events = LineEvents(console, verbose=True)
        run, checkpoint, measured = evaluate_checkpoint(Path(target), stage, overrides, events)
    of = {"run": run.path, "stage": checkpoint.stage, "round": checkpoint.round}
    return of, f"{run.name}: stage {checkpoint.stage}, round {checkpoint.round}", measured


def _evaluated_model(target: str, stage: str | None, overrides: list[str]) -> tuple[dict[str, Any], str, Measured]:
    """The same of a model that no run made."""
    from oblivionis.audits.audited_model import find_target

    config = find_target(target, stage, overrides).config

    from oblivionis.measures.assessor import evaluate_model

    with following(Console(), "evaluating"):
        measured = evaluate_model(config)
    title = f"{target} · {config.data.name} · truth ratio {config.evaluation.truth_ratio}"
    return {"model": target, "data": config.data.name}, title, measured


@cli.command()
def chat(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory with a finished stage.")],
    stage: Annotated[
        list[str] | None, typer.Option(help="Ask the model of this stage only; repeatable (default: all finished).")
    ] = None,
    question: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Answer this and stop; repeatable.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sample at this temperature; 0: greedy (default: greedy, 1 where sampling).")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the likeliest tokens that reach this probability.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from so many likeliest tokens.")] = None,
    confidence: Annotated[
        float | None,
        typer.Option(help="Adaptive temperature scaling: greedy above this mean confidence (the paper: 0.9)."),
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Sample so many answers of each model.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Longest answer, in tokens (default: that of the run's full evaluation).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the samples, and of what /forget and /retain ask.")] = 0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override, e.g. model.device=cpu.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask the finetuned, unlearned and retrained model of a run the same questions, side by side.

    Questions are typed, piped in (one a line) or given with --question. `/help` lists the commands.
    """
    from oblivionis.runs import artifact_binding

    file = artifact_binding.opened(run).path / "config.yaml"
    configuration.compose(file, set_ or [], unlearns=False)  # mistakes, before heavy imports

    from oblivionis.audits.chat import Chat, Decoding
    from oblivionis.cli.chat import ask, converse

    if as_json and not question:
        raise OblivionisError("--json answers what --question asks; give one, or leave --json out")
    decoding = Decoding(temperature, top_p, top_k, confidence, samples, max_new_tokens, seed)
    with answering(as_json) as answer:
        talk = Chat(run, stage or (), decoding, set_ or ())
        if as_json:
            return answer([talk.ask(text) for text in question or ()])
    console = Console()
    for text in question or ():
        ask(talk, text, console)
    if not question:
        converse(talk, console, stdin_is_terminal=sys.stdin.isatty())


@config_cli.command("show")
def config_show(arguments: Arguments = None) -> None:
    """Print the complete, resolved configuration as YAML."""
    experiment, overrides = split_arguments(arguments)
    print(configuration.to_yaml(configuration.compose(experiment, overrides)), end="")


@config_cli.command("check")
def config_check(arguments: Arguments = None) -> None:
    """Check a configuration, and the schedule of requests that it names; all problems are listed at once (exit code
    2)."""
    experiment, overrides = split_arguments(arguments)
    config = configuration.compose(experiment, overrides)
    from oblivionis.erasure.schedule import check_requests

    check_requests(config)
    print(f"{experiment}: no problems")


@config_cli.command("list")
def config_list() -> None:
    """List the experiments and the choices of each group."""
    table = Table("group", "choices", box=None)
    table.add_row("experiment", ", ".join(configuration.list_experiments()))
    for group, names in configuration.list_choices().items():
        table.add_row(group, ", ".join(names))
    Console().print(table)


@data_cli.command("describe")
def data_describe(
    arguments: Arguments = None,
    subject: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which clients hold records about this subject, and which.")
    ] = None,
    subjects: Annotated[bool, typer.Option("--subjects", help="List all subjects and who holds them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Sizes, records per client, and where the records to forget lie."""
    from oblivionis.data.corpora import load_partition
    from oblivionis.data.partition import describe
    from oblivionis.data.subjects import Subjects
    from oblivionis.models.configured_corpus import corpus_of
    from oblivionis.reports import client_tables
    from oblivionis.reports import data_description as report

    experiment, overrides = split_arguments(arguments)
    config = configuration.compose(experiment, overrides)
    with answering(as_json) as answer:
        if config.data.on_clients and (subject is not None or subjects):
            held = client_tables.subjects(config)
            if subject is not None:
                return _subject(held, subject, answer, as_json)
            return answer(list(held)) if as_json else report.print_subjects(held, Console())
        if config.data.on_clients:
            return answer(client_tables.folders(config)) if as_json else client_tables.print_nodes(config, Console())
        corpus = corpus_of(config)
        partition = load_partition(corpus, config)
        if subject is not None:
            return _subject(Subjects.of(corpus, partition), subject, answer, as_json)
        if subjects:
            all_ = Subjects.of(corpus, partition)
            return answer(list(all_)) if as_json else report.print_subjects(all_, Console())
        if as_json:
            return answer(
                {**describe(corpus, partition), "remarks": [*report.repeated(corpus), *report.unfit(corpus, config)]}
            )
        report.print_data(corpus, partition, Console())
        report.print_unfit(corpus, config, Console())


def _subject(subjects: Subjects, name: str, answer: Callable[[Any], None], as_json: bool) -> None:
    """Which clients hold records about somebody, and which records are named alike."""
    from oblivionis.reports import data_description as report

    found, alike = report.find_subject(subjects, name), subjects.alike(name)
    if as_json:
        answer({"name": found.name, "records": found.records, "alike": alike})
    else:
        report.print_subject(found, alike, Console())


@runs_cli.command("list")
def runs_list(
    output: Annotated[Path, typer.Argument(help="Folder of the runs.")] = Path("runs"), as_json: AsJson = False
) -> None:
    """List the runs of a folder with what they did and how far they came."""
    from oblivionis.reports import json_documents
    from oblivionis.reports import run_summary as report

    with answering(as_json) as answer:
        if as_json:
            answer(json_documents.runs_document(output))
        else:
            report.print_runs(output, Console())


@runs_cli.command("show")
def runs_show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    full: Annotated[bool, typer.Option("--full", help="All measures instead of the chief ones.")] = False,
    answers: Answers = False,
    as_json: AsJson = False,
) -> None:
    """Print a run's outcome, comparison table and requests again, with `--answers` also sample answers."""
    from oblivionis.reports import json_documents
    from oblivionis.reports import run_summary as report
    from oblivionis.runs.directory import RunDirectory

    directory = RunDirectory.open(run)
    config = configuration.from_yaml(directory.read_config(), directory.config_place)
    with answering(as_json) as answer:
        if as_json:
            answer(json_documents.run_document(directory, config))
        else:
            report.print_summary(directory, config, Console(), full=full, answers=answers)


if __name__ == "__main__":
    main()
