"""Shared by tests of pages: what a reader sees."""

import re
import textwrap
from html.parser import HTMLParser


class Text(HTMLParser):
    """A page's text, where its links go, and its tables as rows of cell texts; between: what stands between parts."""

    between = " "

    def __init__(self, source):
        super().__init__()
        self.text, self.links, self.tables, self._cell = "", [], [], None
        self.feed(source)

    @property
    def words(self):
        """The text with single spaces."""
        return " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name == "href"]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self._cell = ""

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.tables[-1][-1].append(self._cell)
            self._cell = None

    def handle_data(self, data):
        self.text += data + self.between
        if self._cell is not None:
            self._cell += data


_BEGINS = {"h1": "# ", "h2": "## ", "h3": "### ", "li": "- ", "dt": "", "dd": "    ", "caption": "| ", "summary": "+ "}
_BLOCKS = {*_BEGINS, "p", "figcaption", "pre", "nav", "title"}


class Lines(HTMLParser):
    """A page as lines of plain text, for a comparison with what it should say.

    `# ` begins a heading, `- ` an item, `+ ` a part to be opened, `+ ## ` a section, `| ` a table's caption; a term and
    its text are two lines; the cells of a row stand between ` | `, the class of a column behind its heading.
    `[word](link)` is a link, `[word]` one to the glossary's entry of that word; `*word*` stands out. A class stands in
    parentheses.
    """

    def __init__(self, source):
        super().__init__()
        self._folded = False
        self.lines, self._line, self._kinds, self._row, self._link, self._from = [], None, [], None, None, 0
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in ("style", "svg"):
            self._kinds.append(tag)
            if tag == "svg":
                self.lines.append(f"figure: {given['aria-label']}")
        elif tag == "h2" and self._folded:
            self._line += "## "
        elif tag in _BLOCKS:
            self._folded = tag == "summary"
            self._line = _BEGINS.get(tag, "") + (f"({given['class']}) " if given.get("class") else "")
        elif tag in ("section", "ol"):
            self.lines.append(f"({given['class']})")
        elif tag == "tr":
            self._row = []
        elif tag in ("td", "th"):
            self._line = ""
            self._kind = (
                f" ({given['class']})" if tag == "th" and given["scope"] == "col" and given.get("class") else ""
            )
        elif tag == "a":
            self._link, self._from = given["href"], len(self._line)
        elif tag in ("b", "u"):
            self._line += "*"
        elif tag == "br":
            self._line += " / "
        elif tag == "meter":
            self._line += f"{given['value']}/{given['max']}"

    def handle_endtag(self, tag):
        if tag in ("style", "svg"):
            self._kinds.pop()
        elif tag == "h2" and self._folded:
            self._line += " "
        elif tag in _BLOCKS:
            self._folded = False
            self.lines.append(" ".join(self._line.split()) if tag != "dd" else f"    {' '.join(self._line.split())}")
            self._line = None
        elif tag in ("td", "th"):
            self._row.append(" ".join(self._line.split()) + self._kind)
            self._line = None
        elif tag == "tr":
            self.lines.append(" | ".join(self._row))
        elif tag == "a":
            word = self._line[self._from :]
            own = self._link == "#g-" + re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")
            self._line = f"{self._line[: self._from]}[{word}]" + ("" if own else f"({self._link})")
        elif tag in ("b", "u"):
            self._line += "*"

    def handle_data(self, data):
        if self._line is not None and not self._kinds:
            self._line += data


def page_lines(source, width=110):
    """The lines of a page, long ones broken; what follows a break is indented by eight."""
    return wrapped(Lines(source).lines, width)


def wrapped(lines, width=110):
    """`lines`, long ones broken; what follows a break is indented by eight."""
    how = {"subsequent_indent": " " * 8, "break_long_words": False, "break_on_hyphens": False}
    return [part for line in lines for part in textwrap.wrap(line, width, **how) or [""]]
