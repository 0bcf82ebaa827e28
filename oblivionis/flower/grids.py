"""Flower's grids, by which a ServerApp knows how it was started."""

from __future__ import annotations

from flwr.common.constant import ErrorCode
from flwr.superlink.grid import HttpGrid, InMemoryGrid

__all__ = ["UNKNOWN_ERROR", "HttpGrid", "InMemoryGrid"]

UNKNOWN_ERROR: int = ErrorCode.UNKNOWN
"""Flower's error code for a client whose process died, among others."""
