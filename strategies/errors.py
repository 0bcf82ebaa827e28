"""Errors that end a federated run."""

from __future__ import annotations


class FederationError(Exception):
    """Base of this package's errors."""


class NodeMapError(FederationError):
    """No client could be found."""
