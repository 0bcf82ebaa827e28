"""Where the time of local training goes: torch's profile of one client's epoch in a round of the 1B shape."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.bases import ADAMW, loaded
from benchmarks.gpu.llama_1b import EXPERIMENT
from benchmarks.gpu.meter import metered
from benchmarks.gpu.options import Options
from benchmarks.gpu.result_rows import Row, Rows
from benchmarks.gpu.shapes import Setting
from benchmarks.model_shapes import LLAMA_3_2_1B
from clients.flat_parameters import FlatParameters
from clients.training import train

SHOWN = 15


def run(options: Options, rows: Rows) -> None:
    """A row of the whole epoch, and one for each of the kinds of kernel (on a CPU: operators) that take most time."""
    setting = Setting.of(EXPERIMENT, LLAMA_3_2_1B, options)
    if (loading := loaded(rows, "load", setting, options)) is None:
        return
    model, flat = loading
    kernels: list[tuple[str, Row]] = []

    def epoch() -> Row:
        row, found = profiled(model, flat, setting, options)
        kernels.extend(found)
        return row

    rows.measure("an epoch of one client", epoch)
    for name, row in kernels:
        rows.measure(name, lambda row=row: row)


def profiled(model: Any, flat: FlatParameters, setting: Setting, options: Options) -> tuple[Row, list[tuple[str, Row]]]:
    """Seconds of an epoch unprofiled and profiled, the busy share, and the costliest kinds of kernel.

    busy: seconds in kernels by seconds profiled; on a GPU what is missing to 1 is time in which it waited for Python.
    """
    settings = setting.training(optimizer=ADAMW, epochs=1)
    records = setting.sequences(setting.records, seed=0)
    device = torch.device(options.device)

    def work() -> object:
        return train(model, flat, records, settings, seed=0)

    _, unprofiled = metered(device, work)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if options.on_gpu else [])]
    with profile(activities=activities) as profiler:
        _, cost = metered(device, work)
    kinds: dict[str, tuple[float, int]] = {}
    for event in profiler.key_averages():
        if (spent := _microseconds(event, options)) > 0:
            before = kinds.get(kind(event.key), (0.0, 0))
            kinds[kind(event.key)] = (before[0] + spent, before[1] + event.count)
    events = sorted(((name, *cost) for name, cost in kinds.items()), key=lambda e: -e[1])
    total = sum(e[1] for e in events)
    found: list[tuple[str, Row]] = [
        (name, {"ms": spent / 1e3, "share": spent / total, "calls": count}) for name, spent, count in events[:SHOWN]
    ]
    seconds = float(cost["seconds"] or 0.0)
    whole: Row = {**unprofiled, "profiled_seconds": seconds, "busy": total / 1e6 / seconds, "kinds": len(events)}
    return whole, found


def kind(kernel: str) -> str:
    """A kernel's name without result, namespace, template arguments and parameters."""
    name = kernel.replace("(anonymous namespace)::", "").removeprefix("void ")
    return re.split(r"[<(]", name)[0].rsplit("::", 1)[-1].strip() or kernel


def _microseconds(event: Any, options: Options) -> float:
    """Time in the kernel itself; on a CPU in the operator, without those that it calls."""
    if not options.on_gpu:
        return event.self_cpu_time_total
    is_kernel = event.device_type.name == "CUDA" and not getattr(event, "is_user_annotation", False)
    return event.self_device_time_total if is_kernel else 0.0
