"""The window as a process, and in a real browser: it is whole on a phone, by keyboard, without any other host."""

import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest
from support.chromium import AXE, CHROMIUM, MISSING, NO_AXE, browser
from support.commands import call
from support.lineage import hashed, lineage_run
from support.nodes import write_nodes
from support.reports import HOSTILE, ask, log_of, make_run, metrics_of
from support.suite_view import cells
from support.window import TOKEN, run_page, served

from benchmarks.federated import results
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.reports.html.request_pages import page_of
from oblivionis.runs.ancestry import Descent
from oblivionis.view.node_page import Node

pytestmark = pytest.mark.slow
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
A, B, LIVE = "a/runs/made", "b/runs/made", "live/runs/made"
PAGES = {
    "runs": "/",
    "run": run_page(A),
    "live": run_page(LIVE),
    "request": run_page(A, page_of("r0")),
    "compare": f"/compare?run={A}&run={B}&run={LIVE}",
    "requests": "/requests",
    "models": "/models?folder=models",
    "suites": "/suites",
    "suite": "/suites/quick/",
    "node": "/node",
}
LABEL = "document.querySelector('#live-curves svg').getAttribute('aria-label')"
FOCUSED = "document.activeElement.tagName + ' ' + (document.activeElement.name || document.activeElement.textContent)"


# -- the command ---------------------------------------------------------------------------------------------------


def test_a_mistake_is_told(tmp_path):
    assert "no such folder" in call("view", tmp_path / "nope").err
    told = call("view", tmp_path, "--write")
    assert told.code == 2 and "--write needs --node-dir DIR" in told.err
    told = call("view", tmp_path, "--node-dir", tmp_path / "nope")
    assert told.code == 2 and "--node-dir" in told.err and "no such folder" in told.err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        told = call("view", tmp_path, "--port", taken.getsockname()[1])
    assert told.code == 2 and "choose another one" in told.err


def test_it_serves_this_machine_until_it_is_stopped(tmp_path):
    make_run(tmp_path)
    command = [sys.executable, "-m", "oblivionis.cli.main", "view", str(tmp_path), "--port", "0"]
    environment = {**os.environ, "OBLIVIONIS_CACHE": str(tmp_path / ".cache")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"1 run in {tmp_path}\n"
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", address)
        with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(address, timeout=60) as page:
            assert "runs/made" in page.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(address.partition("?")[0], timeout=60)
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "token" not in out + err and "Traceback" not in err


# -- in a browser --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two finished runs, one with hostile and long texts; one that goes on; a suite; a node."""
    folder = tmp_path_factory.mktemp("window")
    run, _ = make_run(folder / "a", logs=lambda stage: log_of(stage, text=HOSTILE + " " + "long" * 60))
    ask(run, reason="why-" + "not" * 80)
    row = {"stage": "unlearn", "moment": "round", "evaluator": "long" * 20, "metrics": {"x": 0.5}}
    run.append_metrics([{**row, "round": 1}, {**row, "round": 2}])
    make_run(folder / "b", overrides=["unlearning=grad_diff"])
    live, _ = make_run(folder / "live", ["finetune", "retrain"])
    parent = os.getppid()
    facts = {"pid": parent, "host": socket.gethostname(), "started": psutil.Process(parent).create_time()}
    (live.path / "running.json").write_text(json.dumps(facts))
    begun = Descent(hashed("L"), (hashed("L"),), ("learned",))
    lineage_run(folder / "models", "learned", {"finetune": ["L"]})
    requests = [("d" * 80, "open"), (HOSTILE, "open")]
    stages = {"finetune": ["L"], "unlearn": ["A"]}
    lineage_run(folder / "models", "A" * 60, stages, begun=begun, requests=requests)
    (folder / "quick").mkdir()
    found = cells(failed="fedadam/rmu/seed=1").astype({"seed": str})
    axes = ["strategy", "unlearning", "seed"]
    results.write(results.table_of(found.to_dict("records"), axes), folder / "quick")
    write_nodes(folder / "nodes")
    return folder


@pytest.fixture(scope="module")
def address(folder):
    with served(folder, Node(folder / "nodes" / "node0", write=True)) as address:
        yield address


@pytest.fixture(scope="module")
def tab(address, tmp_path_factory):
    with browser(tmp_path_factory.mktemp("chromium")) as tab:
        tab.go(f"{address}/?token={TOKEN}")
        yield tab


@in_a_browser
def test_the_token_is_neither_in_the_address_nor_in_reach_of_scripts(tab, address):
    tab.go(f"{address}/requests?token={TOKEN}")
    assert tab.js("location.href") == f"{address}/requests" and tab.js("document.cookie") == ""
    assert TOKEN not in tab.js("document.documentElement.outerHTML")


@in_a_browser
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [390, 1280])
def test_every_page_is_whole_and_asks_no_other_host(tab, address, name, width):
    tab.window(width)
    tab.go(address + PAGES[name])
    assert tab.over(width) == []
    assert tab.said == [], "no error, and nothing that its own policy forbids"
    assert {f"http://{host}" for host in tab.asked} == {address}


@in_a_browser
@pytest.mark.skipif(not AXE, reason=NO_AXE)
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_axe_finds_nothing_serious(tab, address, name, width, dark):
    tab.window(width, dark=dark)
    tab.go(address + PAGES[name])
    assert tab.faults() == []


