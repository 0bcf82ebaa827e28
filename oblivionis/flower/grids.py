"""Flower's grids, by which a ServerApp knows how it was started.

The module of their classes imports databases and a web framework: it is asked only where it has been imported, without
which there is no grid of these classes.
"""

from __future__ import annotations

import sys

from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

UNKNOWN_ERROR: int = ErrorCode.UNKNOWN
"""Flower's error code for a client whose process died, among others."""
_MODULE = "flwr.superlink.grid"


def deployed(grid: Grid) -> bool:
    """Whether the clients are SuperNodes that are reached through a SuperLink."""
    return _MODULE in sys.modules and isinstance(grid, sys.modules[_MODULE].HttpGrid)


def of_flowers_simulation(grid: Grid) -> bool:
    """Whether Flower's own engine simulates the clients."""
    return _MODULE in sys.modules and isinstance(grid, sys.modules[_MODULE].InMemoryGrid)
