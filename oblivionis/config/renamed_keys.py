"""Keys of configurations that were written before version 0.2, and what became of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from oblivionis.config.problems import Problem

PARAMETERS = {
    "strategy.server_learning_rate": ("eta", "server_learning_rate"),
    "strategy.beta_1": ("beta_1",),
    "strategy.beta_2": ("beta_2",),
    "strategy.tau": ("tau",),
    "strategy.momentum": ("server_momentum",),
    "strategy.proximal_mu": ("proximal_mu",),
}
"""Keys that every aggregator had, used or not, and the parameter that each has become, by aggregator."""


def current(
    values: Mapping[str, tuple[Any, str]], name: str, parameters: Collection[str] | None
) -> tuple[dict[str, tuple[Any, str]], list[Problem]]:
    """The values with the keys of today, for the aggregator `name` and its `parameters` (None: unknown).

    A key that this aggregator never read is left out where a file has it, and a problem where the user asks for it
    by an override.
    """
    kept: dict[str, tuple[Any, str]] = {}
    problems = []
    for path, (value, where) in values.items():
        if path not in PARAMETERS:
            kept[path] = value, where
            continue
        known = [parameter for parameter in PARAMETERS[path] if parameter in (parameters or ())]
        if known:
            kept[f"strategy.params.{known[0]}"] = value, where
        elif where == "override" and parameters is not None:
            expected = f"a parameter of {name}: {', '.join(parameters) or 'it has none'}"
            hint = f"other aggregators have strategy.params.{PARAMETERS[path][0]}"
            problems.append(Problem(path, f"{name} does not look at it", expected, hint, where))
    return kept, problems
