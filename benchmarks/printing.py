"""Results that lie on disk: their tables, and how they compare, for `oblivionis bench table` and `bench compare`."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks import suite_kinds
from benchmarks.federated import results
from benchmarks.federated.comparison import Comparison, compare
from benchmarks.federated.settings import Layout, Settings
from benchmarks.federated.tables import FORMATS, build
from oblivionis.config.configuration_layers import differences
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
    return [build(found, axes, _layout(name, own, axes)) for name in names or own]


def _layout(name: str, own: Mapping[str, Layout], axes: Collection[str]) -> Layout:
    """The layout `name`: the suite's own, or that of a shipped suite whose axes the results have."""
    if name in own:
        return own[name]
    shipped = _shipped()
    found = {suite: layouts[name] for suite, layouts in shipped.items() if name in layouts}
    if not found:
        known = [*own, *(other for each in shipped.values() for other in each)]
        hint = did_you_mean(name, known)
        raise OblivionisError(
            f"--layout {name}: there is no such table; {hint or f'expected one of {_listed(shipped, own)}'}"
        )
    lacking = {suite: [a for a in (i.rows, i.columns, *i.groups) if a and a not in axes] for suite, i in found.items()}
    for suite, layout in found.items():
        if not lacking[suite]:
            return layout
    of = ", ".join(f"{suite} (by {', '.join(missing)})" for suite, missing in lacking.items())
    raise OblivionisError(
        f"--layout {name}: a table of the suites {of}; these results have no such axis, only {', '.join(axes)}"
        f"{f'; their own tables: {_listed({}, own)}' if own else ''}"
    )


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


def _shipped() -> dict[str, dict[str, Layout]]:
    """The layouts of each suite that ships."""
    return {file.stem: _layouts(file) for file in sorted(suite_kinds.FOLDER.glob("*.yaml"))}


def _listed(layouts: Mapping[str, Mapping[str, Layout]], own: Mapping[str, Layout] | None = None) -> str:
    return ", ".join(dict.fromkeys([*(own or {}), *(name for each in layouts.values() for name in each)]))


def comparison_of(target: Path, reference: str | None, layouts: Sequence[str] = ()) -> tuple[Comparison, list[str]]:
    """The results in `target` compared with those of `reference`, and the settings in which the two suites differ.

    reference: a suite's folder, its file of results, or the name of results that ship; None: those named as the
    folder; layouts: the metrics of these tables alone. Raises OblivionisError.
    """
    ours, axes = results.read(target)
    folder = target if target.is_dir() else target.parent
    own = _layouts(folder / suite_kinds.SUITE_FILE) if layouts else {}
    metrics = {measure.metric for name in layouts for measure in _layout(name, own, axes).measures}
    place = Path(reference) if reference is not None else REFERENCE / folder.resolve().name
    if reference is not None and not place.exists():
        place = REFERENCE / reference
    if not place.exists():
        known = sorted(path.parent.name for path in REFERENCE.glob(f"*/{results.FILE}"))
        hint = did_you_mean(place.name, known)
        expected = f"a suite's folder, or one of {', '.join(known)}" if known else "a suite's folder"
        raise OblivionisError(f"there are no reference results {place.name!r}; {hint or f'expected {expected}'}")
    theirs, their_axes = results.read(place)
    return compare(ours, axes, theirs, their_axes, metrics), _other_settings(
        folder, place if place.is_dir() else place.parent
    )


def _other_settings(ours: Path, theirs: Path) -> list[str]:
    """Settings of the reference that the results were not made with; nothing where one of them has no suite."""
    files = [folder / suite_kinds.SUITE_FILE for folder in (theirs, ours)]
    if not all(file.is_file() for file in files):
        return []
    before, now = (read_yaml(file)[0] for file in files)
    return differences(before, now, _OF_READERS, _OF_PLACE)
