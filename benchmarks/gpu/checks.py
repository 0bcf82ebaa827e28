"""The same numbers as on a CPU? A very small Llama trained, unlearned, scored and continued on the device and there."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from benchmarks.gpu.bases import PAGED
from benchmarks.gpu.options import Options
from benchmarks.gpu.result_rows import Row, Rows
from benchmarks.gpu.shapes import TINY, Setting, other_answers, random_base, target
from clients import losses
from clients.flat_parameters import FlatParameters
from clients.optimisation import Ball
from clients.training import TrainSettings, train
from clients.unlearning import UnlearnOptions, unlearn
from evaluation.engine.decoding import greedy
from evaluation.engine.likelihood import score
from evaluation.engine.sampling import Rule, sample
from oblivionis.config import method_traits

CLOSE, ROUGH = 1e-3, 5e-2
"""Largest difference, in nats per answer token, where both compute in float32, and where one computes in fewer bits."""
SAME_TOKENS = 0.9
SETTINGS: dict[str, Any] = {"epochs": 3, "batch_size": 4, "learning_rate": 1e-3, "warmup_epochs": 0.0}


class Checks:
    """The work that is done on the device and on the CPU."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.setting = Setting.of("paper_llama_3_2_1b", TINY, Options("cpu", tiny=True))
        self.records = self.setting.sequences(12, seed=1)
        self.prompts = [record.prompt for record in self.records]

    def model(self, device: str, dtype: str = "float32", quantization: str = "none") -> tuple[Any, FlatParameters]:
        """The same small Llama everywhere: its weights are drawn on the CPU unless they are quantised."""
        base = random_base(TINY, quantization, "cpu" if quantization == "none" else device, dtype)
        base = base if quantization != "none" else base.to(device)
        return self.setting.adapted(base, dropout=0.0)

    def trained(self, device: str, dtype: str = "float32", quantization: str = "none", **changes: Any) -> list[float]:
        """The losses of a training."""
        model, flat = self.model(device, dtype, quantization)
        found: list[float] = []
        settings = TrainSettings(**{**SETTINGS, **changes})
        train(model, flat, self.records, settings, seed=0, on_step=lambda _, loss: found.append(loss))
        return found

    def unlearned(self, device: str, method: str) -> list[float]:
        """The losses of an unlearning."""
        model, flat = self.model(device)
        found: list[float] = []
        ball = Ball(flat.numpy(), 1.0) if method_traits.ball(method) else None
        unlearn(
            model,
            flat,
            self.records[:4],
            self.records[4:],
            method,
            losses.hyperparameters(method),
            TrainSettings(**SETTINGS),
            seed=0,
            options=UnlearnOptions(ball=ball, target=target(method, model, flat, self.records[:4])),
            on_step=lambda _, loss: found.append(loss),
            alternatives=other_answers(self.records[:4], self.records[4:]),
        )
        return found

    def scored(self, device: str) -> list[float]:
        """Mean negative log-likelihood of every record, in nats per answer token."""
        return score(self.model(device)[0], self.records).mean_nll.tolist()

    def continued(self, device: str) -> list[int]:
        """The tokens of greedy answers."""
        model, _ = self.model(device)
        return list(chain(*greedy(model, self.prompts, max_new_tokens=6, stop_ids=())))

    def sampled(self, device: str) -> list[int]:
        """The tokens of eight sampled answers to each question."""
        model, _ = self.model(device)
        found = sample(model, self.prompts, 8, max_new_tokens=6, stop_ids=(), rule=Rule(top_p=0.9))
        return [token for answers in found for answer in answers for token in answer]


def run(options: Options, rows: Rows) -> None:
    """A row per check: the largest difference from the CPU, and what it may be."""
    checks, device = Checks(options.device), options.device
    near: dict[str, tuple[float, Callable[[str], list[float]]]] = {
        "training": (CLOSE, checks.trained),
        "training with checkpointing": (CLOSE, lambda d: checks.trained(d, gradient_checkpointing=True)),
        "likelihoods": (CLOSE, checks.scored),
        **{f"unlearning: {n}": (CLOSE, lambda d, n=n: checks.unlearned(d, n)) for n in losses.names()},
    }
    for name, (limit, work) in near.items():
        rows.measure(name, lambda limit=limit, work=work: _near(work(device), work("cpu"), limit))
    for name, pick in {"greedy answers": checks.continued, "sampled answers": checks.sampled}.items():
        rows.measure(name, lambda pick=pick: _same(pick(device), pick("cpu")))
    plain: list[float] = []

    def rough(**changes: Any) -> Callable[[], Row]:
        def work() -> Row:
            plain.extend([] if plain else checks.trained("cpu"))
            return _near(checks.trained(device, **changes), plain, ROUGH)

        return work

    rows.measure("training in bfloat16", rough(dtype="bfloat16"))
    rows.measure("training in float16", rough(dtype="float16"), needs_cuda=True)
    rows.measure("paged AdamW", rough(optimizer=PAGED), needs_cuda=True)
    rows.measure("training on an 8-bit base", lambda: _falls(checks.trained(device, "bfloat16", "int8")))
    rows.measure("training on an NF4 base", lambda: _falls(checks.trained(device, "bfloat16", "nf4")))


def _near(found: list[float], expected: list[float], limit: float) -> Row:
    """Raises AssertionError where a number differs by more than `limit` times its size (or times 1, if smaller)."""
    gaps = [abs(a - b) / max(1.0, abs(b)) for a, b in zip(found, expected, strict=True)]
    if not max(gaps) <= limit:
        raise AssertionError(f"differs from the CPU by {max(gaps):.2e}, allowed {limit:g}")
    return {"difference": max(gaps), "allowed": limit}


def _same(found: list[int], expected: list[int]) -> Row:
    """Raises AssertionError where too many tokens differ; a tie of two tokens may go either way."""
    share = sum(a == b for a, b in zip(found, expected, strict=True)) / len(expected)
    if share < SAME_TOKENS:
        raise AssertionError(f"{share:.0%} of the tokens are those of the CPU, expected {SAME_TOKENS:.0%}")
    return {"same_tokens": share}


def _falls(found: list[float]) -> Row:
    """Raises AssertionError unless training lowered the loss."""
    if not found[-1] < found[0]:
        raise AssertionError(f"the loss did not fall: {found[0]:.4f}, in the end {found[-1]:.4f}")
    return {"first_loss": found[0], "last_loss": found[-1]}
