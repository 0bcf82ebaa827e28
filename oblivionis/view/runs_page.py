"""All runs with their state, curve and headline numbers; which are shown, and which are chosen to be compared."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import htpy as h
from starlette.requests import Request
from starlette.responses import Response

from oblivionis.reports.format import counted, number
from oblivionis.reports.markup import explained, joined
from oblivionis.runs.run_status import CURVE, RUNNING, STATES, Glance
from oblivionis.view import shell
from oblivionis.view.run_readings import Glances
from oblivionis.view.sparkline import sparkline

Rows = Sequence[tuple[str, Glance]]
Value = str | float | None

SHOWN = 100
"""Runs on one page."""
CARDS = 6
"""Runs that go on and have a card of their own."""
SECONDS = 10
PATIENCE = 0.4
"""Seconds that a page waits for runs that changed to be read; the others it shows when it asks again."""
WAS_UNREAD = "unread"
"""The part of an address that tells that not all runs were read when the page was loaded."""


@dataclass(frozen=True)
class Column:
    """A column of the table: its key, its heading, its value for a run, whether a phone shows it; below: what it says
    stands below the run's name."""

    key: str
    head: str
    value: Callable[[str, Glance], Value]
    near: bool = False
    number: bool = False
    below: bool = False


def _metric(stage: str, metric: str) -> Callable[[str, Glance], Value]:
    return lambda name, run: run.value(stage, metric)


COLUMNS = (
    Column("run", "run", lambda name, run: name, near=True),
    Column("state", "state", lambda name, run: run.state, near=True),
    Column("model", "model", lambda name, run: run.model, below=True),
    Column("data", "data", lambda name, run: run.data, below=True),
    Column("aggregator", "aggregator", lambda name, run: run.strategy),
    Column("method", "method", lambda name, run: run.method),
    Column("forget_prob", "forget Prob", _metric("unlearn", "forget_prob"), near=True, number=True),
    Column("oracle_prob", "of the retrained", _metric("retrain", "forget_prob"), number=True),
    Column("retain_prob", "retain Prob", _metric("unlearn", "retain_prob"), number=True),
    Column("forget_quality", "forget quality", _metric("unlearn", "forget_quality"), number=True),
    Column("model_utility", "utility", _metric("unlearn", "model_utility"), number=True),
    Column("changed", "changed", lambda name, run: run.changed),
)
SHOWN_COLUMNS = tuple(column for column in COLUMNS if not column.below)
TERMS = ("Prob", "Retrained model", "Forget quality (KS p)", "Model utility")
FILTERS = ("state", "model", "data", "aggregator", "method")
NEWEST = "changed"


@dataclass(frozen=True)
class View:
    """What of the runs is shown: a text that names must contain, a value for some columns, the order, and which page;
    `chosen`: names of runs to compare."""

    text: str
    wanted: Mapping[str, str]
    order: str
    down: bool
    page: int
    chosen: tuple[str, ...]

    @classmethod
    def of(cls, request: Request) -> View:
        """As the address says; what makes no sense in it counts as not said."""
        given = request.query_params
        order = given.get("order", "").removeprefix("-")
        known = order in {column.key for column in COLUMNS}
        return cls(
            given.get("text", "").strip(),
            {key: given[key] for key in FILTERS if given.get(key)},
            order if known else NEWEST,
            given.get("order", "").startswith("-") if known else True,
            shell.page_number(request),
            tuple(dict.fromkeys(given.getlist("run"))),
        )

    def select(self, runs: Mapping[str, Glance]) -> Rows:
        """The runs that are wanted, in order; those without a value come last."""
        found = self.wanted_of(runs, self.wanted)
        value = next(column.value for column in COLUMNS if column.key == self.order)
        known = [row for row in found if _known(value(*row))]
        known.sort(key=lambda row: _sortable(value(*row)), reverse=self.down)
        return [*known, *(row for row in found if not _known(value(*row)))]

    def wanted_of(self, runs: Mapping[str, Glance], wanted: Mapping[str, str]) -> Rows:
        """The runs with the text in their names and these values of columns."""
        columns = {column.key: column for column in COLUMNS}
        text = self.text.casefold()
        return [
            (name, run)
            for name, run in runs.items()
            if text in name.casefold() and all(columns[key].value(name, run) == v for key, v in wanted.items())
        ]

    def address(self, **changes: str) -> str:
        """The page with other choices."""
        order = f"-{self.order}" if self.down else self.order
        own = {"text": self.text, **self.wanted, "order": order, "page": str(self.page) if self.page > 1 else ""}
        return shell.address("/", [*(own | changes).items(), *(("run", name) for name in self.chosen)])


