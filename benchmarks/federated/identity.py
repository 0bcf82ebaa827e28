"""What a stage's result depends on, as one hash: stages with the same hash have the same result and run once.

Into it go the stage's part of the configuration, the contents of the data files, of the base model and of a loss of
the user's own (not where they lie), the versions of the packages that compute, and the program itself: every room that
a result can come from, less comments, docstrings and formatting. `SHOWING` names what stays out.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

from oblivionis.config import extension_traits
from oblivionis.config.schema import Compression, Config, Federation, Model, Strategy, Unlearning
from oblivionis.models.errors import ModelError
from oblivionis.models.fingerprint import fingerprint_model
from oblivionis.runs.directory import package_versions
from oblivionis.runs.updates import stored_rounds

UNLEARN, RETRAIN, FINETUNE = "unlearn", "retrain", "finetune"
NEVER_SAW = "never_saw"
"""No stage of a run, but what an exact erasure is compared with."""
BASE = (FINETUNE, RETRAIN)
"""Stages that unlearn takes over."""
ALONE = (*BASE, "local")
"""Stages that start from a fresh adapter, so that cells can share them."""

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("strategies", "clients", "evaluation", "oblivionis")
SHOWING = (
    *("oblivionis/api", "oblivionis/reports", "oblivionis/cli", "oblivionis/deploy", "oblivionis/audits"),
    *("oblivionis/view", "oblivionis/data/wikidata", "oblivionis/__init__.py"),
    "oblivionis/__main__.py",
    *("oblivionis/config/reference.py", "oblivionis/server/preflight.py"),
    *("oblivionis/runs/progress.py", "oblivionis/runs/tracking.py", "oblivionis/runs/stored_significance_tests.py"),
    "oblivionis/measures/*/report.py",
)
"""Rooms, and files of other rooms (by patterns), that show what a run computed, prepare one, or are another use of the
model: a stage's result is the same whatever they say. All else in `_PACKAGES` counts, so that what is new counts by
itself."""
_IGNORED = ("name", "output", "start_from", "stages", "tracking", "attack")


def stage_config(config: Config, stage: str) -> Config:
    """The configuration of a run that does `stage` alone, for all cells that share it.

    What cannot change its result has its default there: for finetune and retrain the unlearning method, unless it keeps
    the clients' updates of finetune; for local the aggregator. A target ε is divided among all stages of the cell, and
    all that they are planned to do counts.
    """
    if config.privacy.epsilon is not None:
        privacy = dataclasses.replace(config.privacy, stages=list(config.privacy.stages or config.stages))
        return dataclasses.replace(config, stages=[stage], privacy=privacy)
    rounds = dataclasses.replace(Federation().rounds, **{stage: getattr(config.federation.rounds, stage)})
    federation = dataclasses.replace(config.federation, rounds=rounds)
    changed: dict[str, Any] = {"strategy": Strategy()}
    if stage != "local":
        federation = dataclasses.replace(without_local(config).federation, rounds=rounds)
        compression = dataclasses.replace(config.federation.compression, unlearning=Compression().unlearning)
        federation = dataclasses.replace(federation, compression=compression)
        changed = {"strategy": Strategy(config.strategy.name, config.strategy.params)}
        if stage == RETRAIN or stored_rounds(config) == 0:
            changed["unlearning"] = Unlearning()
    return dataclasses.replace(config, federation=federation, stages=[stage], **changed)


def without_local(config: Config) -> Config:
    """`config` with the defaults of what the stage local alone reads."""
    default = Federation()
    rounds = dataclasses.replace(config.federation.rounds, local=default.rounds.local)
    federation = dataclasses.replace(config.federation, local_clients=default.local_clients, rounds=rounds)
    return dataclasses.replace(config, federation=federation)


def identity(config: Config) -> str:
    """SHA-256 (hexadecimal) of everything that the results of a run with `config` depend on."""
    tree = {key: value for key, value in dataclasses.asdict(config).items() if key not in _IGNORED}
    for key in ("source", "revision", "adapter"):
        tree["model"].pop(key, None)
    paths = [section.pop(key) for _, section, key in _files(tree)]
    loss = extension_traits.own_loss(config.unlearning.method)
    if loss is not None:
        tree["unlearning"]["method"] = [loss.name, _contents(loss)]
    parts = {
        "stages": config.stages,
        "configuration": tree,
        "model": _model(config.model.source, config.model.revision, config.model.adapter),
        "data": [_of_path(path) for path in paths],
        "packages": package_versions(),
        "program": program(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def inputs(config: Config) -> dict[str, str | None]:
    """Hashes of what a run with `config` reads from outside the program, by `KEY=VALUE` of the key that names it."""
    tree, model = dataclasses.asdict(config), config.model
    found = {f"model.source={model.source}": _model(model.source, model.revision, model.adapter)}
    named = [(name, section[key]) for name, section, key in _files(tree) if section[key]]
    if (loss := extension_traits.own_loss(config.unlearning.method)) is not None:
        named.append(("unlearning.method", str(loss)))
    return found | {f"{name}={path}": _of_path(path) for name, path in named}


def _files(tree: dict[str, Any]) -> list[tuple[str, dict[str, Any], str]]:
    """Every key of a configuration that names a file or folder of data: its path, its section and its name there."""
    data, wikimem = tree["data"], tree["evaluation"]["wikimem"]
    files = [(f"data.{key}", data, key) for key in sorted(data) if key == "path" or key.endswith("_file")]
    files += [(f"evaluation.wikimem.{key}", wikimem, key) for key in ("subjects", "counterfactuals_folder")]
    return [*files, ("unlearning.alternatives.idk", tree["unlearning"]["alternatives"], "idk")]


def _of_path(path: str | None) -> str | None:
    return _contents(Path(path).expanduser().resolve()) if path else None


@functools.cache
def _model(source: str, revision: str | None, adapter: str | None) -> str:
    """The model's fingerprint; its name where it is not at hand, so that a suite can be planned without it."""
    try:
        return fingerprint_model(Model(source=source, revision=revision, adapter=adapter))
    except ModelError:
        return f"{source}@{revision}{f'+{adapter}' if adapter else ''}"


