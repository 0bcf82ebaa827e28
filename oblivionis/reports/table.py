"""Tables of results, of a run as of a suite: for the terminal, and as Markdown, LaTeX, CSV and HTML.

Cells are plain texts; whatever a format gives a meaning to is escaped, and a line break within a cell becomes a space.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import htpy as h
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from oblivionis.reports.markup import explained, html_page, html_table

GAP = 2
"""Between two columns on a terminal."""


class Marked(str):
    """A cell that stands out: `style` is `bold`, `underline` or `alarm` (bold, and red where there are colours)."""

    style: str

    def __new__(cls, text: str, style: str) -> Marked:
        marked = super().__new__(cls, text)
        marked.style = style
        return marked


class Term(str):
    """A heading or a word that the glossary explains under another name, `term`."""

    term: str

    def __new__(cls, text: str, term: str) -> Term:
        made = super().__new__(cls, text)
        made.term = term
        return made


@dataclass(frozen=True)
class Table:
    """`texts` columns of words, then numbers. A row that is None ends a group of rows; `note` says what is what.

    A heading `above\\nbelow` belongs to the columns beside it with the same `above`. A cell may be `Marked`, a heading
    or a word a `Term`. framed: on a terminal with lines around the cells, and in one piece whatever its width.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str] | None] = field(default_factory=list)
    note: str = ""
    texts: int = 2
    framed: bool = False

    def rich(self) -> RenderableType:
        """For a terminal: a first cell that repeats the one above is blank, columns that do not fit come below (but in
        a framed table)."""
        return _Fitting(self)

    def part(self, numbers: Sequence[int]) -> RichTable:
        """The columns of words and these columns of numbers, for a terminal."""
        plain = RichTable(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
        table = RichTable() if self.framed else plain
        chosen = [*range(self.texts), *numbers]
        for place in chosen:
            side = "left" if place < self.texts else "right"
            table.add_column(Text(self.columns[place]), justify=side, no_wrap=not self.framed)
        above = None
        for row in self.rows:
            if row is None:
                if self.framed:
                    table.add_section()
                else:
                    table.add_row()
                above = None
            else:
                cells = ["" if row[0] == above else row[0], *row[1:]]
                table.add_row(*(_text(cells[n]) for n in chosen))
                above = row[0]
        return table

    def parts(self, width: int) -> list[list[int]]:
        """The columns of numbers in parts that fit into `width` beside those of words; columns of a heading together.

        A heading whose columns do not fit by themselves is divided. A framed table is one part.
        """
        widths = [
            max(map(len, [*column.split("\n"), *(row[n] for row in self._filled())])) + GAP
            for n, column in enumerate(self.columns)
        ]
        if self.framed:
            return [list(range(self.texts, len(self.columns)))]
        room = width - sum(widths[: self.texts])
        groups: list[list[int]] = []
        for n in range(self.texts, len(self.columns)):
            above, divided, _ = self.columns[n].partition("\n")
            same = groups and divided and self.columns[groups[-1][-1]].partition("\n")[0] == above
            if same and sum(widths[m] for m in (*groups[-1], n)) <= room:
                groups[-1].append(n)
            else:
                groups.append([n])
        found: list[list[int]] = []
        for group in groups:
            if found and sum(widths[m] for m in (*found[-1], *group)) <= room:
                found[-1] += group
            else:
                found.append(group)
        return found or [[]]

    def markdown(self) -> str:
        """A section of a document."""
        marks = ["---" if number < self.texts else "---:" for number in range(len(self.columns))]
        heads = [_markdown(column) for column in self.columns]
        rows = ([_styled(_markdown(c), "**{}**", "<u>{}</u>", c) for c in row] for row in self._filled())
        table = "\n".join(f"| {' | '.join(line)} |" for line in [heads, marks, *rows])
        title, note = f"## {_markdown(self.title)}", _markdown(self.note)
        return "\n\n".join(part for part in (title, table, note) if part) + "\n"

    def latex(self) -> str:
        """A `tabular` in a `table`, for booktabs; headings that several columns share span them."""
        layout = "l" * self.texts + "r" * (len(self.columns) - self.texts)
        body = []
        for row in self.rows:
            if row is None:
                body.append(r"\midrule")
            else:
                body.append(_latex_row(_styled(_latex(c), r"\textbf{{{}}}", r"\underline{{{}}}", c) for c in row))
        if body and body[-1] == r"\midrule":
            body.pop()
        caption = f"\\caption{{{_latex(self.title)}{'. ' if self.note else ''}{_latex(self.note)}}}"
        lines = [r"\begin{table}", r"\centering", caption, f"\\begin{{tabular}}{{{layout}}}", r"\toprule"]
        end = [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
        return "\n".join([*lines, *self._latex_head(), r"\midrule", *body, *end]) + "\n"

    def csv(self) -> str:
        """Comma-separated values with one line of headings, no marks and no note."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        for row in (self.columns, *self._filled()):
            writer.writerow(map(_one_line, row))
        return buffer.getvalue()

    def html(self) -> h.Renderable:
        """A section of a page: the title, the table, the note. Words that the glossary explains are linked to it."""
        parts = [h.h3[self.title], self.html_table(), h.p(".legend")[self.note] if self.note else None]
        return h.fragment[parts]

    def html_table(self) -> h.Node:
        """The table alone; nothing without rows."""
        if not self.rows:
            return None
        classes = ["" if number < self.texts else "n" for number in range(len(self.columns))]
        rows: list[list[h.Node]] = []
        above = None
        for row in self.rows:
            if row is None:
                above = None
                continue
            first = "" if row[0] == above else row[0]
            rows.append([_html(cell, linked=n < self.texts) for n, cell in enumerate((first, *row[1:]))])
            above = row[0]
        return html_table([_html(column, linked=True) for column in self.columns], classes, rows, self.title)

    def page(self) -> str:
        """A page of its own, with the glossary of its words."""
        return html_page(self.title, [self.html()])

    def _filled(self) -> list[Sequence[str]]:
        return [row for row in self.rows if row is not None]

    def _latex_head(self) -> list[str]:
        heads = [column.partition("\n") for column in self.columns]
        if not any(below for _, _, below in heads):
            return [_latex_row(_latex(above) for above, _, _ in heads)]
        spans: list[tuple[str, int]] = []
        for above, _, below in heads:
            if below and spans and spans[-1][0] == above:
                spans[-1] = (above, spans[-1][1] + 1)
            else:
                spans.append((above if below else "", 1))
        upper = (f"\\multicolumn{{{n}}}{{c}}{{{_latex(text)}}}" if text else "" for text, n in spans)
        return [_latex_row(upper), _latex_row(_latex(below or above) for above, _, below in heads)]


@dataclass(frozen=True)
class _Fitting:
    """A table in as many parts, one below the other, as the width of the terminal asks for."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.table.title, style="bold")
        if self.table.rows:
            for number, columns in enumerate(self.table.parts(options.max_width)):
                yield from [""] * (number > 0)
                yield self.table.part(columns)
        if self.table.note or not self.table.framed:
            yield Padding(Text(self.table.note, style="dim"), (1, 0))


def _one_line(text: str) -> str:
    return re.sub(r"\s*[\r\n]+\s*", " ", text)


def _style(cell: str) -> str:
    return cell.style if isinstance(cell, Marked) else ""


def _text(cell: str) -> Text:
    style = _style(cell)
    return Text(_one_line(cell), style="bold red" if style == "alarm" else style)


def _styled(text: str, bold: str, underline: str, cell: str) -> str:
    return {"bold": bold, "alarm": bold, "underline": underline}.get(_style(cell), "{}").format(text)


_MARKDOWN = re.compile(r"[\\`*\[\]|~]|<(?=[\w/!?])|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
"""What would begin or end something in CommonMark or in a table of GitHub's; an underscore within a word does not."""


def _markdown(text: str) -> str:
    return _MARKDOWN.sub(lambda found: f"\\{found.group()}", _one_line(text))


def _html(cell: str, *, linked: bool) -> h.Node:
    text = _one_line(cell)
    shown = explained(cell.term if isinstance(cell, Term) else text, text) if linked else text
    element = {"bold": h.b, "underline": h.u, "alarm": h.b(".mark")}.get(_style(cell))
    return shown if element is None else element[shown]


_LATEX = str.maketrans(
    {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$", "–": "--", "↑": r"$\uparrow$"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    | {"↓": r"$\downarrow$", "α": r"$\alpha$", "λ": r"$\lambda$", "μ": r"$\mu$", "×": r"$\times$"}
)


def _latex(text: str) -> str:
    return _one_line(text).translate(_LATEX)


def _latex_row(cells: Iterable[str]) -> str:
    return f"{' & '.join(cells)} \\\\"
