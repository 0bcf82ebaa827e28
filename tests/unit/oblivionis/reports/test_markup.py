"""The components of pages, by themselves."""

import ast
from pathlib import Path

import htpy as h
import pytest
from support.hostile import Parsed

import benchmarks
import oblivionis
from oblivionis.reports.glossary import GLOSSARY
from oblivionis.reports.markup import (
    anchor,
    captioned,
    contents,
    explained,
    facts_list,
    folded,
    html_page,
    html_table,
    joined,
    paragraphs,
    section_heading,
    warning_list,
    with_code,
)

SOURCES = [p for package in (oblivionis, benchmarks) for p in Path(*package.__path__).rglob("*.py")]
RAW = ("reports/svg.py", "reports/style.py")
"""The modules that may hand on text as it is: matplotlib's drawings, and the style sheet."""


def imported(path):
    """(module, name) of every import of a file, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.slow
def test_no_module_escapes_or_marks_by_hand():
    found = {path: set(imported(path)) for path in SOURCES}
    assert len(found) > 150
    assert not [path for path, names in found.items() if {module for module, _ in names} & {"html", "cgi"}]
    raw = {path for path, names in found.items() if any(module == "markupsafe" for module, _ in names)}
    assert {path.as_posix().split("oblivionis/")[-1] for path in raw} == set(RAW)


def test_a_page_explains_the_terms_that_it_links_to():
    source = html_page("A <title>", [h.p[explained("Prob")], h.p['not a link: href="#g-stage" ']], h.p["foot"])
    assert source.startswith("<!doctype html>") and source.endswith("</html>\n") and 'lang="en"' in source
    page = Parsed(source)
    assert page.links == ["#g-prob"] and [a["id"] for _, a in page.tags if "id" in a] == ["main", "glossary", "g-prob"]
    assert "A <title>" in page.shown and page.shown.endswith("foot\n")
    assert "What the words mean" not in html_page("x", [h.p["nothing"]])


def test_a_term_has_its_meaning_at_hand_and_others_are_texts():
    (link, abbr) = Parsed(str(explained("Model utility", "<utility>"))).tags
    assert link == ("a", {"class": "term", "href": "#g-model-utility"})
    assert abbr == ("abbr", {"title": GLOSSARY["Model utility"]})
    assert explained("No such <term>") == "No such <term>"
    assert explained("No such term", "its text") == "its text"


@pytest.mark.parametrize(
    ("rows", "first"),
    [([["a", "1"], ["b", "2"]], [False, False]), ([["a", "1"], ["", "2"], [h.b["c"], "3"]], [True, False, True])],
)
def test_rows_are_grouped_where_a_first_cell_is_blank(rows, first):
    source = str(html_table(["x", "y"], ["", "n"], rows, "What <it> is"))
    page = Parsed(source)
    body = [attributes for tag, attributes in page.tags if tag == "tr"][1:]
    assert [attributes.get("class") == "first" for attributes in body] == first
    heads = [attributes for tag, attributes in page.tags if tag == "th"]
    assert heads[:2] == [{"scope": "col"}, {"class": "n", "scope": "col"}]
    assert heads[2:] == [{"scope": "row"}] * sum(bool(row[0]) for row in rows), "a blank cell heads no row"
    assert [a.get("class") for tag, a in page.tags if tag == "td"].count("n") == len(rows)
    assert "<caption>What &lt;it&gt; is</caption>" in source
    (around,) = (attributes for tag, attributes in page.tags if tag == "div")
    assert around == {"class": "wide", "role": "region", "aria-label": "What <it> is", "tabindex": "0"}


def test_a_row_has_as_many_cells_as_the_table_has_columns():
    with pytest.raises(ValueError, match="zip"):
        html_table(["x", "y"], ["", ""], [["a"]], "one cell too few")


def test_facts_without_a_text_are_left_out():
    facts = facts_list([("a", "<1>"), ("b", ""), ("c", None), ("d", h.code["2"])])
    assert str(facts) == '<dl class="facts"><dt>a</dt><dd>&lt;1&gt;</dd><dt>d</dt><dd><code>2</code></dd></dl>'


def test_warnings_and_paragraphs():
    assert warning_list("Warnings", []) is None
    box = str(warning_list("How far", ["see `a < b`"], limits=True))
    assert box.startswith('<section class="warnings limits"><h2>How far</h2>')
    assert "<li>see <code>a &lt; b</code></li>" in box
    assert [str(p) for p in paragraphs(["<a>", "b"], "legend")] == [
        '<p class="legend">&lt;a&gt;</p>',
        '<p class="legend">b</p>',
    ]


def test_texts_with_code_and_joined_nodes():
    assert str(h.p[with_code("`a` or `b`, not `c")]) == "<p><code>a</code> or <code>b</code>, not `c</p>"
    assert str(h.p[joined([h.b["a"], "<b>", "c"], ", ")]) == "<p><b>a</b>, &lt;b&gt;, c</p>"
    assert joined([], ", ") == []


def test_a_heading_names_only_terms_that_are_explained():
    assert str(section_heading("x", "X & Y", "no such term")) == '<h2 id="x">X &amp; Y</h2>'
    assert Parsed(str(section_heading("x", "X", "Stage", "none", "Round"))).shown == "XWhat is meant by: Stage, Round."


def test_paragraphs_keep_the_order_of_their_texts():
    assert [str(p) for p in paragraphs(["b", "a", "a"], "dim")] == [f'<p class="dim">{x}</p>' for x in "baa"]


def test_the_parts_of_a_page_stand_in_their_order():
    page = html_page("T", [h.p["one"], h.p["two"]], h.p["foot"], head=h.link(href="s"), banner=h.p["banner"])
    body = page.split("</head>")[1]
    assert body == '<body><p>banner</p><main id="main"><p>one</p><p>two</p><p>foot</p></main></body></html>\n'
    assert page.split("</head>")[0] == (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>T</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link href="s">'
    )
    own = html_page("T", [explained("Round")])
    assert "<style>" in own and own.split("</style>")[1].startswith('</head><body><main id="main"><a class="term"')


def test_small_components():
    assert str(contents(["a", "b"])) == '<nav aria-label="Contents"><a href="#a">a</a><a href="#b">b</a></nav>'
    assert str(folded("t", h.p["c"])) == "<details><summary>t</summary><p>c</p></details>"
    assert str(captioned("d", "c")) == "<figure>d<figcaption>c</figcaption></figure>"
    assert [anchor(term) for term in ("Forget quality (KS p)", "M_bin", "Over-unlearned (↓)")] == [
        "g-forget-quality-ks-p",
        "g-m-bin",
        "g-over-unlearned",
    ]
    assert str(paragraphs(["see `a`"])[0]) == "<p>see <code>a</code></p>"
    assert str(warning_list("W", ["a"])).startswith('<section class="warnings"><h2>W</h2><ul><li>a</li>')


def test_a_definition_on_hover_has_no_backticks_and_in_the_glossary_they_are_code():
    page = html_page("T", [explained("ROUGE-L recall"), explained("No term")])
    (title,) = [a["title"] for tag, a in Parsed(page).tags if tag == "abbr"]
    assert "`" not in title and title == GLOSSARY["ROUGE-L recall"].replace("`", "")
    assert page.count("<dt ") == 1 and "<code>evaluation.rouge=any_script</code>" in page
