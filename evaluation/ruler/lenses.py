"""RULER's two lenses: how representations of forgotten records lie beside an oracle's and beside retained records'.

A representation is the activation right before the task head, one row per record; arrays are numpy arrays or torch
tensors (on any device) of shape (records, dim) and any float dtype. Everything is measured by cosine similarity, so the
length of a representation never counts. Source: RULER, section 3.

Every function raises ValueError for an array that is not of two dimensions, that is empty, or that holds NaN, an
infinity or a zero vector (which has no direction), and for arrays whose shapes do not fit together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from evaluation.ruler.nearest import nearest_similarities, scaled

Array: TypeAlias = np.ndarray | torch.Tensor
"""Numpy arrays and torch tensors."""

BLOCK_SIZE = 1024
ROWS = 4096


@dataclass(frozen=True, eq=False)
class PercentileRank:
    """Where forgotten records stand among retained ones by similarity to the nearest (other) retained record (Lens 2).

    ranks (n,) float64 in [0, 1]: R(x), the share of retained records whose `retain_similarity` is below the forgotten
    record's `forget_similarity`, ties counted half (eq. 7); forget_similarity (n,): s_f, cosine to the nearest retained
    record (eq. 5); retain_similarity (m,): s_r, cosine to the nearest other retained record (eq. 6).
    """

    ranks: np.ndarray
    forget_similarity: np.ndarray
    retain_similarity: np.ndarray

    @property
    def mean(self) -> float:
        """The metric: 0.5 for a forgotten record like any retained one; above: residual memorisation, below:
        over-displacement."""
        return float(self.ranks.mean())


def cosine(a: Array, b: Array) -> np.ndarray:
    """Cosine of each row of `a` with the same row of `b`, both (n, dim): (n,) float64 in [-1, 1], 1 for equal rows."""
    return _paired("a", a, "b", b)


def oracle_similarity(unlearned: Array, oracle: Array) -> float:
    """S_oracle: mean cosine of the forget records' representations in the unlearned model and in the oracle (eq. 2).

    unlearned, oracle (n, dim): the same records in the same order. In [-1, 1], near 1 where the records lie as in the
    oracle; without a null value of its own (see `calibration_gap`). Cosines between models mean something only where
    the original model and the oracle were trained from the same initialisation.
    """
    return float(_paired("unlearned", unlearned, "oracle", oracle).mean())


def calibration_gap(
    unlearned_f: Array,
    oracle_f: Array,
    unlearned_r: Array,
    oracle_r: Array,
    sample: int | None = None,
    random_state: int = 42,
) -> float:
    """S_gap: S_oracle less the median cosine of retain records between the same two models (eq. 3).

    unlearned_f, oracle_f (n, dim): forget records; unlearned_r, oracle_r (m, dim): retain records. In [-2, 2], null 0;
    negative: residual memorisation, positive: over-correction. sample: how many retain records, drawn without
    replacement by numpy's default generator seeded with random_state, give the median; None, or m or more: all.
    """
    forget = _paired("unlearned_f", unlearned_f, "oracle_f", oracle_f)
    first, second = _records("unlearned_r", unlearned_r), _records("oracle_r", oracle_r)
    _same_shape("unlearned_r", first, "oracle_r", second)
    if first.shape[1] != np.shape(unlearned_f)[1]:
        raise ValueError(f"forget records have dimension {np.shape(unlearned_f)[1]}, retain records {first.shape[1]}")
    if sample is not None:
        _positive("sample", sample)
        if sample < len(first):
            drawn = np.random.default_rng(random_state).choice(len(first), sample, replace=False)
            picked = torch.from_numpy(np.sort(drawn))
            first, second = first[picked.to(first.device)], second[picked.to(second.device)]
    retain = _row_cosines(first, second, "unlearned_r", "oracle_r")
    return float(forget.mean() - np.median(retain))


def representation_shift(original_f: Array, unlearned_f: Array, oracle_f: Array) -> float:
    """S_shift: how much closer to the oracle unlearning moved the forget records, in mean cosine (eq. 4).

    original_f, unlearned_f, oracle_f (n, dim): the same records in the same order. In [-2, 2]; positive: towards the
    oracle, 0: not moved, negative: away from it.
    """
    after = _paired("unlearned_f", unlearned_f, "oracle_f", oracle_f)
    return float((after - _paired("original_f", original_f, "oracle_f", oracle_f)).mean())


def percentile_rank(forget: Array, retain: Array, block_size: int = BLOCK_SIZE) -> PercentileRank:
    """R: rank of each forget record's nearest-retain similarity among the retain records' own (eqs. 5 to 7).

    forget (n, dim), retain (m, dim), m >= 2: representations of one model. block_size: records on each side of a
    block of similarities (see `nearest.block_rows`). Similarities are float64 rounded to eleven decimals, so
    that equal ones tie, and equal records wherever they stand.
    """
    _positive("block_size", block_size)
    queries, keys = _records("forget", forget), _records("retain", retain)
    if queries.shape[1] != keys.shape[1]:
        raise ValueError(f"forget records have dimension {queries.shape[1]}, retain records {keys.shape[1]}")
    if len(keys) < 2:
        raise ValueError("retain holds one record, but the nearest other retain record takes at least two")
    similar, own = nearest_similarities(queries, keys.to(queries.device), block_size)
    ordered = np.sort(own)
    below, up_to = np.searchsorted(ordered, similar, "left"), np.searchsorted(ordered, similar, "right")
    return PercentileRank((below + up_to) / 2 / len(own), similar, own)


def _records(name: str, array: Any) -> torch.Tensor:
    """The array as a floating-point tensor of records, checked."""
    if isinstance(array, torch.Tensor):
        tensor = array.detach()
        if tensor.device.type == "mps":  # has no float64
            tensor = tensor.cpu()
    else:
        values = np.asarray(array)
        if values.dtype.kind not in "fiub":
            raise ValueError(f"{name} holds {values.dtype}, expected floating-point numbers")
        if values.dtype not in (np.float16, np.float32):
            values = values.astype(np.float64)
        tensor = torch.tensor(values) if not values.flags.writeable else torch.from_numpy(np.ascontiguousarray(values))
    if tensor.ndim != 2:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected (records, dim)")
    if not tensor.numel():
        raise ValueError(f"{name} is empty: shape {tuple(tensor.shape)}")
    if not tensor.is_floating_point():
        if tensor.is_complex():
            raise ValueError(f"{name} holds {tensor.dtype}, expected floating-point numbers")
        tensor = tensor.double()
    _check(name, tensor)
    return tensor


def _check(name: str, rows: torch.Tensor) -> None:
    for start in range(0, len(rows), ROWS):
        largest = rows[start : start + ROWS].abs().amax(1)
        for bad, what in (
            (~largest.isfinite(), "holds NaN or an infinity"),
            (largest == 0, "is a zero vector, which has no direction"),
        ):
            if bad.any():
                raise ValueError(f"{name}: record {start + int(bad.nonzero()[0, 0])} {what}")


def _row_cosines(a: torch.Tensor, b: torch.Tensor, name_a: str, name_b: str) -> np.ndarray:
    _same_shape(name_a, a, name_b, b)
    result = np.empty(len(a))
    for start in range(0, len(a), ROWS):
        first, second = (scaled(rows[start : start + ROWS]).cpu().numpy() for rows in (a, b))
        dot, squares, others = ((x * y).sum(1) for x, y in ((first, second), (first, first), (second, second)))
        # The root of the product, not the product of roots: equal rows then have the cosine 1 exactly.
        result[start : start + ROWS] = dot / np.sqrt(squares * others)
    return result.clip(-1, 1)


def _paired(name_a: str, a: Array, name_b: str, b: Array) -> np.ndarray:
    return _row_cosines(_records(name_a, a), _records(name_b, b), name_a, name_b)


def _same_shape(name_a: str, a: torch.Tensor, name_b: str, b: torch.Tensor) -> None:
    if a.shape != b.shape:
        raise ValueError(
            f"{name_a} has shape {tuple(a.shape)}, {name_b} {tuple(b.shape)}: the rows are one record each"
        )


def _positive(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
