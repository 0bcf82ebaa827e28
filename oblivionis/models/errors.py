"""The error of models and adapters that cannot be used."""

from __future__ import annotations

from oblivionis.errors import OblivionisError


class ModelError(OblivionisError):
    """A base model or an adapter cannot be loaded or does not fit."""
