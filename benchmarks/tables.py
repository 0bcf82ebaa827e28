"""Tables of results, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from oblivionis.html_parts import explained, html_table


@dataclass(frozen=True)
class Table:
    """`texts` columns of words, then numbers. A row that is None ends a group of rows; `note` says what is what."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str] | None] = field(default_factory=list)
    note: str = ""
    texts: int = 2

    def rich(self) -> RenderableType:
        """For a terminal: a first cell that repeats the one above is blank."""
        title, note = Text(self.title, style="bold"), Padding(Text(self.note, style="dim"), (1, 0))
        if not self.rows:
            return Group(title, note)
        table = RichTable(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
        for number, column in enumerate(self.columns):
            table.add_column(Text(column), justify="left" if number < self.texts else "right")
        above = None
        for row in self.rows:
            if row is None:
                table.add_row()
                above = None
            else:
                table.add_row(*map(Text, ["" if row[0] == above else row[0], *row[1:]]))
                above = row[0]
        return Group(title, table, note)

    def markdown(self) -> str:
        """A section of a document."""
        marks = ["---" if number < self.texts else "---:" for number in range(len(self.columns))]
        lines = [self.columns, marks, *(row for row in self.rows if row is not None)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return "\n\n".join(part for part in (f"## {self.title}", table, self.note) if part) + "\n"

    def html(self) -> str:
        """A section of a page: the title, the table, the note. Words that the glossary explains are linked to it."""
        parts = [f"<h3>{escape(self.title)}</h3>"]
        if self.rows:
            classes = ["" if number < self.texts else "n" for number in range(len(self.columns))]
            rows: list[list[str]] = []
            above = None
            for row in self.rows:
                if row is None:
                    above = None
                    continue
                rows.append(["" if row[0] == above else escape(row[0]), *map(escape, row[1:])])
                above = row[0]
            parts.append(html_table([explained(column) for column in self.columns], classes, rows))
        return "".join([*parts, f'<p class="legend">{escape(self.note)}</p>' if self.note else ""])


def number(value: float, digits: int = 3) -> str:
    """A number for a cell; a dash for NaN."""
    return "–" if value != value else f"{value:.{digits}f}"


def p_value(value: float) -> str:
    """A p-value for a cell."""
    if value != value:
        return "–"
    return "<0.001" if value < 0.001 else f"{value:.3f}"
