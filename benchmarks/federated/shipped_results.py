"""Results for others to hold theirs against: a suite's folder without models, small enough to send or to ship.

`keep` writes results, suite and tables as they are, and `runs.zip` with what each run measured: a folder per run, named
as in the column `run` of the results, with its configuration, environment, metrics, figures, stages and answers per
question, and its adapters where they are small.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.federated import results
from benchmarks.federated.report import NODES
from oblivionis.errors import RunError
from oblivionis.files import read_bytes, write_atomic
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory

RUNS = "runs.zip"
_FILES = ("config.yaml", "environment.json", "metrics.jsonl", "figures.json")
_DATED = (1980, 1, 1, 0, 0, 0)


def keep(source: Path, folder: Path, suite: str, adapter_bytes: int) -> list[Path]:
    """Write the results in `source`, a suite's folder, into `folder`, which is made; the files written.

    suite: the name of the suite's file there; adapter_bytes: models of stages up to this size are kept too. Of absolute
    paths in configurations only the last part is kept. Equal results give equal files. Raises RunError where `source`
    holds no results or not all of its runs, and where `folder` is not empty.
    """
    if not source.is_dir():
        raise RunError(f"{source} is not a suite's folder: its runs lie beside its results, and both are wanted")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} is not empty: name a folder that does not exist yet")
    table, _ = results.read(source)
    runs = sorted({name for name in table.column("run").to_pylist() if name})
    files = {
        run: sorted(_of_run(artifact_binding.opened(source / run, with_models=False), adapter_bytes)) for run in runs
    }
    folder.mkdir(parents=True, exist_ok=True)
    results.write(table, folder)
    tables = [f"tables/{path.name}" for path in sorted((source / "tables").glob("*.md"))]
    for name in (suite, NODES, *tables):
        if (source / name).is_file():
            (folder / name).parent.mkdir(exist_ok=True)
            write_atomic(folder / name, without_places(source / name))
    with zipfile.ZipFile(folder / RUNS, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for run, names in files.items():
            for name in names:
                entry = zipfile.ZipInfo(f"{Path(run).name}/{name}", _DATED)
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(entry, without_places(source / run / name))
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _of_run(run: RunDirectory, adapter_bytes: int) -> Iterator[str]:
    """What is kept of a run; of stages that were taken over from another run, nothing."""
    yield from (name for name in _FILES if (run.path / name).is_file())
    for file in sorted((run.path / "stages").glob("*.json")):
        summary = run.stage_summary(file.stem)
        if summary is None or "reused_from" in summary:
            continue
        yield f"stages/{file.name}"
        if (run.path / "evaluations" / file.name).is_file():
            yield f"evaluations/{file.name}"
        models = sorted((run.path / "checkpoints" / file.stem).glob("*.safetensors"))
        if models and models[-1].stat().st_size <= adapter_bytes:
            yield f"checkpoints/{file.stem}/{models[-1].name}"


def without_places(file: Path) -> bytes:
    """The file; of absolute paths in a configuration only the last part, and of those of other runs in a summary."""
    data = read_bytes(file)
    if file.suffix == ".json":
        summary = json.loads(data)
        named = _runs_named(summary)
        return data if named == summary else json.dumps(named, indent=1).encode()
    if file.suffix != ".yaml":
        return data
    return yaml.safe_dump(_named(yaml.safe_load(data)), sort_keys=False, allow_unicode=True, width=120).encode()


def _named(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _named(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_named(each) for each in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _runs_named(value: Any) -> Any:
    """`value` with the last part alone of every path under a key `run`: an answer may begin with a slash, too."""
    if isinstance(value, dict):
        return {key: _named(each) if key == "run" else _runs_named(each) for key, each in value.items()}
    return [_runs_named(each) for each in value] if isinstance(value, list) else value
