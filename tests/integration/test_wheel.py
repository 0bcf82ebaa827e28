"""The wheel alone, in a fresh environment outside the checkout: a whole run, and every file that the program reads."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import oblivionis

PROJECT = Path(__file__).resolve().parents[2]
SUPPORT = PROJECT / "tests" / "support"
PACKAGES = ("oblivionis", *oblivionis.SIBLINGS, oblivionis.BENCHMARKS)
READ = ("*.json", "*.yaml", "*.csv", "*.css", "*.js", "*.svg")

# The real server and client apps, without Ray: `support.inprocess` lies beside the tests, the program in the wheel.
SMOKE = """
import sys
sys.path.append(sys.argv.pop(1))
from support.commands import in_process
from oblivionis.cli import main
from oblivionis.server import simulation
simulation.simulate = in_process
main.main()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The project's wheel, built by its own build system without looking at any package index."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    built = subprocess.run([*pip, "-q", "-w", folder, PROJECT], capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory):
    """A new environment with the wheel, which finds the libraries of this one, but not the checkout."""
    home = tmp_path_factory.mktemp("fresh")
    venv.create(home / "env", symlinks=True)
    python = home / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index"]
    done = subprocess.run([*pip, wheel], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    packages = next((home / "env" / "lib").glob("python*")) / "site-packages"
    # Of a folder that a .pth file names Python reads no further .pth files, so an editable install stays out of sight.
    libraries = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "libraries.pth").write_text("".join(f"{path}\n" for path in libraries), encoding="utf-8")
    work = home / "work"
    work.mkdir()
    return SimpleNamespace(bin=home / "env" / "bin", packages=packages, work=work)


def run(fresh, *command, path=()):
    """Runs a command in an empty folder; the checkout is not on its path."""
    settings = {**os.environ, "COLUMNS": "200", "HF_HUB_OFFLINE": "1"}
    settings["PYTHONPATH"] = os.pathsep.join([*map(str, path), str(SUPPORT / "site")])
    return subprocess.run(
        [*map(str, command)], cwd=fresh.work, env=settings, capture_output=True, text=True, timeout=500
    )


def test_everything_that_is_read_is_in_the_wheel_and_nothing_else_at_the_top(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"oblivionis-{oblivionis.__version__}.dist-info"
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, info}
    tracked = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True)
    expected = set()
    for name in tracked.stdout.splitlines():
        top = name.partition("/")[0]
        if top == "conf":
            expected.add(f"oblivionis/{name}")
        elif top in PACKAGES:
            expected.add(name)
    read = {name for name in expected if any(Path(name).match(pattern) for pattern in READ)}
    assert {"oblivionis/conf/smoke.yaml", "oblivionis/models/tiny.json", "benchmarks/suites/quick.yaml"} < read
    assert {
        "evaluation/wikimem/properties.json",
        "benchmarks/papers/sources.yaml",
        "oblivionis/view/static/window.js",
    } < read
    assert expected <= names, sorted(expected - names)


@pytest.mark.parametrize("name", PACKAGES)
def test_the_packages_come_from_the_new_environment(fresh, name):
    result = run(fresh, fresh.bin / "python", "-c", f"import {name}; print({name}.__file__)")
    assert result.stdout.strip() == str(fresh.packages / name / "__init__.py"), result.stderr


def test_conf_is_no_package_and_lies_in_oblivionis(fresh):
    code = "import importlib.util as u; from oblivionis.config.yaml_files import CONF; print(CONF, u.find_spec('conf'))"
    result = run(fresh, fresh.bin / "python", "-c", code)
    assert result.stdout.split() == [str(fresh.packages / "oblivionis" / "conf"), "None"], result.stderr


def test_a_whole_run(fresh):
    result = run(fresh, fresh.bin / "python", "-c", SMOKE, SUPPORT.parent, "simulate", "smoke", "name=wheel")
    assert result.returncode == 0, result.stderr
    folder = fresh.work / "runs" / "wheel"
    assert (folder / "report.html").is_file()
    assert {file.stem for file in (folder / "stages").glob("*.json")} == {"finetune", "retrain", "unlearn"}


def test_the_commands_find_configurations_and_suites(fresh):
    listed = run(fresh, fresh.bin / "oblivionis", "config", "list")
    assert listed.returncode == 0 and "paper_llama_3_2_1b" in listed.stdout and "bad_teacher" in listed.stdout
    version = run(fresh, fresh.bin / "oblivionis", "--version")
    assert version.stdout.strip() == oblivionis.__version__
    helped = run(fresh, fresh.bin / "oblivionis", "bench", "--help")
    assert helped.returncode == 0 and "SUITE" in helped.stdout
    planned = run(fresh, fresh.bin / "oblivionis", "bench", "quick", "--dry-run")
    assert planned.returncode == 0 and "cells" in planned.stdout, planned.stderr


def test_a_folder_called_clients_in_front_is_told_clearly(fresh, tmp_path):
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "__init__.py").touch()
    result = run(fresh, fresh.bin / "oblivionis", "config", "list", path=[tmp_path])
    assert result.returncode == 1
    message = result.stderr.strip().splitlines()[-1]
    assert f"`clients` is not the package of oblivionis, which lies in {fresh.packages}" in message
    assert str(tmp_path / "clients" / "__init__.py") in message
