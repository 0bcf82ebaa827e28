"""A randomly initialised Llama-3.2-1B in the paper's setting: rounds, unlearning, and the plain library way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import library_way
from benchmarks.gpu.bases import ADAMW, PAGED, loaded
from benchmarks.gpu.meter import metered
from benchmarks.gpu.options import Options
from benchmarks.gpu.result_rows import Row, Rows
from benchmarks.gpu.shapes import Setting, other_answers, random_base, target
from benchmarks.model_shapes import LLAMA_3_2_1B
from clients import losses
from clients.flat_parameters import FlatParameters
from clients.optimisation import Ball
from clients.training import batches, train
from clients.unlearning import UnlearnOptions, unlearn
from evaluation.engine.sampling import Rule, sample
from evaluation.engine.sequences import TokenSequence
from oblivionis.config import method_traits

EXPERIMENT = "paper_llama_3_2_1b"
BASES = {"bfloat16": "none", "8-bit": "int8", "NF4": "nf4"}
SAME: dict[str, Any] = {
    "optimizer": ADAMW,
    "epochs": 1,
    "warmup_epochs": 0.0,
    "schedule": "constant",
    "max_grad_norm": None,
}
"""What Trainer does as well."""
TOP_P, REPEATS = 0.9, 3
SECONDS_OF_ROUND = 5.0
"""A round is not begun with less time left."""


def run(options: Options, rows: Rows) -> None:
    """Rows of rounds by base and optimiser, of each unlearning method, of Trainer and of `generate`."""
    setting = Setting.of(EXPERIMENT, LLAMA_3_2_1B, options)
    _sampling(setting, options, rows)
    _rounds(setting, options, rows, "bfloat16")
    _unlearning_and_trainer(setting, options, rows)
    _rounds(setting, options, rows, "NF4")
    _rounds(setting, options, rows, "8-bit")


def a_round(model: Any, flat: FlatParameters, setting: Setting, optimizer: str) -> Row:
    """Local training of a round's clients one after another and the mean of their models, without Flower's messages.

    The model is as before afterwards.
    """
    start = flat.numpy()
    mean = np.zeros(flat.size, dtype=np.float64)
    reports = []
    for client in range(setting.clients):
        flat.load(start)
        records = setting.sequences(setting.records, seed=client)
        reports.append(train(model, flat, records, setting.training(optimizer=optimizer), seed=client))
        mean += flat.numpy() / setting.clients
    flat.load(mean.astype(np.float32))
    flat.load(start)
    seen = sum(report.num_examples for report in reports) * setting.training(optimizer=ADAMW).epochs
    return {
        "records": seen,
        "updates": sum(report.steps for report in reports),
        "records_per_s": seen / sum(report.seconds for report in reports),
        "first_loss": reports[0].first_loss,
        "last_loss": reports[-1].last_loss,
    }


def _rounds(setting: Setting, options: Options, rows: Rows, name: str) -> None:
    """A round with each optimiser; quantised bases on a GPU with the paper's only."""
    quantization, device = BASES[name], torch.device(options.device)
    least = 0.0 if setting.tiny else SECONDS_OF_ROUND
    if (found := loaded(rows, f"load, {name}", setting, options, quantization, seconds=least)) is None:
        return
    model, flat = found
    for optimizer in [ADAMW, PAGED] if quantization == "none" or not options.on_gpu else [PAGED]:

        def work(optimizer: str = optimizer) -> Row:
            row, cost = metered(device, lambda: a_round(model, flat, setting, optimizer))
            return {**cost, **row}

        title = f"round of {setting.clients} clients, {name}, {optimizer}"
        rows.measure(title, work, seconds=least, needs_cuda=optimizer == PAGED)


def _unlearning_and_trainer(setting: Setting, options: Options, rows: Rows) -> None:
    """One client's exchange of every method, then the same epochs by us and by Trainer, which wraps the model."""
    if (found := loaded(rows, "load for unlearning", setting, options)) is None:
        return
    model, flat = found
    for method in losses.names():
        rows.measure(f"unlearning: {method}", lambda method=method: _exchange(model, flat, setting, options, method))
    records = setting.sequences(setting.records * setting.clients, seed=7)
    rows.measure("an epoch, ours", lambda: _ours(model, flat, setting, options, records))
    rows.measure("an epoch, Trainer", lambda: _trainers(model, flat, setting, options, records))


