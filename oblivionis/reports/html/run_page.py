"""`report.html`: one self-contained page per run that opens without network."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from oblivionis.config.schema import Config
from oblivionis.files import write_atomic
from oblivionis.reports import attacks as attack_report
from oblivionis.reports import membership as membership_report
from oblivionis.reports import overview as run_overview
from oblivionis.reports import rebound as rebound_report
from oblivionis.reports import ruler as ruler_report
from oblivionis.reports import summary as report
from oblivionis.reports import verdicts
from oblivionis.reports import warnings as run_warnings
from oblivionis.reports.html import person_pages, request_pages
from oblivionis.reports.html.curves import curves
from oblivionis.reports.markup import explained, glossary, html_page, html_table, section_heading, warning_list
from oblivionis.requests.ledger import PENDING, Ledger, Request
from oblivionis.runs.directory import RunDirectory


def write_html(run: RunDirectory, config: Config) -> None:
    """Write `report.html` for `run`: warnings, what was asked and done, comparison, curves, requests, answers.

    It links to a page for each deletion request, under `requests/`, and for each audited person, under `people/`. No
    page needs the network. Every text from the data or a model is escaped.
    """
    metrics = report.stage_metrics(run, config.evaluation.truth_ratio, config.evaluation.membership.confidence)
    title = f"{run.name}: {config.strategy.name}, {report.method(config)}"
    legend = report.LEGEND if "retrain" in metrics else report.NO_ORACLE
    found = verdicts.find_verdicts(run, config.evaluation.truth_ratio)
    warnings = run_warnings.find_warnings(run, config)
    rebound, attacks, people = (part.section(run) for part in (rebound_report, attack_report, person_pages))
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{html.escape(run_overview.in_short(run, config))}</p>",
        _contents({"rebound": rebound, "attacks": attacks, "people": people}),
        warning_list("Warnings", [w.text for w in warnings if not w.limit]),
        warning_list("How far the claims reach", [w.text for w in warnings if w.limit], limits=True),
        section_heading("asked", "What was asked"),
        run_overview.asked(run, config),
        section_heading("comparison", "Comparison", "Retrained model", "Over-unlearned (↓)"),
        report.comparison(metrics, marks=verdicts.marks(found)).html_table()
        if metrics
        else "<p>No stage is finished.</p>",
        *(f'<p class="verdict">{html.escape(line)}</p>' for line in verdicts.sentences(found)),
        *(f"<p>{html.escape(line)}</p>" for line in ruler_report.sentences(run)),
        *(f"<p>{html.escape(line)}</p>" for line in membership_report.sentences(metrics)),
        f'<p class="legend">{html.escape(legend)}</p>' if metrics else "",
        *(f'<p class="legend">{html.escape(line)}</p>' for line in report.legends(metrics)),
        section_heading("done", "What was done", "Stage", "Round"),
        run_overview.done(run),
        section_heading("rounds", "Rounds"),
        *curves(run, config, metrics.get("retrain", {})),
        section_heading("requests", "Deletion requests", "FedTU", "Request state", "Verification"),
        _requests(run, config),
        *rebound,
        *attacks,
        *people,
        section_heading("answers", "Answers"),
        _answers(report.samples(run, config, list(metrics))),
    ]
    body = "".join(parts)
    foot = [
        glossary(body),
        '<h2 id="configuration">Configuration</h2>',
        f"<details><summary>Every key of it</summary><pre>{html.escape(run.read_config())}</pre></details>",
    ]
    person_pages.write_pages(run)
    request_pages.write_pages(run, config)
    write_atomic(run.path / "report.html", html_page(title, [body, *foot]))


def _contents(optional: Mapping[str, Sequence[str]]) -> str:
    """Links to the sections of the page; those of `optional` that are empty are not there."""
    names = ["asked", "comparison", "done", "rounds", "requests", *(name for name, parts in optional.items() if parts)]
    names += ["answers", "glossary", "configuration"]
    links = "".join(f'<a href="#{name}">{name}</a>' for name in names)
    return f"<nav>{links}</nav>"


def _requests(run: RunDirectory, config: Config) -> str:
    rows = [
        [
            f'<a href="{request_pages.page_of(r.id)}">{html.escape(r.id)}</a>',
            str(r.client),
            html.escape(report.request_kind(r)),
            str(len(r.record_ids)),
            str(r.round),
            "–" if r.served_round is None else str(r.served_round),
            str(r.attempts),
            html.escape(r.state),
            html.escape(_reason(r)),
        ]
        for r in Ledger(run.ledger_path)
    ]
    if not rows:
        return "<p>None.</p>"
    line = report.requests_line(run, config.unlearning.requests.verify_max_rouge)
    terms = {"Asked in round": "asked in round", "Served in round": "served in", "Failed attempts": "failed attempts"}
    heads = [explained(term, text) for term, text in {**terms, "Request state": "state"}.items()]
    classes = ["who", "n", "", *["n"] * 4, "who", ""]
    table = html_table(["request", "client", "forgets", "records", *heads, "reason"], classes, rows)
    return f"<p>{html.escape(line)}.</p>{table}"


def _reason(request: Request) -> str:
    """Why a request was made, what was asked for before, and why it is pending still."""
    parts = [request.reason] if request.reason else []
    if request.already:
        parts.append(f"{request.already} more records were asked for before")
    if request.state == PENDING and request.failure:
        parts.append(f"last failure: {request.failure}")
    return "; ".join(parts)


def _answers(found: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for sample in found:
        question = f"<b>{html.escape(sample['question'])}</b>"
        rows.append([html.escape(sample["set"]), "question", question])
        rows.append(["", "truth", html.escape(sample["truth"])])
        for who, said in sample["answers"].items():
            rows.append(["", html.escape(who), html.escape(said.strip()) or "(empty)"])
    return html_table(["questions", "who", "text"], ["", "who", "text"], rows) if rows else "<p>None.</p>"