@in_a_browser
@pytest.mark.skipif(not AXE, reason=NO_AXE)
def test_axe_looks_at_all(tab, address):
    tab.go(address + "/")
    tab.js("document.querySelector('main').insertAdjacentHTML('beforeend', '<input type=text>')")
    assert [fault for fault in tab.faults() if fault.startswith("label")]


@in_a_browser
def test_a_page_in_a_run_runs_no_script(tab, address, folder):
    (folder / A / "report.html").write_text("<h1 id=x>Report</h1><script>document.title = 'ran'</script>")
    tab.go(address + run_page(A, "report.html"))
    assert tab.js("document.getElementById('x').textContent") == "Report" and tab.js("document.title") == ""


@in_a_browser
def test_runs_are_chosen_and_compared_by_keyboard(tab, address):
    tab.window(1280)
    tab.go(address + "/?order=run")
    tab.press("Tab")
    assert tab.js(FOCUSED) == "A Skip to the content"
    tab.press("Enter")
    boxes = 0
    while boxes < 2:
        tab.press("Tab")
        if tab.js(FOCUSED) == "INPUT run":
            tab.press(" ")
            boxes += 1
    assert tab.js("document.getElementById('chosen').textContent") == "2 chosen"
    while not tab.js(FOCUSED).startswith("BUTTON Compare"):
        tab.press("Tab")
    tab.press("Enter")
    tab.until("location.pathname === '/compare' && document.readyState === 'complete'")
    assert tab.js("new URLSearchParams(location.search).getAll('run')") == [A, B]
    assert tab.js("document.querySelectorAll('ins').length") > 0


@in_a_browser
def test_a_filter_shows_its_choice_at_once_and_keeps_what_is_chosen(tab, address):
    tab.go(address + "/?order=run")
    tab.js("document.querySelectorAll('input[name=run]')[0].click()")
    tab.js("""(() => { const list = document.querySelector('select[name=method]'); list.value = 'grad_diff';
      list.dispatchEvent(new Event('change', {bubbles: true})) })()""")
    tab.until("location.search.includes('method=grad_diff') && document.readyState === 'complete'")
    names = "[...document.querySelectorAll('tbody th a')].map(a => a.textContent)"
    assert tab.js(names) == [B]
    assert tab.js("[...document.querySelectorAll('input[name=run]:checked')].map(b => b.value)") == [A]
    assert tab.js("document.getElementById('chosen').textContent") == "1 chosen"


@in_a_browser
def test_a_run_that_goes_on_is_drawn_as_it_goes(tab, address, folder):
    tab.go(address + run_page(LIVE))
    assert "running" in tab.js("document.getElementById('live-progress').textContent")
    assert not tab.js(f"{LABEL}.includes('unlearn')")
    tab.js("document.querySelectorAll('details')[0].open = true")
    rows = [
        {"stage": "unlearn", "round": n, "moment": "round", "evaluator": "tofu", "metrics": metrics_of("unlearn")}
        for n in (1, 2)
    ]
    with open(folder / LIVE / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    tab.until(f"{LABEL}.includes('unlearn')")
    tab.until("document.getElementById('live-progress').textContent.includes('unlearn, round 2')")
    (folder / LIVE / "running.json").unlink()
    tab.until("document.getElementById('live-progress').textContent.includes('It has ended')")
    assert tab.js("document.querySelectorAll('details')[0].open") is True
    assert tab.said == []


@in_a_browser
def test_a_request_is_made_by_keyboard_and_followed(tab, address, folder):
    tab.window(390)
    tab.go(address + "/node")
    for name, value in (("ids", "p0-home"), ("reason", "asked by letter")):
        tab.js(f"document.querySelector('input[name={name}]').focus()")
        tab.write(value)
    tab.press("Enter")
    tab.until("location.search.startsWith('?made=') && document.readyState === 'complete'")
    (made,) = NodeLedger(folder / "nodes" / "node0").requests()
    assert (made.record_ids, made.reason) == (("p0-home",), "asked by letter")
    assert f"Request {made.id} was made" in tab.js("document.querySelector('.said').textContent")
    NodeLedger(folder / "nodes" / "node0").note("served", made.id, run="made", round=2)
    tab.until("document.getElementById('live-requests').textContent.includes('served, round 2 of made')")
    assert tab.said == []


EVIL = """<form method=post action="%s/node"><input name=what value=all><input name=sure value=yes>
<input name=reason value=x><button>Win</button></form>"""


@pytest.fixture
def elsewhere(address, tmp_path):
    """A page of another origin to which the browser sends the window's cookie: cookies know no ports."""
    (tmp_path / "evil.html").write_text(EVIL % address)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/evil.html"
        server.shutdown()


@in_a_browser
def test_another_site_can_neither_see_nor_ask(tab, address, folder, elsewhere):
    before = NodeLedger(folder / "nodes" / "node0").requests()
    tab.go(elsewhere)
    seen = f"fetch('{address}/', {{credentials: 'include'}}).then(a => a.status, () => 'nothing')"
    assert tab.js(seen) == "nothing"
    tab.js("document.querySelector('form').submit()")
    tab.until("document.body.textContent.includes('the form was not sent by a page of this window')")
    assert NodeLedger(folder / "nodes" / "node0").requests() == before
