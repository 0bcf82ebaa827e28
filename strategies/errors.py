"""What ends a federated run instead of being left out of a round."""

from __future__ import annotations


class FederationError(Exception):
    """Base of this package's errors."""


class NodeMapError(FederationError):
    """No client could be found."""
