"""Suites of runs: which there are, and of each the frontier between forgetting and utility, a point per cell."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import htpy as h
import matplotlib
import yaml
from matplotlib.figure import Figure
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from oblivionis.errors import FileError, OblivionisError
from oblivionis.files import read_bytes
from oblivionis.measures import registry
from oblivionis.naming import MODELS
from oblivionis.reports.format import counted, number
from oblivionis.reports.markup import captioned, explained, folded, html_table, joined, section_heading, with_code
from oblivionis.reports.svg import FIGURE_STYLE, PAPER, svg_figure
from oblivionis.view import shell
from oblivionis.view.guard import STORED
from oblivionis.view.library import SUITE, Library, NotThere
from oblivionis.view.matplotlib_lock import Make, T
from oblivionis.view.sparkline import scatter
from oblivionis.view.suite_results import Cell, Point, Results, frontier, points, read_results

REPORT = "suite.html"
FORGETTING, UTILITY = "forget_prob", "model_utility"
MOST_TABLES, MOST_CARDS = 30, 100
_MARKERS = "osv^D<>pPX*h"


@dataclass(frozen=True)
class Frontier:
    """A suite with what is set against each other in it."""

    name: str
    folder: Path
    results: Results | None
    forgetting: str
    utility: str

    @classmethod
    def of(cls, request: Request) -> Frontier:
        """As the address says."""
        name = request.path_params["name"]
        return cls.chosen(name, request.app.state.library.suite(name), request.query_params)

    @classmethod
    def chosen(cls, name: str, folder: Path, given: Mapping[str, str]) -> Frontier:
        """A suite with what is chosen, as far as it was measured."""
        results = read_results(folder)
        x, y = _measures(results, "oracle"), _measures(results, "higher")
        return cls(
            name,
            folder,
            results,
            given["forgetting"] if given.get("forgetting") in x else _first(FORGETTING, x),
            given["utility"] if given.get("utility") in y else _first(UTILITY, y),
        )

    @property
    def cells(self) -> tuple[Cell, ...]:
        return () if self.results is None else self.results.cells

    @property
    def points(self) -> list[Point]:
        return points(self.cells, self.forgetting, self.utility)

    @property
    def distance(self) -> str:
        """The x axis in words."""
        return f"{registry.reader_name(self.forgetting)}: distance to the retrained model"

    def address(self, page: str = "") -> str:
        """The suite's page, or a file of it, with the same choices."""
        at = shell.suite_address(self.name, page)
        return shell.address(at, [("forgetting", self.forgetting), ("utility", self.utility)])


def list_suites(request: Request) -> Response:
    """All suites of the folder, a card each."""
    library: Library = request.app.state.library
    cards = [_card(request, library, name) for name in list(library.found().suites)[:MOST_CARDS]]
    more = len(library.found().suites) - len(cards)
    none = h.p["There are no suites here: ", h.code["oblivionis bench quick"], " runs one."]
    parts = [
        h.h1["Suites"],
        h.p(".sub")["A point per cell: the further left, the nearer the retrained model; the higher, the more useful."]
        if cards
        else None,
        h.div(".cards")[cards] if cards else none,
        h.p[f"{more} more are not shown: start the window on a folder further in."] if more else None,
    ]
    return shell.page(request, "Suites", parts)


def _card(request: Request, library: Library, name: str) -> h.Element:
    """A suite in short: its title, how many of its cells are done, and their distances."""
    state = request.app.state
    try:
        folder = library.suite(name)
        key = name, "card"
        return state.kept.get(key, library.signature(folder), lambda: _in_short(name, folder))
    except OblivionisError as error:
        title = h.h2[h.a(href=shell.suite_address(name))[name]]
        return h.section(".card", aria_label=name)[title, h.p(".bad")[str(error)]]


def _in_short(name: str, folder: Path) -> h.Element:
    facts, of = _suite(folder), Frontier.chosen(name, folder, {})
    failed = sum(bool(cell.error) for cell in of.cells)
    done = f"{len(of.cells) - failed} of {counted(len(of.cells), 'cell')} done"
    best = [(point.x, point.y) for point in frontier(of.points)]
    label = f"{registry.reader_name(of.utility)} against {of.distance}, a point per cell"
    title = facts.get("title") or name
    return h.section(".card", aria_label=title)[
        h.h2[h.a(href=shell.suite_address(name))[title]],
        h.p(".about")[with_code(facts.get("description", "").partition("\n\n")[0])],
        h.p[done if of.cells else "no results yet", h.span(".bad")[f", {failed} failed"] if failed else None],
        scatter([(point.x, point.y) for point in of.points], best, label),
    ]


