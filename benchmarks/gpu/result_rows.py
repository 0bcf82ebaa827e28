"""What a part measures, row by row, on disk after each: a part that dies leaves what it had."""

from __future__ import annotations

import gc
import math
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from oblivionis.files import read_json, write_json

Value = float | int | str | bool | None
Row = dict[str, Value]
FAILED, SKIPPED = "failed", "skipped"
"""Columns that say why a row has no numbers."""
NEEDS_CUDA = "needs CUDA"
NO_TIME = "no time left"


class OutOfTime(Exception):
    """A measurement was ended because its time was up."""


class Rows:
    """The rows of one part.

    file: where they are kept as JSON; deadline: in seconds since the epoch, after which no measurement begins;
    on_gpu: whether there is CUDA.
    """

    def __init__(self, file: Path, deadline: float, *, on_gpu: bool) -> None:
        self.file, self.deadline, self.on_gpu = file, deadline, on_gpu
        self.rows: dict[str, Row] = {}

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.time()

    def measure(
        self, name: str, work: Callable[[], Row], *, seconds: float = 0.0, needs_cuda: bool = False
    ) -> Row | None:
        """Add the row that `work` returns; None, and the reason in the row, where it is skipped or fails.

        seconds: how long it takes at least, negative for what may still be added after the deadline; needs_cuda: it
        makes no sense on a CPU.
        """
        if needs_cuda and not self.on_gpu:
            return self._add(name, {SKIPPED: NEEDS_CUDA})
        if self.left < seconds:
            return self._add(name, {SKIPPED: NO_TIME})
        try:
            row = work()
        except OutOfTime as error:
            return self._add(name, {SKIPPED: f"{NO_TIME}: {error}"})
        except Exception as error:
            print("".join(traceback.format_exception(error)), file=sys.stderr)
            return self._add(name, {FAILED: summary_of(error)})
        finally:
            self._free()
        wrong = [key for key, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
        if wrong:
            row = {key: value for key, value in row.items() if key not in wrong}
            return self._add(name, {**row, FAILED: f"not finite: {', '.join(wrong)}"})
        return self._add(name, row)

    def skip(self, name: str, why: str) -> None:
        """Add a row that says why there are no numbers."""
        self._add(name, {SKIPPED: why})

    def _add(self, name: str, row: Row) -> Row | None:
        self.rows[name] = row
        write_json(self.file, self.rows)
        return None if FAILED in row or SKIPPED in row else row

    def _free(self) -> None:
        """Give back what a measurement left on the GPU."""
        if self.on_gpu:
            import torch

            gc.collect()
            torch.cuda.empty_cache()


def read(file: Path) -> dict[str, Row]:
    """The rows that a part wrote; none if it wrote nothing."""
    return read_json(file) if file.exists() else {}


def summary_of(error: BaseException) -> str:
    """Its kind and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
