"""The pages of one run: what it was and did, live while it goes on; a page per deletion request and per person."""

from __future__ import annotations

import re
import time

import htpy as h
from starlette.requests import Request
from starlette.responses import Response

from oblivionis.config import compose as configuration
from oblivionis.config.schema import Config
from oblivionis.errors import RunError
from oblivionis.files import read_bytes
from oblivionis.reports.certificate.page import FOLDER as CERTIFICATES
from oblivionis.reports.certificate.page import JSON_FILE, PAGE_FILE
from oblivionis.reports.html import REPORT, person_pages, request_pages, run_page
from oblivionis.reports.html.curves import MEASURES, STAGES, curves, curves_of
from oblivionis.runs.directory import RunDirectory, named_metrics
from oblivionis.runs.progress import MOMENTS, headline
from oblivionis.runs.run_status import RUNNING, Glance, Progress
from oblivionis.view import shell
from oblivionis.view.guard import STORED
from oblivionis.view.library import NotThere
from oblivionis.view.matplotlib_lock import Make, T
from oblivionis.view.time_left import time_left

WAS = "was"
"""The part of an address that tells in which state the run was when the page was loaded."""
LARGEST = 50_000_000
"""Bytes of a file that is shown as it is."""


def respond(request: Request) -> Response:
    """The page of a run, or the piece of it that goes on."""
    run, glance = _run(request)
    if shell.asks_for(request, "progress"):
        ended = request.query_params.get(WAS) == RUNNING != glance.state
        return shell.piece(request, _progress(run, glance, ended=ended))
    if shell.asks_for(request, "curves"):
        return shell.piece(request, _kept(request, run, "curves", lambda: h.fragment[_curves(run, config_of(run))]))
    name = request.path_params["name"]
    here = shell.run_address(name)

    def grow(drawn: list[h.Node]) -> h.Node:
        return shell.live("curves", here, drawn)

    def make() -> Response:
        config = config_of(run)
        going = glance.current is not None
        progress = _progress(run, glance)
        watching = shell.address(here, [(WAS, glance.state)])
        parts = [
            shell.trail(("Runs", "/")),
            h.h1[run_page.page_title(run, config)],
            shell.live("progress", watching, progress) if going else progress,
            _actions(run, name),
            run_page.sections(run, config, grow if going else None, look_up=False),
        ]
        return shell.page(request, name, parts, run_page.configuration_part(run))

    return _kept(request, run, (here, glance.state, glance.note), make)


def request_page(request: Request) -> Response:
    """The life of a deletion request."""
    run, _ = _run(request)
    page = f"{request_pages.FOLDER}/{request.path_params['page']}.html"

    def make() -> Response:
        found = request_pages.page_parts(run, config_of(run), page, "")
        return _known(request, found, f"there is no deletion request at {page}")

    return _kept(request, run, page, make)


def person_page(request: Request) -> Response:
    """What was found about a person."""
    run, _ = _run(request)
    page = f"{person_pages.FOLDER}/{request.path_params['page']}.html"
    return _kept(
        request,
        run,
        page,
        lambda: _known(request, person_pages.page_parts(run, page, ""), f"there is nobody at {page}"),
    )


def report(request: Request) -> Response:
    """The report that lies in the run."""
    return _stored(request, REPORT)


def certificate(request: Request) -> Response:
    """A certificate that lies in the run, or its page."""
    demand, page = request.path_params["demand"], request.path_params["page"]
    if not re.fullmatch(r"[\w-]+", demand) or page not in (JSON_FILE, PAGE_FILE):
        raise NotThere("there is no such certificate")
    return _stored(request, f"{CERTIFICATES}/{demand}/{page}")


def _stored(request: Request, page: str) -> Response:
    """A file of the run, as it is; the policy `STORED` keeps a browser from running scripts in it."""
    run, _ = _run(request)
    file = run.path / page
    try:
        if file.stat().st_size > LARGEST:
            raise RunError(f"{file} is too large to be shown")
        content = read_bytes(file)
    except FileNotFoundError:
        raise NotThere(f"the run has no {page}") from None
    kind = "application/json" if page.endswith(".json") else "text/html; charset=utf-8"
    return Response(content, media_type=kind, headers={"content-security-policy": STORED})


