"""`report.html`: one self-contained page per run that opens without network.

Its order is a reader's: the outcome, one figure, a few numbers, what each person asked and got; then the measures, each
folded, and what was set up and done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import htpy as h

from oblivionis.config.schema import Config
from oblivionis.files import write_atomic
from oblivionis.naming import MODELS
from oblivionis.reports import privacy as privacy_report
from oblivionis.reports import run_outcome, verdicts
from oblivionis.reports import run_overview as run_overview
from oblivionis.reports import run_summary as report
from oblivionis.reports import warnings as run_warnings
from oblivionis.reports.client_tables import SHOWN, audits
from oblivionis.reports.format import counted, number
from oblivionis.reports.html import REPORT, families, person_pages, request_pages, request_rows
from oblivionis.reports.html.curves import curves
from oblivionis.reports.markup import (
    explained,
    html_page,
    html_table,
    paragraphs,
    section,
    section_heading,
    warning_list,
)
from oblivionis.reports.run_outcome import Outcome
from oblivionis.runs.directory import RunDirectory

NUMBERS = 5


def write_html(run: RunDirectory, config: Config) -> None:
    """Write `report.html` for `run`: outcome, main figure, numbers, requests, and the measures folded.

    It links to a page for each deletion request, under `requests/`, and for each audited person, under `people/`. No
    page needs the network. Every text from the data or a model is escaped.
    """
    title = page_title(run, config)
    parts = [h.h1[title], h.p(".lead")[run_overview.in_short(config)], *sections(run, config)]
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

    around_curves: what the main figure is put into; look_up: as in `reports.summary.samples`.
    """
    metrics = report.stage_metrics(run, config.evaluation.truth_ratio, config.evaluation.membership.confidence)
    drawn = curves(run, config, metrics.get("retrain", {}))
    measures = families.sections(run, config, metrics)
    samples = report.samples(run, config, list(metrics), look_up=look_up)
    return [
        _verdict(run_outcome.of_run(run, config), config),
        _doubts(run, config),
        h.div(".overview", id="rounds")[
            drawn if around_curves is None else around_curves(drawn), _numbers(run, config, metrics)
        ],
        section_heading("requests", "What each person asked and got", "FedTU", "Request state", "Verification"),
        request_rows.rows(run, config),
        _warnings(run, config),
        section_heading("comparison", "What was measured"),
        None if measures else h.p[_unmeasured(run, metrics)],
        paragraphs(privacy_report.sentences(run)),
        *measures.values(),
        section("asked", "What was set up", run_overview.asked(run, config), run_overview.asked_in_short(config)),
        section("done", "What was done", run_overview.done(run), run_overview.done_in_short(run)),
        section("answers", "What the models answer", _answers(samples)) if samples else None,
    ]


def configuration_part(run: RunDirectory) -> list[h.Node]:
    """The whole configuration, folded."""
    text = h.pre(tabindex="0")[run.read_config()]
    return [section("configuration", "Configuration", text, "every key of it", printed=False)]


def _verdict(result: Outcome | None, config: Config) -> h.Element:
    """The outcome in a sentence, or why there is none yet."""
    if result is not None:
        return h.p(class_=f"outcome {result.grade}")[result.sentence]
    asking = "unlearn" in config.stages
    why = "yet: the stage unlearn has not come to its end." if asking else "is given without the stage unlearn."
    return h.p(".outcome.doubtful")["No verdict ", why]


def _unmeasured(run: RunDirectory, metrics: Mapping[str, Mapping[str, float]]) -> str:
    """Why no family of measures is shown."""
    if audits(run):
        return "The server measured nothing: the clients did, of their own records, as the page of each request shows."
    return "Nothing was measured at the end of a stage." if metrics else "No stage is finished."


def _doubts(run: RunDirectory, config: Config) -> h.Node:
    """How many warnings there are, with a link to them."""
    found = run_warnings.find_warnings(run, config)
    faults, limits = (sum(w.limit is limit for w in found) for limit in (False, True))
    parts = [counted(faults, "warning")] if faults else []
    parts += [counted(limits, "note") + " on how far this reaches"] if limits else []
    return h.p["To be read with ", h.a(href="#warnings")[" and ".join(parts)], "."] if parts else None


def _warnings(run: RunDirectory, config: Config) -> h.Node:
    found = run_warnings.find_warnings(run, config)
    return h.div(id="warnings")[
        warning_list("Warnings", [w.text for w in found if not w.limit]),
        warning_list("How far the claims reach", [w.text for w in found if w.limit], limits=True),
    ]


def _numbers(run: RunDirectory, config: Config, metrics: Mapping[str, Mapping[str, float]]) -> h.Node:
    """The chief numbers of the latest model, each with the finetuned and the retrained one's."""
    stage = next((s for s in families.LATEST if metrics.get(s)), None)
    if stage is None:
        return _audited(run)
    marks = verdicts.marks(verdicts.find_verdicts(run, config.evaluation.truth_ratio)) if stage == "unlearn" else {}
    cards: list[h.Node] = []
    for key, group, measure, (value,) in report.rows({stage: metrics[stage]}, headline=True)[:NUMBERS]:
        others = [(s, metrics.get(s, {}).get(key)) for s in ("finetune", "retrain") if s != stage]
        beside = ", ".join(f"{MODELS[s]} {number(v)}" for s, v in others if v is not None)
        mark = marks.get(key)
        shown = h.b(".mark")[f"{mark} {number(value)}"] if mark else h.b[number(value)]
        cards.append(
            h.div[h.dt[f"{group}: ", explained(measure)], h.dd[shown, [" ", h.span[beside]] if beside else None]]
        )
    if not cards:
        return _audited(run)
    return h.div(".numbers")[h.p[f"The {MODELS[stage]} model", ":"], h.dl[cards]]


def _audited(run: RunDirectory) -> h.Node:
    """Means over the requests of what their clients measured, where the server measured nothing."""
    measured = audits(run)
    cards: list[h.Node] = []
    for key, title in list(SHOWN.items())[:NUMBERS]:
        after, before = ([a[m][key] for a in measured if key in a.get(m, {})] for m in ("final", "before"))
        if after:
            earlier = f"before {number(sum(before) / len(before))}" if before else ""
            now = h.b[number(sum(after) / len(after))]
            cards.append(h.div[h.dt[title], h.dd[now, [" ", h.span[earlier]] if earlier else None]])
    if not cards:
        return None
    return h.div(".numbers")[h.p["Means over requests, measured by their clients at the end:"], h.dl[cards]]


def _answers(found: Sequence[Mapping[str, Any]]) -> h.Element:
    rows: list[list[h.Node]] = []
    for sample in found:
        rows.append([sample["set"], "question", h.b[sample["question"]]])
        rows.append(["", "truth", sample["truth"]])
        rows += [["", who, said.strip() or "(empty)"] for who, said in sample["answers"].items()]
    return html_table(["questions", "who", "text"], ["", "who", "text"], rows, "What the models answer")
