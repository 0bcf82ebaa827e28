"""What the pages of a report share: their frame, their style, terms with a definition, tables and figures."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from oblivionis.reports.glossary import GLOSSARY

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1b1f; --dim: #55565e; --rule: #8886; --soft: #8881;
  --link: #0b57d0; --bad: #b3261e; --badback: #b3261e14; --note: #7a5600; --noteback: #b5820014;
  font-family: system-ui, sans-serif; line-height: 1.45 }
@media (prefers-color-scheme: dark) {
  :root { --paper: #17181c; --ink: #e6e6ea; --dim: #b3b4bd; --link: #8ab4f8; --bad: #ff8a80; --badback: #ff8a801a;
    --note: #f0c35b; --noteback: #f0c35b14 } }
html { scroll-behavior: smooth }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; background: var(--paper); color: var(--ink) }
h1 { line-height: 1.2 }
h1, h2, h3, p, li, dd, dt, summary { overflow-wrap: break-word }
h2 { margin-top: 2.2rem; border-bottom: 1px solid var(--rule) }
a { color: var(--link) }
a.term { color: inherit; text-decoration: none }
abbr { text-decoration: underline dotted; cursor: help }
a.term:focus-visible > abbr::after, abbr:focus-visible::after { content: attr(title); position: fixed; left: 1rem;
  right: 1rem; bottom: 1rem; z-index: 9; padding: .7rem 1rem; border: 1px solid var(--rule); white-space: normal;
  background: var(--paper); color: var(--ink); font-weight: normal; text-align: left; box-shadow: 0 2px 12px #0006 }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: 1rem 0 }
table { border-collapse: collapse; margin: 1rem 0; width: 100% }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--rule); text-align: left; vertical-align: top }
th { vertical-align: bottom }
div.wide { overflow-x: auto }
tr.first td { border-top: 2px solid var(--rule) }
td { overflow-wrap: break-word }
td.text { min-width: 16rem }
td.n, th.n { text-align: right }
td.n { font-variant-numeric: tabular-nums; white-space: nowrap }
td.who { white-space: nowrap }
dl.facts { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .3rem 1.2rem; margin: 1rem 0 }
dl.facts dt { color: var(--dim) }
dl.facts dd { margin: 0; min-width: 0; overflow-wrap: anywhere }
dl.glossary dt { margin-top: .8rem; font-weight: 600 }
dl.glossary dd { margin-left: 1.2rem }
dl.glossary dt:target, dl.glossary dt:target + dd { background: var(--noteback) }
section.warnings { border-left: .3rem solid var(--bad); background: var(--badback); padding: .2rem 1rem;
  margin: 1rem 0 }
section.warnings.limits { border-color: var(--note); background: var(--noteback) }
section.warnings h2 { margin: .6rem 0 0; border: 0; font-size: 1.1rem }
section.warnings ul { padding-left: 1.2rem; margin: .6rem 0 }
section.warnings li { margin: .4rem 0 }
code { overflow-wrap: anywhere }
figure { margin: 1rem 0 }
p.terms, p.legend, figcaption { color: var(--dim); font-size: .92em }
div.figure { overflow-x: auto }
div.figure svg { display: block; min-width: 36rem; max-width: 100%; height: auto }
pre { overflow-x: auto; background: var(--soft); padding: .8rem }
b.mark, .bad { color: var(--bad) }
summary { cursor: pointer; margin: .4rem 0 }
@media (max-width: 40rem) {
  body { margin: 1rem auto; padding: 0 .6rem }
  table { font-size: .76rem }
  th, td { padding: .25rem .2rem }
  th { font-size: .68rem }
  dl.facts { grid-template-columns: 1fr; gap: 0 }
  dl.facts dd { margin-bottom: .5rem }
}
@media print {
  :root { color-scheme: light; --paper: #fff; --ink: #000; --dim: #333; --rule: #888; --bad: #900; --note: #630;
    --link: #000; font-size: 10pt }
  body { max-width: none; margin: 0 }
  nav { display: none }
  div.wide, div.figure { overflow: visible }
  div.figure svg { min-width: 0 }
  td.text { min-width: 0 }
  tr, figure, section.warnings li { break-inside: avoid }
  h2, h3 { break-after: avoid }
  thead { display: table-header-group }
}
"""

