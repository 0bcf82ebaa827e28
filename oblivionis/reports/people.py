"""A person audit for its reader on the terminal: the facts about each person, before and after."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evaluation.wikimem.score import Summary, by_cohort, summarize
from oblivionis.audits.people_outcomes import Outcome, Person, PersonAudit, as_text, by_strength
from oblivionis.audits.requests_from_audit import Plan, described
from oblivionis.config import method_traits
from oblivionis.naming import MODELS
from oblivionis.reports.format import counted, printable, shortened

SHOWN = 40
PREVIEWS = 3
_PREVIEW = 70


def print_audit(audit: PersonAudit, console: Console) -> None:
    """The table, people with the most memorised first, and what it says in words."""
    console.print(Text(f"What {audit.model} has memorised about people", style="bold"))
    compared = audit.against is not None
    after = MODELS.get(audit.stage or "", "now")
    heads = [MODELS.get(audit.against_stage or "", "before"), after] if compared else ["memorised in"]
    table = Table("person", "fact", "true value", *heads, "ranked first instead", box=SIMPLE_HEAD, pad_edge=False)
    shown = 0
    for person in by_strength(audit.people):
        if shown and shown + len(person.facts) > SHOWN:
            break
        table.add_section()
        for i, fact in enumerate(person.facts):
            cells = [fact.before, fact.outcome] if compared else [fact.outcome]
            name = person.name + (f" ({person.cohort})" if person.cohort else "")
            table.add_row(
                Text(printable(name) if i == 0 else "", style="bold"),
                fact.label,
                Text(printable(" / ".join(fact.values))),
                *map(_cell, cells),
                Text(printable(fact.outcome.instead or "")),
            )
        shown += len(person.facts)
    for name, reason in audit.failed.items():
        table.add_section()
        table.add_row(
            Text(printable(name), style="bold"), "not measured", Text(f"failed: {shortened(reason)}"), style="red"
        )
    console.print(table)
    lines = [f"{shown} of {_facts(audit)} facts; all are in audit.json"] if shown < _facts(audit) else []
    console.print("\n".join([*lines, *sentences(audit)]), highlight=False, markup=False)


def sentences(audit: PersonAudit) -> list[str]:
    """What the figures say, a line each."""
    pairs = audit.pairs()
    lines = [_figures("All", summarize(pairs), audit.people)]
    cohorts = by_cohort(pairs)
    if len(cohorts) > 1:
        lines += [
            _figures(f"Cohort {name}", summary, [p for p in audit.people if p.cohort == name])
            for name, summary in cohorts.items()
        ]
    compared = [(f.before, f.outcome) for p in audit.people for f in p.facts if f.before is not None]
    if audit.against is not None:
        lines.append(_change(audit.against, compared, _facts(audit)))
    lines += _skipped(audit)
    lines += [f"Failed: {printable(name)}: {printable(reason)}" for name, reason in audit.failed.items()]
    if all(not pair.memorized.any() for pair in pairs) and audit.settings.get("phrasings") == "canaries":
        lines.append(
            "Nothing is memorised in phrasings that the model was not trained on. It may still recite its records: "
            "--phrasings records asks in their own words."
        )
    return lines


def _figures(who: str, summary: Summary, people: Sequence[Person]) -> str:
    rank = statistics.median(p.rank for person in people for fact in person.facts for p in fact.phrasings)
    strength = "" if summary.mean_strength is None else f", mean z* {summary.mean_strength:.2f}"
    return (
        f"{who}: memorised in {summary.strict_rate:.1%} of the phrasings (M̄), {summary.lenient_rate:.1%} of "
        f"{counted(summary.pairs, 'fact')} in any{strength}, median rank of the true value {rank:g}; nothing about "
        f"{summary.unmemorized_subjects} of {summary.subjects} {'person' if summary.subjects == 1 else 'people'}."
    )


def _change(against: str, compared: Sequence[tuple[Outcome, Outcome]], facts: int) -> str:
    if not compared:
        return f"No fact was asked in the same words as of {against}; nothing can be compared."
    held = [(before.memorized > 0, after.memorized > 0) for before, after in compared]
    gone, kept, new = held.count((True, False)), held.count((True, True)), held.count((False, True))
    left = f" ({facts - len(compared)} further facts were not asked in the same words)" if facts > len(compared) else ""
    return (
        f"Before: {against}. Of {gone + kept} facts that it had memorised, {gone} are no longer, {kept} still are; "
        f"{new} of the others are now{left}."
    )


def _skipped(audit: PersonAudit) -> list[str]:
    if not audit.skipped:
        return []
    more = f" and {len(audit.skipped) - 3} more" if len(audit.skipped) > 3 else ""
    return [f"Not asked for ({len(audit.skipped)}): {' · '.join(map(printable, audit.skipped[:3]))}{more}"]


def _facts(audit: PersonAudit) -> int:
    return sum(len(person.facts) for person in audit.people)


def _cell(outcome: Outcome | None) -> Text:
    return Text(as_text(outcome), style="red" if outcome is not None and outcome.memorized else "")


def print_plan(plan: Plan, console: Console) -> None:
    """Who is asked to forget what, and what there is nothing to delete for."""
    for demand in plan.demands:
        facts = "; ".join(described(fact) for fact in demand.facts)
        console.print(Text(printable(demand.person), style="bold") + Text(f": {printable(facts)}", style="not bold"))
        for client, records in demand.records.items():
            console.print(Text(f"  client {client}: {counted(len(records), 'record')}"))
            for record in records[:PREVIEWS]:
                console.print(Text(f"    {cut(record.question)}"))
            if len(records) > PREVIEWS:
                console.print(Text(f"    … {len(records) - PREVIEWS} more"))
    for line in plan.nothing:
        console.print(Text(f"nothing to delete: {printable(line)}"))
    if plan.earlier and plan.demands:
        console.print(
            Text(
                f"What {plan.run.name} was asked before ({counted(len(plan.earlier), 'request')}) comes first, at its "
                "own rounds: unlearning begins anew from the finetuned model."
            )
        )
    if plan.outside:
        console.print(
            Text(
                f"{plan.outside} of {counted(plan.count, 'record')} lie outside the forget split: the retrained model "
                "has them, so the comparison table says nothing about them. What counts is each request's verification "
                "and the next audit."
            )
        )


def commands(plan: Plan, audit: PersonAudit, file: Path) -> tuple[str, str]:
    """How to serve the requests, and how to audit afterwards."""
    run = plan.run.path
    name = f"{run.name}-forgets"
    serve = ["oblivionis", "simulate", _near(run / "config.yaml"), "stages=[unlearn]", f"start_from={_near(run)}"]
    if method_traits.replays(plan.config.unlearning.method):  # holds only rounds of its own run again
        serve[3:] = ["stages=[finetune,unlearn]"]
    serve += [f"name={name}", "unlearning.requests.policy=file", f"unlearning.requests.file={_near(file.resolve())}"]
    again = ["oblivionis", "audit", "person", _near(Path(plan.config.output).expanduser().absolute() / name)]
    if audit.subjects_file is not None:
        again += ["--subjects", _near(Path(audit.subjects_file))]
    for name, usual in (("phrasings", "canaries"), ("templates", None), ("context", 0)):
        if audit.settings.get(name, usual) != usual:
            again += [f"--{name}", str(audit.settings[name])]
    if audit.settings.get("counterfactuals_from") is not None:
        again += ["--counterfactuals", _near(Path(audit.settings["counterfactuals_from"]))]
    if audit.settings.get("embedder") is not None:
        again += ["--embedder", str(audit.settings["embedder"])]
    return shlex.join(serve), shlex.join(again)


def _near(path: Path) -> str:
    """`path` from the working directory where it lies below that."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def cut(text: str) -> str:
    """The text as it can be printed, cut to a preview."""
    text = printable(text)
    return text if len(text) <= _PREVIEW else text[: _PREVIEW - 1].rstrip() + "…"
