"""Results that lie on disk: their tables, and how they compare, for `oblivionis bench table` and `bench compare`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks import suite_kinds
from benchmarks.federated import results
from benchmarks.federated.comparison import Comparison, compare
from benchmarks.federated.settings import Layout, Settings
from benchmarks.federated.tables import FORMATS, build
from benchmarks.output.folders import differences
from oblivionis.config.problems import did_you_mean
from oblivionis.config.yaml_files import read_yaml
from oblivionis.errors import OblivionisError
from oblivionis.files import read_bytes
from oblivionis.reports.table import Table

__all__ = ["FORMATS", "comparison_document", "comparison_of", "results_document", "tables_of"]

REFERENCE = Path(__file__).resolve().parent / "reference"
"""Results that ship, a folder per suite."""
_OF_READERS = frozenset({"kind", "title", "description", "tables"})
"""What a suite says that changes no value."""
_OF_PLACE = frozenset({"base.data.path", "base.evaluation.wikimem.counterfactuals_folder", "base.model.device"})


def tables_of(target: Path, names: Sequence[str]) -> list[Table]:
    """The tables `names` of the results in `target`, a suite's folder or its file; without names those of the suite.

    A name is searched for in the suite itself, then in the suites that ship. Raises OblivionisError.
    """
    found, axes = results.read(target)
    own = _layouts((target if target.is_dir() else target.parent) / suite_kinds.SUITE_FILE)
    if not own and not names:
        raise OblivionisError(f"{target} has no tables of its own; name one with --layout: {_listed(_shipped())}")
    tables = []
    for name in names or own:
        layout = own.get(name) or _shipped_layout(name)
        if layout is None:
            layouts = _shipped()
            known = [*own, *(other for each in layouts.values() for other in each)]
            hint = did_you_mean(name, known)
            raise OblivionisError(
                f"--layout {name}: there is no such table; {hint or f'expected one of {_listed(layouts, own)}'}"
            )
        for axis in (layout.rows, layout.columns, *layout.groups):
            if axis is not None and axis not in axes:
                raise OblivionisError(f"--layout {name}: these results have no axis {axis}, only {', '.join(axes)}")
        tables.append(build(found, axes, layout))
    return tables


def results_document(target: Path) -> dict[str, Any]:
    """Every value of a suite's results, of any kind: what its tables are made of.

    Parameters
    ----------
    target : Path
        A suite's folder, or its file of results.

    Returns
    -------
    dict
        `results`, the folder or the file, and `rows`, those of results.parquet.
    """
    file = target / results.FILE if target.is_dir() else target
    return {"results": target, "rows": pq.ParquetFile(io.BytesIO(read_bytes(file))).read().to_pylist()}


def comparison_document(comparison: Comparison, settings: Sequence[str]) -> dict[str, Any]:
    """A comparison value by value: `values`, how many only one side has, what failed, and `settings` that differ."""
    names = [*comparison.axes, "stage", "metric"]
    values = [
        {
            **dict(zip(names, pair.place, strict=True)),
            "mine": pair.ours,
            "reference": pair.theirs,
            "difference": pair.difference,
            "margin": pair.margin(),
        }
        for pair in comparison.pairs
    ]
    counts = {"lacking": comparison.missing, "extra": comparison.extra, "failed": comparison.failed}
    return {"values": values, **counts, "settings": settings}


def _layouts(file: Path) -> dict[str, Layout]:
    """The layouts of a suite by name; none for what is no suite of federated runs. Its experiments are not checked."""
    if not file.is_file() or suite_kinds.kind_of(file) != suite_kinds.FEDERATED:
        return {}
    _, settings = suite_kinds.load(file, whole=False)
    return {layout.name: layout for layout in settings.layouts()} if isinstance(settings, Settings) else {}


def _shipped_layout(name: str) -> Layout | None:
    """A layout of the suites that ship. Those whose file does not mention the name are not read further."""
    for file in sorted(suite_kinds.FOLDER.glob("*.yaml")):
        if name in file.read_text(encoding="utf-8") and (layout := _layouts(file).get(name)) is not None:
            return layout
    return next((known[name] for known in _shipped().values() if name in known), None)


def _shipped() -> dict[str, dict[str, Layout]]:
    """The layouts of each suite that ships."""
    return {file.stem: _layouts(file) for file in sorted(suite_kinds.FOLDER.glob("*.yaml"))}


def _listed(layouts: dict[str, dict[str, Layout]], own: dict[str, Layout] | None = None) -> str:
    return ", ".join(dict.fromkeys([*(own or {}), *(name for each in layouts.values() for name in each)]))


def comparison_of(target: Path, reference: str | None) -> tuple[Comparison, list[str]]:
    """The results in `target` compared with those of `reference`, and the settings in which the two suites differ.

    reference: a suite's folder, its file of results, or the name of results that ship; None: those named as the
    folder. Raises OblivionisError.
    """
    ours, axes = results.read(target)
    folder = target if target.is_dir() else target.parent
    place = Path(reference) if reference is not None else REFERENCE / folder.resolve().name
    if reference is not None and not place.exists():
        place = REFERENCE / reference
    if not place.exists():
        known = sorted(path.parent.name for path in REFERENCE.glob(f"*/{results.FILE}"))
        hint = did_you_mean(place.name, known)
        expected = f"a suite's folder, or one of {', '.join(known)}" if known else "a suite's folder"
        raise OblivionisError(f"there are no reference results {place.name!r}; {hint or f'expected {expected}'}")
    theirs, their_axes = results.read(place)
    return compare(ours, axes, theirs, their_axes), _other_settings(folder, place if place.is_dir() else place.parent)


def _other_settings(ours: Path, theirs: Path) -> list[str]:
    """Settings of the reference that the results were not made with; nothing where one of them has no suite."""
    files = [folder / suite_kinds.SUITE_FILE for folder in (theirs, ours)]
    if not all(file.is_file() for file in files):
        return []
    before, now = (read_yaml(file)[0] for file in files)
    return differences(before, now, _OF_READERS, _OF_PLACE)