def _exchange(model: Any, flat: FlatParameters, setting: Setting, options: Options, method: str) -> Row:
    """One client unlearns a tenth of its records; the model is as before afterwards."""
    start = flat.numpy()
    records = setting.sequences(setting.records, seed=0)
    forget, retain = records[: setting.forget], records[setting.forget :]
    ball = Ball(start, 1.0) if method_traits.ball(method) else None

    def work() -> Any:
        values, settings = losses.hyperparameters(method), setting.training(optimizer=ADAMW)
        how = UnlearnOptions(ball=ball, target=target(method, model, flat, forget))
        given = {"options": how, "alternatives": other_answers(forget, retain)}
        return unlearn(model, flat, forget, retain, method, values, settings, seed=0, **given)

    try:
        report, cost = metered(torch.device(options.device), work)
    finally:
        flat.zero_grad()
        flat.load(start)
    return {**cost, "updates": report.steps, "first_loss": report.first_loss, "last_loss": report.last_loss}


def _ours(
    model: Any, flat: FlatParameters, setting: Setting, options: Options, records: Sequence[TokenSequence]
) -> Row:
    settings = setting.training(**SAME)

    def epoch() -> tuple[list[float], float]:
        found: list[float] = []
        report = train(model, flat, records, settings, seed=0, on_step=lambda _, loss: found.append(loss))
        return found, report.seconds

    return _median(lambda: epoch, flat, options, len(records))


def _trainers(
    model: Any, flat: FlatParameters, setting: Setting, options: Options, records: Sequence[TokenSequence]
) -> Row:
    """The batches of `_ours`, by Trainer."""
    settings = setting.training(**SAME)
    order = next(batches(len(records), len(records), torch.Generator().manual_seed(0)))
    ordered, start = [records[i] for i in order], flat.numpy()
    library_way.prepared(model, ordered[: settings.batch_size], settings, options.device)()
    flat.load(start)
    return _median(lambda: library_way.prepared(model, ordered, settings, options.device), flat, options, len(records))


def _median(prepare: Callable[[], library_way.Epoch], flat: FlatParameters, options: Options, records: int) -> Row:
    """The median time of `REPEATS` epochs from the same model, preparations not counted, and the losses of the last."""
    start, found, costs = flat.numpy(), [0.0], []
    for _ in range(REPEATS):
        flat.load(start)
        (found, seconds), cost = metered(torch.device(options.device), prepare())
        costs.append({**cost, "seconds": seconds})
    flat.load(start)
    cost = sorted(costs, key=lambda row: row["seconds"])[REPEATS // 2]
    speed = records / float(cost["seconds"] or 1.0)
    return {**cost, "records_per_s": speed, "updates": len(found), "first_loss": found[0], "last_loss": found[-1]}


def _sampling(setting: Setting, options: Options, rows: Rows) -> None:
    """Sampled tokens per second of the base without adapters, by us and by `generate`."""
    tokens, sizes = (4, (4,)) if setting.tiny else (64, (64, 256))
    held: list[Any] = []

    def load() -> Row:
        base, row = metered(torch.device(options.device), lambda: random_base(setting.shape, "none", options.device))
        held.append(base)
        return row

    if rows.measure("load for sampling", load) is None:
        return
    base = held.pop()
    prompts = [record.prompt for record in setting.sequences(max(sizes), seed=3)]

    def ours(asked: Sequence[Sequence[int]], copies: int) -> int:
        found = sample(base, asked, copies, max_new_tokens=tokens, stop_ids=(), rule=Rule(top_p=TOP_P))
        return sum(len(answer) for answers in found for answer in answers)

    for size in sizes:
        ways: dict[str, Callable[[], int]] = {
            f"{size} answers to one question, ours": lambda n=size: ours(prompts[:1], n),
            f"{size} answers to one question, generate": lambda n=size: library_way.generated(
                base, prompts[:1] * n, tokens, TOP_P
            ),
            f"an answer to each of {size} questions, ours": lambda n=size: ours(prompts[:n], 1),
            f"an answer to each of {size} questions, generate": lambda n=size: library_way.generated(
                base, prompts[:n], tokens, TOP_P
            ),
        }
        for name, work in ways.items():
            rows.measure(name, lambda work=work: _rate(work, options))


def _rate(work: Callable[[], int], options: Options) -> Row:
    """The second of two times: the first one loads kernels."""
    work()
    count, cost = metered(torch.device(options.device), work)
    return {**cost, "tokens_per_s": count / float(cost["seconds"] or 1.0)}
