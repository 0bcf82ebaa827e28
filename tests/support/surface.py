"""The public surface as text, a line per name.

python tests/support/surface.py > tests/unit/oblivionis/api/surface.txt
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import oblivionis

PACKAGES = ("oblivionis", *oblivionis.SIBLINGS, oblivionis.BENCHMARKS)


def names() -> Iterator[tuple[str, Any]]:
    """Every public name and what it stands for: those of `oblivionis`, and behind a dot those of its namespaces."""
    for name in sorted(oblivionis.__all__):
        value = getattr(oblivionis, name)
        yield name, value
        if isinstance(value, ModuleType):
            yield from ((f"{name}.{inner}", getattr(value, inner)) for inner in sorted(value.__all__))


def lines() -> Iterator[str]:
    """Each name with its signature; of a class also its methods and properties that are the program's own."""
    for name, value in names():
        yield name + _signature(value)
        if isinstance(value, type):
            own = {k: v for cls in reversed(value.__mro__) if _ours(cls) for k, v in vars(cls).items() if k[0] != "_"}
            for key, member in sorted(own.items()):
                plain = getattr(member, "__func__", member)  # of a class method
                if isinstance(plain, property) or inspect.isfunction(plain):
                    yield f"  .{key}{_signature(plain)}"


def _ours(cls: type) -> bool:
    return cls.__module__.split(".")[0] in PACKAGES


def _signature(value: Any) -> str:
    if isinstance(value, ModuleType | property) or not callable(value) or getattr(value, "_is_protocol", False):
        return ""
    try:
        found = inspect.signature(value)
    except ValueError:  # a type alias, or an exception of the plain kind
        return ""
    plain = [p.replace(annotation=_Bare(p.annotation)) if _told(p) else p for p in found.parameters.values()]
    result = found.return_annotation
    return str(found.replace(parameters=plain, return_annotation=_Bare(result) if isinstance(result, str) else result))


def _told(parameter: inspect.Parameter) -> bool:
    return isinstance(parameter.annotation, str)


class _Bare(str):
    """An annotation that is shown as it is written."""

    def __repr__(self) -> str:
        return str(self)


if __name__ == "__main__":
    print("\n".join(lines()))
