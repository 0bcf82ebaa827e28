"""The version of the program: `docs/reference/versions.md` says what it promises."""

__version__ = "0.3.0"
