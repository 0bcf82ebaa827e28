"""The page that shows any runs side by side: curves, final metrics, settings, answers with their differences marked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import htpy as h
import matplotlib
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from starlette.requests import Request
from starlette.responses import Response

from oblivionis.config import compose as configuration
from oblivionis.measures import registry
from oblivionis.naming import MODELS
from oblivionis.reports.format import counted, number
from oblivionis.reports.markup import captioned, contents, explained, folded, html_table, section_heading
from oblivionis.reports.svg import FIGURE_STYLE, PAPER, svg_figure
from oblivionis.view import shell
from oblivionis.view.comparison import FIRST, GROUPS, TRUTH, Comparison, One, question_of_row
from oblivionis.view.differences import marked, setting_differences
from oblivionis.view.library import NotThere
from oblivionis.view.matplotlib_lock import Make, T

SHOWN = 20
"""Questions on one page."""
_UNSHOWN = {"name", "output"}
_MARKERS = "osv^D<>pPX*h"
_DASHES = ("-", "--", "-.")
_KEYS = (None, "8 4", "10 4 3 4")
"""The same dashes in SVG."""


def respond(request: Request) -> Response:
    """The page, or its curves alone."""
    of = Comparison.of(request)
    if not of.runs:
        what = ["Choose runs to compare in the ", h.a(href="/")["list of runs"], "."]
        return shell.page(request, "Compare", [h.h1["Compare"], h.p[what]])
    if shell.asks_for(request, "curves"):
        return shell.piece(request, _kept(request, of, "curves", lambda: h.fragment[_curves(of)]))

    def make() -> Response:
        drawn: h.Node = _curves(of)
        if any(one.glance.current is not None for one in of.runs):
            drawn = shell.live("curves", of.address(), drawn)
        parts = [
            h.h1["Compare"],
            _runs(of),
            _stages(of),
            contents(["curves", "metrics", "settings", "answers"]),
            section_heading("curves", "Curves"),
            _curve_choice(of),
            drawn,
            section_heading("metrics", f"Final metrics of the {MODELS[of.stage]} model"),
            _metrics(of),
            section_heading("settings", "Settings that differ"),
            _settings(of),
            section_heading("answers", "Answers"),
            _answers(of),
        ]
        return shell.page(request, "Compare", parts)

    return _kept(request, of, "page", make)


def metrics_csv(request: Request) -> Response:
    """Final metrics of all stages of the runs."""
    of = Comparison.of(request)
    rows = [
        (one.name, stage, metric, value)
        for one in of.runs
        for stage, values in one.metrics.items()
        for metric, value in values.items()
    ]
    return shell.csv_file("comparison.csv", ("run", "stage", "metric", "value"), rows)


def answers_csv(request: Request) -> Response:
    """The answers to all questions of the stage."""
    of = Comparison.of(request)
    rows = []
    for name, questions in of.said.items():
        for i, row in questions.items():
            asked = question_of_row(row)
            rows.append([name, i, asked.prompt, asked.truth, *("" if a is None else a.text for a in row)])
    return shell.csv_file("answers.csv", ["set", "id", "question", "truth", *(one.name for one in of.runs)], rows)


def curves_png(request: Request) -> Response:
    """The curves that the page shows."""
    of = Comparison.of(request)
    if not of.drawn():
        raise NotThere("these runs have no curves of that stage")
    return _kept(request, of, "png", lambda: shell.png_file("curves.png", _drawing(of, of.drawn(), "white")))


def _kept(request: Request, of: Comparison, what: str, make: Make[T]) -> T:
    state = request.app.state
    now = tuple((one.run.path, one.glance.state, state.library.signature(one.run.path)) for one in of.runs)
    return state.kept.get(("compare", what, of.address()), now, make)


def _runs(of: Comparison) -> h.Element:
    items = []
    for place, one in enumerate(of.runs):
        others = [("run", other.name) for other in of.runs if other is not one]
        items.append(
            h.li(".card")[
                _key(place),
                " ",
                h.b[one.letter],
                " ",
                h.a(href=shell.run_address(one.name))[one.name],
                " ",
                h.span(class_=["state", one.glance.state])[one.glance.state],
                " ",
                h.a(href=shell.address("/compare", others), aria_label=f"leave out {one.name}")["leave out"],
            ]
        )
    more = h.a(href=shell.address("/", [("run", one.name) for one in of.runs]))["Choose others"]
    nothing = [h.p(".bad")[f"{one.label}: {one.glance.nothing}"] for one in of.runs if one.glance.nothing]
    return h.div[h.ul(".compared")[items], h.p[more], nothing]


def _key(place: int) -> h.Element:
    """The line by which a run is drawn."""
    line = h.path(d="M0 6H32", stroke=to_hex(_colour(place)), stroke_width="3", stroke_dasharray=_KEYS[place % 3])
    return h.svg(".key", viewBox="0 0 32 12", aria_hidden="true")[line]


def _colour(place: int) -> str:
    return f"C{place % 10}"


def _stages(of: Comparison) -> h.Node:
    links = [
        h.a(href=of.address(stage=stage, page=""), aria_current="true" if stage == of.stage else None)[MODELS[stage]]
        for stage in of.stages
    ]
    return h.nav(".tabs", aria_label="Model")["Model: ", links] if links else None


def _settings(of: Comparison) -> h.Node:
    rows = setting_differences([_flat(configuration.to_tree(one.config)) for one in of.runs])
    if not rows:
        return h.p["None: their configurations are the same." if len(of.runs) > 1 else "Choose a second run."]
    head = ["key", *(one.letter for one in of.runs)]
    cells = [[h.code[key], *values] for key, values in rows.items()]
    return html_table(head, [""] * len(head), cells, "Settings in which the runs differ")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{prefix}{name}.")
        elif prefix or name not in _UNSHOWN:
            found[f"{prefix}{name}"] = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    return found


def _metrics(of: Comparison) -> h.Node:
    """The rows of the comparison table, and folded what else was measured."""
    shown: list[list[h.Node]] = []
    others: list[list[h.Node]] = []
    above = ""
    for metric in of.measured():
        known = registry.catalogue().get(metric)
        best = of.best(metric)
        first, *_ = found = of.values(metric)
        values: list[h.Node] = [
            [h.b[number(v)] if place in best else number(v), _change(first, v) if place else None]
            for place, v in enumerate(found)
        ]
        title = explained(known.title) if known else metric
        if known is None or known.group is None:
            others.append([title, *values])
            continue
        shown.append(["" if known.group.title == above else known.group.title, title, *values])
        above = known.group.title
    if not shown and not others:
        return h.p["None of them has finished this stage."]
    letters, classes = [one.letter for one in of.runs], ["n"] * len(of.runs)
    further = html_table(["measure", *letters], ["", *classes], others, "Further metrics of the runs")
    legend = (
        f"Small: the difference from {of.runs[0].letter}. Bold: the best of these runs; of measures that should be as "
        "the retrained model's, the one nearest to that of its own run."
    )
    return [
        html_table(["questions", "measure", *letters], ["", "", *classes], shown, "Final metrics of the runs"),
        folded(f"{len(others)} further measures", further) if others else None,
        h.p(".legend")[legend] if len(of.runs) > 1 else None,
        shell.exports({"CSV": of.address("/compare.csv")}),
    ]


def _change(first: float | None, value: float | None) -> h.Node:
    """By how much a value differs from the first run's; nothing where they show as the same."""
    if first is None or value is None or not math.isfinite(value - first) or number(first) == number(value):
        return None
    sign = "+" if value > first else "−"
    return [" ", h.small(".delta")[f"{sign}{number(abs(value - first))}"]]


