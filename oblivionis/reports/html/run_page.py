"""`report.html`: one self-contained page per run that opens without network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import htpy as h

from oblivionis.config.schema import Config
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import PENDING, Request
from oblivionis.files import write_atomic
from oblivionis.measures.membership import report as membership_report
from oblivionis.measures.ruler import report as ruler_report
from oblivionis.measures.tofu import report as tofu_report
from oblivionis.reports import attacks as attack_report
from oblivionis.reports import privacy as privacy_report
from oblivionis.reports import run_outcome, verdicts
from oblivionis.reports import run_overview as run_overview
from oblivionis.reports import run_summary as report
from oblivionis.reports import warnings as run_warnings
from oblivionis.reports.format import counted
from oblivionis.reports.html import REPORT, person_pages, request_pages
from oblivionis.reports.html import rebound as rebound_section
from oblivionis.reports.html.curves import curves
from oblivionis.reports.markup import (
    contents,
    explained,
    folded,
    html_page,
    html_table,
    paragraphs,
    section_heading,
    warning_list,
)
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.failed_evaluators import failures


def write_html(run: RunDirectory, config: Config) -> None:
    """Write `report.html` for `run`: warnings, what was asked and done, comparison, curves, requests, answers.

    It links to a page for each deletion request, under `requests/`, and for each audited person, under `people/`. No
    page needs the network. Every text from the data or a model is escaped.
    """
    title = page_title(run, config)
    parts = [h.h1[title], h.p[run_overview.in_short(run, config)], *sections(run, config)]
    person_pages.write_pages(run)
    request_pages.write_pages(run, config)
    write_atomic(run.path / REPORT, html_page(title, parts, configuration_part(run)))


def page_title(run: RunDirectory, config: Config) -> str:
    """What a page about a run is called."""
    return f"{run.name}: {config.strategy.name}, {report.method(config)}"


def sections(
    run: RunDirectory,
    config: Config,
    around_curves: Callable[[list[h.Node]], h.Node] | None = None,
    *,
    look_up: bool = True,
) -> list[h.Node]:
    """The parts of a page about a run, with links to them.

    around_curves: what the curves are put into; look_up: as in `reports.summary.samples`.
    """
    metrics = report.stage_metrics(run, config.evaluation.truth_ratio, config.evaluation.membership.confidence)
    drawn = curves(run, config, metrics.get("retrain", {}))
    optional = {
        "rebound": rebound_section.section(run),
        "attacks": attack_report.section(run),
        "people": person_pages.section(run),
    }
    result = run_outcome.of_run(run, config)
    return [
        h.p(class_=f"outcome {result.grade}")[result.sentence] if result else None,
        _contents(optional),
        _warnings(run, config),
        section_heading("asked", "What was asked"),
        run_overview.asked(run, config),
        _comparison(run, config, metrics),
        section_heading("done", "What was done", "Stage", "Round"),
        run_overview.done(run),
        section_heading("rounds", "Rounds"),
        drawn if around_curves is None else around_curves(drawn),
        section_heading("requests", "Deletion requests", "FedTU", "Request state", "Verification"),
        _requests(run, config),
        *optional.values(),
        section_heading("answers", "Answers"),
        _answers(report.samples(run, config, list(metrics), look_up=look_up)),
    ]


def configuration_part(run: RunDirectory) -> list[h.Node]:
    """The whole configuration, folded."""
    folding = folded("Every key of it", h.pre(tabindex="0")[run.read_config()])
    return [section_heading("configuration", "Configuration"), folding]


def _contents(optional: Mapping[str, Sequence[h.Node]]) -> h.Element:
    """Links to the sections of the page; those of `optional` that are empty are not there."""
    names = ["asked", "comparison", "done", "rounds", "requests", *(name for name, parts in optional.items() if parts)]
    return contents([*names, "answers", "glossary", "configuration"])


def _warnings(run: RunDirectory, config: Config) -> h.Node:
    found = run_warnings.find_warnings(run, config)
    return [
        warning_list("Warnings", [w.text for w in found if not w.limit]),
        warning_list("How far the claims reach", [w.text for w in found if w.limit], limits=True),
    ]


def _comparison(run: RunDirectory, config: Config, metrics: Mapping[str, Mapping[str, float]]) -> h.Node:
    """The table of the metrics, what it says in words, and how to read it."""
    found = verdicts.find_verdicts(run, config.evaluation.truth_ratio)
    legends = [report.LEGEND if "retrain" in metrics else report.NO_ORACLE] if metrics else []
    doubt = tofu_report.inconclusive_reason(run)
    doubted = ("forget_quality",) if doubt else ()
    marks = verdicts.marks(found)
    side_by_side = "The final models side by side"
    failed, notes = failures(run), report.stage_notes(run)
    table = report.comparison(metrics, side_by_side, marks, doubted=doubted, failed=failed, notes=notes).html_table()
    return [
        section_heading("comparison", "Comparison", "Retrained model", "Over-unlearned (↓)"),
        table if metrics else h.p["No stage is finished."],
        paragraphs(report.note_lines(notes)),
        paragraphs(verdicts.sentences(found), "verdict"),
        paragraphs(ruler_report.sentences(run)),
        paragraphs(membership_report.sentences(metrics)),
        paragraphs(privacy_report.sentences(run)),
        paragraphs([*legends, *([doubt] if doubt else []), *report.legends(metrics)], "legend"),
    ]


def _requests(run: RunDirectory, config: Config) -> h.Node:
    rows = [
        [
            h.a(href=request_pages.page_of(r.id))[r.id],
            str(r.client),
            report.request_kind(r),
            str(len(r.record_ids)),
            str(r.round),
            "–" if r.served_round is None else str(r.served_round),
            str(r.attempts),
            r.outcome,
            _reason(r),
        ]
        for r in Ledger(run.ledger_path)
    ]
    if not rows:
        return h.p["None."]
    line = report.requests_line(run, config.unlearning.requests.verify_max_rouge)
    terms = {"Asked in round": "asked in round", "Served in round": "served in", "Failed attempts": "failed attempts"}
    heads = [explained(term, text) for term, text in {**terms, "Request state": "state"}.items()]
    classes = ["who", "n", "", *["n"] * 4, "who", "text"]
    return [
        h.p[line, "."],
        *(h.p[found, "."] for found in (*report.erased_lines(run), *report.unverified_lines(run))),
        html_table(["request", "client", "forgets", "records", *heads, "reason"], classes, rows, "Deletion requests"),
    ]


def _reason(request: Request) -> str:
    """Why a request was made, what was asked for before, and why it is pending still."""
    parts = [request.reason] if request.reason else []
    if request.already:
        parts.append(
            f"{counted(request.already, 'more record')} {'was' if request.already == 1 else 'were'} asked for before"
        )
    if request.state == PENDING and request.failure:
        parts.append(f"last failure: {request.failure}")
    return "; ".join(parts)


def _answers(found: Sequence[Mapping[str, Any]]) -> h.Element:
    rows: list[list[h.Node]] = []
    for sample in found:
        rows.append([sample["set"], "question", h.b[sample["question"]]])
        rows.append(["", "truth", sample["truth"]])
        rows += [["", who, said.strip() or "(empty)"] for who, said in sample["answers"].items()]
    if not rows:
        return h.p["None."]
    return html_table(["questions", "who", "text"], ["", "who", "text"], rows, "What the models answer")