def respond(request: Request) -> Response:
    """A suite's page."""
    of = Frontier.of(request)
    library: Library = request.app.state.library

    def make() -> Response:
        facts = _suite(of.folder)
        title = facts.get("title") or of.name
        parts = [
            shell.trail(("Suites", "/suites")),
            h.h1[title],
            [h.p[with_code(text)] for text in facts.get("description", "").split("\n\n") if text],
            h.p[h.a(href=shell.suite_address(of.name, REPORT))["suite.html: its tables and figures"]]
            if (of.folder / REPORT).is_file()
            else None,
            section_heading("frontier", "Forgetting against utility", "Retrained model", "Cell"),
            _frontier(of),
            section_heading("cells", "Cells"),
            _cells(of, library),
            *_tables(of.folder),
        ]
        return shell.page(request, title, parts)

    return _kept(request, of, "page", make)


def frontier_png(request: Request) -> Response:
    """The frontier as a picture."""
    of = Frontier.of(request)
    if not of.points:
        raise NotThere("no cell of this suite has both numbers")
    return _kept(request, of, "png", lambda: shell.png_file("frontier.png", _drawing(of, "white")))


def frontier_csv(request: Request) -> Response:
    """The points of the frontier's plot."""
    of = Frontier.of(request)
    best = {point.place for point in frontier(of.points)}
    axes = of.results.axes if of.results else ()
    rows = [
        [p.place, *(p.cell.labels[axis] for axis in axes), p.x, p.y, "yes" if p.place in best else "no"]
        for p in of.points
    ]
    head = ["number", *axes, f"distance_{of.forgetting}", of.utility, "on_frontier"]
    return shell.csv_file("frontier.csv", head, rows)


def results_csv(request: Request) -> Response:
    """All results of the suite."""
    of = Frontier.of(request)
    if of.results is None:
        raise NotThere("this suite has no results yet")
    head = list(of.results.rows[0]) if of.results.rows else []
    return shell.csv_file("results.csv", head, [list(row.values()) for row in of.results.rows])


def stored(request: Request) -> Response:
    """The suite's own page, as it is; the policy `STORED` keeps a browser from running scripts in it."""
    folder = request.app.state.library.suite(request.path_params["name"])
    try:
        content = read_bytes(folder / REPORT)
    except FileNotFoundError:
        raise NotThere(f"the suite has no {REPORT}") from None
    return Response(content, media_type="text/html; charset=utf-8", headers={"content-security-policy": STORED})


def report_of_run(request: Request) -> Response:
    """The report of a run, which the suite's own page links to by its place."""
    library: Library = request.app.state.library
    name = library.name_of(library.root / request.path_params["name"])
    if name is None:
        raise NotThere("there is no such run")
    return RedirectResponse(shell.run_address(name, "report.html"))


def _kept(request: Request, of: Frontier, what: str, make: Make[T]) -> T:
    state = request.app.state
    now = (state.library.signature(of.folder), tuple(state.library.found().runs))
    return state.kept.get((of.address(), what), now, make)


def _suite(folder: Path) -> dict[str, str]:
    """Title and description of a suite, as far as its file can be read."""
    try:
        found = yaml.safe_load(read_bytes(folder / SUITE))
    except (OSError, FileError, yaml.YAMLError, ValueError, RecursionError):
        return {}
    found = found if isinstance(found, dict) else {}
    return {key: value for key in ("title", "description") if isinstance(value := found.get(key), str)}


def _measures(results: Results | None, direction: str) -> list[str]:
    """The metrics of the unlearned models that are better in this direction, in the order of the comparison table."""
    found = {key for cell in (results.cells if results else ()) for key in cell.metrics.get("unlearn", {})}
    return [key for key, metric in registry.catalogue().items() if key in found and metric.direction == direction]


def _first(wanted: str, known: Sequence[str]) -> str:
    return wanted if wanted in known or not known else known[0]


