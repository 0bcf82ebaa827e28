"""Errors that are the user's to mend: the command line prints them without a traceback."""

from __future__ import annotations


class OblivionisError(Exception):
    """Base of all errors whose message tells the user what to do."""


class RunError(OblivionisError):
    """A run directory is missing, incomplete, or does not fit what is asked of it."""


class FileError(RunError):
    """A file is not what it should be; the message has its path, and the line and the key where there are some."""


class RunInterrupted(OblivionisError):
    """The user stopped the run; it can be resumed."""


class RunFailed(OblivionisError):
    """A run broke off through no mistake of the user's, because a client process died, say; it can be resumed."""


class NotMeasured(RunFailed):
    """All was done, but an evaluator failed: what it would have measured is missing, and nothing else."""


def to_mend(error: BaseException) -> bool:
    """Whether an error is a mistake of the user's: with the same settings and files it would come again."""
    return isinstance(error, OblivionisError) and not isinstance(error, RunFailed | RunInterrupted)


class ClientError(OblivionisError):
    """A client cannot do what it was asked; the reason reaches the server as the error of its reply."""
