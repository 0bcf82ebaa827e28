"""What other programs may rely on: every public name is there, explained, in the reference, and as it was."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support import surface

import oblivionis
from oblivionis.api import reference

ROOT = Path(__file__).resolve().parents[4]
ALIASES = {"ModelLike", "Rows", "ruler.Array"}
"""Names of types, which have their docstring in the code only."""
VALUES = {"leakage.NAMES", "federation.PARTITION_ID", "federation.RECORD_IDS", "federation.REQUEST_IDS"}
PUBLIC = dict(reference.names())


def test_type_checkers_see_the_names_that_are_there() -> None:
    tree = ast.parse((ROOT / "oblivionis" / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {
        (f"{node.module}.{alias.name}" if node.module == "oblivionis.api" else node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {name for _, name in seen} == set(oblivionis.__all__) <= set(dir(oblivionis))
    for module, name in seen:
        found = importlib.import_module(str(module))
        value = getattr(oblivionis, name)
        assert value is (found if isinstance(value, ModuleType) else getattr(found, name))


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'evaluate_modell'"):
        oblivionis.evaluate_modell  # noqa: B018


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - ALIASES - VALUES))
def test_every_name_has_a_docstring(name: str) -> None:
    text = PUBLIC[name].__doc__ or ""
    assert len(text.split()) > 3 and not text.startswith(f"{name.rpartition('.')[2]}("), "dataclass made this one"


def test_the_signatures_are_those_of_the_version() -> None:
    """A line that changes or goes breaks programs of others: docs/reference/versions.md says what number comes next."""
    file = Path(__file__).with_name("surface.txt")
    before, now = file.read_text(encoding="utf-8").splitlines(), list(surface.lines())
    changes = "\n".join(difflib.unified_diff(before, now, "before", "now", lineterm="", n=0))
    assert not changes, f"{changes}\nif that is meant: python tests/support/surface.py > {file.relative_to(ROOT)}"


LIGHT = """
import sys
import oblivionis
dir(oblivionis), oblivionis.__version__, oblivionis.OblivionisError, oblivionis.ConfigError, oblivionis.DataError
print(*sorted({name.partition(".")[0] for name in sys.modules}))
oblivionis.leakage_bounds([0.0, 0.5], alpha=0.1)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""
LIBRARIES = {"torch", "transformers", "peft", "flwr", "ray", "datasets", "pandas", "matplotlib", "statsmodels"}


@pytest.mark.slow
def test_a_name_loads_what_it_needs() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], cwd=ROOT, capture_output=True, text=True, check=True)
    plain, bounds = (set(line.split()) for line in done.stdout.splitlines())
    assert not plain & {*LIBRARIES, "numpy", "scipy"} and not bounds & LIBRARIES


@pytest.mark.parametrize("package", ["oblivionis", "strategies", "clients", "evaluation"])
def test_the_packages_say_that_they_are_typed(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None and Path(spec.origin).with_name("py.typed").is_file()


def build(settings: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """MkDocs, to which every warning is an error (but not with --quiet, which hides them from itself as well)."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", settings, "-d", site]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def is_namespace(value: object) -> bool:
    return isinstance(value, ModuleType)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents as a site."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "docs" / "site" / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_every_name_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "library.html").read_text(encoding="utf-8")
    missing = [name for name in PUBLIC if f'id="oblivionis.{name}"' not in page]
    assert missing == []


def test_the_reference_in_a_checkout_is_what_the_code_says() -> None:
    page = reference.PAGE.read_text(encoding="utf-8")
    assert page == reference.page(), "run: python -m oblivionis.api.reference > docs/reference/library.md"
    missing = [name for name, value in PUBLIC.items() if f"```python\n{name}" not in page and not is_namespace(value)]
    assert missing == []


@pytest.mark.slow
def test_links_out_of_the_documents_lead_to_pages_of_the_site(site: Path) -> None:
    index = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="project/CONTRIBUTING.html"' in index and (site / "project" / "CONTRIBUTING.html").is_file()
    readme = (site / "project" / "index.html").read_text(encoding="utf-8")
    assert 'href="../start/data.html"' in readme and 'src="../images/forget_curve.svg"' in readme


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a](gone.md)", "'gone.md'"),
        ("[a](#gone)", "'#gone'"),
        ("::: clients.gone", "clients.gone could not be found"),
    ],
)
@pytest.mark.slow
def test_a_broken_link_or_a_missing_name_breaks_the_site(tmp_path: Path, text: str, problem: str) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "index.md").write_text(f"# A\n\n{text}\n", encoding="utf-8")
    settings = (ROOT / "docs" / "site" / "mkdocs.yml").read_text(encoding="utf-8")
    for ours, theirs in {"docs_dir: ..": "docs_dir: pages", "hooks: [hooks.py]": "", "[../..]": f"[{ROOT}]"}.items():
        assert ours in settings
        settings = settings.replace(ours, theirs)
    (tmp_path / "mkdocs.yml").write_text(settings, encoding="utf-8")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0 and problem in done.stderr, done.stderr
