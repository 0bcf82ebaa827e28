"""The reports in a real browser, without a network: nothing is fetched, nothing runs over, every link has an end."""

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from support.chromium import AXE, CHROMIUM, MISSING, NO_AXE, browser
from support.reports import HOSTILE, ask, log_of, make_run, metrics_of
from support.suite_view import view

from benchmarks.output.page import write_suite_html
from oblivionis.reports.html import run_page as html_report

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=MISSING)]
PAGES = ["report", "request", "suite"]
LOOK = """({dark: matchMedia('(prefers-color-scheme: dark)').matches,
  paper: getComputedStyle(document.body).backgroundColor})"""
CUT = "[...document.querySelectorAll('div.figure')].map(e => e.scrollWidth - e.clientWidth)"
MOVED = "(table => table.scrollWidth - table.clientWidth)(document.querySelector('#requests ~ div.wide'))"
OPEN = "document.querySelectorAll('details').forEach(part => part.open = true)"
BELOW = """[...document.querySelectorAll('details.section')].map(part => [part.classList.contains('screen'),
  part.getBoundingClientRect().height - part.querySelector('summary').getBoundingClientRect().height])"""


class Links(HTMLParser):
    def __init__(self, source):
        super().__init__()
        self.tags, self.ids = [], []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("chromium")) as tab:
        yield tab


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A report with hostile texts, long words and a page per request; a suite that links to it."""
    folder = tmp_path_factory.mktemp("pages")

    def logs(stage):
        return log_of(stage, text=HOSTILE + " " + "long" * 60)

    run, config = make_run(folder, logs=logs, metrics=lambda s: metrics_of(s) | {"leakage_samples": 64.0})
    ask(run, reason="why-" + "not" * 80)
    clients = {"train": list(range(30)), "unlearn": [3]}
    row = {"stage": "unlearn", "round": 1, "moment": "round", "evaluator": "federation"}
    run.append_metrics([{**row, "metrics": {"seconds": 1.5, "failures": 1}, "clients": clients}])
    html_report.write_html(run, config)
    suite = view(folder)
    cell = suite.cells[suite.cells.stage == "unlearn"].run.iloc[0]
    shutil.copytree(run.path, folder / cell)
    request = next((run.path / "requests").glob("r0*.html"))
    return {"report": run.path / "report.html", "request": request, "suite": write_suite_html(folder, suite)}


@pytest.mark.parametrize("name", PAGES)
def test_it_renders_without_errors_and_asks_for_nothing(pages, tab, name, tmp_path):
    tab.window(1280)
    tab.go(pages[name].as_uri())
    assert "What the words mean" in tab.js("document.body.innerText")
    assert tab.said == [] and tab.asked == set()
    tab.picture(tmp_path / "shot.png")
    assert (tmp_path / "shot.png").stat().st_size > 20_000


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_runs_over_on_a_phone_or_a_desk(pages, tab, name, width, dark):
    tab.window(width, dark=dark)
    tab.go(pages[name].as_uri())
    assert tab.over(width) == []
    found = tab.js(LOOK)
    assert found["dark"] is dark
    red = int(re.search(r"\d+", found["paper"]).group())
    assert (red < 60) is dark, "the page's own colours follow"


def test_a_phone_shows_every_plot_whole_and_requests_without_moving_them(pages, tab):
    tab.window(390)
    tab.go(pages["report"].as_uri())
    assert tab.js(MOVED) <= 0
    tab.js(OPEN)
    cut = tab.js(CUT)
    assert len(cut) == 2 and max(cut) <= 0, "no plot has to be moved to be seen, nor its legend"


def test_on_paper_the_measures_are_open_the_configuration_is_not_and_nothing_is_dark(pages, tab):
    tab.window(1280, dark=True)
    tab.go(pages["report"].as_uri())
    closed = tab.js(BELOW)
    assert len(closed) > 3 and all(height < 20 for _, height in closed)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    tab.call("Emulation.setEmulatedMedia", media="print", features=dark)
    try:
        below = tab.js(BELOW)
        assert all((height < 20) is screen for screen, height in below) and [s for s, _ in below].count(True) == 1
        assert tab.js(LOOK)["paper"] == "rgb(255, 255, 255)"
    finally:
        tab.call("Emulation.setEmulatedMedia", media="", features=[])


@pytest.mark.skipif(not AXE, reason=NO_AXE)
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(pages, tab, name):
    """Folded or open."""
    tab.window(390)
    tab.go(pages[name].as_uri())
    assert tab.faults() == []
    tab.js(OPEN)
    assert tab.faults() == []


@pytest.mark.parametrize("name", PAGES)
def test_every_link_has_an_end_and_every_term_a_meaning(pages, name):
    page = pages[name]
    found = Links(page.read_text(encoding="utf-8"))
    assert len(found.ids) == len(set(found.ids)), "ids are unique"
    assert not {"script", "link", "img", "iframe", "base"} & {tag for tag, _ in found.tags}
    for tag, attributes in found.tags:
        if tag == "abbr":
            assert len(attributes.get("title", "")) > 20
        for key in ("href", "src", "xlink:href"):
            if (link := attributes.get(key)) is None:
                continue
            path, _, place = unquote(link).partition("#")
            assert not re.match(r"[a-z]+:|//", path), link
            target = Path(page.parent, path) if path else page
            assert target.is_file(), link
            assert not place or place in Links(target.read_text(encoding="utf-8")).ids, link
    assert any(tag == "abbr" for tag, _ in found.tags) and any(tag == "a" for tag, _ in found.tags)
