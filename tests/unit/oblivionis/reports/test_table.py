"""Tables in every format: what has a meaning there comes back as the text that it was."""

import csv
import io
import re
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from oblivionis.reports import run_summary as report
from oblivionis.reports.format import bytes_text, fixed, number, p_value, short
from oblivionis.reports.table import Marked, Table, Term

NASTY = [
    *(
        "a|b",
        "a & b",
        "&lt;b&gt;",
        "<script>alert(1)</script>",
        "50 % <0.001",
        "S_gap _x_ __y__",
        "two\nlines",
        "z* *em*",
    ),
    *("back\\slash \\| end\\", "`code` ~~gone~~", "[link](http://x)", "{brace} #1 $x^2$ ~", "[red]red[/red]", "“–” ±"),
]
ROWS = [["word " + text, Marked(text, "bold"), Marked(text, "alarm"), text] for text in NASTY]
TABLE = Table("Title | <i> & _t_", ["who\nis_it", "a|b", "<b>&", "c %\nd"], ROWS, "Note: <a & b> | _n_ 5 %.", texts=1)


def flat(text):
    return " ".join(text.split())


EXPECTED = [[flat(cell) for cell in row] for row in [TABLE.columns, *ROWS]]


class Cells(HTMLParser):
    """Tags, and the texts of the cells by row."""

    def __init__(self, source):
        super().__init__()
        self.rows, self.tags, self.text, self._cell = [], [], "", None
        self.feed("".join([source, ""]))  # a plain str: slices of Markup would be escaped when they are joined

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self._cell = ""

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.rows[-1].append(flat(self._cell))
            self._cell = None

    def handle_data(self, data):
        self.text += data
        if self._cell is not None:
            self._cell += data


def test_markdown_is_read_as_it_was_meant():
    page = Cells(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(TABLE.markdown()))
    assert page.rows == EXPECTED
    assert set(page.tags) == {"h2", "table", "thead", "tbody", "tr", "th", "td", "strong", "p"}
    assert flat(TABLE.title) in flat(page.text) and TABLE.note in page.text
    assert page.tags.count("strong") == 2 * len(ROWS)


def test_html_is_read_as_it_was_meant():
    for source in (str(TABLE.html()), TABLE.page()):
        page = Cells(source)
        assert page.rows == EXPECTED
        assert not {"script", "i", "u", "em"} & set(page.tags) and page.tags.count("b") == 2 * len(ROWS)
        assert flat(TABLE.title) in flat(page.text) and TABLE.note in page.text


def test_csv_is_read_as_it_was_meant():
    assert [[flat(c) for c in row] for row in csv.reader(io.StringIO(TABLE.csv()))] == EXPECTED
    assert len(TABLE.csv().splitlines()) == len(ROWS) + 1, "a line per row"


PLAIN = {
    **{rf"\{c}": c for c in "&%$#_{}"},
    **{r"\textasciitilde{}": "~", r"\textbackslash{}": "\\", r"\textasciicircum{}": "^"},
    **{r"\textless{}": "<", r"\textgreater{}": ">", r"\textbar{}": "|", "$\\pm$": "±", "--": "–"},
}
TOKEN = re.compile("|".join(map(re.escape, sorted(PLAIN, key=len, reverse=True))))


def unlatex(cell):
    cell = re.sub(r"^\\textbf{(.*)}$", r"\1", cell)
    assert not re.search(r"[&%$#_{}~^\\<>|]", TOKEN.sub("", cell)), f"{cell} means something"
    return TOKEN.sub(lambda found: PLAIN[found.group()], cell)


def test_latex_is_read_as_it_was_meant():
    lines = TABLE.latex().splitlines()
    body = lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")]
    assert len(body) == len(ROWS)
    for line, row in zip(body, EXPECTED[1:], strict=True):
        cells = re.split(r"(?<!\\)&", line.removesuffix(r"\\"))
        assert [unlatex(cell.strip()) for cell in cells] == row
    caption = next(line for line in lines if line.startswith(r"\caption"))
    assert unlatex(caption.removeprefix(r"\caption{")[:-1]) == f"{flat(TABLE.title)}. {TABLE.note}"


@pytest.mark.parametrize("framed", [False, True])
def test_a_terminal_shows_texts_as_they_are(framed):
    out = io.StringIO()
    table = Table(TABLE.title, TABLE.columns, ROWS, TABLE.note, texts=1, framed=framed)
    Console(file=out, width=400).print(table.rich())
    lines = [flat(re.sub(r"[│┃]", " ", line)) for line in out.getvalue().splitlines()]
    for row in EXPECTED[1:]:
        assert " ".join(row) in lines
    assert flat(TABLE.title) in lines and TABLE.note in lines


