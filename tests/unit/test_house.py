"""Rules of tests (what each may import and look at, what must have one) and of docstrings (they fit the signatures)."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import griffe
import pytest

from evaluation.engine.architectures import MODES
from evaluation.leakage.functions import NAMES as LEAKAGE_FUNCTIONS
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

DOCUMENTED = ("evaluation", "oblivionis/api", "strategies", "clients")
"""Packages whose docstrings must fit the signatures, with sections for functions and dataclasses."""


@dataclass
class Names:
    """Those in a file, wherever in it.

    imported: modules and names, dotted; texts: those that stand there as values; defined: functions, classes, variables
    and attributes.
    """

    imported: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)


@functools.cache
def names_in(file: Path) -> Names:
    found = Names()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.imported |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.texts.add(node.value)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.defined.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.defined.add(node.attr)
    return found


def reached(file: Path) -> set[str]:
    """Those of a file and of the modules of `support` that it imports, and they do."""
    found, files, seen = set[str](), [file], set[Path]()
    while files:
        names = names_in(files.pop()).imported
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
    """By a text that is its name, or by an import; `fused` also runs a model, `exact` is a leakage function."""
    names, found = set(protocols.names()), {}
    modules = {f"strategies.protocols.{name}" for name in names}
    for file in sorted(file for package in OURS for file in (TESTS.parent / package).rglob("*.py")):
        if file.parent.name in ("protocols", "losses"):
            continue
        here = names_in(file)
        named = here.texts & (names - {*MODES, *LEAKAGE_FUNCTIONS})
        named |= {module for module in here.imported if ".".join(module.split(".")[:3]) in modules}
        if named:
            found[file.relative_to(TESTS.parent).as_posix()] = sorted(named)
    assert found == {}


def test_every_dataset_has_its_test_file() -> None:
    datasets = {file.stem for file in (TESTS.parent / "oblivionis" / "data" / "datasets").glob("[a-z]*.py")}
    tested = {f.stem.removeprefix("test_") for f in (TESTS / "unit/oblivionis/data/datasets").glob("test_*.py")}
    assert datasets - tested == set()


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_private_names() -> set[str]:
    """The private functions, classes, variables and attributes of our packages."""
    files = (file for package in OURS for file in (TESTS.parent / package).rglob("*.py"))
    return {name for file in files for name in names_in(file).defined if is_private(name)}


def called(call: ast.Call) -> str:
    """The last name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def looked_at(file: Path, private: set[str]) -> Iterator[str]:
    """What a file imports, reads or replaces of `private`, each with its line; not what it calls so itself."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            names = [] if own else [node.attr]
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and called(node).endswith(("setattr", "getattr", "delattr")):
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


def public_members(parent: griffe.Module | griffe.Class) -> Iterator[griffe.Function | griffe.Class]:
    """The public functions and classes below a module, and their methods; `__init__` too."""
    for member in parent.members.values():
        if member.is_alias or (member.name.startswith("_") and member.name != "__init__"):
            continue
        if isinstance(member, griffe.Function | griffe.Class):
            yield member
        if isinstance(member, griffe.Module | griffe.Class):
            yield from public_members(member)


def sections(member: griffe.Function | griffe.Class) -> dict[str, list[str]]:
    """The sections of a docstring in NumPy's form by kind, with the names that each documents."""
    found: dict[str, list[str]] = {}
    for section in member.docstring.parse("numpy", warnings=False) if member.docstring else []:
        entries = section.value if isinstance(section.value, list) else []
        names = ",".join(entry.name for entry in entries if isinstance(entry, griffe.DocstringNamedElement))
        found[section.kind.value] = [name.strip(" *") for name in names.split(",") if name]
    return found


def fields(cls: griffe.Class) -> list[str]:
    """The public fields of a dataclass or named tuple that callers give a value, without docstrings of their own."""
    init = cls.members.get("__init__")
    if init and init.lineno:  # griffe adds one to a dataclass, in line 0
        return []
    own = [a for a in cls.members.values() if isinstance(a, griffe.Attribute) and a.annotation and not a.docstring]
    found = [a for a in own if "instance-attribute" in a.labels and "property" not in a.labels]
    return [a.name for a in found if not a.name.startswith("_") and "init=False" not in str(a.value)]


def docstring_fault(member: griffe.Function | griffe.Class) -> str:
    """How a docstring and its signature differ: a function with parameters and a dataclass need sections."""
    found = sections(member)
    if isinstance(member, griffe.Class):
        missing = set(fields(member)) - set(found.get("attributes") or found.get("parameters") or [])
        return f"without {sorted(missing)}" if missing else ""
    own = [p.name for p in member.parameters if p.name not in ("self", "cls", "_")]
    if not own or not (found.get("parameters") or isinstance(member.parent, griffe.Module)):
        return ""
    if sorted(found.get("parameters", [])) != sorted(own):
        return f"documents {found.get('parameters', [])} of {own}"
    says = str(member.returns) in ("None", "Never", "Iterator[None]") or not {"returns", "yields"}.isdisjoint(found)
    return "" if says else f"does not say that it returns {member.returns}"


