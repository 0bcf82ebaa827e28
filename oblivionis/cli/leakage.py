"""The command `audit leakage`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand

from oblivionis.cli.arguments import Out, Stage, Target
from oblivionis.cli.as_json import AsJson, answering
from oblivionis.cli.progress_display import following
from oblivionis.config.compose import from_yaml, settings_of
from oblivionis.config.configuration_layers import parse_overrides
from oblivionis.config.problems import ConfigError
from oblivionis.config.schema import LeakageAudit
from oblivionis.config.values import keys_of, known_below
from oblivionis.errors import OblivionisError
from oblivionis.files import read_json
from oblivionis.runs.progress import LineEvents

if TYPE_CHECKING:
    from evaluation.leakage.functions import Asked, LeakageFunction
    from oblivionis.audits.audited_model import Target as AuditTarget
    from oblivionis.audits.leakage import Audit
    from oblivionis.audits.loaded_model import AuditedModel

KEYS = {key.path: key for key in keys_of(LeakageAudit, LeakageAudit())}
OPTIONS = {f"--{name.replace('_', '-')}": name for name in KEYS}
"""The settings as options, which the command had before it took `key=value`."""

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings of the audit, listed below, e.g. `samples=200`, which `--samples 200` says, too; or keys of the "
        "model's configuration, e.g. `model.device=cpu`.",
        show_default=False,
    ),
]
Questions = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="JSON lines, CSV, parquet, … with `question` and `answer`, `keywords` or neither (default: a run's forget "
        "questions).",
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="The same, e.g. model.template.kind=chat.")
]


class LeakageCommand(TyperCommand):
    """The command with its settings: it takes them as options, too, and its help lists them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Settings that are given as options become `key=value` arguments behind the others."""
        rest, given, remaining = list[str](), list[str](), iter(args)
        for argument in remaining:
            option, equals, value = argument.partition("=")
            if option not in OPTIONS:
                rest.append(argument)
                continue
            name = OPTIONS[option]
            if not equals:
                value = "true" if KEYS[name].kind is bool else next(remaining, "")
            given.append(f"{name}={value}")
        return super().parse_args(ctx, rest + given)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The usual help, and a line for each setting."""
        super().format_help(ctx, formatter)
        table = Table("setting", "default", "", title="Settings", title_justify="left", box=None, padding=(0, 1))
        for name, key in KEYS.items():
            default = "null" if key.default is None else str(key.default).lower() if key.kind is bool else key.default
            table.add_row(name, str(default), key.about.help, style=None)
        Console().print(table, markup=False)


