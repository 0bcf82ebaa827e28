"""`import oblivionis` finds its sibling packages, or says which one is another project's."""

import os
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
import typer

import oblivionis
from oblivionis.cli import main
from oblivionis.config.yaml_files import conf_folder

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def home(tmp_path):
    """A folder with the package's own `__init__.py`, its version, and the other packages, which fail on import."""
    home = tmp_path / "home"
    for name in (*oblivionis.SIBLINGS, oblivionis.BENCHMARKS):
        (home / name).mkdir(parents=True)
        (home / name / "__init__.py").write_text("raise AssertionError('imported')\n", encoding="utf-8")
    (home / "oblivionis").mkdir()
    for name in ("__init__.py", "version.py"):
        shutil.copy(ROOT / "oblivionis" / name, home / "oblivionis")
    return home


def imported(*folders, before=""):
    """Exit code and last error line of `import oblivionis`, these folders in front, without site-packages."""
    code = f"import sys; sys.path[:0] = sys.argv[1:]\n{before}\nimport oblivionis"
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, *map(str, folders)], capture_output=True, text=True, timeout=60
    )
    return result.returncode, (result.stderr.strip().splitlines() or [""])[-1]


def test_siblings_in_place_are_found_and_not_imported(home):
    assert imported(home) == (0, "")


@pytest.mark.parametrize("name", [*oblivionis.SIBLINGS, oblivionis.BENCHMARKS])
def test_a_package_that_comes_first_is_named_with_its_place_and_what_to_do(home, tmp_path, name):
    other = tmp_path / "other" / name
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    code, message = imported(other.parent, home)
    assert code == 1
    assert message.startswith(f"ImportError: `{name}` is not the package of oblivionis, which lies in {home}:")
    assert f"Python finds {other / '__init__.py'} first." in message
    assert "PYTHONPATH" in message and "uninstall" in message and "virtual environment" in message


def test_a_single_module_of_that_name_is_no_sibling(home, tmp_path):
    (tmp_path / "clients.py").touch()
    code, message = imported(tmp_path, home)
    assert code == 1 and f"Python finds {tmp_path / 'clients.py'} first" in message


def test_a_module_beside_the_package_that_was_put_there_by_hand_is_no_sibling(home):
    code, message = imported(home, before="import types; sys.modules['clients'] = types.ModuleType('clients')")
    assert code == 1 and "`clients` is not the package of oblivionis" in message


def test_another_package_that_was_imported_before_is_named(home, tmp_path):
    other = tmp_path / "other" / "evaluation"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    before = f"sys.path.insert(0, {str(other.parent)!r}); import evaluation; del sys.path[0]"
    code, message = imported(home, before=before)
    assert code == 1 and f"Python finds {other / '__init__.py'} first" in message


def test_a_folder_without_init_shadows_nothing(home, tmp_path):
    (tmp_path / "other" / "clients").mkdir(parents=True)
    assert imported(tmp_path / "other", home) == (0, "")


@pytest.mark.parametrize("name", oblivionis.SIBLINGS)
def test_a_missing_sibling_is_named(home, name):
    shutil.rmtree(home / name)
    code, message = imported(home)
    assert code == 1 and f"oblivionis is incomplete: its package `{name}` is not in {home}" in message


def test_without_the_benchmarks_the_package_is_whole_whatever_else_has_that_name(home, tmp_path):
    """As in one of Flower's bundles, on a machine with somebody's package of that name."""
    shutil.rmtree(home / oblivionis.BENCHMARKS)
    assert imported(home) == (0, "")
    other = tmp_path / "other" / oblivionis.BENCHMARKS
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    assert imported(other.parent, home) == (0, "")


def test_links_to_the_packages_are_the_packages(home, tmp_path):
    linked = tmp_path / "linked"
    linked.mkdir()
    for name in ("oblivionis", *oblivionis.SIBLINGS, oblivionis.BENCHMARKS):
        os.symlink(home / name, linked / name)
    assert imported(linked) == (0, "")


def test_the_check_takes_less_than_three_milliseconds():
    seconds = []
    for _ in range(5):
        start = time.process_time()
        oblivionis.check_siblings()
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.003


def test_the_configurations_lie_in_the_package_or_beside_it(tmp_path):
    package = tmp_path / "oblivionis"
    package.mkdir()
    assert conf_folder(package) == tmp_path / "conf"
    (package / "conf").mkdir()
    assert conf_folder(package) == package / "conf"


def test_the_version_is_that_of_the_project_the_changelog_and_the_citation():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{oblivionis.__version__}"' in project.splitlines()
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = next(line for line in changelog.splitlines() if line.startswith("## "))
    version, _, date = newest.removeprefix("## ").partition(" – ")
    assert version == oblivionis.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {version}" in citation and f"date-released: {date}" in citation


def test_a_command_that_cannot_be_loaded_is_said_and_the_others_work(monkeypatch, capsys):
    """As after an update of the source without another `pip install`, or of somebody else's broken package."""
    broken = [metadata.EntryPoint("gone", value, main.COMMANDS) for value in ("benchmarks.cli:gone", "no.such:thing")]
    whole = metadata.EntryPoint("bench", "benchmarks.cli:bench_cli", main.COMMANDS)
    monkeypatch.setattr(main, "entry_points", lambda group: [*broken, whole])
    to = typer.Typer()
    main.add_commands(to)
    told = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in told] == ["oblivionis: the command gone is left out"] * 2
    assert "benchmarks.cli:gone cannot be loaded" in told[0] and "pip install" in told[0]
    assert [group.name for group in to.registered_groups] + [c.name for c in to.registered_commands] == ["bench"]