def _contents(path: Path) -> str:
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    if not all(file.is_file() for file in files):
        return f"missing: {path}"
    stats = [(str(file), file.stat()) for file in files]
    return _hash_files(path, tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))


@functools.lru_cache(maxsize=256)
def _hash_files(path: Path, state: tuple[tuple[str, int, int], ...]) -> str:
    """Names below `path` and contents; `state` is what makes a remembered value void."""
    digest = hashlib.sha256()
    for name, _, _ in state:
        file = Path(name)
        digest.update(f"{file.relative_to(path) if file != path else ''}\0".encode())
        with file.open("rb") as handle:
            while block := handle.read(2**20):
                digest.update(block)
        digest.update(b"\0")
    return digest.hexdigest()


@functools.cache
def program() -> str:
    """SHA-256 over the modules that compute, their syntax without docstrings, and over their JSON data."""
    return program_of(_ROOT)


def program_of(root: Path) -> str:
    """As `program`, of the packages below `root`."""
    digest = hashlib.sha256()
    for file in computing(root):
        digest.update(f"{file.relative_to(root).as_posix()}\0".encode())
        digest.update(_syntax(file).encode() if file.suffix == ".py" else file.read_bytes())
        digest.update(b"\0")
    return digest.hexdigest()


def computing(root: Path) -> list[Path]:
    """The modules and JSON files below `root` that the results of a run come from."""
    showing = tuple(place for pattern in SHOWING for place in root.glob(pattern))
    files = (file for package in _PACKAGES for file in sorted((root / package).rglob("*")))
    return [
        file
        for file in files
        if file.suffix in (".py", ".json") and not any(file.is_relative_to(place) for place in showing)
    ]


def _syntax(module: Path) -> str:
    """The syntax tree of a module, without docstrings."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            _drop_docstring(node)
    return ast.dump(tree)


def _drop_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        node.body[0] = ast.Pass()
