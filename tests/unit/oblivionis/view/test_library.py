"""Which runs and suites are found below a folder, and that nothing beyond it is read."""

import os
import shutil
import time

import pytest
from support.reports import make_run
from support.window import Visitor, run_page

from oblivionis.errors import RunError
from oblivionis.runs.run_status import DAMAGED, FINISHED
from oblivionis.view import library as module
from oblivionis.view import run_readings
from oblivionis.view.library import Library, NotThere
from oblivionis.view.run_readings import Glances


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(module, "FRESH_SECONDS", -1.0)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("made"))[0].path


def copy(made, *places):
    for place in places:
        shutil.copytree(made, place)


def test_runs_and_suites_wherever_they_lie(tmp_path, made):
    copy(made, tmp_path / "one", tmp_path / "bench" / "stages" / "two & three", tmp_path / ".hidden" / "four")
    (tmp_path / "bench" / "quick").mkdir()
    (tmp_path / "bench" / "quick" / "suite.yaml").write_text("title: Quick")
    copy(made, tmp_path / "one" / "five")
    found = Library(tmp_path).found()
    assert list(found.runs) == ["bench/stages/two & three", "one"], "a run holds no runs"
    assert list(found.suites) == ["bench/quick"] and not found.cut


def test_the_folder_may_be_a_run_or_a_suite_itself(tmp_path, made):
    copy(made, tmp_path / "one")
    assert list(Library(tmp_path / "one").found().runs) == ["one"]
    (tmp_path / "suite.yaml").write_text("title: Quick")
    assert list(Library(tmp_path).found().suites) == [tmp_path.name]
    with pytest.raises(RunError, match="no such folder"):
        Library(tmp_path / "nope")
    assert Library(tmp_path / "nope", needed=False).found().runs == {}


def test_too_many_and_too_deep_folders(tmp_path, made, monkeypatch):
    deep = tmp_path.joinpath(*"abcdefg")
    copy(made, tmp_path / "one", deep / "two")
    assert list(Library(tmp_path).found().runs) == ["one"]
    monkeypatch.setattr(module, "FOLDERS", 2)
    assert Library(tmp_path).found().cut


def test_new_runs_appear_and_changed_ones_are_read_again(tmp_path, made, monkeypatch):
    monkeypatch.setattr(run_readings, "SETTLED_NS", 0)
    library = Library(tmp_path)
    assert library.glances() == Glances()
    copy(made, tmp_path / "one")
    first = library.glances().runs["one"]
    with monkeypatch.context() as patch:
        patch.delattr(run_readings, "read")
        assert first.state == FINISHED and library.glances().runs["one"] == first, "it is not read again"
    (tmp_path / "one" / "stages" / "unlearn.json").unlink()
    assert library.glances().runs["one"].current.stage == "unlearn"
    before = library.signature(tmp_path / "one")
    assert library.signature(tmp_path / "one") == before
    with open(tmp_path / "one" / "metrics.jsonl", "a") as file:
        file.write("\n")
    assert library.signature(tmp_path / "one") != before
    shutil.rmtree(tmp_path / "one")
    assert library.glances() == Glances()
    with pytest.raises(NotThere):
        library.run("one")


NAMES = ["../secret", "..%2fsecret", "%2e%2e/secret", "one/../../secret", "/etc", "one/stages", "nope", "one%00"]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_leads_out(tmp_path, made, name):
    copy(made, tmp_path / "secret", tmp_path / "runs" / "one")
    visitor = Visitor(tmp_path / "runs")
    for page in ("", "metrics.csv", "report.html", "curves-unlearn.png"):
        assert visitor.get(f"/runs/{name}/{page}").status_code == 404
    assert visitor.get(f"/compare?run={name}").status_code == 404
    assert visitor.get(f"/suites/{name}/").status_code == 404


@pytest.mark.parametrize(
    "page", ["../../secret/config.yaml", "certificates/../config.yaml", "certificates/x/config.yaml", "config.yaml"]
)
def test_only_pages_of_a_run_are_served(tmp_path, made, page):
    copy(made, tmp_path / "secret", tmp_path / "runs" / "one")
    address = run_page("one", page.replace("..", "%2e%2e"))
    assert Visitor(tmp_path / "runs").get(address, follow_redirects=True).status_code == 404


@pytest.mark.parametrize(
    "place", ["metrics.jsonl", "stages/unlearn.json", "evaluations", "config.yaml", "deep/er/link"]
)
def test_links_that_lead_out_are_not_followed(tmp_path, made, place):
    copy(made, tmp_path / "secret", tmp_path / "runs" / "one")
    link = tmp_path / "runs" / "one" / place
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_dir():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    target = tmp_path / "secret" / place
    os.symlink(target if target.exists() else tmp_path / "secret", link)
    visitor = Visitor(tmp_path / "runs")
    for path in (run_page("one"), run_page("one", "metrics.csv"), "/compare?run=one"):
        answer = visitor.get(path)
        assert answer.status_code == 422 and "leads out" in answer.text
    if place != "deep/er/link":
        found = visitor.library.glances().runs["one"]
        assert found.state == DAMAGED and "leads out" in found.note
    assert visitor.get("/").status_code == 200


def test_a_folder_that_is_a_link_is_no_run(tmp_path, made):
    copy(made, tmp_path / "secret")
    (tmp_path / "runs").mkdir()
    os.symlink(tmp_path / "secret", tmp_path / "runs" / "one")
    assert Library(tmp_path / "runs").found().runs == {}
    os.symlink(tmp_path / "runs", tmp_path / "window")
    copy(made, tmp_path / "runs" / "two")
    assert list(Library(tmp_path / "window").found().runs) == ["two"], "the folder itself may be one"


def test_a_link_within_the_folder_may_be_followed(tmp_path, made):
    copy(made, tmp_path / "one", tmp_path / "two")
    (tmp_path / "two" / "metrics.jsonl").unlink()
    os.symlink(tmp_path / "one" / "metrics.jsonl", tmp_path / "two" / "metrics.jsonl")
    assert Visitor(tmp_path).get(run_page("two")).status_code == 200


def test_looking_changes_nothing(tmp_path, made):
    copy(made, tmp_path / "one")
    (tmp_path / "one" / "figures.json").unlink(missing_ok=True)
    before = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in tmp_path.rglob("*")}
    time.sleep(0.01)
    visitor = Visitor(tmp_path)
    for path in ("/", run_page("one"), "/compare?run=one", "/requests", "/suites", run_page("one", "metrics.csv")):
        assert visitor.get(path).status_code == 200
    assert {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in tmp_path.rglob("*")} == before
