"""Server-side aggregation and the FedTU unlearning exchange, as Flower strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strategies.rules.factory import build, names

__all__ = ["build", "names"]


def __getattr__(name: str) -> Any:
    """Import `build` and `names` on first use, so that a configuration is checked without Flower."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from strategies.rules import factory

    return getattr(factory, name)
