"""Whose code a configuration may bring: what the user names by hand, and nothing that a run or a file says of itself.

A configuration names code in one place, a loss by the path of its file (`unlearning.method`), and its SHA-256
(`unlearning.code`), so that the hash of the configuration, which the ledgers of the run and of its nodes hold, is one
of the code as well. It is run through `clients.own_code` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clients.own_code import code_hash, permit
from oblivionis.config.configuration_layers import parse_overrides
from oblivionis.config.extension_traits import own_loss
from oblivionis.config.schema import Config
from oblivionis.errors import OblivionisError


class CodeError(OblivionisError):
    """Code that is not executed: the user did not name it, or it is not the run's."""


def permit_named(config: Config, overrides: Sequence[str] | str, file: Path | None = None) -> None:
    """Let this process run the code of a new run's `config` where `overrides` name it, or `file`, as in `allow_code`.

    Raises CodeError for code that only a file of the configuration names, and as `allow_code`.
    """
    chosen = parse_overrides(overrides)[0].choice("unlearning")
    named = own_loss(config.unlearning.method)
    if file is None and chosen is not None and named is not None and own_loss(chosen[0]) == named:
        permit_code(config)
    else:
        allow_code(config, file)


def permit_code(config: Config) -> None:
    """Let this process run the code of `config`, if it names any, as another process already may."""
    if own_loss(config.unlearning.method) is not None and config.unlearning.code is not None:
        permit(config.unlearning.code)


def allow_code(config: Config, file: Path | None) -> Config:
    """The configuration with its code, if it has any, from `file`, which this process may run from now on.

    Raises CodeError for code without a file that allows it, for a file that is not the code that the configuration
    names, and for one that is given though there is no code.
    """
    named, expected = own_loss(config.unlearning.method), config.unlearning.code
    if named is None:
        if file is not None:
            raise CodeError(f"--allow-code {file}: the configuration names no code; leave it out")
        return config
    if file is None:
        raise CodeError(
            f"unlearning.method is {named}, code of whoever wrote the configuration: nothing of it is executed. Look "
            f"at it, and allow it, or a copy, with --allow-code {named.name}"
        )
    file = file.expanduser().absolute()
    try:
        found = code_hash(file)
    except ValueError as error:
        raise CodeError(f"--allow-code: {error}") from None
    if expected is not None and found != expected:
        raise CodeError(
            f"--allow-code {file}: its SHA-256 is {found[:12]}…, the configuration names {expected[:12]}…: it is other "
            "code"
        )
    if file.name != named.name:
        raise CodeError(f"--allow-code {file}: expected a file called {named.name}, as its function is")
    permit(found)
    return replace(config, unlearning=replace(config.unlearning, method=str(file)))


def resuming(run: Path, config: Config) -> str:
    """The command that goes on with a run."""
    named = own_loss(config.unlearning.method)
    return f"oblivionis simulate --resume {run}" + (f" --allow-code {named}" if named is not None else "")
