"""The commands about people: `audit person` and `request from-audit`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from oblivionis.cli.arguments import Out, Stage, Target
from oblivionis.cli.as_json import AsJson, answering
from oblivionis.cli.progress_display import following
from oblivionis.config import compose as configuration
from oblivionis.errors import OblivionisError
from oblivionis.reports.format import counted

if TYPE_CHECKING:
    from evaluation.wikimem.engine import Asking
    from evaluation.wikimem.facts import Fact
    from oblivionis.audits.loaded_model import AuditedModel
    from oblivionis.audits.people import Settings
    from oblivionis.audits.people_outcomes import PersonAudit
    from oblivionis.audits.requests_from_audit import Plan
    from oblivionis.runs.directory import RunDirectory

People = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this person; repeatable.")]
Subjects = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Rows (JSON, CSV, parquet, …) with `subject`, `property` and `values` (default: what a run's data state "
        "about the people to forget, and about as many others).",
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N people.")]
Phrasings = Annotated[
    str, typer.Option(help="canaries, or records: the training records' own words, in the run's prompt template.")
]
Templates = Annotated[
    int | None, typer.Option(min=1, max=11, metavar="N", help="Only the first N phrasings of a fact.")
]
Context = Annotated[
    int, typer.Option(min=0, max=4, metavar="N", help="Say so many other facts about the person first.")
]
Against = Annotated[
    str | None,
    typer.Option(
        metavar="AUDIT|STAGE",
        help="Show this audit (its folder), or that of this stage of the run, as before (default: finetune, once "
        "audited).",
    ),
]
Counterfactuals = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Folder with counterfactuals.json: values of other people by property id."),
]
Embedder = Annotated[
    str | None,
    typer.Option(metavar="FOLDER|NAME", help="Sentence encoder that tells which values mean the same."),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override, e.g. model.device=cpu.")
]


def audit_person(
    target: Target,
    subjects: Subjects = None,
    stage: Stage = None,
    person: People = None,
    limit: Limit = None,
    phrasings: Phrasings = "canaries",
    templates: Templates = None,
    context: Context = 0,
    against: Against = None,
    counterfactuals: Counterfactuals = None,
    embedder: Embedder = None,
    out: Out = None,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Which facts about people a model has memorised, how strongly, and in how many phrasings (WikiMem).

    Repeated into the same folder it scores only the people that are missing, so it may be interrupted.
    """
    from oblivionis.audits.audited_model import find_target
    from oblivionis.data.person_facts import read_facts

    facts = None if subjects is None else read_facts(subjects)
    found = find_target(target, stage, set_ or [])

    from evaluation.wikimem.engine import Asking
    from oblivionis.audits import people as person_audit
    from oblivionis.audits.loaded_model import load_subject
    from oblivionis.audits.people_outcomes import before_audit
    from oblivionis.reports import people as person_report
    from oblivionis.runs.failed_evaluators import not_measured

    settings = _settings(Asking(templates=templates, context=context), phrasings, counterfactuals, embedder)
    subject = load_subject(found, kind="person")
    facts = person_audit.own_facts(subject, person or ()) if facts is None else facts
    facts = person_audit.choose(facts, person) if person else facts
    before = before_audit(subject.run, subject.stage, against)
    read_from = None if subjects is None else str(subjects.resolve())
    folder = out or subject.folder
    with answering(as_json) as answer:
        result = _audited(subject, person_audit.first_people(facts, limit), settings, folder, read_from, before)
        page = _page(subject.run) if subject.run is not None and out is None else ""
        if as_json:
            answer({"folder": folder, **result.to_json()})
        else:
            person_report.print_audit(result, Console())
            text = f"results: {folder} (audit.json, scores/, figures/people.svg)\n{page}".rstrip()
            Console().print(text, markup=False, highlight=False, soft_wrap=True)
    if result.failed:
        raise not_measured([f"{name}: {reason}" for name, reason in result.failed.items()])


def _settings(asking: Asking, phrasings: str, counterfactuals: Path | None, embedder: str | None) -> Settings:
    """How facts are asked for. Raises OblivionisError for unknown phrasings, and for what cannot be loaded."""
    from oblivionis.audits import people as person_audit

    if phrasings not in person_audit.PHRASINGS:
        raise OblivionisError(f"--phrasings {phrasings!r}; expected one of {', '.join(person_audit.PHRASINGS)}")
    values = None if counterfactuals is None else person_audit.load_values(counterfactuals)
    embed = None if embedder is None else person_audit.load_embedder(embedder)
    place = None if counterfactuals is None else str(counterfactuals.resolve())
    return person_audit.Settings(asking, phrasings, values, embedder, embed, place)


