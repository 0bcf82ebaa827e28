"""Unlearning losses, one file per method.

A method is a module of this package that defines a function of the module's name:

- its positional parameters name the quantities that it needs (`clients.step.QUANTITIES` lists them); one with the
  default None may be absent, because the client has no retain records, say;
- its keyword-only parameters are the hyperparameters with their defaults;
- it returns the scalar loss to be minimised, a mean over the records.

So a loss can be called with plain tensors, and to add a method is to add a file.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Method:
    """A loss with what its signature says about it."""

    name: str
    function: Callable[..., Tensor]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    defaults: Mapping[str, float | int | str | bool | None]

    @property
    def needs_retain(self) -> bool:
        """Whether it cannot do without retain records."""
        return any(name.startswith("retain") for name in self.required)

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All hyperparameters: `given` over the defaults. Raises ValueError for an unknown or non-finite one."""
        for key, value in given.items():
            if key not in self.defaults:
                raise ValueError(f"{self.name} has no hyperparameter {key!r}{_nearest(key, self.defaults)}")
            default = self.defaults[key]
            if isinstance(default, float) and (
                isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
            ):
                raise ValueError(f"{self.name}: {key} must be a finite number, got {value!r}")
        return {**self.defaults, **given}


def names() -> list[str]:
    """The names of all methods, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def get(name: str) -> Method:
    """The method of that name. Raises ValueError naming the nearest ones if there is none."""
    known = names()
    if name not in known:
        raise ValueError(f"unknown unlearning method {name!r}{_nearest(name, known)}; known: {', '.join(known)}")
    function = getattr(importlib.import_module(f"{__name__}.{name}"), name)
    required, optional, defaults = [], [], {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            defaults[parameter.name] = parameter.default
        elif parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            optional.append(parameter.name)
    return Method(name, function, tuple(required), tuple(optional), defaults)


def hyperparameters(name: str) -> dict[str, Any]:
    """The method's hyperparameters with their defaults."""
    return dict(get(name).defaults)


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=2, cutoff=0.5)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
