"""Aggregators by name. A new one is one new file: `fedxyz.py` with a class whose lower-case name is `fedxyz`.

Its settings are the keyword parameters of that class. Further literals of the file are read without importing it:

- `LIMITS`: the ranges of the settings;
- `LABEL`: the name in tables of suites;
- `TAKES_MEAN = False`: another mean cannot replace its rule;
- `SINGLE_UPDATES = True`: it compares the updates of single clients, so that one update that stands for all of them
  (`strategies.privacy.private_mean`) is no substitute;
- `LEAST`: how many replies it needs, as {setting that must be above 0: [sums]}, of which the largest counts; each sum
  has a factor by setting, and a `constant`.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

from strategies.rules.server_step import ServerStep


def names() -> list[str]:
    """Names of all aggregators.

    Returns
    -------
    list of str, sorted
        What `build` accepts.
    """
    modules = (m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return sorted(name for name in modules if _find(name) is not None)


def build(name: str, **settings: Any) -> ServerStep:
    """Make an aggregator by its name.

    Parameters
    ----------
    name : str
        One of `names()`.
    **settings
        Keyword parameters of its class, and those of `ServerStep` (sampling).

    Returns
    -------
    ServerStep

    Raises
    ------
    ValueError
        For an unknown name or a setting out of range.
    TypeError
        For an unknown setting.
    """
    known = names()
    aggregator = _find(name) if name in known else None
    if aggregator is None:
        raise ValueError(f"unknown aggregator {name!r}; expected one of {', '.join(known)}")
    return aggregator(**settings)


def _find(name: str) -> type[ServerStep] | None:
    """The aggregator class in the module of this name, None where the module has none."""
    for attribute, value in vars(importlib.import_module(f"strategies.rules.{name}")).items():
        if attribute.lower() == name and isinstance(value, type) and issubclass(value, ServerStep):
            return value
    return None
