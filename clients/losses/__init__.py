"""Unlearning losses, one file per method.

A method is a module of this package that defines a function of the module's name:

- its positional parameters name the quantities that it needs (`clients.batch_quantities.QUANTITIES` lists them); one
  with the default None may be absent, because the client has no retain records, say;
- its keyword-only parameters are the hyperparameters with their defaults;
- it returns the scalar loss to be minimised, a mean over the records.

The module may also define, with the hyperparameters as keywords:

- `phases(epoch, **hyperparameters)`: the updates made of each batch in an epoch, from 0, each a tuple of the quantities
  that it is given; without it, there is one update with all of them;
- `layers(count, **hyperparameters)`: the decoder layers of `count` whose parameters move, a range; states are read
  after the last of them. Without it, everything trainable moves.
- `advance(epoch, means, **hyperparameters)`: what it returns, a mapping, are other hyperparameters from the next update
  on, until the unlearning ends. Called after each update with its epoch, from 0, and `means`, the mean over its records
  of each quantity that has one number a record. That is all the state that a method may have: a dual variable, say, is
  a hyperparameter that `advance` moves; the loss stays a function. Without it, all of them stay as they are.
- `finish(received, trained, **hyperparameters)`: the parameters (n,) in which the unlearning ends, by those with which
  it began and those after its last update, the updates being made on a copy of the model. `SCALED_BY` names the
  hyperparameter, a number, that is the length of the final change as a multiple of the copy's. Such a method takes no
  option that would stop or turn its updates by what they do to the forget records.

Quantities whose names begin with `alternative_` are about other answers to the forget questions, one a record and
epoch; the caller of `unlearn` provides them.

Further literals are read without importing the module:

- `LIMITS`: the ranges of the hyperparameters;
- `LABEL`: the name in tables of suites;
- `NEEDS_RETAIN = True`: it needs retain records though only `phases` says so;
- `SCALED_BY`: as above;
- `BALL`: the hyperparameter that is the radius of a ball around the received model in which it stays; null: a third of
  the distance to a random model;
- `STOPS_AT_CHANCE = True`: where `unlearning.forget_nll_limit` is null, it stops at the likelihood of chance;
- `PER_RECORD = True`: it is a mean over forget records plus a mean over retain records, the terms of which are about
  one record each, so that each record's gradient can be clipped (`clients.record_level_dp`).

What the server does for it beyond merging what clients send is a protocol of the same name (`strategies.protocols`).

So a loss can be called with plain tensors, and to add a method is to add a file. A file in any other place is a method
as well, by its path.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import itertools
import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from clients.own_code import run_code


@dataclass(frozen=True)
class Method:
    """An unlearning loss with what its signature and module declare.

    Attributes
    ----------
    name : str
    function : callable
        The loss.
    required, optional : tuple of str
        Quantities that it needs, and those that may be None.
    defaults : mapping
        Hyperparameters.
    phases_in, layers_in, advance_in, finish_in : callable, optional
        The module's `phases`, `layers`, `advance`, `finish`.
    per_record : bool
        Whether each term is about one record.
    """

    name: str
    function: Callable[..., Tensor]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    defaults: Mapping[str, float | int | str | bool | None]
    phases_in: Callable[..., Sequence[tuple[str, ...]]] | None = None
    layers_in: Callable[..., range] | None = None
    advance_in: Callable[..., Mapping[str, Any]] | None = None
    per_record: bool = False
    finish_in: Callable[..., Tensor] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All quantities that it may request."""
        return self.required + self.optional

    def phases(self, epoch: int, parameters: Mapping[str, Any]) -> Sequence[tuple[str, ...]]:
        """Updates made of each batch in `epoch`, from 0, each with the quantities that it needs."""
        return [self.names] if self.phases_in is None else self.phases_in(epoch, **parameters)

    @property
    def needs_retain(self) -> bool:
        """Whether it needs retain records."""
        needed = [(name,) for name in self.required], self.phases(0, self.defaults)
        return any(all(name.startswith("retain") for name in names) for names in itertools.chain(*needed))

    @property
    def needs_alternatives(self) -> bool:
        """Whether it needs other answers to the forget questions."""
        return any(name.startswith("alternative_") for name in self.names)

    def advanced(self, epoch: int, means: Mapping[str, float], parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Hyperparameters of the next update.

        Parameters
        ----------
        epoch : int, from 0
        means : mapping of float
            Mean over the update's records of each quantity.
        parameters : mapping
            The present hyperparameters.

        Returns
        -------
        mapping

        Raises
        ------
        ValueError
            Where the module's `advance` returns something else than hyperparameters.
        """
        if self.advance_in is None:
            return parameters
        return self.parameters({**parameters, **self.advance_in(epoch, means, **parameters)})

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All hyperparameters: `given` over the defaults.

        Raises
        ------
        ValueError
            For an unknown name, or a value that is not finite or of another type than the default.
        """
        for key, value in given.items():
            if key not in self.defaults:
                raise ValueError(f"{self.name} has no hyperparameter {key!r}{_nearest(key, self.defaults)}")
            default = self.defaults[key]
            if default is None and value is None:
                continue
            if (default is None or isinstance(default, float)) and not _is_number(value):
                raise ValueError(f"{self.name}: {key} must be a finite number, got {value!r}")
            if type(default) is int and not (_is_number(value) and value == int(value)):
                raise ValueError(f"{self.name}: {key} must be a whole number, got {value!r}")
        return {**self.defaults, **given}


def names() -> list[str]:
    """Names of all methods, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def get(name: str) -> Method:
    """Get a method by name, or from a Python file by its path, which is run.

    Parameters
    ----------
    name : str
        One of `names()`, or a path that ends with `.py`.

    Returns
    -------
    Method

    Raises
    ------
    ValueError
        If there is none, with the nearest names, and for a file that is no method.
    NotPermitted
        For a file that nobody permitted in this process (`clients.own_code`); it is a ValueError.
    """
    if name.endswith(".py"):
        return _method(Path(name).stem, _module_of(Path(name)))
    known = names()
    if name not in known:
        raise ValueError(f"unknown unlearning method {name!r}{_nearest(name, known)}; known: {', '.join(known)}")
    return _method(name, importlib.import_module(f"{__name__}.{name}"))


def _module_of(file: Path) -> ModuleType:
    """Run a file and check that it defines a loss."""
    module = run_code(file)
    if not callable(getattr(module, file.stem, None)):
        raise ValueError(f"{file} has no function {file.stem!r}, which would be the loss")
    return module


def _method(name: str, module: ModuleType) -> Method:
    """The method that a module defines."""
    function = getattr(module, name)
    required, optional, defaults = [], [], {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            defaults[parameter.name] = parameter.default
        elif parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            optional.append(parameter.name)
    more = [getattr(module, name, None) for name in ("phases", "layers", "advance")]
    per_record, finish = bool(getattr(module, "PER_RECORD", False)), getattr(module, "finish", None)
    quantities = (tuple(required), tuple(optional))
    return Method(name, function, *quantities, defaults, *more, per_record=per_record, finish_in=finish)


def hyperparameters(name: str) -> dict[str, Any]:
    """Hyperparameters of a method.

    Parameters
    ----------
    name : str
        As in `get`.

    Returns
    -------
    dict
        Default by name.

    Raises
    ------
    ValueError
        As `get`.
    """
    return dict(get(name).defaults)


def _is_number(value: object) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _nearest(name: str, known: Any) -> str:
    """A hint with the nearest known names."""
    close = difflib.get_close_matches(name, list(known), n=2, cutoff=0.5)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
