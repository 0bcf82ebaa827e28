"""The tables of results that lie on disk, for `oblivionis bench table`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks import kinds
from benchmarks.federated import results
from benchmarks.federated.settings import Layout, Settings
from benchmarks.federated.tables import FORMATS, build
from oblivionis.config.problems import did_you_mean
from oblivionis.errors import OblivionisError
from oblivionis.reports.table import Table

__all__ = ["FORMATS", "tables_of"]


def tables_of(target: Path, names: Sequence[str]) -> list[Table]:
    """The tables `names` of the results in `target`, a suite's folder or its file; without names those of the suite.

    A name is looked for in the suite itself, then in the suites that ship. Raises OblivionisError.
    """
    found, axes = results.read(target)
    own = _layouts((target if target.is_dir() else target.parent) / kinds.SUITE_FILE)
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


def _layouts(file: Path) -> dict[str, Layout]:
    """The layouts of a suite by name; none for what is no suite of federated runs. Its experiments are not checked."""
    if not file.is_file() or kinds.kind_of(file) != kinds.FEDERATED:
        return {}
    _, settings = kinds.load(file, whole=False)
    return {layout.name: layout for layout in settings.layouts()} if isinstance(settings, Settings) else {}


def _shipped_layout(name: str) -> Layout | None:
    """A layout of the suites that ship. Those whose file does not mention the name are not read further."""
    for file in sorted(kinds.FOLDER.glob("*.yaml")):
        if name in file.read_text(encoding="utf-8") and (layout := _layouts(file).get(name)) is not None:
            return layout
    return next((known[name] for known in _shipped().values() if name in known), None)


def _shipped() -> dict[str, dict[str, Layout]]:
    """The layouts of each suite that ships."""
    return {file.stem: _layouts(file) for file in sorted(kinds.FOLDER.glob("*.yaml"))}


def _listed(layouts: dict[str, dict[str, Layout]], own: dict[str, Layout] | None = None) -> str:
    return ", ".join(dict.fromkeys([*(own or {}), *(name for each in layouts.values() for name in each)]))