def _curve_choice(of: Comparison) -> h.Node:
    known = of.over_rounds()
    if not known:
        return None
    options = {"": "the most telling", **{key: registry.reader_name(key) for key in known}}
    return h.form(action="/compare#curves", method="get")[
        _hidden(of, "metric"), shell.choice("measure", "metric", options, of.metric), h.button(type="submit")["Show"]
    ]


def _hidden(of: Comparison, *but: str) -> list[h.Node]:
    """What the address says besides what a form asks for."""
    values = [("run", one.name) for one in of.runs] + [("stage", of.stage), ("set", of.set), ("metric", of.metric)]
    values += [("against", of.against), ("different", "1" if of.different else "")]
    return [h.input(type="hidden", name=n, value=v) for n, v in values if v and n not in but]


def _curves(of: Comparison) -> list[h.Node]:
    drawn = of.drawn()
    if not drawn:
        return [h.p["Nothing was measured more than once in this stage."]]
    panels = []
    for metric in drawn:
        name = registry.reader_name(metric)
        label = f"{name} over the rounds of {of.stage}, a line per run"
        panels.append(svg_figure(_drawing(of, [metric], PAPER), f"c-{metric}", label))
    caption = [
        "Hollow: at the end, with the full profile. ",
        [[" · " if i else "", one.label] for i, one in enumerate(of.runs)],
    ]
    png = shell.exports({"PNG": of.address("/compare.png")})
    return [captioned(h.div(".panels")[panels], caption), png]


