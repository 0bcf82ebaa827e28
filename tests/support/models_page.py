"""The page of architectures: each with its way and how far its numbers are from transformers' own.

PYTHONPATH=tests python -m support.models_page > docs/reference/models.md
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import torch
from support.architectures import NotSmall, examine, kinds

from evaluation.engine.architectures import COSTS, Way, refused_type

INTRODUCTION = """\
# Models

Any causal language model of transformers is run in one of four ways, which give its own numbers up to rounding. The way
follows from the model's configuration: its type, layers, rotary positions and adapters. `oblivionis model info MODEL`
names the way of your model, and why.
"""
FOUND = """\
## Architectures

A tiny random model of each class is held against transformers and peft, used one record at a time: log-probabilities of
answers, states of a decoder layer, greedy and sampled answers, gradients of LoRA's factors. A figure is the largest
difference of these, in nats or relative to the size; behind it, for bfloat16, how far transformers' own
log-probabilities are from those of the same weights in float32 (a router that chooses experts may turn on a rounding).
Records are shorter and longer than every window.
`tests/integration/test_architectures.py` repeats it; `PYTHONPATH=tests python -m support.models_page` makes this page.
"""
TOLERANCE = 1e-4
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Row:
    """A line of the page. ways: which way, or why there is none; cells: one per dtype; wrong: what must not be."""

    kind: str
    ways: str
    cells: tuple[str, ...]
    wrong: str | None = None

    @property
    def line(self) -> str:
        return f"| {self.kind} | {self.ways} | {' | '.join(self.cells)} |"

    @classmethod
    def of_line(cls, line: str) -> Row:
        kind, ways, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        return cls(kind, ways, tuple(cells))


def row(kind: str, *, quick: bool = False) -> Row:
    """The line of a model type; quick: half precision by its log-probabilities alone."""
    if (reason := refused_type(kind)) is not None:
        return Row(kind, f"refused: {reason}", ("", ""))
    ways, cells, wrong = "", [], None
    for name, dtype in _DTYPES.items():
        try:
            found = examine(kind, dtype, scores_alone=quick and dtype != torch.float32)
        except NotSmall as error:
            return Row(kind, f"no small model can be made: {error}", ("", ""))
        except RuntimeError as error:
            if name == "float32":
                raise
            cells.append(f"transformers fails: {_first(error)}")
            continue
        ways = _told(found.way)
        if name == "float32":
            cells.append(f"{found.largest:.0e}")
            right = found.largest < TOLERANCE and found.drawn
        else:
            cells.append(f"{found.largest:.0e} ({found.rounding:.0e})")
            right = found.scores <= 3 * found.rounding + 1e-3 and max(found.states, found.gradients, found.chosen) < 0.3
        wrong = wrong or (None if right else f"{name}: {found}")
    return Row(kind, ways, tuple(cells), wrong)


def _told(way: Way) -> str:
    return way.name if way.limit is None or way.beyond == way.name else f"{way.name}, longer ones {way.beyond}"


def _first(error: Exception) -> str:
    return str(error).splitlines()[0][:70].replace("|", "/")


def page(rows: list[Row]) -> str:
    """The whole page."""
    ways = ["| way | cost |", "| --- | --- |", *(f"| {name} | {cost} |" for name, cost in COSTS.items())]
    table = ["| model type | way | float32 | bfloat16 |", "| --- | --- | --- | --- |", *(each.line for each in rows)]
    return "\n".join([INTRODUCTION, *ways, "", FOUND, *table]) + "\n"


def _one(kind: str) -> Row:
    torch.set_num_threads(1)
    return row(kind)


if __name__ == "__main__":
    with ProcessPoolExecutor(2) as pool:
        rows = list(pool.map(_one, kinds()))
    sys.stdout.write(page(rows))
    sys.exit("\n".join(f"{each.kind}: {each.wrong}" for each in rows if each.wrong) or None)
