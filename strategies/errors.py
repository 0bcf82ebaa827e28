"""What ends a federated run instead of being left out of a round."""

from __future__ import annotations


class FederationError(Exception):
    """Base of this package's errors."""


class ActorDied(FederationError):
    """A simulation worker process crashed. Flower would give it to later clients too: stop, and resume the run."""


class NodeMapError(FederationError):
    """No client could be found, or two nodes claim the same partition."""
