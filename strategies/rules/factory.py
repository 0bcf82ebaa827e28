"""Aggregators by name. A new one is one new file: `fedxyz.py` with a class whose lower-case name is `fedxyz`.

Its settings are the keyword parameters of that class. Literals of the file tell more of it without importing it:
`LIMITS` between what the settings may lie, `LABEL` what tables of suites call it, `TAKES_MEAN = False` that no other
mean can take the place of its own rule, `SINGLE_UPDATES = True` that it compares single clients' updates, for which one
that stands for all of them (`strategies.privacy.private_mean`) is no substitute, `LEAST` of how many clients it needs
answers: by a setting that must be above 0, sums of which the largest counts, each a factor by setting, and a
`constant`.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

from strategies.rules.server_step import ServerStep


def names() -> list[str]:
    """The names that `build` knows, sorted."""
    modules = (m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return sorted(name for name in modules if _find(name) is not None)


def build(name: str, **settings: Any) -> ServerStep:
    """The aggregator `name` with its own settings (see its class) and those of `ServerStep` (sampling).

    Raises ValueError for an unknown name or a setting out of range, TypeError for an unknown setting.
    """
    known = names()
    aggregator = _find(name) if name in known else None
    if aggregator is None:
        raise ValueError(f"unknown aggregator {name!r}; expected one of {', '.join(known)}")
    return aggregator(**settings)


def _find(name: str) -> type[ServerStep] | None:
    for attribute, value in vars(importlib.import_module(f"strategies.rules.{name}")).items():
        if attribute.lower() == name and isinstance(value, type) and issubclass(value, ServerStep):
            return value
    return None
