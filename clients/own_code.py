"""Runs code of the user's own that a configuration names by its file path; nothing else runs such code.

A file is run only in a process that permitted exactly its contents, by their SHA-256: the process of a user who makes a
run with it or names the file by hand. What a run or a message says about itself permits nothing.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import ModuleType

LARGEST = 1 << 20
"""Most bytes of a file of code."""


class NotPermitted(ValueError):
    """The code was not permitted in this process."""


permitted: set[str] = set()
"""SHA-256, in hex, of the code that this process may run."""


def read_code(file: Path) -> bytes:
    """Read a file of code.

    Parameters
    ----------
    file : Path

    Returns
    -------
    bytes

    Raises
    ------
    ValueError
        For what is no regular file, or one of more than `LARGEST` bytes.
    """
    try:
        if not file.is_file():
            raise ValueError(f"{file}: there is no such file")
        with file.open("rb") as handle:
            source = handle.read(LARGEST + 1)
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    if len(source) > LARGEST:
        raise ValueError(f"{file} has more than {LARGEST} bytes")
    return source


def code_hash(file: Path) -> str:
    """SHA-256 of a file of code.

    Parameters
    ----------
    file : Path

    Returns
    -------
    str
        64 hexadecimal digits.

    Raises
    ------
    ValueError
        As `read_code`.
    """
    return hashlib.sha256(read_code(file)).hexdigest()


def permit(sha256: str) -> None:
    """Let this process run code with a certain SHA-256.

    Parameters
    ----------
    sha256 : str
        64 hexadecimal digits.
    """
    permitted.add(sha256)


def run_code(file: Path) -> ModuleType:
    """Run a file of code; the bytes that are run are those that were checked.

    Parameters
    ----------
    file : Path

    Returns
    -------
    ModuleType
        With what the file defines.

    Raises
    ------
    NotPermitted
        Before anything is run, for code that was not permitted in this process.
    ValueError
        As `read_code`, and for code that fails.
    """
    source = read_code(file)
    digest = hashlib.sha256(source).hexdigest()
    if digest not in permitted:
        raise NotPermitted(
            f"{file} (SHA-256 {digest[:12]}…) is code that nobody permitted here: look at it, and name it with "
            f"--allow-code {file}"
        )
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    try:
        exec(compile(source, str(file), "exec"), module.__dict__)
    except Exception as error:
        raise ValueError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    return module
