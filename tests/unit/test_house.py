"""The rules of the tests themselves: what each may import and look at, and what must have one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluation.engine.architectures import MODES
from strategies import protocols

TESTS = Path(__file__).resolve().parents[1]
OURS = {"oblivionis", "benchmarks", "strategies", "clients", "evaluation"}
MAY_IMPORT = {"strategies": {"strategies"}, "clients": {"clients", "evaluation"}, "evaluation": {"evaluation"}}
"""The packages at the bottom, and of ours what their tests may import: what they themselves do."""
ABOVE: dict[str, str] = {}
"""Files that import more, and why."""
PRIVATE = {
    "unit/strategies/secure/test_sum.py": "what would happen without a check; the ring of neighbours by itself",
}
"""Files that look at names of ours that begin with an underscore, and why."""


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
    assert above.keys() == {name for name in ABOVE if name.startswith(f"unit/{package}/")}, above


@pytest.mark.parametrize("folder", ["clients/losses", "strategies/protocols"])
def test_every_loss_and_every_protocol_has_its_test_file(folder: str) -> None:
    methods = {file.stem for file in (TESTS.parent / folder).glob("[a-z]*.py")} - {"base"}
    tested = {file.stem.removeprefix("test_") for file in (TESTS / "unit" / folder).glob("test_*.py")}
    assert methods - tested == set()


def test_no_protocol_is_named_outside_its_own_files() -> None:
    """By a text that is its name, or by an import; `fused` is also a way of running a model."""
    names, found = set(protocols.names()), {}
    modules = {f"strategies.protocols.{name}" for name in names}
    for file in sorted(file for package in OURS for file in (TESTS.parent / package).rglob("*.py")):
        if file.parent.name in ("protocols", "losses"):
            continue
        nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        named = {node.value for node in nodes if isinstance(node, ast.Constant)} & (names - set(MODES))
        named |= {module for module in imported(file) if ".".join(module.split(".")[:3]) in modules}
        if named:
            found[file.relative_to(TESTS.parent).as_posix()] = sorted(map(str, named))
    assert found == {}


def test_every_dataset_has_its_test_file() -> None:
    datasets = {file.stem for file in (TESTS.parent / "oblivionis" / "data" / "datasets").glob("[a-z]*.py")}
    tested = {f.stem.removeprefix("test_") for f in (TESTS / "unit/oblivionis/data/datasets").glob("test_*.py")}
    assert datasets - tested == set()


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_private_names() -> set[str]:
    """The private functions, classes, variables and attributes of our packages."""
    found: set[str] = set()
    for file in (file for package in OURS for file in (TESTS.parent / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
    return {name for name in found if is_private(name)}


def looked_at(file: Path, private: set[str]) -> Iterator[str]:
    """What a file imports, reads or replaces of `private`, each with its line; not what it calls so itself."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            names = [node.attr] if ast.unparse(node.value) not in ("self", "cls") else []
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("setattr", "getattr", "delattr")):
            texts = (a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))
            names = [text.split(".")[-1] for text in texts]
        yield from (f"line {node.lineno}: {name}" for name in names if name in private)


def test_no_test_looks_at_what_is_private() -> None:
    private, found = own_private_names(), {}
    for file in sorted(TESTS.rglob("*.py")):
        lines = list(looked_at(file, private))
        if lines:
            found[file.relative_to(TESTS).as_posix()] = lines
    assert found.keys() == PRIVATE.keys(), found


def test_a_look_at_something_private_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "from clients.flat_parameters import _a, b\n"
        "from other import _a\n"
        "flat._a, self._a, flat._c\n"
        "monkeypatch.setattr(flat, '_a', 1)\n"
        "monkeypatch.setattr('clients.flat_parameters._a', 1)\n"
    )
    found = list(looked_at(tmp_path / "test_x.py", {"_a"}))
    assert sorted(found) == ["line 1: _a", "line 3: _a", "line 4: _a", "line 5: _a"]