def audit_leakage(
    target: Target,
    settings: Settings = None,
    questions: Questions = None,
    stage: Stage = None,
    out: Out = None,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Sample answers and bound what the model may give away, beside what greedy decoding shows.

    Repeated into the same folder it samples only what is missing, so it may be interrupted or repeated with another
    leakage function or significance. Choose `samples` beforehand; to decide by looking, use `stop_at`.

    Of a run whose clients keep their records (data=node) they measure themselves, what their served requests name, by
    the run's own settings with another number of `samples`: the requests have the verdict that follows then.
    """
    from oblivionis.audits.audited_model import find_target
    from oblivionis.data.questions import read_questions

    asked = None if questions is None else read_questions(questions)
    given = [item.removeprefix("evaluation.leakage.") for item in (*(settings or ()), *(set_ or ()))]
    own = [item for item in given if _is_setting(item)]
    found = find_target(target, stage, [item for item in given if item not in own])
    chosen = read_settings(own)
    if found.run is not None and found.config.data.on_clients and asked is None:
        with answering(as_json) as answer:
            document = _by_clients(found, stage, [item.partition("=")[0] for item in given], chosen.samples, out)
            return answer(document) if as_json else None

    from oblivionis.audits import leakage as audit
    from oblivionis.audits.loaded_model import load_subject
    from oblivionis.runs.failed_evaluators import measuring

    with answering(as_json) as answer:
        subject = load_subject(found)
        source = audit.FORGET if asked is None else audit.FROM_FILE
        asked = audit.forget_questions(subject) if asked is None else asked
        judge, folder = audit.leakage_function(chosen, asked, subject.device), out or subject.folder
        with measuring(f"leakage of {subject.name}", "the same command goes on with the answers that it has"):
            result = _audit(subject, asked, judge, chosen, folder, source)
        if as_json:
            answer({"folder": folder, **read_json(folder / "audit.json", dict[str, Any])})
        else:
            _print(result, folder)


def _by_clients(
    found: AuditTarget, stage: str | None, given: Sequence[str], samples: int, out: Path | None
) -> list[dict[str, Any]]:
    """Let the clients of a finished simulation measure their requests again; what each request came to.

    OblivionisError for a run of other machines, and for what clients do not take from an audit.
    """
    from oblivionis.erasure.ledger import Ledger
    from oblivionis.reports.client_tables import audit_table
    from oblivionis.server.measuring_again import check_again, measure_again
    from oblivionis.server.simulation import simulate

    run, config = found.run, found.config
    assert run is not None
    if others := [name for name in given if name.strip() != "samples"]:
        raise OblivionisError(f"{others[0]}: the clients measure by the run's own settings; give samples=N alone")
    if not given:
        raise OblivionisError("give samples=N: how many answers the clients sample to a question, more than before")
    if stage not in (None, "unlearn") or out is not None:
        raise OblivionisError(
            "the clients measure the final model of the run, into the run: leave --stage and --out out"
        )
    if config.data.nodes is None:
        raise OblivionisError(
            f"the records of {run.path} are on other machines; ask their nodes: flwr run . CONNECTION --stream "
            f"--run-config 'audit=\"{run.path}\" samples={samples}'"
        )
    check_again(run, config, samples)
    before, console = {r.id: r.outcome for r in Ledger(run.ledger_path)}, Console()
    with run.lock():
        events = LineEvents(console, verbose=False)
        simulate(from_yaml(run.read_config(), run.config_place), run, events, work=lambda s: measure_again(s, samples))
    requests = [r for r in Ledger(run.ledger_path) if r.served_round is not None]
    if (table := audit_table(run)) is not None:
        console.print(table)
    for r in requests:
        said = f"request {r.id}: {r.outcome}{f', {r.why}' if r.why else ''} (before: {before[r.id]})"
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    return [{"request": r.id, "before": before[r.id], "outcome": r.outcome, "why": r.why} for r in requests]


def _is_setting(item: str) -> bool:
    """Whether an override is meant for the audit, not for the configuration of the model."""
    path = item.partition("=")[0].strip()
    return path in KEYS or path.split(".")[0] not in known_below("")


def read_settings(items: Sequence[str]) -> LeakageAudit:
    """The settings in `key=value` items. Raises ConfigError with every problem."""
    layer, problems = parse_overrides(items, KEYS)
    if problems:
        raise ConfigError(problems)
    return settings_of(LeakageAudit, layer.values)


def _audit(
    subject: AuditedModel,
    asked: Sequence[Asked],
    judge: LeakageFunction,
    settings: LeakageAudit,
    folder: Path,
    source: str,
) -> Audit:
    """Audit with a bar that tells how far it is, and draw what was found."""
    from oblivionis.audits import leakage as audit
    from oblivionis.reports import leakage as leakage_report
    from oblivionis.reports.certificate.signing import mark_superseded

    with following(Console(), "sampling answers") as follow:
        result = audit.audit_leakage(
            subject,
            asked,
            judge,
            settings,
            folder,
            progress=lambda done, total: follow(done, total, ""),
            asked=source,
        )
    if subject.run is not None:
        mark_superseded(subject.run)
    leakage_report.figures(result, folder / "figures")
    return result


def _print(result: Audit, folder: Path) -> None:
    from oblivionis.reports import leakage as leakage_report

    console, figures = Console(), len(list((folder / "figures").iterdir()))
    leakage_report.print_audit(result, console)
    console.print(
        f"results: {folder} (audit.json, leakage.parquet, samples/, {figures} figures)",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
