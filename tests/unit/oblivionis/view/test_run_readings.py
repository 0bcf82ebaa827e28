"""What is known of runs is what their files say, with an index and without one, whatever happens to either."""

import json
import os
import shutil
import socket
import threading
import time

import psutil
import pytest
from support.processes import until
from support.reports import ask, bind, make_run
from support.window import Visitor, run_page

from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.run_status import DAMAGED, FINISHED, RUNNING, STOPPED
from oblivionis.view import library, run_index, run_readings, runs_page
from oblivionis.view.library import Library


@pytest.fixture(autouse=True)
def at_once(monkeypatch, tmp_path):
    """What was found is looked for again, files that were just made are settled, and the index is written each time."""
    monkeypatch.setattr(library, "FRESH_SECONDS", -1.0)
    monkeypatch.setattr(run_readings, "SETTLED_NS", 0)
    monkeypatch.setattr(run_readings, "SAVE_SECONDS", 0.0)
    monkeypatch.setenv("OBLIVIONIS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run that its ledger binds, with requests."""
    run, config = make_run(tmp_path_factory.mktemp("made"))
    ask(run)
    bind(run, config)
    run.keep({"odd/one.json": "{}"})
    artifact_binding.measured(run, run.path / "attacks" / "relearn" / "results.json", {})
    return run.path


KINDS = ("finished", "edited", "damaged", "stopped", "running", "cut", "altered", "odd", "linked", "renamed", "deleted")


@pytest.fixture
def runs(tmp_path, made):
    """Runs of all kinds, before anything happened to them."""
    for kind in KINDS:
        shutil.copytree(made, tmp_path / "runs" / kind)
    (tmp_path / "runs" / "stopped" / "stages" / "unlearn.json").unlink()
    (tmp_path / "runs" / "damaged" / "stages" / "unlearn.json").write_text("{}")
    return tmp_path / "runs"


def happen(runs):
    """What may happen to runs between two starts of the window; of one edit neither size nor time of writing tell."""
    time.sleep(0.02)  # a tick of the file system's clock
    edited = runs / "edited" / "stages" / "unlearn.json"
    before = edited.stat()
    edited.write_text(edited.read_text().replace("0.125", "0.225", 1))
    os.utime(edited, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert edited.stat().st_size == before.st_size
    shutil.copy(runs / "finished" / "stages" / "unlearn.json", runs / "damaged" / "stages" / "unlearn.json")
    parent = os.getppid()
    facts = {"pid": parent, "host": socket.gethostname(), "started": psutil.Process(parent).create_time()}
    (runs / "running" / "running.json").write_text(json.dumps(facts))
    ledger = runs / "cut" / "requests.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-4]))
    ledger = runs / "altered" / "requests.jsonl"
    ledger.write_text(ledger.read_text().replace("its share", "its shere"))
    (runs / "odd" / "odd" / "one.json").write_text("[]")
    (runs / "linked" / "metrics.jsonl").unlink()
    (runs / "linked" / "metrics.jsonl").symlink_to("/etc/hostname")
    (runs / "renamed").rename(runs / "new name")
    shutil.rmtree(runs / "deleted")


def rows(root, *, indexed):
    """All rows at a new start; with an index, once it is written."""
    found = Library(root, indexed=indexed)
    glances = found.glances()
    assert not glances.unread
    if indexed:
        found.readings.wait()
    return dict(glances.runs)


@pytest.fixture
def read_runs(monkeypatch):
    """The names of the runs that are read."""
    names, read = [], run_readings.read

    def counting(path):
        names.append(path.name)
        return read(path)

    monkeypatch.setattr(run_readings, "read", counting)
    return names


def test_an_index_and_none_give_equal_rows_whatever_happened_to_the_runs(runs, read_runs):
    first = rows(runs, indexed=True)
    assert {first[kind].state for kind in ("damaged", "stopped", "finished")} == {DAMAGED, STOPPED, FINISHED}
    read_runs.clear()
    assert rows(runs, indexed=True) == first
    assert read_runs == ["damaged"], "what prevented reading it need not be in its files"
    assert rows(runs, indexed=False) == first
    happen(runs)
    read_runs.clear()
    found = rows(runs, indexed=True)
    assert {"finished", "stopped", "running"}.isdisjoint(read_runs), "nothing happened to what these are read from"
    assert found == rows(runs, indexed=False)
    assert found["running"].state == RUNNING and found["damaged"].state == FINISHED
    assert found["linked"].state == DAMAGED and "leads out" in found["linked"].note
    for kind in ("edited", "cut", "altered", "odd"):
        assert "Nothing follows" in found[kind].nothing and not found[kind].metrics, kind
    assert found.keys() == {*KINDS, "new name"} - {"renamed", "deleted"}
    assert rows(runs, indexed=True) == found


@pytest.mark.parametrize("kind", ["edited", "cut", "altered", "odd", "damaged"])
def test_a_window_that_is_open_shows_what_happened_and_that_it_was_undone(runs, kind):
    window = Library(runs)
    before = window.glances().runs[kind]
    shutil.copytree(runs / kind, runs.parent / "saved")
    happen(runs)
    assert window.glances().runs[kind] == rows(runs, indexed=False)[kind] != before
    time.sleep(0.02)
    shutil.copytree(runs.parent / "saved", runs / kind, dirs_exist_ok=True)
    assert window.glances().runs[kind] == before == window.glance(kind)


def test_files_that_changed_just_now_are_read_again(runs, monkeypatch, read_runs):
    monkeypatch.setattr(run_readings, "SETTLED_NS", 60_000_000_000)
    window = Library(runs, indexed=True)
    for times in (1, 2):
        assert len(window.glances().runs) == len(KINDS)
        assert read_runs.count("damaged") == times
    window.readings.wait()
    assert run_index.RunIndex(runs).load() == {}


DAMAGE = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "one bit": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "the digest": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "something else": lambda data: b"oblivionis" * 100,
    "grown": lambda data: data + b"\0",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_index_is_made_anew(runs, damage, read_runs, capsys):
    first = rows(runs, indexed=True)
    path = run_index.RunIndex(runs).path
    assert len(run_index.RunIndex(runs).load()) == len(KINDS) - 1
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    read_runs.clear()
    assert rows(runs, indexed=True) == first
    assert set(read_runs) == set(KINDS), "all of them"
    assert len(run_index.RunIndex(runs).load()) == len(KINDS) - 1
    assert capsys.readouterr().err == ""


def test_an_index_of_another_version_of_the_program_counts_for_nothing(runs, monkeypatch):
    rows(runs, indexed=True)
    assert run_index.RunIndex(runs).load()
    monkeypatch.setattr(run_index, "__version__", "0.0.1")
    assert run_index.RunIndex(runs).load() == {}


def test_an_index_of_another_code_or_another_folder_counts_for_nothing(runs, monkeypatch):
    rows(runs, indexed=True)
    mine, other = run_index.RunIndex(runs), run_index.RunIndex(runs.parent)
    shutil.copy(mine.path, other.path)
    assert other.load() == {} != mine.load()
    states = run_index.program()
    assert any(path.endswith(b"run_status.py") for path, *_ in states[1])
    version, files = states
    monkeypatch.setattr(run_index, "program", lambda: (version, files[1:]))
    assert mine.load() == {}


@pytest.mark.parametrize("taken", ["cache", "cache/view"])
def test_without_a_folder_that_can_be_written_there_is_no_index(runs, tmp_path, taken):
    (tmp_path / taken).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / taken).write_text("a file, and no folder")
    assert rows(runs, indexed=True) == rows(runs, indexed=False)
    assert (tmp_path / taken).is_file()


def test_the_index_is_for_its_user_alone_and_nothing_is_written_among_the_runs(runs):
    before = sorted(runs.rglob("*"))
    rows(runs, indexed=True)
    assert run_index.RunIndex(runs).path.stat().st_mode & 0o077 == 0
    assert sorted(runs.rglob("*")) == before


def test_numbers_and_texts_come_back_as_they_are(runs):
    summary = runs / "stopped" / "stages" / "finetune.json"
    summary.write_text('{"stage": "finetune", "metrics": {"a": 1, "b": 1.5, "c": null, "ü": Infinity, "d": -0.0}}')
    for kind in KINDS:
        (runs / kind / "requests.jsonl").unlink()
    first = rows(runs, indexed=True)
    again = rows(runs, indexed=True)
    assert repr(again) == repr(first) and "'a': 1, 'b': 1.5, 'c': None, 'ü': inf, 'd': -0.0" in repr(first["stopped"])


def test_two_windows_at_once_leave_a_whole_index(runs):
    windows = [Library(runs, indexed=True) for _ in range(4)]
    found = []
    threads = [threading.Thread(target=lambda one=one: found.append(dict(one.glances().runs))) for one in windows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for window in windows:
        window.readings.wait()
    assert found == [rows(runs, indexed=False)] * 4
    assert len(run_index.RunIndex(runs).load()) == len(KINDS) - 1


def test_an_index_of_another_user_or_no_file_at_all_counts_for_nothing(runs, monkeypatch):
    expected, index = rows(runs, indexed=True), run_index.RunIndex(runs)
    assert index.load()
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: os.stat(index.path).st_uid + 1)
        assert index.load() == {} and rows(runs, indexed=True) == expected
    index.path.unlink()
    os.mkfifo(index.path)
    assert index.load() == {}


def test_a_folder_whose_name_is_no_text_has_rows(runs):
    odd = runs.parent / os.fsdecode(b"r\xffns")
    shutil.copytree(runs, odd)
    assert rows(odd, indexed=True).keys() == rows(runs, indexed=True).keys() == rows(odd, indexed=True).keys()


def test_a_running_json_that_the_ledger_names_is_looked_at(runs):
    run = RunDirectory.open(runs / "finished")
    artifact_binding.measured(run, run.path / "running.json", {})
    window = Library(runs)
    assert not window.glances().runs["finished"].nothing
    (run.path / "running.json").unlink()
    assert "running.json is gone" in window.glances().runs["finished"].nothing


# -- while runs are being read -------------------------------------------------------------------------------------


@pytest.fixture
def slowly(monkeypatch):
    """The runs that may be read: reading another one waits."""
    allowed, read = set(), run_readings.read

    def wait(path):
        while path.name not in allowed:
            time.sleep(0.01)
        return read(path)

    monkeypatch.setattr(run_readings, "read", wait)
    monkeypatch.setattr(runs_page, "PATIENCE", 0.05)
    yield allowed
    allowed.update(KINDS)


def test_the_newest_runs_are_shown_while_the_others_are_read(runs, slowly):
    for number, kind in enumerate(sorted(KINDS)):
        for path in (runs / kind).rglob("*"):
            os.utime(path, (number + 1e9, number + 1e9))
    visitor = Visitor(runs)
    page = visitor.page("/")
    assert f"0 of {len(KINDS)} runs in" in page and "are read so far" in page and 'data-seconds="3"' in page
    assert "No runs" not in page and "; 0 of these are shown" not in page
    slowly.update(newest := sorted(KINDS)[-2:])
    wanted = {kind: runs / kind for kind in newest}
    assert until(lambda: not visitor.library.readings.glances(wanted, 0.05).unread, 60, every=0.05)
    answer = visitor.get("/?part=runs&unread=1")
    assert f"2 of {len(KINDS)} runs in" in answer.text and answer.headers["x-seconds"] == "3"
    assert all(run_page(kind) in answer.text for kind in newest) and answer.text.count("<tr>") == 3
    assert "load the page anew" not in answer.text
    page = visitor.page("/?state=running")
    assert "the newest first; 0 of these are shown. The others follow." in page and "No runs" not in page
    slowly.update(KINDS)
    rows = visitor.get("/runs.csv").text.splitlines()
    assert len(rows) == 1 + len(KINDS), "a file has all of them"
    answer = visitor.get("/?part=runs&unread=1")
    assert f">{len(KINDS)} runs in" in answer.text and "load the page anew" in answer.text
    assert answer.headers["x-seconds"] == "10" and "load the page anew" not in visitor.page("/")


def test_a_fault_of_the_program_stops_no_other_page(runs, monkeypatch):
    read = run_readings.read

    def fail(path):
        if path.name == "cut":
            raise ZeroDivisionError("a fault")
        return read(path)

    monkeypatch.setattr(run_readings, "read", fail)
    window = Library(runs)
    with pytest.raises(ZeroDivisionError):
        window.glances()
    assert window.glance("finished").state == FINISHED
    monkeypatch.setattr(run_readings, "read", read)
    assert len(window.glances().runs) == len(KINDS)


@pytest.mark.slow
def test_times_in_the_future_hide_nothing_and_keep_nobody_waiting(runs, monkeypatch, read_runs):
    monkeypatch.setattr(run_readings, "SETTLED_NS", 2_000_000_000)
    later = time.time() + 3600
    for path in runs.rglob("*"):
        os.utime(path, (later, later))
    window = Library(runs)
    expected = window.glances().runs
    asked = threading.Thread(target=lambda: [window.glances(0.0) for _ in range(50)])
    asked.start()
    for _ in range(5):
        found = window.glances(0.0)
        assert not found.unread and found.runs == expected == window.glances().runs
    asked.join()
    window.readings.wait()
    (runs / "finished" / "config.yaml").write_text("{")
    assert window.glances().runs["finished"].state == DAMAGED


def test_a_reader_that_cannot_start_is_told_and_started_by_the_next(runs, monkeypatch):
    window, start = Library(runs), threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(RuntimeError("no thread")))
    with pytest.raises(RuntimeError, match="no thread"):
        window.glances()
    monkeypatch.setattr(threading.Thread, "start", start)
    assert len(window.glances().runs) == len(KINDS)
