"""The folder of a suite's or a tuning's results: made once, and resumed with the same settings alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from oblivionis.config.configuration_layers import differences
from oblivionis.config.yaml_files import read_yaml
from oblivionis.errors import RunError
from oblivionis.files import write_atomic


def claim(
    file: Path, wanted: Mapping[str, Any], *, resume: bool, taken: str, free: frozenset[str] = frozenset()
) -> None:
    """Write `wanted` into `file`, the settings of its folder, or check that they are those that it has.

    taken: what is said where the folder has settings and is not resumed; free: top-level keys that may differ. Raises
    RunError.
    """
    folder = file.parent
    if not resume and file.exists():
        raise RunError(f"{folder} {taken}, or choose another --output")
    if resume and not file.exists():
        raise RunError(f"there is nothing to resume in {folder}; leave --resume out")
    if resume:
        before, _, problems = read_yaml(file)
        if problems:
            raise RunError(f"{folder} cannot be resumed: {problems[0]}")
        if differs := differences(before, wanted, free):
            raise RunError(f"{folder} was made with other settings: {'; '.join(differs)}; choose another --output")
    try:
        write_atomic(file, OmegaConf.to_yaml(OmegaConf.create(dict(wanted))))
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}") from error