def metrics_csv(request: Request) -> Response:
    """Every number that was measured, round by round."""
    run, _ = _run(request)
    rows = [
        (row["stage"], row["round"], row.get("moment", ""), row.get("evaluator", ""), metric, value)
        for row in run.metrics()
        for metric, value in named_metrics(row.get("evaluator", ""), row["metrics"]).items()
    ]
    head = ("stage", "round", "moment", "evaluator", "metric", "value")
    return shell.csv_file(f"{run.name}-metrics.csv", head, rows)


def curves_png(request: Request) -> Response:
    """The curves of a stage."""
    run, _ = _run(request)
    stage = request.path_params["stage"]

    def make() -> Response:
        of = next((c for c in curves_of(run, _oracle(run)) if c.stage == stage), None)
        if of is None:
            raise NotThere(f"the run has no curves of the stage {stage!r}")
        return shell.png_file(f"{run.name}-{stage}.png", of.drawing(tuple(MEASURES), "white"))

    return _kept(request, run, ("png", stage), make)


def config_of(run: RunDirectory) -> Config:
    """The configuration of a run. ConfigError for one that makes no sense."""
    return configuration.from_yaml(run.read_config(), run.config_place)


def _run(request: Request) -> tuple[RunDirectory, Glance]:
    library = request.app.state.library
    name = request.path_params["name"]
    return library.run(name), library.glance(name)


def _kept(request: Request, run: RunDirectory, what: object, make: Make[T]) -> T:
    state = request.app.state
    return state.kept.get((run.path, what), state.library.signature(run.path), make)


def _known(request: Request, found: tuple[str, list[h.Node]] | None, missing: str) -> Response:
    if found is None:
        raise NotThere(missing)
    return shell.page(request, *found)


def _oracle(run: RunDirectory) -> dict[str, float]:
    summary = run.stage_summary("retrain")
    return {} if summary is None else {name: v for name, v in summary["metrics"].items() if v is not None}


def _curves(run: RunDirectory, config: Config) -> list[h.Node]:
    return curves(run, config, _oracle(run))


def _progress(run: RunDirectory, glance: Glance, *, ended: bool = False) -> h.Node:
    """State and stages of the run; while it goes on, what was measured last and how long it will take. ended: it did
    not when the page was loaded."""
    note = f" ({glance.note})" if glance.note else None
    state = h.p[h.span(class_=["state", glance.state])[glance.state], note]
    if glance.current is None and not ended:
        return state
    anew = h.p[h.a(href="")["It has ended: load the whole page anew"]] if ended else None
    return h.div(".card.now")[
        state, h.ul(".stages")[[_stage(stage) for stage in glance.stages]], _going(run, glance), anew
    ]


def _stage(stage: Progress) -> h.Element:
    done = stage.total or 1 if stage.finished else min(stage.done, stage.total)
    bar = h.progress(
        class_={"done": stage.finished}, max=stage.total or 1, value=done, aria_label=f"rounds of {stage.stage}"
    )
    return h.li[h.span[stage.as_text()], bar]


def _going(run: RunDirectory, glance: Glance) -> list[h.Node]:
    """What was measured last of a run that is not finished, and the time left of one that is running."""
    if glance.current is None:
        return []
    rows = run.metrics()
    measured = [row for row in rows if row.get("evaluator") in ("tofu", "muse")]
    found: list[h.Node] = []
    if glance.state == RUNNING and (left := time_left(config_of(run), glance.stages, rows, time.time())):
        found.append(h.p(".left")[f"{left[0].upper()}{left[1:]}."])
    if measured:
        row = measured[-1]
        where = f"{row['stage']}, round {row['round']}{MOMENTS.get(row.get('moment', ''), '')}"
        found.append(h.p[f"Latest: {where}: {headline(named_metrics(row['evaluator'], row['metrics']))}"])
    return found


def _actions(run: RunDirectory, name: str) -> h.Node:
    pictures = {
        f"curves of {stage} (PNG)": shell.run_address(name, f"curves-{stage}.png")
        for stage in STAGES
        if len([r for r in run.metrics() if r.get("evaluator") == "tofu" and r["stage"] == stage]) > 1
    }
    links = {"metrics (CSV)": shell.run_address(name, "metrics.csv"), **pictures}
    sent = h.a(href=shell.run_address(name, REPORT))["report.html, to send"]
    return [
        h.p(".doing")[
            h.a(href=shell.address("/compare", [("run", name)]))["Compare with others"],
            [" · ", sent] if (run.path / REPORT).is_file() else None,
        ],
        shell.exports(links),
    ]
