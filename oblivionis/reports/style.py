"""The style sheet of every page: light and dark, desk and phone, screen and paper."""

from __future__ import annotations

from markupsafe import Markup

STYLE = Markup("""
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1b1f; --dim: #55565e; --rule: #8886; --soft: #8881;
  --link: #0b57d0; --good: #1e7d3c; --bad: #b3261e; --badback: #b3261e14; --note: #7a5600; --noteback: #b5820014;
  font-family: system-ui, sans-serif; line-height: 1.45 }
@media (prefers-color-scheme: dark) {
  :root { --paper: #17181c; --ink: #e6e6ea; --dim: #b3b4bd; --link: #8ab4f8; --good: #7ccf94; --bad: #ff8a80;
    --badback: #ff8a801a; --note: #f0c35b; --noteback: #f0c35b14 } }
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
thead th { vertical-align: bottom }
tbody th { font-weight: inherit }
caption { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; white-space: nowrap }
div.wide { overflow-x: auto; position: relative }
tr.first > * { border-top: 2px solid var(--rule) }
td, th { overflow-wrap: break-word }
td.text, tbody th.text { min-width: 16rem }
td.label, tbody th.label { min-width: 10rem }
td.n, th.n { text-align: right }
td.n, th.n { font-variant-numeric: tabular-nums }
td.n, tbody th.n, td.who, tbody th.who { white-space: nowrap }
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
a, b, code { unicode-bidi: isolate }
ol.life { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .6rem }
ol.life li { flex: 1 1 11rem; border-top: .25rem solid var(--rule); padding: .3rem 0; overflow-wrap: anywhere }
ol.life li.done { border-color: var(--good) }
ol.life li.open { border-top-style: dashed }
ol.life li.bad { border-color: var(--bad) }
ol.life b { display: block }
ol.life span { color: var(--dim); font-size: .92em }
figure { margin: 1rem 0 }
p.terms, p.legend, figcaption { color: var(--dim); font-size: .92em }
div.figure svg { display: block; max-width: 100%; height: auto }
div.wide.figure svg { min-width: 36rem }
div.panels { display: flex; flex-wrap: wrap; gap: .6rem 1rem }
div.panels > div.figure { flex: 1 1 18rem; max-width: 32rem }
div.panels svg { width: 100% }
pre { overflow-x: auto; background: var(--soft); padding: .8rem }
b.mark, .bad { color: var(--bad) }
p.outcome { font-size: 1.15rem; font-weight: 600; border-left: .3rem solid var(--good); padding-left: .8rem }
p.lead { color: var(--dim) }
div.overview { display: flex; flex-wrap: wrap; gap: 0 2.2rem; align-items: center }
div.overview > figure, div.overview > [data-live] { flex: 1 1 26rem; max-width: 38rem; min-width: 0 }
div.overview svg, details.section > figure svg { width: 100%; max-width: 38rem }
div.numbers { flex: 1 1 14rem }
div.numbers > p { color: var(--dim); margin: .2rem 0 }
div.numbers dl { margin: 0; display: grid; gap: .9rem 1rem;
  grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)) }
div.numbers dd { margin: 0 }
div.numbers dd b { display: block; font-size: 1.7rem; line-height: 1.15; font-variant-numeric: tabular-nums }
div.numbers dd span { color: var(--dim); font-size: .85em }
td.break, tbody th.break { overflow-wrap: anywhere }
td.break small { display: block; color: var(--dim) }
details.section { border-bottom: 1px solid var(--rule) }
details.section > summary { padding: .5rem 0; margin: 0; overflow-wrap: anywhere }
details.section > summary > h2 { display: inline; border: 0; margin: 0; font-size: 1.05rem }
details.section > summary > .note { color: var(--dim); font-size: .92em; margin-left: .4rem }
b.good { color: var(--good) }
b.bad { color: var(--bad) }
p.outcome.doubtful { border-color: var(--note) }
p.outcome.bad { border-color: var(--bad) }
summary { cursor: pointer; margin: .4rem 0 }
@media (max-width: 40rem) {
  body { margin: 1rem auto; padding: 0 .6rem }
  table { font-size: .76rem }
  th, td { padding: .25rem .2rem }
  th { font-size: .68rem }
  tbody th { font-size: inherit }
  td.break, tbody th.break { font-size: .84rem }
  td.text, tbody th.text { min-width: 14rem }
  dl.facts { grid-template-columns: 1fr; gap: 0 }
  dl.facts dd { margin-bottom: .5rem }
}
@media print {
  :root { color-scheme: light; --paper: #fff; --ink: #000; --dim: #333; --rule: #888; --good: #060; --bad: #900;
    --note: #630; --link: #000; font-size: 10pt }
  body { max-width: none; margin: 0 }
  nav { display: none }
  div.wide { overflow: visible }
  div.wide.figure svg { min-width: 0 }
  td.text, tbody th.text, td.label, tbody th.label { min-width: 0 }
  tr, figure, section.warnings li { break-inside: avoid }
  h2, h3, summary, dt { break-after: avoid }
  details.section:not(.screen)::details-content { content-visibility: visible; display: block; block-size: auto }
  div.overview { break-inside: avoid }
  thead { display: table-header-group }
}
""")
"""`Markup`: the text of a style element is not HTML, `>` in a selector must stay as it is."""