@pytest.mark.parametrize(
    ("width", "parts"),
    [
        (100, [[1, 2, 3, 4, 5]]),
        (37, [[1, 2, 3, 4, 5]]),
        (36, [[1, 2, 3, 4], [5]]),
        (30, [[1, 2, 3, 4], [5]]),
        (29, [[1, 2, 3], [4, 5]]),
        (23, [[1], [2, 3], [4, 5]]),
        (18, [[1], [2, 3], [4], [5]]),
        (17, [[1], [2], [3], [4], [5]]),
        (3, [[1], [2], [3], [4], [5]]),
    ],
)
def test_columns_that_do_not_fit_come_below_those_of_one_heading_together(width, parts):
    """Words and numbers take 6 characters with the gap, the last numbers 7; the second and third are of one heading."""
    heads = ["of", "n", "a\nx", "a\ny", "b", "c"]
    table = Table("T", heads, [["word", "1234", "1234", "1234", "1234", "12345"]], texts=1)
    assert table.parts(width) == parts


def test_a_framed_table_is_one_piece_with_lines():
    rows = [["g", "m", "1", "2"], ["g", "n", "3", "4"], None, ["h", "m", "5", Marked("6", "alarm")]]
    table = Table("T", ["group", "measure", "one", "two"], rows, framed=True)
    assert table.parts(10) == [[2, 3]]
    console = Console(file=io.StringIO(), width=60, record=True, force_terminal=True)
    console.print(table.rich())
    shown = console.export_text(clear=False).splitlines()
    assert [line.strip("│┃ ").replace("│", " ").split() for line in shown if line.startswith("│")] == [
        *(["g", "m", "1", "2"], ["n", "3", "4"], ["h", "m", "5", "6"]),
    ]
    assert sum(line.startswith("├") for line in shown) == 1 and shown[-1].startswith("└")
    assert "\x1b[1;31m  6" in console.export_text(styles=True)


def test_a_first_cell_that_repeats_the_one_above_is_blank_within_its_group():
    rows = [["g", "1"], ["g", "2"], ["h", "3"], None, ["h", "4"], ["h", "5"]]
    page = Cells(str(Table("T", ["of", "n"], rows, texts=1).html_table())).rows[1:]
    assert page == [["g", "1"], ["", "2"], ["h", "3"], ["h", "4"], ["", "5"]]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(Table("T", ["of", "n"], rows, texts=1, framed=True).rich())
    lines = [line.strip("│").split("│") for line in console.export_text().splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in line] for line in lines] == page


def test_words_are_explained_under_the_name_that_the_glossary_has():
    table = Table("T", ["measure", Term("unlearned", "Unlearned model")], [["Prob", "Prob"]], texts=1)
    page = str(table.html_table())
    assert page.count('href="#g-prob"') == 1, "a number is no word"
    assert 'href="#g-unlearned-model"' in page and ">unlearned<" in page
    assert 'id="g-unlearned-model"' in table.page()
    assert Table("T", ["a"]).html_table() is None


def test_a_run_and_its_formats_have_the_same_numbers():
    metrics = {"finetune": {"forget_prob": 0.5, "retain_prob": 1e-5}, "unlearn": {"forget_prob": 0.25}}
    table = report.comparison(metrics, "A run", {"forget_prob": "↓"})
    rows = [
        ["questions", "measure", "finetuned", "unlearned"],
        ["Forget", "Prob", "0.500", "↓ 0.250"],
        ["Retain", "Prob", "1.0e-5", "–"],
    ]
    assert list(csv.reader(io.StringIO(table.csv()))) == rows
    assert Cells(str(table.html_table())).rows == rows
    assert "| Forget | Prob | 0.500 | **↓ 0.250** |" in table.markdown()
    assert r"Forget & Prob & 0.500 & \textbf{$\downarrow$ 0.250} \\" in table.latex()
    assert '<b class="mark">↓ 0.250</b>' in str(table.html_table())


def test_numbers():
    nan = float("nan")
    assert [fixed(0.12345), fixed(-1.0, 1), fixed(nan, 2)] == ["0.123", "-1.0", "–"]
    assert [short(0.004567, None), short(2.0, None), short(2.0, 3), short(nan, None)] == [
        "0.0046",
        "2.00",
        "2.000",
        "–",
    ]
    assert [p_value(0.00099), p_value(0.001), p_value(nan)] == ["<0.001", "0.001", "–"]
    assert [number(None), number(nan), number(0.0), number(2.0), number(-2.0)] == ["–", "–", "0.000", "2.000", "-2.000"]
    assert [number(1.2e-4), number(-1.2e-4), number(9.99e-4), number(1e-3)] == ["1.2e-4", "-1.2e-4", "1.0e-3", "0.001"]
    assert [bytes_text(n) for n in (0, 999, 1000, 1023, 1.5e6, 2e9, 3e12, 4e15)] == (
        ["0 B", "999 B", "1 kB", "1.02 kB", "1.5 MB", "2 GB", "3 TB", "4e+03 TB"]
    )


