"""What of the program counts into the hash of a stage: all that a result can come from, and nothing that shows it."""

import functools
import shutil
from pathlib import Path

import grimp
import pytest

from benchmarks.federated import identity
from oblivionis.client.app import HANDLERS

PROJECT = Path(__file__).resolve().parents[4]
PACKAGES = ("strategies", "clients", "evaluation", "oblivionis")

COUNTS = {
    *(
        "strategies",
        "strategies/privacy",
        "strategies/protocols",
        "strategies/rounds",
        "strategies/rules",
        "strategies/secure",
    ),
    *("clients", "clients/losses"),
    *("evaluation", "evaluation/engine", "evaluation/engine/backends", "evaluation/metrics", "evaluation/leakage"),
    *("evaluation/ruler", "evaluation/wikimem"),
    *("oblivionis", "oblivionis/config", "oblivionis/data", "oblivionis/data/datasets", "oblivionis/models"),
    "oblivionis/runs",
    *("oblivionis/erasure", "oblivionis/measures"),
    *("oblivionis/measures/tofu", "oblivionis/measures/ruler", "oblivionis/measures/wikimem"),
    *("oblivionis/measures/muse", "oblivionis/measures/membership", "oblivionis/measures/rebound"),
    *(
        "oblivionis/client",
        "oblivionis/client/handlers",
        "oblivionis/server",
        "oblivionis/flower",
        "oblivionis/runtime",
    ),
}
SHOWS = {
    *("oblivionis/api", "oblivionis/reports", "oblivionis/reports/html", "oblivionis/reports/certificate"),
    *("oblivionis/cli", "oblivionis/deploy", "oblivionis/audits", "oblivionis/audits/attacks"),
    *("oblivionis/view", "oblivionis/data/wikidata"),
}
SHOWS_IN_OTHER_ROOMS = {
    *("oblivionis/__init__.py", "oblivionis/__main__.py", "oblivionis/config/reference.py"),
    "oblivionis/server/preflight.py",
    *("oblivionis/runs/progress.py", "oblivionis/runs/tracking.py", "oblivionis/runs/stored_significance_tests.py"),
    *(file.relative_to(PROJECT).as_posix() for file in (PROJECT / "oblivionis/measures").glob("*/report.py")),
}

TOLD = "oblivionis.runs.progress"
"""Takes what a run tells of itself; anything may tell."""
SHOWN_AT = {
    ("oblivionis.server.app", "oblivionis.reports.html.run_page"),
    ("oblivionis.server.app", "oblivionis.reports.run_summary"),
    ("oblivionis.server.app", "oblivionis.reports.warnings"),
    ("oblivionis.server.app", "oblivionis.runs.tracking"),
    ("oblivionis.server.measuring_again", "oblivionis.reports.certificate.signing"),
    ("oblivionis.server.stages", "oblivionis.reports.request_figures"),
    ("oblivionis.server.stage", "oblivionis.measures.ruler.report"),
    ("oblivionis.server.stages", "oblivionis.reports.verdicts"),
    ("oblivionis.server.stages", "oblivionis.runs.tracking"),
}
"""Where a run hands what it computed to what shows it: its report, its summary, its verdicts, its trackers, and
the certificates that it supersedes."""


def rooms():
    """Every folder of the four packages that holds a module or data."""
    files = (file for package in PACKAGES for file in (PROJECT / package).rglob("*") if file.suffix in (".py", ".json"))
    return {file.parent.relative_to(PROJECT).as_posix() for file in files}


def hash_with(root, name, text):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    return identity.program_of(root)


@pytest.fixture(scope="module")
def unedited(tmp_path_factory):
    """The hash of one file of the program as it is, by its name."""
    folder = tmp_path_factory.mktemp("unedited")
    return functools.cache(lambda name: hash_with(folder / name.replace("/", "."), name, (PROJECT / name).read_text()))


def files_of(room):
    names = (f.relative_to(PROJECT).as_posix() for f in (PROJECT / room).glob("*") if f.suffix in (".py", ".json"))
    return sorted(set(names))


def test_every_room_is_decided():
    assert rooms() == COUNTS | SHOWS


@pytest.mark.parametrize("room", sorted(COUNTS | SHOWS))
def test_an_edit_of_what_computes_counts_and_of_what_shows_does_not(tmp_path, unedited, room):
    for number, name in enumerate(files_of(room)):
        after = hash_with(tmp_path / str(number), name, f"{(PROJECT / name).read_text()}\nADDED = 1\n")
        counts = room in COUNTS and name not in SHOWS_IN_OTHER_ROOMS
        assert (unedited(name) != after) == counts, name


@pytest.mark.parametrize("room", sorted(COUNTS))
def test_comments_docstrings_and_blank_lines_do_not_count(tmp_path, unedited, room):
    for number, name in enumerate(n for n in files_of(room) if n.endswith(".py")):
        text = (PROJECT / name).read_text()
        _, quotes, rest = text.partition('"""')
        assert quotes, f"{name} has no docstring"
        edited = f'"""Another word: {rest}\n\n# a comment\n'
        assert unedited(name) == hash_with(tmp_path / str(number), name, edited), name


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("oblivionis/data/person_facts.py", True),
        ("oblivionis/data/person_records.py", True),
        ("oblivionis/client/audit.py", True),
        ("oblivionis/models/tiny.json", True),
        ("evaluation/wikimem/properties.json", True),
        ("strategies/rules/fedyogi.py", True),
        ("clients/losses/npo.py", True),
        ("oblivionis/deploy/templates.py", False),
        ("oblivionis/reports/run_summary.py", False),
        ("oblivionis/cli/main.py", False),
        ("oblivionis/data/wikidata/reader.py", False),
        ("oblivionis/audits/attack.py", False),
    ],
)
def test_files_that_were_on_the_wrong_side_once(name, counts):
    assert (PROJECT / name in identity.computing(PROJECT)) == counts


def test_a_file_that_moves_counts(tmp_path):
    before = hash_with(tmp_path, "clients/batch_quantities.py", "x = 1\n")
    shutil.move(tmp_path / "clients" / "batch_quantities.py", tmp_path / "clients" / "pace.py")
    assert before != identity.program_of(tmp_path)


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph(*PACKAGES, cache_dir=None)


@pytest.fixture(scope="module")
def counted():
    files = [file.relative_to(PROJECT).with_suffix("") for file in identity.computing(PROJECT)]
    return {".".join(file.parts).removesuffix(".__init__") for file in files}


def test_what_computes_imports_what_shows_at_listed_points_only(graph, counted):
    shown = graph.modules - counted
    edges = {(a, b) for a in graph.modules & counted for b in graph.find_modules_directly_imported_by(a) & shown}
    assert {(a, b) for a, b in edges if b != TOLD} == SHOWN_AT


def test_all_that_the_apps_reach_without_passing_by_what_shows_is_counted(graph, counted):
    handlers = (f"oblivionis.client.handlers.{name}" for name in set(HANDLERS.values()))
    reached, waiting = set(), ["oblivionis.server.app", "oblivionis.client.app", *handlers]
    while waiting:
        module = waiting.pop()
        if module in reached or is_shown(module):
            continue
        reached.add(module)
        waiting += graph.find_modules_directly_imported_by(module)
    assert len(reached) > 100 and reached <= counted


def is_shown(module):
    path = module.replace(".", "/")
    return f"{path}.py" in SHOWS_IN_OTHER_ROOMS or path.rpartition("/")[0] in SHOWS
