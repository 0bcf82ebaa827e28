"""Lines on the terminal."""

from __future__ import annotations

from rich.console import Console


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a text as it is: no markup, no colours of its own, no lines broken."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