def _page(run: RunDirectory) -> str:
    """Write the run's report anew, and say where it is."""
    from oblivionis.reports.html import run_page as html_report

    html_report.write_html(run, configuration.from_yaml(run.read_config(), run.config_place))
    return f"a page per person: {run.path / 'report.html'}"


def _audited(
    subject: AuditedModel,
    facts: Sequence[Fact],
    settings: Settings,
    folder: Path,
    subjects_file: str | None,
    before: PersonAudit | None,
) -> PersonAudit:
    """Audit with a bar that tells how far it is, and draw what was found."""
    from oblivionis.audits import people as person_audit
    from oblivionis.reports import people_figures as person_figures

    with following(Console(), "scoring facts") as follow:
        result = person_audit.audit_people(
            subject,
            facts,
            settings,
            folder,
            subjects_file=subjects_file,
            before=before,
            progress=lambda done, total: follow(done, total, ""),
        )
    person_figures.write_figures(result, folder / "figures")
    return result


def request_from_audit(
    source: Annotated[
        Path,
        typer.Argument(metavar="AUDIT", help="Folder of an `audit person`, or its audit.json.", show_default=False),
    ],
    person: People = None,
    min_strength: Annotated[float, typer.Option(help="Least z* of a phrasing that counts.")] = 2.0,
    min_phrasings: Annotated[int, typer.Option(min=1, help="In how many such phrasings a fact must be memorised.")] = 1,
    at_round: Annotated[int, typer.Option(min=1, metavar="N", help="Round of the stage unlearn in which to ask.")] = 1,
    per_round: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Ask for at most so many in a round, the others in the next ones (default: all at once; clients that "
            "forget in the same round are averaged, so that each forgets less).",
        ),
    ] = None,
    scope: Annotated[
        str, typer.Option(help="records: those that state a memorised fact; subject: all about the person.")
    ] = "records",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The schedule (default: requests.jsonl beside the audit).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Turn what an audit found memorised into deletion requests, as a schedule that `simulate` serves."""
    from oblivionis.audits import requests_from_audit as audit_requests
    from oblivionis.audits.people_outcomes import read_audit
    from oblivionis.reports import people as person_report

    if scope not in audit_requests.SCOPES:
        raise OblivionisError(f"--scope {scope!r}; expected one of {', '.join(audit_requests.SCOPES)}")
    if not min_strength >= 0:
        raise OblivionisError(f"--min-strength {min_strength}; expected a number of at least 0")
    audit = read_audit(source)
    plan = audit_requests.plan_requests(
        audit, person or (), scope=scope, min_strength=min_strength, min_phrasings=min_phrasings
    )
    file = out or (source if source.is_dir() else source.parent) / "requests.jsonl"
    lines = last = 0
    if plan.demands:
        try:
            lines, last = audit_requests.write_schedule(
                plan, file, scope=scope, server_round=at_round, per_round=per_round
            )
        except OSError as error:
            raise OblivionisError(f"--out {file}: {error.strerror}") from error
    if as_json:
        return _answer_plan(plan, file if plan.demands else None, lines, last)
    person_report.print_plan(plan, Console())
    if plan.demands:
        text = _written(person_report.commands(plan, audit, file), file, lines, last, plan)
    elif plan.nothing:
        text = "Nothing to ask for: no training record states what is memorised."
    else:
        least = f"in {min_phrasings} or more phrasings with a z* of at least {min_strength:g}"
        text = f"Nothing to ask for: no fact is memorised {least}."
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


def _written(commands: tuple[str, str], file: Path, lines: int, last: int, plan: Plan) -> str:
    """What was written, and the commands that serve it and audit again."""
    serve, again = commands
    if last > plan.config.federation.rounds.unlearn:
        serve += f" federation.rounds.unlearn={last}"
    return f"{counted(lines, 'request')} written to {file}\nserve: {serve}\nthen:  {again}"


def _answer_plan(plan: Plan, file: Path | None, requests: int, last_round: int) -> None:
    """The requests that an audit leads to, as JSON."""
    demands = [
        {
            "person": demand.person,
            "facts": demand.facts,
            "records": {client: [record.id for record in records] for client, records in demand.records.items()},
        }
        for demand in plan.demands
    ]
    rest = {"earlier": plan.earlier, "nothing": plan.nothing, "outside": plan.outside}
    with answering(True) as answer:
        answer({"file": file, "requests": requests, "last_round": last_round, "demands": demands, **rest})