WHOLE = Table(
    "A title",
    ["of", "what", "first\nx", "first\ny", "second"],
    [
        ["g", "m", "1", Marked("2", "bold"), "3"],
        None,
        ["g", "n", Marked("4", "underline"), "5", Marked("6", "alarm")],
        None,
    ],
    "A note",
)


def test_every_line_of_the_markdown():
    """A line break in a heading becomes a space; a row that ends a group is no row."""
    assert WHOLE.markdown().splitlines() == [
        "## A title",
        "",
        "| of | what | first x | first y | second |",
        "| --- | --- | ---: | ---: | ---: |",
        "| g | m | 1 | **2** | 3 |",
        "| g | n | <u>4</u> | 5 | **6** |",
        "",
        "A note",
    ]
    assert Table("T", ["a"], [["x"]]).markdown() == "## T\n\n| a |\n| --- |\n| x |\n"


def test_every_line_of_the_latex():
    """Columns of one heading share it; the last group has no rule below it."""
    assert WHOLE.latex().splitlines() == [
        r"\begin{table}",
        r"\centering",
        r"\caption{A title. A note}",
        r"\begin{tabular}{llrrr}",
        r"\toprule",
        r" &  & \multicolumn{2}{c}{first} &  \\",
        r"of & what & x & y & second \\",
        r"\midrule",
        r"g & m & 1 & \textbf{2} & 3 \\",
        r"\midrule",
        r"g & n & \underline{4} & 5 & \textbf{6} \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    plain = Table("T", ["a", "b"], [["x", "1"]], texts=1).latex().splitlines()
    assert plain[2:7] == [r"\caption{T}", r"\begin{tabular}{lr}", r"\toprule", r"a & b \\", r"\midrule"]


def test_columns_beside_each_other_with_other_headings_share_none():
    heads = Table("T", ["a\nx", "b\nx", "b\ny", "b"], [["1", "2", "3", "4"]], texts=0).latex().splitlines()[5:7]
    assert heads == [r"\multicolumn{1}{c}{a} & \multicolumn{2}{c}{b} &  \\", r"x & x & y & b \\"]


def test_every_line_of_the_values():
    assert WHOLE.csv() == "of,what,first x,first y,second\ng,m,1,2,3\ng,n,4,5,6\n"


def test_every_element_of_the_html():
    source = re.sub(r'<a class="term"[^>]*><abbr[^>]*>|</abbr></a>', "", str(WHOLE.html()))
    assert source.startswith("<h3>A title</h3><div") and source.endswith('</div><p class="legend">A note</p>')
    rows = re.findall(r"<tr(?: class=\"first\")?>(.*?)</tr>", source)
    assert rows == [
        '<th scope="col">of</th><th scope="col">what</th><th class="n" scope="col">first x</th>'
        '<th class="n" scope="col">first y</th><th class="n" scope="col">second</th>',
        '<th scope="row">g</th><td>m</td><td class="n">1</td><td class="n"><b>2</b></td><td class="n">3</td>',
        '<th scope="row">g</th><td>n</td><td class="n"><u>4</u></td><td class="n">5</td>'
        '<td class="n"><b class="mark">6</b></td>',
    ]
    assert "legend" not in str(Table("T", ["a"], [["x"]]).html())


def printed(table, width):
    out = io.StringIO()
    Console(file=out, width=width).print(table.rich())
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_every_line_on_a_terminal_wide_and_narrow():
    table = Table("T", ["of", "a", "b"], [["x", "1", "20"], ["x", "3", "4"], None, ["y", "5", "6"]], "N", texts=1)
    assert printed(table, 11) == ["T", "of  a   b", "─" * 9, "x   1  20", "    3   4", "", "y   5   6", "", "N", ""]
    assert printed(table, 10) == [
        *("T", "of  a", "─" * 5, "x   1", "    3", "", "y   5", ""),
        *("of   b", "─" * 6, "x   20", "     4", "", "y    6", "", "N", ""),
    ]
    bare = Table("T", ["of", "a"], [["x", "1"]], texts=1, framed=True)
    assert printed(bare, 80)[-1].startswith("└"), "no blank line where there is no note"
    assert printed(Table("T", ["a"]), 80)[0] == "T" and len(printed(Table("T", ["a"], framed=True), 80)) == 1


@pytest.mark.parametrize("framed", [False, True])
def test_cells_of_a_framed_table_alone_may_be_broken(framed):
    columns = Table("T", ["of", "a"], [["x", "1"]], texts=1, framed=framed).part([1]).columns
    assert [(column.no_wrap, column.justify) for column in columns] == [(not framed, "left"), (not framed, "right")]
