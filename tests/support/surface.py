"""The public surface as text, a line per name.

python tests/support/surface.py > tests/unit/oblivionis/api/surface.txt
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import oblivionis
from oblivionis.api.reference import names, signature

PACKAGES = ("oblivionis", *oblivionis.SIBLINGS, oblivionis.BENCHMARKS)


def lines() -> Iterator[str]:
    """Each name with its signature; of a class also its methods and properties that are the program's own."""
    for name, value in names():
        yield name + signature(value)
        if isinstance(value, type):
            own = {k: v for cls in reversed(value.__mro__) if _ours(cls) for k, v in vars(cls).items() if k[0] != "_"}
            for key, member in sorted(own.items()):
                plain = getattr(member, "__func__", member)  # of a class method
                if isinstance(plain, property) or inspect.isfunction(plain):
                    yield f"  .{key}{signature(plain)}"


def _ours(cls: type) -> bool:
    return cls.__module__.split(".")[0] in PACKAGES


if __name__ == "__main__":
    print("\n".join(lines()))
