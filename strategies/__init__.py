"""Server-side aggregation and the FedTU unlearning exchange, as Flower strategies."""

from __future__ import annotations

from strategies.factory import build, names

__all__ = ["build", "names"]