def _frontier(of: Frontier) -> list[h.Node]:
    x, y = _measures(of.results, "oracle"), _measures(of.results, "higher")
    if not of.points:
        return [h.p["No cell has an unlearned and a retrained model with these numbers."]]
    form = h.form(method="get", action=shell.suite_address(of.name))[
        shell.choice("forgetting", "forgetting", {key: registry.reader_name(key) for key in x}, of.forgetting),
        shell.choice("utility", "utility", {key: registry.reader_name(key) for key in y}, of.utility),
        h.button(type="submit")["Show"],
    ]
    label = f"{registry.reader_name(of.utility)} against {of.distance}, a numbered point per cell"
    caption = (
        "Upper left is best: as near the retrained model as can be, and of use. Line: the cells that no other beats in "
        "both. Numbers: the rows of the table."
    )
    drawing = h.div(".single")[svg_figure(_drawing(of, PAPER), "frontier", label)]
    best = {point.place for point in frontier(of.points)}
    axes = of.results.axes if of.results else ()
    rows = [
        [
            h.b[str(p.place)] if p.place in best else str(p.place),
            *(p.cell.labels[axis] for axis in axes),
            number(p.cell.value("unlearn", of.forgetting)),
            number(p.cell.value("retrain", of.forgetting)),
            number(p.x),
            number(p.y),
            "yes" if p.place in best else "",
        ]
        for p in sorted(of.points, key=lambda p: (p.x, -p.y))
    ]
    shown = explained(_title(of.forgetting), "unlearned"), explained("Retrained model", "retrained")
    heads = ["number", *axes, *shown, "distance", explained(_title(of.utility), "utility"), "on the frontier"]
    table = html_table(heads, ["n", *[""] * len(axes), *["n"] * 4, ""], rows, "The points of the plot")
    files = {"PNG": of.address("frontier.png"), "CSV": of.address("frontier.csv")}
    everything = {"all results (CSV)": shell.suite_address(of.name, "results.csv")}
    return [form, captioned(drawing, caption), shell.exports(files | everything), table]


def _title(metric: str) -> str:
    known = registry.catalogue().get(metric)
    return known.title if known else metric


def _drawing(of: Frontier, paper: str) -> Figure:
    """A point per cell: colour and marker by the first axis, with the number of its row; a line through the best."""
    found = of.points
    axis_name = of.results.axes[0] if of.results and of.results.axes else ""
    groups: dict[str, list[Point]] = {}
    for point in found:
        groups.setdefault(point.cell.labels.get(axis_name, ""), []).append(point)
    with matplotlib.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(4.8, 4.2), layout="constrained")
        axis = figure.subplots()
        best = frontier(found)
        axis.plot([p.x for p in best], [p.y for p in best], color="0.5", linestyle="--", linewidth=1, zorder=1)
        for place, (name, points) in enumerate(groups.items()):
            marker = _MARKERS[place % len(_MARKERS)]
            xs, ys = [p.x for p in points], [p.y for p in points]
            axis.plot(xs, ys, linestyle="none", marker=marker, markersize=6, color=f"C{place % 10}", label=name)
        for point in found:
            axis.annotate(str(point.place), (point.x, point.y), xytext=(4, 3), textcoords="offset points", fontsize=7)
        axis.set(xlabel=of.distance, ylabel=registry.reader_name(of.utility))
        axis.axvline(0, color="0.8", linewidth=0.8, zorder=0)
        axis.margins(0.08)
        if axis_name:
            figure.legend(loc="outside upper center", ncols=min(3, len(groups)), frameon=False, title=axis_name)
    return figure


def _tables(folder: Path) -> list[h.Node]:
    """The suite's own tables, folded."""
    found: list[h.Node] = []
    for file in sorted((folder / "tables").glob("*.csv"))[:MOST_TABLES]:
        head, *rows = csv.reader(read_bytes(file).decode(errors="replace").splitlines()) or [[]]
        if head and rows and all(len(row) == len(head) for row in rows):
            found.append(folded(file.stem, html_table(head, [""] * len(head), rows, file.stem)))
    return [section_heading("tables", "Tables"), *found] if found else []


def _cells(of: Frontier, library: Library) -> h.Node:
    if not of.cells:
        return h.p["None yet."]
    rows: list[list[h.Node]] = []
    for place, cell in enumerate(of.cells, start=1):
        by_run: dict[str, list[str]] = {}
        for stage, run in cell.runs.items():
            by_run.setdefault(run, []).append(MODELS.get(stage, stage))
        links: list[h.Node] = []
        for run, models in by_run.items():
            name = library.name_of(Path(os.path.normpath(of.folder / run)))
            links.append(h.a(href=shell.run_address(name))[", ".join(models)] if name else ", ".join(models))
        state = h.b(".bad")["failed"] if cell.error else "done"
        rows.append([str(place), cell.name, state, joined(links, " · ") or "–", cell.error])
    heads = ["number", explained("Cell", "cell"), "state", "runs", "error"]
    return html_table(heads, ["n", "", "who", "label", ""], rows, "Cells and their runs")