INK, PAPER = "#010203", "#040506"
"""Colours of a figure that become the page's own, so that it can be read on light and on dark."""
FIGURE_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "oblivionis",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"), INK
    ),
}


def html_page(title: str, parts: Iterable[str]) -> str:
    """A page that needs no other file; `parts` are HTML already, the title is not."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>{''.join(parts)}</body></html>\n"
    )


def html_table(head: Sequence[str], classes: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table of cells that are HTML already; a row with a text in its first cell starts a group of rows."""

    def row(cells: Sequence[str], tag: str) -> str:
        return "".join(f'<{tag} class="{c}">{cell}</{tag}>' for c, cell in zip(classes, cells, strict=True))

    rows = list(rows)
    grouped = not all(r[0] for r in rows)
    body = "".join(f"<tr{' class=first' if grouped and r[0] else ''}>{row(r, 'td')}</tr>" for r in rows)
    return f'<div class="wide"><table><thead><tr>{row(head, "th")}</tr></thead><tbody>{body}</tbody></table></div>'


def facts_list(facts: Mapping[str, str]) -> str:
    """Labels and what belongs to them, both HTML already; facts without a text are left out."""
    rows = "".join(f"<dt>{label}</dt><dd>{text}</dd>" for label, text in facts.items() if text)
    return f'<dl class="facts">{rows}</dl>'


def warning_list(title: str, texts: Sequence[str], *, limits: bool = False) -> str:
    """A box with a line for each of the texts, which are not HTML; nothing without any. `limits`: of less weight."""
    if not texts:
        return ""
    items = "".join(f"<li>{with_code(text)}</li>" for text in texts)
    kind = "warnings limits" if limits else "warnings"
    return f'<section class="{kind}"><h2>{html.escape(title)}</h2><ul>{items}</ul></section>'


def with_code(text: str) -> str:
    """A plain text as HTML; what stands between backticks is set as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))


def anchor(term: str) -> str:
    """The id of a term of the glossary within a page."""
    return "g-" + re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")


def explained(term: str, text: str | None = None) -> str:
    """`text` (default: the term) with the term's definition on hover and on focus, linked to the glossary.

    A term that the glossary lacks comes back as plain text.
    """
    shown = html.escape(term if text is None else text)
    if term not in GLOSSARY:
        return shown
    meaning = html.escape(GLOSSARY[term].replace("`", ""), quote=True)
    return f'<a class="term" href="#{anchor(term)}"><abbr title="{meaning}">{shown}</abbr></a>'


def glossary(body: str) -> str:
    """The glossary of a page: the terms that `body`, HTML, links to."""
    used = set(re.findall(r'href="#(g-[^"]+)"', body))
    entries = "".join(
        f'<dt id="{anchor(term)}">{html.escape(term)}</dt><dd>{with_code(meaning)}</dd>'
        for term, meaning in GLOSSARY.items()
        if anchor(term) in used
    )
    if not entries:
        return ""
    return f'<h2 id="glossary">What the words mean</h2><dl class="glossary">{entries}</dl>'


def section_heading(name: str, title: str, *terms: str) -> str:
    """A heading that can be linked to as `#name`, with links to the glossary's entries for `terms` after it."""
    links = ", ".join(explained(term) for term in terms if term in GLOSSARY)
    return f'<h2 id="{name}">{html.escape(title)}</h2>' + (
        f'<p class="terms">What is meant by: {links}.</p>' if links else ""
    )


def svg_figure(figure: Figure, name: str, label: str) -> str:
    """A matplotlib figure as inline SVG in the page's own colours; it is closed. `label` says what can be seen.

    `name` must be unique in the page: it keeps the ids apart.
    """
    buffer = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with matplotlib.rc_context(FIGURE_STYLE):
        figure.savefig(buffer, format="svg", metadata=nothing, transparent=True)
    plt.close(figure)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor").replace(PAPER, "var(--paper)")
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    head = f'<svg role="img" aria-label="{html.escape(label, quote=True)}"'
    return f'<div class="figure">{head}{svg[4:]}</div>'
