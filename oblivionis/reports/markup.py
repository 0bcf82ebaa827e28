"""What pages are composed of: their shell, tables, lists of facts, warnings, figures, terms with a definition.

A page is a tree of htpy's elements, which escape every text and every attribute; no HTML is put together by hand. A
`Markup`, text that is taken as it is, stands in two places only: the style sheet (`oblivionis.reports.style`) and what
matplotlib has drawn (`oblivionis.reports.svg`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import htpy as h

from oblivionis.reports.glossary import GLOSSARY
from oblivionis.reports.style import STYLE

MAIN = "main"
"""The id of what a page is about."""


def html_page(
    title: str, parts: Iterable[h.Node], foot: h.Node = None, *, head: h.Node = None, banner: h.Node = None
) -> str:
    """A page: `banner`, then `parts`, the glossary of the terms that they link to, and `foot`.

    head: where its style sheet lies; None: within the page, which then needs no other file.
    """
    body = str(h.fragment[list(parts)])  # a `Markup`: rendered once, then searched for terms
    page = h.html(lang="en")[
        h.head[
            h.meta(charset="utf-8"),
            h.title[title],
            h.meta(name="viewport", content="width=device-width, initial-scale=1"),
            h.style[STYLE] if head is None else head,
        ],
        h.body[banner, h.main(id=MAIN)[body, _glossary(body), foot]],
    ]
    return f"{page}\n"


def contents(names: Iterable[str]) -> h.Element:
    """Links to the sections of a page, each by its name."""
    return h.nav(aria_label="Contents")[[h.a(href=f"#{name}")[name] for name in names]]


def section_heading(name: str, title: str, *terms: str) -> h.Renderable:
    """A heading that can be linked to as `#name`, with links to the glossary's entries for `terms` after it."""
    return h.fragment[h.h2(id=name)[title], meant(*terms)]


def meant(*terms: str) -> h.Node:
    """Links to the glossary's entries for `terms`."""
    links = [explained(term) for term in terms if term in GLOSSARY]
    return h.p(".terms")["What is meant by: ", joined(links, ", "), "."] if links else None


def html_table(
    head: Sequence[h.Node], classes: Sequence[str], rows: Iterable[Sequence[h.Node]], caption: str
) -> h.Element:
    """A table whose columns have these classes; a row with something in its first cell starts a group of rows.

    caption: what it is a table of, for who does not see it below its heading. Where it is wider than the window it
    scrolls, also by keyboard.
    """
    rows = list(rows)
    grouped = not all(row[0] for row in rows)
    return h.div(".wide", role="region", aria_label=caption, tabindex="0")[
        h.table[
            h.caption[caption],
            h.thead[h.tr[[h.th(class_=c, scope="col")[cell] for c, cell in zip(classes, head, strict=True)]]],
            h.tbody[
                [
                    h.tr(class_={"first": grouped and bool(row[0])})[
                        _row_head(classes[0], row[0]),
                        [h.td(class_=c)[cell] for c, cell in zip(classes[1:], row[1:], strict=True)],
                    ]
                    for row in rows
                ]
            ],
        ]
    ]


def _row_head(kind: str, cell: h.Node) -> h.Element:
    """The first cell of a row, which says what the row is about."""
    return h.th(class_=kind, scope="row")[cell] if cell else h.td(class_=kind)


def facts_list(facts: Iterable[tuple[h.Node, h.Node]]) -> h.Element:
    """Labels and what belongs to them; facts without a text are left out."""
    return h.dl(".facts")[[[h.dt[label], h.dd[text]] for label, text in facts if text]]


def warning_list(title: str, texts: Sequence[str], *, limits: bool = False) -> h.Node:
    """A box with a line for each of the texts; nothing without any. `limits`: of less weight."""
    if not texts:
        return None
    return h.section(class_=["warnings", {"limits": limits}])[
        h.h2[title], h.ul[[h.li[with_code(text)] for text in texts]]
    ]


def paragraphs(texts: Iterable[str], kind: str = "") -> list[h.Element]:
    """A paragraph for each of the texts, of the class `kind`; what stands between backticks is set as code."""
    return [h.p(class_=kind)[with_code(text)] for text in texts]


def folded(title: h.Node, content: h.Node) -> h.Element:
    """A part of a page that can be opened."""
    return h.details[h.summary[title], content]


def section(name: str, title: h.Node, content: h.Node, note: h.Node = None, *, printed: bool = True) -> h.Element:
    """A section that can be linked to as `#name`, folded to its heading and a `note` that says what is in it.

    printed: on paper it is open, else its heading alone is there.
    """
    return h.details(class_=["section", {"screen": not printed}])[
        h.summary[h.h2(id=name)[title], [" ", h.span(".note")[note]] if note else None], content
    ]


def captioned(drawing: h.Node, caption: h.Node) -> h.Element:
    """A figure with what is to be known of it below."""
    return h.figure[drawing, h.figcaption[caption]]


def with_code(text: str) -> list[h.Node]:
    """A text; what stands between backticks is set as code."""
    return [h.code[part] if i % 2 else part for i, part in enumerate(re.split("`([^`]+)`", text))]


def joined(nodes: Iterable[h.Node], separator: str) -> list[h.Node]:
    """As `separator.join` of texts."""
    return [part for i, node in enumerate(nodes) for part in ((separator, node) if i else (node,))]


def anchor(term: str) -> str:
    """The id of a term of the glossary within a page."""
    return "g-" + re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")


def explained(term: str, text: str | None = None) -> h.Node:
    """`text` (default: the term) with the term's definition on hover and on focus, linked to the glossary.

    A term that is not in the glossary comes back as plain text.
    """
    shown = term if text is None else text
    if term not in GLOSSARY:
        return shown
    return h.a(".term", href=f"#{anchor(term)}")[h.abbr(title=GLOSSARY[term].replace("`", ""))[shown]]


def _glossary(body: str) -> h.Node:
    """The terms that `body`, HTML, links to, and what they mean; nothing without any."""
    used = set(re.findall(r'href="#(g-[^"]+)"', body))
    entries = {term: meaning for term, meaning in GLOSSARY.items() if anchor(term) in used}
    if not entries:
        return None
    return [
        section_heading("glossary", "What the words mean"),
        h.dl(".glossary")[
            [[h.dt(id=anchor(term))[term], h.dd[with_code(meaning)]] for term, meaning in entries.items()]
        ],
    ]
