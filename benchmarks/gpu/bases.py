"""Loading a random model with the paper's adapters, as a row of its own."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.gpu.meter import GB, metered
from benchmarks.gpu.options import Options
from benchmarks.gpu.result_rows import Row, Rows
from benchmarks.gpu.shapes import Setting, random_base
from clients.flat_parameters import FlatParameters
from clients.training import train

ADAMW, PAGED = "adamw", "paged_adamw_32bit"


def loaded(
    rows: Rows, name: str, setting: Setting, options: Options, quantization: str = "none", *, seconds: float = 0.0
) -> tuple[Any, FlatParameters] | None:
    """The model with its adapters, after one update; the row has what loading took and what the weights take.

    None where the row says why there is no model; seconds: as in `Rows.measure`.
    """
    held: list[tuple[Any, FlatParameters]] = []
    device = torch.device(options.device)

    def load() -> Row:
        (model, flat), row = metered(
            device, lambda: setting.adapted(random_base(setting.shape, quantization, options.device))
        )
        row["weights_gb"] = sum(p.numel() * p.element_size() for p in model.parameters()) / GB
        row["trained_numbers"] = flat.size
        if options.on_gpu:
            row["device_gb"] = torch.cuda.get_device_properties(device).total_memory / GB
        _warm_up(model, flat, setting)
        held.append((model, flat))
        return row

    return held.pop() if rows.measure(name, load, seconds=seconds) is not None else None


def _warm_up(model: Any, flat: FlatParameters, setting: Setting) -> None:
    """An update whose time does not count: the device's libraries load with it."""
    start, settings = flat.numpy(), setting.training(optimizer=ADAMW, epochs=1)
    train(model, flat, setting.sequences(settings.batch_size, seed=99), settings, seed=0)
    flat.load(start)
