"""This machine, as far as the last bits of an update depend on it."""

from __future__ import annotations

import platform

from oblivionis.config.schema import Config
from oblivionis.erasure.exact_proof import Machine
from oblivionis.models.hardware import processor
from oblivionis.runs.directory import package_versions
from oblivionis.version import __version__

SOFTWARE = ("torch", "transformers", "peft", "numpy", "flwr")
"""Packages whose version can change the last bits of an update."""


def machine_here(config: Config) -> Machine:
    """Software and processor with which the models of a configuration are computed here.

    Parameters
    ----------
    config : Config

    Returns
    -------
    Machine
    """
    here = package_versions()
    versions = {"oblivionis": __version__, "python": platform.python_version()}
    return {"software": versions | {name: here.get(name) for name in SOFTWARE}, "processor": processor(config)}
