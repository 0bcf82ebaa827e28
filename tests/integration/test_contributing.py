"""The examples of CONTRIBUTING.md in a copy of the program: their tests pass, a run and its tables have them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import oblivionis

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = re.findall(
    r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
)
FOLDERS = {
    "loss": ("clients/losses", "conf/unlearning", "tests/unit/clients/losses"),
    "aggregator": ("strategies", "conf/strategy", "tests/unit/strategies"),
    "evaluator": ("oblivionis/assessment/evaluators", "conf/evaluator", "tests/unit/oblivionis/assessment/evaluators"),
    "attack": ("oblivionis/audits/attacks", "conf/attack", "tests/unit/oblivionis/audits/attacks"),
}

# `oblivionis ARGUMENTS` with the real server and client apps, without Ray.
COMMAND = """
import sys
sys.path.append(sys.argv.pop(1))
from support.commands import in_process
from oblivionis.cli import main
from oblivionis.server import simulation
simulation.simulate = in_process
main.main()
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the packages and `conf/` with the examples, and nothing else."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("conf", "oblivionis", *oblivionis.SIBLINGS):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in EXAMPLES:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        assert not (tree / name).exists(), "an example edits no file"
        (tree / name).write_text(text, encoding="utf-8")
    return tree


def run(tree, *arguments):
    """A Python process that finds the program of the tree alone."""
    settings = {**os.environ, "COLUMNS": "200", "PYTHONPATH": os.pathsep.join([str(tree), site()])}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=tree, env=settings, capture_output=True, text=True, timeout=500)


def site():
    """Where what tests start finds its `sitecustomize`."""
    return str(ROOT / "tests" / "support" / "site")


def oblivionis_of(tree, *arguments):
    return run(tree, "-c", COMMAND, ROOT / "tests", *arguments)


def names(kind):
    return [Path(name).stem for name, _ in EXAMPLES if str(Path(name).parent) == FOLDERS[kind][0]]


@pytest.mark.parametrize("kind", FOLDERS)
def test_each_kind_is_one_code_file_one_yaml_file_and_one_test(kind):
    code, conf, test = FOLDERS[kind]
    (name,) = names(kind)
    files = {file for file, _ in EXAMPLES if name in file}
    assert files == {f"{code}/{name}.py", f"{conf}/{name}.yaml", f"{test}/test_{name}.py"}


def test_the_tests_of_the_examples_pass(tree):
    tests = [name for name, _ in EXAMPLES if name.startswith("tests/")]
    result = run(tree, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *tests)
    assert result.returncode == 0 and f"{len(tests)} passed" in result.stdout, result.stdout


def test_a_mistake_in_their_keys_is_told(tree):
    loss, aggregator, evaluator, attack = (name for kind in FOLDERS for name in names(kind))
    chosen = [f"unlearning={loss}", f"strategy={aggregator}"]
    wrong = ["unlearning.params.cap=0", "strategy.params.pace=2", f"evaluation.{evaluator}.most=0"]
    wrong.append(f"attack.{attack}.marks=-1")
    result = oblivionis_of(tree, "config", "check", "smoke", *chosen, *wrong)
    assert result.returncode == 2
    for key in (item.partition("=")[0] for item in wrong):
        assert f"{key}: " in result.stderr


def test_a_whole_run_with_all_of_them(tree):
    loss, aggregator, evaluator, attack = (name for kind in FOLDERS for name in names(kind))
    chosen = [f"unlearning={loss}", f"strategy={aggregator}", f"evaluation.{evaluator}.most=7"]
    result = oblivionis_of(tree, "simulate", "smoke", *chosen, "name=all")
    assert result.returncode == 0, result.stderr
    folder = tree / "runs" / "all"
    for stage in ("finetune", "retrain", "unlearn"):
        metrics = json.loads((folder / "stages" / f"{stage}.json").read_text("utf-8"))["metrics"]
        assert 0 < metrics[f"{evaluator}_tokens"] <= 7
    assert "Answer length" in result.stdout
    assert "Answer length" in (folder / "report.html").read_text("utf-8")
    attacked = oblivionis_of(tree, "attack", folder, "--only", attack, f"attack.{attack}.marks=3")
    assert attacked.returncode == 0, attacked.stderr
    assert "shout with 3 marks" in attacked.stdout