@pytest.mark.parametrize("package", DOCUMENTED)
def test_docstrings_name_the_parameters_and_the_result(package: str) -> None:
    """As griffe reads them, by which the site is made. For a method, a sentence is enough."""
    folder = TESTS.parent / package
    root = griffe.load(folder.name, search_paths=[folder.parent], allow_inspection=False)
    assert isinstance(root, griffe.Module)
    faults = {m.path: docstring_fault(m) for m in public_members(root)}
    assert {path: fault for path, fault in faults.items() if fault} == {}


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ('def f(a, b) -> int: """S.\n\nParameters\n----------\na, b : int\n\nReturns\n-------\nint\n"""', ""),
        ('def f(a) -> int: """S."""', "documents [] of ['a']"),
        ('def f(a) -> None: """S.\n\nParameters\n----------\nb : int\n"""', "documents ['b'] of ['a']"),
        ('def f(a) -> int: """S.\n\nParameters\n----------\na : int\n"""', "does not say that it returns int"),
        ('class F:\n    """S."""\n    a: int', "without ['a']"),
        ('from dataclasses import dataclass\n@dataclass\nclass F:\n    """S."""\n    a: int', "without ['a']"),
        ('class F:\n    """S."""\n    a: int\n    """Its own."""', ""),
        ('class F:\n    """S.\n\n    Attributes\n    ----------\n    a : int\n    """\n    a: int', ""),
    ],
)
def test_a_docstring_that_does_not_fit_is_found(code: str, fault: str) -> None:
    with griffe.temporary_visited_package("package", {"__init__.py": code}) as package:
        (member, *_) = public_members(package)
        assert docstring_fault(member) == fault


SLOW = {
    *("torch", "transformers", "peft", "tokenizers", "safetensors", "huggingface_hub", "accelerate", "lm_eval", "nltk"),
    *("numpy", "scipy", "sklearn", "pandas", "pyarrow", "matplotlib", "statsmodels", "dp_accounting", "optuna"),
    *("flwr", "grpc", "ray", "cryptography", "starlette", "uvicorn", "jinja2", "htpy", "datasets"),
}
"""Libraries that a command without need of them must not wait for: 0.05 to 4 seconds each."""
OPTIONAL = {"bitsandbytes", "mlflow", "wandb", "trackio", "readline", "confusable_homoglyphs"}
"""Those that may be missing, or that change a terminal or read a large table when they are imported."""
PARTS = {"transformers", "scipy"}
"""Those whose parts load when they are named: that a file imports them already says nothing."""


class ImportGraph:
    """What each module of the product imports when it is imported itself, and later, inside functions."""

    def __init__(self) -> None:
        root = TESTS.parent
        files = {
            ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file
            for package in OURS
            for file in (root / package).rglob("*.py")
        }
        self.modules, self.early, self.late = set(files), {}, []
        for module, file in files.items():
            tree = ast.parse(file.read_text(encoding="utf-8"))
            nodes = list(ast.walk(tree))
            functions = self._lines(n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
            types = self._lines(n for n in nodes if self._is_for_types(n))
            imports = [n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom) and n.lineno not in types]
            self.early[module] = {name for n in imports if n.lineno not in functions for name in self._names(n)}
            self.late += [(module, n.lineno, self._names(n)) for n in imports if n.lineno in functions]

    @staticmethod
    def _lines(blocks: Iterable[Any]) -> set[int]:
        return {line for block in blocks for line in range(block.lineno, (block.end_lineno or block.lineno) + 1)}

    @staticmethod
    def _is_for_types(block: ast.AST) -> bool:
        return isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)

    def _names(self, node: ast.Import | ast.ImportFrom) -> set[str]:
        """The modules that an import loads: ours with the packages that they lie in, of others the library."""
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
        else:
            names = {
                name if (name := f"{node.module}.{a.name}") in self.modules else str(node.module) for a in node.names
            }
        parts = [name.split(".") for name in names]
        return {".".join(p[:n]) for p in parts for n in range(1, len(p) + 1 if p[0] in OURS else 2)}

    def slow(self, names: set[str]) -> set[str]:
        """The slow libraries that importing these loads."""
        seen, waiting = set[str](), list(names)
        while waiting:
            if (name := waiting.pop()) not in seen:
                seen.add(name)
                waiting += self.early.get(name, ())
        return seen & SLOW


def test_an_import_inside_a_function_spares_a_command_a_slow_library() -> None:
    """All others stand at the top of their file."""
    graph, needless = ImportGraph(), []
    for module, line, names in graph.late:
        packages = {module.rsplit(".", n)[0] for n in range(1, module.count(".") + 1)}
        if not (names & (OPTIONAL | PARTS) or graph.slow(names) - graph.slow({module, *packages})):
            needless.append(f"{module}:{line}: {', '.join(sorted(names))}")
    assert not needless, "\n".join(needless)
