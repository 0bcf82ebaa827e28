"""One cell of the experiment, a dataset, a forget fraction and a seed: its models, and what is measured of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.tabular import unlearning
from benchmarks.tabular.data import Dataset, Records, forget_rows
from benchmarks.tabular.model import TabularMLP, train
from benchmarks.tabular.settings import Measures, Settings
from evaluation.ruler.lenses import calibration_gap, oracle_similarity, percentile_rank, representation_shift
from evaluation.ruler.statistics import threshold_attack

ORIGINAL, ORACLE, TWIN, PAIR = "original", "oracle", "oracle_twin", "oracle_pair"
"""Models in addition to the methods'. TWIN and PAIR are further oracles, measured against the first like a method's
model: TWIN starts from the same weights and drops out other units, PAIR starts from another seed."""
KEYS = ("dataset", "fraction", "seed", "method")
COLUMNS = (
    *KEYS,
    "forget_records",
    "retain_records",
    "s_oracle",
    "s_gap",
    "s_shift",
    "mean_rank",
    "mia",
    "forget_accuracy",
    "retain_accuracy",
    "test_accuracy",
)


@dataclass(frozen=True)
class Seen:
    """What a model makes of records: representations (n, width), cross-entropy (n,) in nats, right or wrong (n,)."""

    embedding: np.ndarray
    loss: np.ndarray
    correct: np.ndarray

    @classmethod
    @torch.no_grad()
    def by(cls, model: TabularMLP, records: Records) -> Seen:
        """The model must be in evaluation mode."""
        embedding = model.embed(records.x)
        logits = model.head(embedding)
        loss = torch.nn.functional.cross_entropy(logits, records.y, reduction="none")
        return cls(embedding.numpy(), loss.numpy(), (logits.argmax(1) == records.y).numpy())


class Cell:
    """The models of a dataset, a forget fraction and a seed."""

    def __init__(self, settings: Settings, dataset: Dataset, original: TabularMLP, fraction: float, seed: int) -> None:
        """original: trained on all training records from the same seed (`train_original`)."""
        self._settings, self._dataset, self._fraction, self._seed = settings, dataset, fraction, seed
        rows = forget_rows(len(dataset.train), fraction, settings.min_forget, settings.split_seed)
        self.forget = dataset.train.of(rows)
        self.retain = dataset.train.of(np.setdiff1d(np.arange(len(dataset.train)), rows))
        self.original = original
        self.oracle = self._retrained(seed, seed)

    def _retrained(self, seed: int, dropout_seed: int) -> TabularMLP:
        return _trained(self._settings, self._dataset, self.retain, seed, dropout_seed)

    def rows(self, advance: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
        """A row by `COLUMNS` for each of `models`.

        NaN is what has no meaning: an oracle's similarity to itself, and a shift but of a method. `advance` is called
        after each row.
        """
        sets = (self.forget, self.retain, self._dataset.test)
        oracle = [Seen.by(self.oracle, records) for records in sets[:2]]
        before = Seen.by(self.original, self.forget)
        found = []
        for method, make in self._makers().items():
            model = make()
            found.append(self._row(method, [Seen.by(model, records) for records in sets], oracle, before))
            advance()
        return found

    def _makers(self) -> dict[str, Callable[[], TabularMLP]]:
        seed, other = self._seed, self._seed + self._settings.pair_seed_offset
        references: dict[str, Callable[[], TabularMLP]] = {
            ORIGINAL: lambda: self.original,
            ORACLE: lambda: self.oracle,
            TWIN: lambda: self._retrained(seed, other),
            PAIR: lambda: self._retrained(other, other),
        }
        return references | {plan.method: partial(self._unlearned, plan) for plan in self._settings.plans()}

    def _unlearned(self, plan: unlearning.Plan) -> TabularMLP:
        seed = self._settings.unlearning_seed
        return unlearning.unlearn(self.original, self.forget, self.retain, plan, seed)

    def _row(self, method: str, seen: list[Seen], oracle: list[Seen], before: Seen) -> dict[str, Any]:
        forget, retain, test = seen
        measures = self._settings.measures
        values = (
            self._dataset.name,
            self._fraction,
            self._seed,
            method,
            len(self.forget),
            len(self.retain),
            *_similarities(method, forget, retain, oracle, before, measures),
            mean_rank(forget.embedding, retain.embedding, measures),
            threshold_attack(forget.loss, test.loss),
            *(float(part.correct.mean()) for part in seen),
        )
        return dict(zip(COLUMNS, values, strict=True))


def models(settings: Settings) -> list[str]:
    """What the column `method` holds in each cell, in order: the other models first, then the methods'."""
    return [ORIGINAL, ORACLE, TWIN, PAIR, *settings.methods]


def train_original(settings: Settings, dataset: Dataset, seed: int) -> TabularMLP:
    """The model of all training records."""
    return _trained(settings, dataset, dataset.train, seed, seed)


def _trained(settings: Settings, dataset: Dataset, records: Records, seed: int, dropout_seed: int) -> TabularMLP:
    shape = {"features": dataset.features, "classes": dataset.classes, **vars(settings.network)}
    how = settings.pretraining
    return train(records, shape, how.epochs, how.learning_rate, seed, dropout_seed)


def _similarities(
    method: str, forget: Seen, retain: Seen, oracle: list[Seen], before: Seen, measures: Measures
) -> tuple[float, float, float]:
    """S_oracle, S_gap and S_shift (Lens 1)."""
    if method == ORACLE:
        return np.nan, np.nan, np.nan
    similarity = oracle_similarity(forget.embedding, oracle[0].embedding)
    gap = calibration_gap(
        forget.embedding,
        oracle[0].embedding,
        retain.embedding,
        oracle[1].embedding,
        measures.retain_sample,
        measures.sample_seed,
    )
    if method in (ORIGINAL, TWIN, PAIR):
        return similarity, gap, np.nan
    return similarity, gap, representation_shift(before.embedding, forget.embedding, oracle[0].embedding)


def mean_rank(forget: np.ndarray, retain: np.ndarray, measures: Measures) -> float:
    """The mean percentile rank of `measures.rank_sample` records of each side at most (Lens 2)."""
    return percentile_rank(_sampled(forget, measures), _sampled(retain, measures)).mean


def _sampled(rows: np.ndarray, measures: Measures) -> np.ndarray:
    if measures.rank_sample is None or len(rows) <= measures.rank_sample:
        return rows
    drawn = np.random.default_rng(measures.sample_seed).choice(len(rows), measures.rank_sample, replace=False)
    return rows[np.sort(drawn)]
