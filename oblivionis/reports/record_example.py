"""One record as a model is given it, with prompt and answer marked."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from oblivionis.models.model_description import Example
from oblivionis.reports.format import counted

_BAR, _NEWLINE, _SPACE = "│ ", "⏎", "·"


def print_example(example: Example, console: Console) -> None:
    """Prompt and answer, each with its tokens; ⏎ is a line's end, · a space at the edge of a part."""
    console.print(Text(f"a record as it is trained on, scored and sampled (template {example.kind})", style="bold"))
    _print_part(f"prompt, {counted(example.prompt_tokens, 'token')}", example.prompt, "", console)
    _print_part(
        f"answer, {counted(example.answer_tokens, 'token')}, the last one its end", example.answer, example.end, console
    )


def _print_part(head: str, text: str, end: str, console: Console) -> None:
    console.print(head, markup=False, highlight=False)
    core = text.strip(" ")
    left = len(text) - len(text.lstrip(" "))
    marked = _SPACE * left + core + _SPACE * (len(text) - left - len(core))
    for line in (marked + end).replace("\n", f"{_NEWLINE}\n").removesuffix("\n").split("\n"):
        shown = Text("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line))
        for piece in shown.wrap(console, console.width - len(_BAR), overflow="fold"):
            console.print(Text(_BAR, style="dim") + piece)
