"""Seconds and memory of work on a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch

from benchmarks.gpu.result_rows import Row

T = TypeVar("T")
GB = 1e9


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def metered(device: torch.device, work: Callable[[], T]) -> tuple[T, Row]:
    """What `work` returns, its seconds, and on a GPU `peak_gb`: the most 10⁹ bytes that tensors took at once."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    wait_for(device)
    start = time.perf_counter()
    result = work()
    wait_for(device)
    row: Row = {"seconds": time.perf_counter() - start}
    if device.type == "cuda":
        row["peak_gb"] = torch.cuda.max_memory_allocated(device) / GB
    return result, row