def respond(request: Request) -> Response:
    """The page, or its table alone."""
    library, view = request.app.state.library, View.of(request)
    glances = library.glances(PATIENCE)
    rows = view.select(glances.runs)
    listed = _table(view, rows) if rows or not glances.unread else None
    table = [
        _count(glances, rows, library.root),
        _all_read(request, view, glances),
        _going(rows),
        _states(view, glances.runs),
        listed,
    ]
    seconds = shell.LIVE_SECONDS if glances.unread else SECONDS
    if shell.asks_for(request, "runs"):
        return shell.piece(request, table, seconds=seconds)
    here = view.address() if not glances.unread else f"{view.address()}&{WAS_UNREAD}=1"
    parts = [
        h.h1["Runs"],
        h.p(".bad")["There are too many folders here to see all of it."] if library.found().cut else None,
        h.form(id="choice", action="/", method="get")[
            _filters(view, glances.runs),
            _chosen_on_other_pages(view, rows),
            shell.live("runs", here, table, seconds=seconds),
            h.div(".actions")[
                h.button(type="submit", formaction="/compare")["Compare the chosen runs"],
                h.span(id="chosen", role="status"),
            ],
        ],
        h.p(".terms")[
            "Numbers are of the unlearned model; curve: how probable it finds the answers to forget over the rounds, "
            "from 0 to 1 (dashed: the retrained model). What is meant by: ",
            joined([explained(term) for term in TERMS], ", "),
            ".",
        ],
        shell.exports({"CSV": shell.address("/runs.csv", [("text", view.text), *view.wanted.items()])}),
    ]
    return shell.page(request, "Runs", parts)


def export(request: Request) -> Response:
    """The table with all its columns, of the runs that are wanted."""
    rows = View.of(request).select(request.app.state.library.glances().runs)
    values = [[*(_raw(column, name, run) for column in COLUMNS), run.seed, _stages(run)] for name, run in rows]
    return shell.csv_file("runs.csv", [*(column.key for column in COLUMNS), "seed", "stages"], values)


def _raw(column: Column, name: str, run: Glance) -> Value:
    value = column.value(name, run)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(run.changed)) if column.key == NEWEST else value


def _stages(run: Glance) -> str:
    return ", ".join(stage.as_text() for stage in run.stages)


def _count(glances: Glances, rows: Rows, root: Path) -> h.Element:
    read, place = len(glances.runs), h.code[str(root)]
    if glances.unread:
        of = counted(read + glances.unread, "run")
        more = f"; {len(rows)} of these are shown" if len(rows) < read else ""
        return h.p(".sub")[
            f"{read} of {of} in ", place, f" are read so far, the newest first{more}. The others follow."
        ]
    return h.p(".sub")[f"{len(rows)} of " if len(rows) < read else "", counted(read, "run"), " in ", place, "."]


def _all_read(request: Request, view: View, glances: Glances) -> h.Node:
    """That a page which was made earlier can be had with all runs, where it is so now."""
    if WAS_UNREAD not in request.query_params or glances.unread:
        return None
    return h.p["All runs are read: ", h.a(href=view.address())["load the page anew"], " to filter by what they hold."]


def _filters(view: View, runs: Mapping[str, Glance]) -> h.Element:
    columns = {column.key: column for column in COLUMNS}
    lists = []
    for key in FILTERS[1:]:
        known = {str(columns[key].value(name, run)) for name, run in runs.items()} - {""}
        wanted = view.wanted.get(key, "")
        options = {"": "all", **{value: value for value in sorted(known)}, **({wanted: wanted} if wanted else {})}
        lists.append(shell.choice(columns[key].head, key, options, wanted))
    state = view.wanted.get("state")
    order = f"-{view.order}" if view.down else view.order
    return h.fieldset(".filters")[
        h.legend(".unseen")["Show"],
        h.label[h.span["name contains"], h.input(type="search", name="text", value=view.text)],
        lists,
        h.input(type="hidden", name="state", value=state) if state else None,
        h.input(type="hidden", name="order", value=order) if order != f"-{NEWEST}" else None,
        h.button(type="submit")["Filter"],
        h.a(href="/")["Show all"],
    ]


def _states(view: View, runs: Mapping[str, Glance]) -> h.Node:
    """How many of the runs are in which state, with links to these alone."""
    if not runs:
        return None
    others = {key: value for key, value in view.wanted.items() if key != "state"}
    counts = Counter(run.state for _, run in view.wanted_of(runs, others))
    wanted = view.wanted.get("state", "")

    def link(state: str, text: h.Node, count: int) -> h.Element:
        at = view.address(state=state, page="")
        return h.a(href=at, aria_current="true" if state == wanted else None)[text, f" {count}"]

    words = [link(s, h.span(class_=["state", s])[s], counts[s]) for s in STATES if counts[s] or s == wanted]
    return h.nav(".tabs", aria_label="State")[link("", "all", counts.total()), words]


def _going(rows: Rows) -> h.Node:
    """A card for each run that goes on: how far it is, and its curve so far."""
    cards = [_card(name, run) for name, run in rows if run.state == RUNNING][:CARDS]
    return h.div(".cards")[cards] if cards else None


