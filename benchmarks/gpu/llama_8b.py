"""A randomly initialised Llama-3.1-8B with its linear layers in 4 bits: does it fit, and what does a round take?"""

from __future__ import annotations

import torch

from benchmarks.gpu.bases import ADAMW, PAGED, loaded
from benchmarks.gpu.llama_1b import a_round
from benchmarks.gpu.meter import metered
from benchmarks.gpu.options import Options
from benchmarks.gpu.result_rows import Row, Rows
from benchmarks.gpu.shapes import Setting
from benchmarks.model_shapes import LLAMA_3_1_8B
from clients.training import train

EXPERIMENT = "paper_llama_3_1_8b"
SECONDS_OF_LOADING = 20.0
"""It is not begun with less time left."""


def run(options: Options, rows: Rows) -> None:
    """Rows of loading, of one client's epoch, and of a round, if by that epoch there is time for it."""
    setting = Setting.of(EXPERIMENT, LLAMA_3_1_8B, options)
    optimizer = PAGED if options.on_gpu else ADAMW
    device = torch.device(options.device)
    least = 0.0 if setting.tiny else SECONDS_OF_LOADING
    if (found := loaded(rows, "load, NF4", setting, options, "nf4", seconds=least)) is None:
        return
    model, flat = found
    records, settings = setting.sequences(setting.records, seed=0), setting.training(optimizer=optimizer, epochs=1)

    def epoch() -> Row:
        report, cost = metered(device, lambda: train(model, flat, records, settings, seed=0))
        return {**cost, "records_per_s": len(records) / report.seconds, "first_loss": report.first_loss}

    def whole() -> Row:
        row, cost = metered(device, lambda: a_round(model, flat, setting, optimizer))
        return {**cost, **row}

    if (row := rows.measure(f"an epoch of one client, {optimizer}", epoch)) is None:
        return
    epochs = setting.clients * setting.training(optimizer=optimizer).epochs
    rows.measure(
        f"round of {setting.clients} clients, {optimizer}", whole, seconds=epochs * float(row["seconds"] or 0.0)
    )
