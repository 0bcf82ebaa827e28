"""Errors that end a federated run."""

from __future__ import annotations


class FederationError(Exception):
    """Base of this package's errors."""


class ParameterError(FederationError):
    """A parameter of an unlearning protocol does not go with the model; the text begins with its name."""


class NodeMapError(FederationError):
    """No client could be found."""
