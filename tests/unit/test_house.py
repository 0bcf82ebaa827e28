"""The rules of the tests themselves: what each may import, and what must have one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
OURS = {"oblivionis", "benchmarks", "strategies", "clients", "evaluation"}
MAY_IMPORT = {"strategies": {"strategies"}, "clients": {"clients", "evaluation"}, "evaluation": {"evaluation"}}
"""The packages at the bottom, and of ours what their tests may import: what they themselves do."""
NOT_YET = {"unit/strategies/test_robust.py": "asks the configuration how many clients each rule needs"}


def imported(file: Path) -> Iterator[str]:
    """The modules and names that a file imports, wherever in it, as dotted names."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def reached(file: Path) -> set[str]:
    """Those of a file and of the modules of `support` that it imports, and they do."""
    found, files, seen = set(), [file], set()
    while files:
        names = set(imported(files.pop()))
        found |= names
        modules = {TESTS / "support" / f"{name.split('.')[1]}.py" for name in names if name.startswith("support.")}
        files += modules - seen
        seen |= modules
    return found


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_the_tests_of_a_package_at_the_bottom_import_nothing_above_it(package: str) -> None:
    above = {}
    for file in sorted((TESTS / "unit" / package).rglob("*.py")):
        names = {name for name in reached(file) if name.split(".")[0] in OURS - MAY_IMPORT[package]}
        if names:
            above[file.relative_to(TESTS).as_posix()] = names
    assert above.keys() == {name for name in NOT_YET if name.startswith(f"unit/{package}/")}, above


def test_every_loss_has_its_test_file() -> None:
    losses = {file.stem for file in (TESTS.parent / "clients" / "losses").glob("[a-z]*.py")}
    tested = {file.stem.removeprefix("test_") for file in (TESTS / "unit" / "clients" / "losses").glob("test_*.py")}
    assert losses - tested == set()