def _card(name: str, run: Glance) -> h.Element:
    value = run.curve[-1][1] if run.curve else None
    return h.section(".card", aria_label=name)[
        h.h2[h.a(href=shell.run_address(name))[name]],
        h.p(".about")[_settings(run)],
        _state(run),
        _curve(run),
        h.p(".about")[f"forget Prob {number(value)}"] if value is not None else None,
    ]


def _curve(run: Glance) -> h.Node:
    """The run's curve, with the level of its retrained model."""
    if len(run.curve) < 2:
        return None
    label = f"forget Prob from {number(run.curve[0][1])} to {number(run.curve[-1][1])}"
    return sparkline(run.curve, run.value("retrain", CURVE), label)


def _chosen_on_other_pages(view: View, rows: Rows) -> h.Node:
    """Runs that are chosen but not among those shown: they stay chosen."""
    here = {name for name, _ in _of_page(view, rows)}
    others = [name for name in view.chosen if name not in here]
    if not others:
        return None
    boxes = [h.label[h.input(type="checkbox", name="run", value=name, checked=True), " ", name] for name in others]
    return h.fieldset(".chosen")[h.legend["Also chosen"], boxes]


def _of_page(view: View, rows: Rows) -> Rows:
    return rows[(view.page - 1) * SHOWN : view.page * SHOWN]


def _table(view: View, rows: Rows) -> h.Node:
    if not rows:
        return h.p["No runs."]
    shown = _of_page(view, rows)
    heads: list[h.Node] = [_head(view, column) for column in SHOWN_COLUMNS]
    heads.insert(2, h.th(scope="col")["curve"])
    return [
        h.div(".wide", role="region", aria_label="Runs", tabindex="0")[
            h.table(".runs")[
                h.caption["Runs"],
                h.thead[h.tr[h.th(scope="col")[h.span(".unseen")["compare"]], heads]],
                h.tbody[[_row(view, name, run) for name, run in shown]],
            ]
        ],
        _pages(view, len(rows)),
    ]


def _head(view: View, column: Column) -> h.Element:
    chosen = column.key == view.order
    down = not view.down if chosen else column.number or column.key == NEWEST
    mark = (" ▼" if view.down else " ▲") if chosen else ""
    link = h.a(href=view.address(order=f"-{column.key}" if down else column.key, page=""))[column.head, mark]
    sort = ("descending" if view.down else "ascending") if chosen else None
    return h.th(class_=_classes(column), scope="col", aria_sort=sort)[link]


def _classes(column: Column) -> list[str]:
    return [*(["n"] if column.number else []), *([] if column.near else ["far"])]


_CELLS = {column.key: h.td(class_=_classes(column)) for column in COLUMNS}
"""Without their content: there are thousands on a page."""


def _row(view: View, name: str, run: Glance) -> h.Element:
    box = h.input(type="checkbox", name="run", value=name, checked=name in view.chosen, aria_label=f"compare {name}")
    nearby = " · ".join(("", run.strategy, run.method)) if run.method else ""
    about = h.small(".about")[" · ".join(filter(None, (run.model, run.data))), h.small(".nearby")[nearby]]
    link = [h.a(href=shell.run_address(name))[name], " ", about]
    return h.tr[
        h.td[box],
        h.th(scope="row")[link],
        h.td[_state(run)],
        h.td(".curve")[_curve(run)],
        [_CELLS[c.key][_shown(c.value(name, run))] for c in SHOWN_COLUMNS[2:-1]],
        _CELLS[NEWEST][_time(run.changed)],
    ]


def _settings(run: Glance) -> str:
    return " · ".join(filter(None, (run.model, run.data, run.strategy, run.method)))


def _state(run: Glance) -> h.Node:
    word = h.span(class_=["state", run.state])[run.state]
    if run.nothing:
        return [word, h.small(".bad")[" ", run.nothing]]
    if run.current is None or not run.current.total:
        return [word, h.small[" ", run.note] if run.note else None]
    stage = run.current
    bar = h.progress(max=stage.total, value=min(stage.done, stage.total), aria_label=f"rounds of {stage.stage}")
    return [word, " ", h.small[stage.as_text()], bar if run.state == RUNNING else None]


def _pages(view: View, count: int) -> h.Node:
    pages = math.ceil(count / SHOWN)
    if pages < 2:
        return None
    links = [
        h.a(href=view.address(page=str(n)), aria_current="page" if n == view.page else None)[str(n)]
        for n in range(1, pages + 1)
    ]
    return h.nav(".tabs", aria_label="Pages of the table")["Page ", links]


def _shown(value: Value) -> str:
    return value if isinstance(value, str) else number(value)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else "–"


def _known(value: Value) -> bool:
    return value is not None and value == value


def _sortable(value: Value) -> tuple[float, str]:
    return (0.0, value.casefold()) if isinstance(value, str) else (value or 0.0, "")
