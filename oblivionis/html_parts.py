"""What the pages of a run's report share: their frame, their style and their tables."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

STYLE = """
:root { color-scheme: light dark; font-family: system-ui, sans-serif; line-height: 1.45 }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; width: 100% }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #8884; text-align: left; vertical-align: top }
div.wide { overflow-x: auto }
tr.first td { border-top: 2px solid #8888 }
td { overflow-wrap: anywhere }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
td.who { white-space: nowrap }
figure { margin: 1rem 0; background: #fff; color: #333; padding: .5rem }
svg { max-width: 100%; height: auto }
abbr { text-decoration: underline dotted; cursor: help }
pre { overflow-x: auto; background: #8881; padding: .8rem }
b.mark { color: #d33 }
summary { cursor: pointer }
"""


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
