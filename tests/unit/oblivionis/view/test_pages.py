"""What the pages of the window show, what the address chooses of it, and what can be taken away as a file."""

import csv
import io
import json
import re
import shutil
from html.parser import HTMLParser
from urllib.parse import quote, unquote

import pytest
from support.audits import audit_of, phrasings, write
from support.hostile import NAME, TAGS, Parsed, hostile_run, text
from support.nodes import write_nodes
from support.reports import HOSTILE, ask, bind, log_of, make_run, metrics_of
from support.suite_view import cells
from support.window import Visitor, run_page

from benchmarks.federated import results
from oblivionis.audits.people_outcomes import Person, PersonFact, person_slug
from oblivionis.chain import GENESIS, append_all
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.request import Request
from oblivionis.files import write_json
from oblivionis.reports.format import number, printable
from oblivionis.reports.html.request_pages import page_of
from oblivionis.view import runs_page
from oblivionis.view.guard import POLICY
from oblivionis.view.node_page import Node

PNG = b"\x89PNG\r\n"


class Content(HTMLParser):
    """Rows of tables by cell texts, links, and the names and values of what a form sends."""

    def __init__(self, source):
        super().__init__()
        self.rows, self.links, self.sent, self.marks, self._cell = [], [], [], [], None
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self._cell = ""
        elif tag == "a":
            self.links.append(given.get("href"))
        elif tag == "input" and (given.get("type") not in ("checkbox", "radio") or "checked" in given):
            self.sent.append((given.get("name"), given.get("value", "")))
        elif tag in ("ins", "del", "b"):
            self.marks.append([tag, ""])

    def handle_endtag(self, tag):
        if tag in ("td", "th") and self._cell is not None:
            self.rows[-1].append(self._cell)
            self._cell = None

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data
        if self.marks:
            self.marks[-1][1] += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three runs: finished with requests, a certificate and audited people; another method; stopped in unlearn."""
    folder = tmp_path_factory.mktemp("window")
    run, _ = make_run(folder / "a")
    ask(run)
    write_json(
        run.path / "certificates" / person_slug("r0") / "certificate.json",
        {"result": "PASS", "issued": "2026-03-01T10:00:00Z", "signature": "s"},
    )
    (run.path / "certificates" / person_slug("r0") / "certificate.html").write_text("<h1>Certificate</h1>")
    (run.path / "report.html").write_text("<h1>Report</h1>")
    fact = PersonFact("P19", "born in", ("Oslo",), "one", phrasings(3.0, None))
    person = Person("Ann Bo", "forget", None, ("a",), (fact,))
    write(audit_of(run, [person]), run.path / "audits" / "person-finetune-0002")

    def better(stage):
        return metrics_of(stage) | ({"forget_prob": 0.45, "model_utility": 0.25} if stage == "unlearn" else {})

    def other(stage):
        return log_of(stage, text="They live in Ost.")

    make_run(folder / "b", overrides=["unlearning=grad_diff", "strategy=fedadam"], metrics=better, logs=other)
    make_run(folder / "c", ["finetune", "retrain"], overrides=["seed=3"])
    found = cells(failed="fedadam/rmu/seed=1").astype({"seed": str})
    (folder / "quick").mkdir()
    results.write(results.table_of(found.to_dict("records"), ["strategy", "unlearning", "seed"]), folder / "quick")
    (folder / "quick" / "suite.yaml").write_text("title: Quick & <b>\ndescription: All of `it`.\n")
    (folder / "quick" / "tables").mkdir()
    (folder / "quick" / "tables" / "utility.csv").write_text("method,MU\nnpo,0.5\n")
    (folder / "quick" / "suite.html").write_text('<a href="../a/runs/made/report.html">run</a>')
    return folder


@pytest.fixture(scope="module")
def visitor(folder):
    return Visitor(folder)


A, B, C = "a/runs/made", "b/runs/made", "c/runs/made"


@pytest.fixture
def edited(tmp_path):
    """Runs that their ledgers bind, and of one the figures of the unlearned model by hand since."""
    for name in ("whole", "edited"):
        run, config = make_run(tmp_path / name)
        ask(run)
        certificate = run.path / "certificates" / person_slug("r0") / "certificate.json"
        write_json(certificate, {"result": "PASS", "issued": "2026-03-01T10:00:00Z", "signature": "s"})
        fact = PersonFact("P19", "born in", ("Oslo",), "one", phrasings(3.0, None))
        person = Person("Ann Bo", "forget", None, ("a",), (fact,))
        write(audit_of(run, [person]), run.path / "audits" / "person-finetune-0002")
        bind(run, config)
    summary = tmp_path / "edited" / "runs" / "made" / "stages" / "unlearn.json"
    visitor = Visitor(tmp_path)
    assert "Nothing follows" not in visitor.get("/").text, "nothing was edited yet"
    summary.write_text(summary.read_text().replace("0.", "0.9", 1))
    return visitor


def names(page):
    return [row[1] for row in Content(page).rows[1:]]


# -- the list ------------------------------------------------------------------------------------------------------


def first_part(cell):
    """The name of a run in its cell, before the settings that a phone shows below it."""
    return re.match(r"\w/runs/made", cell)[0]


def test_the_list_has_state_and_headline_numbers(visitor):
    rows = {first_part(row[1]): row for row in Content(visitor.page("/")).rows[1:]}
    assert set(rows) == {A, B, C}
    assert rows[A][1:6] == [f"{A} tiny · fictitious · fedavg · npo", "finished", "", "fedavg", "npo"]
    shown = [metrics_of("unlearn")["forget_prob"], metrics_of("retrain")["forget_prob"]]
    shown += [metrics_of("unlearn")[key] for key in ("retain_prob", "forget_quality", "model_utility")]
    assert rows[A][6:11] == [number(value) for value in shown]
    assert rows[C][2].startswith("stopped") and "unlearn 0/2" in rows[C][2] and rows[C][6] == "–"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("state=stopped", [C]),
        ("method=npo", [C, A]),
        ("method=npo&aggregator=fedadam", []),
        ("aggregator=fedadam", [B]),
        ("text=B/RUNS", [B]),
        ("order=run", [A, B, C]),
        ("order=-run", [C, B, A]),
        ("order=-forget_prob", [B, A, C]),
        ("order=forget_prob", [A, B, C]),
        ("order=nonsense&page=-1", [C, B, A]),
        ("text=nope", []),
    ],
)
def test_filters_and_order_are_in_the_address(visitor, query, expected):
    found = [first_part(name) for name in names(visitor.page(f"/?{query}"))]
    assert found == expected
    exported = list(csv.DictReader(io.StringIO(visitor.get(f"/runs.csv?{query}").text)))
    assert [row["run"] for row in exported] == found


def test_the_csv_has_whole_numbers(visitor):
    (row,) = csv.DictReader(io.StringIO(visitor.get("/runs.csv?text=c/").text))
    assert row["stages"] == "finetune ✓, retrain ✓, unlearn 0/2" and row["seed"] == "3" and row["forget_prob"] == ""
    (row,) = csv.DictReader(io.StringIO(visitor.get("/runs.csv?text=a/").text))
    assert float(row["forget_prob"]) == metrics_of("unlearn")["forget_prob"]
    answer = visitor.get("/runs.csv")
    assert 'filename="runs.csv"' in answer.headers["content-disposition"]


def test_chosen_runs_stay_chosen_beyond_what_is_shown(visitor):
    page = visitor.page(f"/?text=a/&run={A}&run={C}")
    sent = [value for name, value in Content(page).sent if name == "run"]
    assert sorted(sent) == [A, C] and "Also chosen" in page
    heads = [link for link in Content(page).links if "order=" in (link or "")]
    assert heads and all(quote(C, safe="") in link for link in heads)


def test_the_states_of_runs_are_counted_and_lead_to_these_alone(visitor):
    links = {
        text: link
        for link, text in re.findall(r'<a href="([^"]*)"[^>]*>(?:<span class="state \w+">)?(\w+)', visitor.page("/"))
    }
    page = re.sub(r"<[^>]+>", "", visitor.page("/"))
    assert "all 3" in page and "finished 2" in page and "stopped 1" in page and "damaged" not in page
    assert names(visitor.page(links["stopped"].replace("&amp;", "&")))[0].startswith(C)
    page = re.sub(r"<[^>]+>", "", visitor.page("/?method=grad_diff&state=stopped"))
    assert "all 1" in page and "finished 1" in page and "stopped 0" in page


def test_pages_of_a_long_list(visitor, monkeypatch):
    monkeypatch.setattr(runs_page, "SHOWN", 2)
    assert len(names(visitor.page("/?order=run"))) == 2
    second = visitor.page("/?order=run&page=2")
    assert [first_part(n) for n in names(second)] == [C] and 'aria-current="page">2<' in second
    assert names(visitor.page("/?page=9")) == []


def test_an_empty_folder(tmp_path):
    visitor = Visitor(tmp_path)
    for path, said in (("/", "No runs."), ("/requests", "None."), ("/suites", "oblivionis bench quick")):
        assert said in visitor.page(path)


# -- a run ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_shows_what_its_report_shows(visitor):
    page = visitor.page(run_page(A))
    for said in ("What was set up", "What was measured", "What each person asked and got", "People", "every key of it"):
        assert said in page
    assert page.count("<svg") == 2 and "<style" not in page and 'style="' not in page
    links = Content(page).links
    assert page_of("r0") in links and f"people/{person_slug('Ann Bo')}.html" in links
    assert run_page(A, "report.html") in links and f"/compare?run={quote(A, safe='')}" in links
    assert "data-live" not in page, "what is finished is not asked for again"


def test_a_run_that_goes_on_is_asked_for_again(visitor, folder):
    page = visitor.page(run_page(C))
    assert "unlearn 0/2" in page
    live = re.findall(r'data-live="([^"]+)"[^>]*data-mark="&#34;(\w+)&#34;"', page)
    assert len(live) == 2
    for address, mark in live:
        address = address.replace("&amp;", "&")
        assert visitor.get(address, headers={"if-none-match": f'"{mark}"'}).status_code == 304
        answer = visitor.get(address)
        assert answer.status_code == 200 and "<html" not in answer.text
    row = {"stage": "unlearn", "round": 1, "moment": "round", "evaluator": "tofu", "metrics": {"forget_prob": 0.5}}
    metrics = folder / C / "metrics.jsonl"
    before = metrics.read_bytes()
    try:
        with open(metrics, "a") as file:
            for number_ in (1, 2):
                file.write(str({**row, "round": number_}).replace("'", '"') + "\n")
        progress, curves = (visitor.page(address.replace("&amp;", "&")) for address, _ in live)
        assert "Latest: unlearn, round 2: forget Prob 0.500" in progress
        assert curves.count("<svg") == 1 and "over the rounds of finetune, retrain and unlearn" in curves
    finally:
        metrics.write_bytes(before)


def test_what_can_be_taken_away_of_a_run(visitor):
    rows = list(csv.DictReader(io.StringIO(visitor.get(run_page(A, "metrics.csv")).text)))
    first = {"stage": "finetune", "round": "0", "moment": "start", "evaluator": "tofu"}
    assert first.items() <= rows[0].items() and len(rows) > 100
    picture = visitor.get(run_page(A, "curves-unlearn.png"))
    assert picture.content.startswith(PNG) and picture.headers["content-type"] == "image/png"
    assert visitor.get(run_page(A, "curves-local.png")).status_code == 404
    assert visitor.page(run_page(A, "report.html")) == "<h1>Report</h1>"
    assert visitor.get(run_page(B, "report.html")).status_code == 404


def test_a_request_from_demand_to_certificate(visitor):
    page = visitor.page(run_page(A, page_of("r0")))
    life = re.search(r'<ol class="life">(.*?)</ol>', page)[1]
    steps = re.findall(r'<li class="(\w+)"><b>(\w+)</b>', life)
    assert steps == [("done", "Asked"), ("done", "Served"), ("done", "Checked"), ("done", "Certified")]
    certificate = f"../certificates/{person_slug('r0')}/certificate.html"
    assert certificate in Content(page).links and "../#requests" in Content(page).links
    assert visitor.page(run_page(A, certificate.removeprefix("../"))) == "<h1>Certificate</h1>"
    file = visitor.get(run_page(A, f"certificates/{person_slug('r0')}/certificate.json"))
    assert file.json()["result"] == "PASS"
    waiting = visitor.page(run_page(A, page_of("r1")))
    steps = re.findall(r'<li class="(\w+)"><b>(\w+)</b>', waiting)
    assert [kind for kind, _ in steps] == ["done", "open", "open", "open"]
    assert visitor.get(run_page(A, "requests/nobody.html")).status_code == 404


def test_a_person(visitor):
    page = visitor.page(run_page(A, f"people/{person_slug('Ann Bo')}.html"))
    assert "born in" in page and "1 of 2" in page and "../" in Content(page).links
    assert visitor.get(run_page(A, "people/nobody.html")).status_code == 404


def test_a_damaged_run_says_what_is_damaged(folder, tmp_path):
    shutil.copytree(folder / A, tmp_path / "one")
    (tmp_path / "one" / "stages" / "unlearn.json").write_text('{"metrics": 5}')
    visitor = Visitor(tmp_path)
    assert "damaged" in visitor.page("/")
    for path in (run_page("one"), "/compare?run=one"):
        answer = visitor.get(path)
        assert answer.status_code == 422 and "unlearn.json: metrics: expected" in answer.text
    (tmp_path / "one" / "config.yaml").write_text("stages: [finetune]\nnosuch: 1\n")
    assert "unknown key" in visitor.get(run_page("one")).text


# -- comparison ----------------------------------------------------------------------------------------------------


def compared(*runs, **more):
    return "/compare?" + "&".join([*(f"run={r}" for r in runs), *(f"{k}={v}" for k, v in more.items())])


@pytest.mark.slow
def test_settings_and_metrics_beside_each_other(visitor):
    rows = Content(visitor.page(compared(A, B))).rows
    assert ["strategy.name", "fedavg", "fedadam"] in rows and ["unlearning.method", "npo", "grad_diff"] in rows
    assert not any(row[0].startswith("model.") for row in rows), "what is the same is left out"
    (prob,) = (row for row in rows if row[:2] == ["Forget", "Prob"])
    assert prob[2:] == [number(4.25e-7), "0.450 +0.450"], "and by how much it differs"
    page = visitor.page(compared(A, B))
    assert "<b>0.450</b>" in page and f"<b>{number(4.25e-7)}</b>" not in page, "nearer the retrained model's 0.5"
    retrained = Content(visitor.page(compared(A, B, stage="retrain"))).rows
    (prob,) = (row for row in retrained if row[:2] == ["Forget", "Prob"])
    assert prob[2:] == ["0.500", "0.500"]


@pytest.mark.slow
def test_answers_beside_each_other_with_their_differences(visitor):
    page = visitor.page(compared(A, B))
    assert "Where does Ann live?" in page and "4 questions" in page
    assert "unlearn says: They live in <del>Vell.</del> <ins>Ost.</ins>" in page
    truth = visitor.page(compared(A, B, against="truth", set="retain"))
    assert "<del>Ann lives</del> <ins>unlearn says: They live</ins> in" in truth
    alone = visitor.page(compared(A))
    assert "<del>Ann lives</del>" in alone, "one run alone is compared with the truth"
    different = visitor.page(compared(A, C, stage="finetune", different=1))
    assert "No question is answered in different ways." in different


@pytest.mark.slow
def test_curves_of_all_runs(visitor):
    page = visitor.page(compared(A, B, C))
    assert page.count("<svg role=") == 4 and "Forget Prob over the rounds of unlearn, a line per run" in page
    assert page.count('<svg class="key"') == 3, "the line of each run beside its name"
    assert visitor.page(compared(A, B, metric="model_utility")).count("<svg role=") == 1
    piece = visitor.page(compared(A, C) + "&part=curves")
    assert piece.count("<svg role=") == 4 and "<html" not in piece


def test_what_can_be_taken_away_of_a_comparison(visitor):
    query = f"?run={A}&run={B}"
    rows = list(csv.DictReader(io.StringIO(visitor.get("/compare.csv" + query).text)))
    wanted = {"run": B, "stage": "unlearn", "metric": "forget_prob", "value": "0.45"}
    assert wanted in rows
    (first, *_) = csv.DictReader(io.StringIO(visitor.get("/answers.csv" + query).text))
    assert (first["set"], first["truth"], first[B]) == (
        "forget",
        "Ann lives in Ost.",
        " unlearn says: They live in Ost.",
    )
    assert visitor.get("/compare.png" + query).content.startswith(PNG)


def test_comparisons_that_make_no_sense(visitor, folder):
    assert "Choose runs to compare" in visitor.page("/compare")
    assert visitor.get("/compare?run=nope").status_code == 404
    many = Visitor(folder)
    many.library.run = lambda name: None
    answer = many.get("/compare?" + "&".join(f"run=r{i}" for i in range(13)))
    assert answer.status_code == 422 and "13 runs are too many" in answer.text
    assert visitor.page(compared(A, stage="nonsense", set="nonsense", page="x", metric="nonsense"))


# -- requests, suites, nodes ---------------------------------------------------------------------------------------


def test_all_requests_and_their_filters(visitor):
    def found(query=""):
        return [row[0].split()[0] for row in Content(visitor.page(f"/requests{query}")).rows[1:]]

    assert found() == ["r0", "r1"]
    assert found("?state=verified") == found("?certificate=PASS") == found("?text=R0") == ["r0"]
    assert found("?certificate=none") == ["r1"] and found("?text=b/runs") == []
    text = visitor.page("/requests")
    assert run_page(A, page_of("r0")) in Content(text).links and "Of certificates, what their files say: " in text
    (row,) = csv.DictReader(io.StringIO(visitor.get("/requests.csv?state=verified").text))
    assert (row["request"], row["run"], row["certificate"], row["reason"]) == ("r0", A, "PASS", "its share")


def steps_of(row):
    """What the cells of a row say from the demand to the certificate, each with its kind."""
    return re.findall(r'<td class="step"><span class="(\w+)">(?:<a [^>]+>)?([^<]*)', row)


def test_each_request_has_its_steps_and_its_certificate(visitor):
    first, second = re.findall(r"<tr[^>]*><th.*?</tr>", visitor.page("/requests").partition("<tbody>")[2])
    assert steps_of(first) == [("done", "round 1"), ("done", "round 1"), ("done", "verified"), ("done", "PASS")]
    assert steps_of(second) == [("done", "round 2"), ("open", "pending"), ("open", "not yet"), ("open", "not yet")]
    certificate = run_page(A, f"certificates/{person_slug('r0')}/certificate.html")
    assert f'href="{certificate}"' in first and visitor.page(certificate) == "<h1>Certificate</h1>"


@pytest.mark.slow
def test_a_thousand_requests_have_pages_of_a_hundred(tmp_path):
    run, _ = make_run(tmp_path)
    ledger = Ledger(run.ledger_path)
    for number_ in range(1000):
        ledger.submit(Request(f"r{number_:04}", number_ % 7, (f"x{number_}",), 1))
    visitor = Visitor(tmp_path)
    page = visitor.page("/requests?text=R0&page=3")
    assert [row[0].split()[0] for row in Content(page).rows[1:]] == [f"r{n:04}" for n in range(200, 300)]
    assert "1000 in all runs" in page and "/requests?text=R0&page=10" in Content(page).links and len(page) < 100_000
    assert [row[0].split()[0] for row in Content(visitor.page("/requests?page=99")).rows[1:]][-1] == "r0999"


def test_a_broken_ledger_does_not_hide_the_others(folder, tmp_path):
    shutil.copytree(folder / A, tmp_path / "one")
    shutil.copytree(folder / A, tmp_path / "two")
    (tmp_path / "two" / "requests.jsonl").write_text('{"event": "served", "id": "x"}\n')
    page = Visitor(tmp_path).page("/requests")
    assert [row[0].split()[0] for row in Content(page).rows[1:]] == ["r0", "r1"] and "two: " in page


def test_a_suite_and_its_frontier(visitor):
    assert (
        "Quick &amp; &lt;b&gt;" in visitor.page("/suites")
        and "/suites/quick/" in Content(visitor.page("/suites")).links
    )
    page = visitor.page("/suites/quick/")
    assert page.count("<svg") == 1 and "distance to the retrained model, a numbered point per cell" in page
    rows = list(csv.DictReader(io.StringIO(visitor.get("/suites/quick/frontier.csv").text)))
    assert len(rows) == 7, "of eight cells one failed"
    first = rows[0]
    assert (first["strategy"], first["seed"], first["model_utility"]) == ("fedavg", "0", "0.8")
    assert float(first["distance_forget_rouge"]) == pytest.approx(0.1)
    best = max(float(row["model_utility"]) for row in rows)
    assert {row["on_frontier"] for row in rows if float(row["model_utility"]) == best} == {"yes", "no"}
    assert "client 3 &lt;died&gt;" in page and ["npo", "0.5"] in Content(page).rows
    assert visitor.get("/suites/quick/frontier.png").content.startswith(PNG)
    everything = list(csv.DictReader(io.StringIO(visitor.get("/suites/quick/results.csv").text)))
    assert len(everything) == len(cells(failed="fedadam/rmu/seed=1"))


def test_the_card_of_a_suite_has_its_cells_and_their_points(visitor):
    page = visitor.page("/suites")
    assert "7 of 8 cells done" in page and ", 1 failed" in page and page.count("<circle") == 7
    assert "All of <code>it</code>." in page


def test_the_suites_own_page_leads_to_the_runs_reports(visitor):
    (link,) = Content(visitor.page("/suites/quick/suite.html")).links
    assert link == "../a/runs/made/report.html"
    answer = visitor.get("/suites/a/runs/made/report.html")
    assert (answer.status_code, answer.headers["location"]) == (307, run_page(A, "report.html"))
    assert visitor.get("/suites/a/runs/nope/report.html").status_code == 404


def test_a_suite_without_results_and_one_of_another_kind(tmp_path):
    for name in ("planned", "tabular"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "suite.yaml").write_text("title: [1]")
    (tmp_path / "tabular" / "tables").mkdir()
    (tmp_path / "tabular" / "tables" / "auc.csv").write_text('a,b\n"1,5",2\nodd\n')
    visitor = Visitor(tmp_path)
    assert "No cell has" in visitor.page("/suites/planned/") and "None yet." in visitor.page("/suites/planned/")
    assert visitor.get("/suites/planned/results.csv").status_code == 404
    assert visitor.get("/suites/planned/frontier.png").status_code == 404
    assert "auc" not in visitor.page("/suites/tabular/"), "a table with an odd row is no table"


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"what": "records", "ids": "p9-nope"}, "no record of"),
        ({"what": "records"}, "--ids: expected ids"),
        ({"what": "person", "subject": "Mara Vos"}, "did you mean Mara Voss?"),
        ({"what": "all"}, "say that you are sure"),
        ({"what": "nonsense"}, "say what is to be forgotten"),
        ({"what": "records", "ids": "p0-home", "reason": " "}, "--reason TEXT is missing"),
        ({"what": "records", "ids": "p0-home", "id": "-x"}, "--id"),
    ],
)
def test_a_mistake_in_the_form_is_told_and_the_rest_is_kept(tmp_path, form, said):
    node = write_nodes(tmp_path) / "node0"
    visitor = Visitor(tmp_path, Node(node, write=True))
    token = dict(Content(visitor.page("/node")).sent)["form_token"]
    data = {"form_token": token, "reason": "by <letter>", **form}
    answer = visitor.ask("POST", "/node", data=data, headers={"origin": "http://127.0.0.1:8420"})
    assert answer.status_code == 422 and said in answer.text.replace("&#39;", "'")
    sent = dict(Content(answer.text).sent)
    assert all(sent[key] == value for key, value in data.items() if key in ("ids", "subject", "reason", "id"))
    assert NodeLedger(node).requests() == []


def test_records_may_be_ticked_and_a_person_named_and_the_client_leave(tmp_path):
    node = write_nodes(tmp_path) / "node0"
    visitor = Visitor(tmp_path, Node(node, write=True))
    token = dict(Content(visitor.page("/node")).sent)["form_token"]

    def send(*fields):
        body = "&".join(f"{k}={quote(v)}" for k, v in (("form_token", token), ("reason", "why"), *fields))
        headers = {"origin": "http://127.0.0.1:8420", "content-type": "application/x-www-form-urlencoded"}
        assert visitor.ask("POST", "/node", content=body, headers=headers).status_code == 303

    send(("what", "records"), ("record", "p0-home"), ("record", "p3-home"), ("ids", ""))
    send(("what", "person"), ("subject", "mara  voss"), ("id", "voss"))
    send(("what", "all"), ("sure", "yes"))
    made = NodeLedger(node).requests()
    assert [(r.scope, r.record_ids) for r in made[:2]] == [
        ("records", ("p0-home", "p3-home")),
        ("subject", ("p0-job",)),
    ]
    assert made[2].scope == "client" and len(made[2].record_ids) == 3
    page = visitor.page("/node")
    assert [row[i] for row in Content(page).rows if row[0] == "voss" for i in (0, 2, 3)] == [
        "voss",
        "1 record about Mara Voss",
        "open",
    ]


# -- hostile texts -------------------------------------------------------------------------------------------------

OWN = {*TAGS.split(), "link", "script", "header", "strong", "form", "fieldset", "legend", "label", "input"} - {"style"}
OWN |= {"select", "option", "button", "progress", "ins", "del", "small", "circle"}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    run, _ = hostile_run(folder)
    model = text("model").replace("\n", " ").replace("'", "''").replace("$", "")
    run.write_config(run.read_config().replace("model:\n  name: tiny\n", f"model:\n  name: '{model}'\n"))
    return Visitor(folder), f"runs/{NAME}"


@pytest.mark.slow
def test_hostile_texts_are_texts_on_every_page(hostile, monkeypatch):
    monkeypatch.setattr("support.hostile.VOID", {"meta", "br", "path", "use", "link", "input"})
    visitor, name = hostile
    at = run_page(name)
    pages = ["/", at, at + page_of(text("request")), at + f"people/{person_slug(text('person'))}.html", "/requests"]
    pages += [f"/compare?run={quote(name, safe='')}", f"/?run={quote(name, safe='')}&text={quote(HOSTILE)}"]
    pages += [f"/requests?text={quote(HOSTILE)}&state={quote(HOSTILE)}", "/models", f"/?state={quote(HOSTILE)}"]
    for path in pages:
        parsed = Parsed(visitor.page(path))
        assert {tag for tag, _ in parsed.tags} <= OWN, path
        ids = [given["id"] for _, given in parsed.tags if "id" in given]
        assert len(ids) == len(set(ids)), path
        attributes = {key for _, given in parsed.tags for key in given}
        assert not {key for key in attributes if key.startswith("on")} and "style" not in attributes
        assert [given for tag, given in parsed.tags if tag == "script"] == [
            {"src": "/static/window.js", "defer": None}
        ], path
        for link in parsed.links:
            assert not re.match(r"\s*[a-z]+:|//", unquote(link)), link
    assert printable(text("answer of unlearn")) in printable(Parsed(visitor.page(pages[5])).shown)
    assert printable(text("model").replace("$", "")) in printable(Parsed(visitor.page("/")).shown)


def test_a_text_that_a_spreadsheet_would_compute_is_text(tmp_path):
    run, _ = make_run(tmp_path)
    ask(run, reason="=1+1")
    rows = list(csv.DictReader(io.StringIO(Visitor(tmp_path).get("/requests.csv").text)))
    assert rows[0]["reason"] == "'=1+1"


def test_a_fault_of_the_program_is_no_leak(visitor, monkeypatch):
    def fail():
        raise RuntimeError("a secret")

    monkeypatch.setattr(visitor.library, "glances", fail)
    answer = visitor.get("/", faults=True)
    assert answer.status_code == 500 and "secret" not in answer.text
    assert answer.headers["content-security-policy"] == POLICY


# -- runs that were edited ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_page_of_an_edited_run_shows_a_result_without_saying_that_nothing_follows(edited):
    said = "Nothing follows from this run, its files were changed: stages/unlearn.json is not the file that line"
    at = run_page("edited/runs/made")
    pages = [
        *("/", "/requests", "/compare?run=edited/runs/made&run=whole/runs/made", at),
        *(f"{at}{page}" for page in (page_of("r0"), f"people/{person_slug('Ann Bo')}.html")),
    ]
    for page in pages:
        assert edited.get(page).text.count(said) >= 1, page
    whole = run_page("whole/runs/made")
    for page in (whole, f"{whole}{page_of('r0')}", f"{whole}people/{person_slug('Ann Bo')}.html"):
        assert "Nothing follows" not in edited.get(page).text, page


def test_the_tables_of_all_runs_and_requests_leave_the_results_of_an_edited_run_out(edited):
    def rows(page):
        found = csv.DictReader(io.StringIO(edited.get(page).text))
        return {tuple(row[k] for k in ("run", "request") if k in row): row for row in found}

    runs = rows("/runs.csv")
    assert runs[("whole/runs/made",)]["forget_prob"] and not runs[("edited/runs/made",)]["forget_prob"]
    requests = rows("/requests.csv")
    whole = requests["whole/runs/made", "r0"]
    assert (whole["state"], whole["certificate"]) == ("verified", "PASS")
    of_edited = [of for (run, _), of in requests.items() if run == "edited/runs/made"]
    assert {(of["state"], of["certificate"]) for of in of_edited} == {("nothing follows", "")}
    assert edited.get("/requests?state=verified").text.count(page_of("r0")) == 1
    shown = Content(edited.get("/requests?state=nothing follows").text).rows[1:]
    assert [row[3] for row in shown] == ["nothing follows"] * 2


def test_a_run_whose_ledger_makes_no_sense_has_no_results_either(edited, tmp_path):
    ledger = tmp_path / "whole" / "runs" / "made" / "requests.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    bodies = [{k: v for k, v in line.items() if k not in ("prev", "hash")} for line in lines]
    begun = next(body for body in bodies if body["event"] == "begun")
    ledger.unlink()
    append_all(ledger, [{**body, "files": 3} if body is begun else body for body in bodies], GENESIS)
    page = edited.get("/requests").text
    assert {row[3] for row in Content(page).rows[1:]} == {"nothing follows"}
    assert page.count("requests.jsonl: line ") == 1


def test_a_comparison_leaves_the_figures_and_answers_of_an_edited_run_out(edited):
    both = "run=edited/runs/made&run=whole/runs/made"
    figures = list(csv.DictReader(io.StringIO(edited.get(f"/compare.csv?{both}").text)))
    answers = list(csv.DictReader(io.StringIO(edited.get(f"/answers.csv?{both}").text)))
    assert {row["run"] for row in figures} == {"whole/runs/made"}
    assert answers and all(row["whole/runs/made"] and not row["edited/runs/made"] for row in answers)
