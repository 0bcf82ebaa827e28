"""Shared by tests of pages: what a reader sees."""

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