def _drawing(of: Comparison, metrics: Sequence[str], paper: str) -> Figure:
    """A plot per metric, a line per run. A model right after FedTU stands half a round early."""
    columns = min(2, len(metrics))
    lines = math.ceil(len(metrics) / columns)
    with matplotlib.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(4.6 * columns, 3.0 * lines), layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False)
        for axis in list(axes.flat)[len(metrics) :]:
            axis.set_visible(False)
        for axis, metric in zip(axes.flat, metrics, strict=False):
            for place, one in enumerate(of.runs):
                _line(axis, _points(one, of.stage, metric), place, one.letter, paper)
            axis.set(xlabel="round", ylabel=registry.reader_name(metric))
            axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        handles, labels = axes.flat[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside upper center", ncols=min(6, len(handles)), frameon=False)
    return figure


def _points(one: One, stage: str, metric: str) -> list[tuple[float, float, bool]]:
    """Round, value, and whether it is that of the stage's end."""
    return [
        (row["round"] - 0.5 * (row.get("moment") == "after_unlearn"), value, row.get("moment") == "end")
        for row in one.rows
        if row["stage"] == stage and (value := row["metrics"].get(metric)) is not None and math.isfinite(value)
    ]


def _line(axis: Any, points: Iterable[tuple[float, float, bool]], place: int, letter: str, paper: str) -> None:
    points = sorted(points)
    style = {"color": _colour(place), "linestyle": _DASHES[place % 3], "marker": _MARKERS[place % len(_MARKERS)]}
    between = [(x, y) for x, y, end in points if not end]
    ends = [(x, y) for x, y, end in points if end]
    if between:
        axis.plot(*zip(*between, strict=True), **style, markersize=4, label=letter)
    if between and ends:
        axis.plot(*zip(between[-1], ends[-1], strict=True), color=style["color"], linestyle=":")
    for x, y in ends[-1:]:
        own = {"label": letter} if not between else {}
        axis.plot(x, y, **{**style, "linestyle": "none"}, markersize=5, markerfacecolor=paper, **own)


def _answers(of: Comparison) -> list[h.Node]:
    if not of.said:
        return [h.p["No answers were kept of this stage."]]
    questions = of.questions()
    pages = math.ceil(len(questions) / SHOWN)
    page = min(of.page, max(1, pages))
    shown = questions[(page - 1) * SHOWN : page * SHOWN]
    rows: list[list[h.Node]] = []
    for i, row in shown:
        asked = question_of_row(row)
        first = row[0].text if row[0] is not None else ""
        reference = asked.truth if of.against == TRUTH else first
        rows.append([i, "question", h.b[of.wording[asked.prompt]]])
        rows.append(["", "truth", asked.truth])
        for one, answer in zip(of.runs, row, strict=True):
            plain = answer is None or (of.against == FIRST and one is of.runs[0])
            said = "not asked" if answer is None else answer.text.strip() or "(empty)"
            rows.append(["", one.letter, said if plain or answer is None else marked(reference, answer.text)])
    table = html_table(["record", "who", "text"], ["who", "who", "text"], rows, "Answers side by side")
    links = [
        h.a(href=of.address(page=str(n)) + "#answers", aria_current="page" if n == page else None)[str(n)]
        for n in range(1, pages + 1)
    ]
    to = "the truth" if of.against == TRUTH else f"the answer of {of.runs[0].letter}"
    summary = f"{counted(len(questions), 'question')}. Compared with {to}: "
    return [
        _answer_choice(of),
        h.p[summary, h.ins["added"], ", ", h.del_["missing"], "."],
        table if rows else h.p["No question is answered in different ways."],
        h.nav(".tabs", aria_label="Pages of the answers")["Page ", links] if pages > 1 else None,
        shell.exports({"CSV": of.address("/answers.csv")}),
    ]


def _answer_choice(of: Comparison) -> h.Element:
    against = {FIRST: f"the answer of {of.runs[0].letter}", TRUTH: "the truth"}
    if len(of.runs) < 2:
        del against[FIRST]
    return h.form(action="/compare#answers", method="get")[
        _hidden(of, "set", "against", "different"),
        shell.choice("questions", "set", {name: GROUPS[name] for name in of.said}, of.shown_set),
        shell.choice("compared with", "against", against, of.against),
        h.label[h.input(type="checkbox", name="different", value="1", checked=of.different), " only different answers"],
        h.button(type="submit")["Show"],
    ]
