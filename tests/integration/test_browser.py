"""The reports in a real browser, without a network: nothing is fetched, nothing runs over, every link has an end."""

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from support.reports import HOSTILE, ask, log_of, make_run, metrics_of
from support.suite_view import view

from benchmarks.output.page import write_suite_html
from oblivionis.reports.html import run_page as html_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt-get install chromium)"),
]
PROBE = """<script>addEventListener('load', () => {
  const root = document.documentElement;
  const wide = [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1
    && !e.closest('div.wide, div.figure, pre')).map(e => e.tagName + '.' + e.className);
  parent.postMessage(JSON.stringify({overflow: root.scrollWidth - innerWidth, wide,
    dark: matchMedia('(prefers-color-scheme: dark)').matches,
    paper: getComputedStyle(document.body).backgroundColor}), '*');
});</script>"""
FRAME = """<!doctype html><body style="margin:0"><pre id="said"></pre>
<iframe src="%s" style="border:0;width:%dpx;height:4000px"></iframe>
<script>addEventListener('message', e => { document.getElementById('said').textContent = e.data })</script>"""


class Links(HTMLParser):
    def __init__(self, source):
        super().__init__()
        self.tags, self.ids = [], []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]


def browse(page, *options):
    """What Chromium prints for a page of the file system, or an address."""
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--disable-component-update", "--disable-background-networking", "--no-first-run"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--v=0", *options]
    address = page if isinstance(page, str) else page.as_uri()
    return subprocess.run([*command, address], capture_output=True, text=True, timeout=120)


def hosts_asked(page, log):
    """What Chromium prints, and the hosts that it asked for anything."""
    found = browse(page, "--dump-dom", f"--log-net-log={log}")
    return found, set(re.findall(r'"url":"(?:https?|wss?)://([^/"]+)', log.read_text(errors="replace")))


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


@pytest.mark.parametrize("name", ["report", "request", "suite"])
def test_it_renders_without_errors_and_asks_for_nothing(pages, name, tmp_path):
    shot = tmp_path / "shot.png"
    _, always = hosts_asked("about:blank", tmp_path / "blank.json")
    found, asked = hosts_asked(pages[name], tmp_path / "net.json")
    assert found.returncode == 0 and "What the words mean" in found.stdout
    assert "CONSOLE" not in found.stderr, found.stderr
    assert asked <= always, "only what Chromium asks for on an empty page, its updates"
    browse(pages[name], f"--screenshot={shot}", "--window-size=1280,1000")
    assert shot.read_bytes().startswith(b"\x89PNG") and shot.stat().st_size > 20_000


@pytest.mark.parametrize("name", ["report", "request", "suite"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_runs_over_on_a_phone_or_a_desk(pages, name, width, dark, tmp_path):
    page = pages[name]
    copy = page.with_name("probed-" + page.name)
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", PROBE + "</body>"), encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME % (copy.as_uri(), width))
    scheme = "--blink-settings=preferredColorScheme=" + ("0" if dark else "1")
    dom = browse(frame, "--dump-dom", "--window-size=1400,4200", "--virtual-time-budget=4000", scheme).stdout
    copy.unlink()
    said = json.loads(html.unescape(re.search(r'<pre id="said">(.*?)</pre>', dom, re.DOTALL).group(1)))
    assert said["overflow"] <= 0 and said["wide"] == [], said
    assert said["dark"] is dark
    red = int(re.search(r"\d+", said["paper"]).group())
    assert (red < 60) is dark, "the page's own colours follow"


@pytest.mark.parametrize("name", ["report", "request", "suite"])
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
