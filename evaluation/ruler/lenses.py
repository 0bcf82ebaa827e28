"""RULER's two lenses: representations of forgotten records against those of an oracle and of retained records.

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
    """Percentile ranks of forgotten records among retained ones, by similarity to the nearest retained record (Lens 2).

    Attributes
    ----------
    ranks : array (n,), float64, in [0, 1]
        R(x), the share of retained records whose `retain_similarity` is below the forgotten record's
        `forget_similarity`, ties counted half (eq. 7).
    forget_similarity : array (n,)
        s_f, cosine to the nearest retained record (eq. 5).
    retain_similarity : array (m,)
        s_r, cosine to the nearest other retained record (eq. 6).
    """

    ranks: np.ndarray
    forget_similarity: np.ndarray
    retain_similarity: np.ndarray

    @property
    def mean(self) -> float:
        """Mean rank: 0.5 for records like retained ones; above: residual memorisation, below: over-displacement."""
        return float(self.ranks.mean())


def cosine(a: Array, b: Array) -> np.ndarray:
    """Cosine of each row of `a` with the same row of `b`.

    Parameters
    ----------
    a, b : array (n, dim)

    Returns
    -------
    array (n,), float64, in [-1, 1]
        1 for equal rows.
    """
    return _paired("a", a, "b", b)


def oracle_similarity(unlearned: Array, oracle: Array) -> float:
    """S_oracle: mean cosine of the forget records' representations in the unlearned model and in the oracle (eq. 2).

    It has no null value of its own (see `calibration_gap`). Cosines between models mean something only where the
    original model and the oracle were trained from the same initialisation.

    Parameters
    ----------
    unlearned, oracle : array (n, dim)
        The same records in the same order.

    Returns
    -------
    float in [-1, 1]
        Near 1 where the records lie as in the oracle.
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

    Parameters
    ----------
    unlearned_f, oracle_f : array (n, dim)
        Forget records.
    unlearned_r, oracle_r : array (m, dim)
        Retain records.
    sample : int, at least 1, optional
        How many retain records, sampled without replacement by numpy's default generator, give the median; None, or m
        or more: all.
    random_state : int
        Seed of that generator.

    Returns
    -------
    float in [-2, 2]
        Null 0; negative: residual memorisation, positive: over-correction.
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

    Parameters
    ----------
    original_f, unlearned_f, oracle_f : array (n, dim)
        The same records in the same order.

    Returns
    -------
    float in [-2, 2]
        Positive: towards the oracle; 0: not moved; negative: away from it.
    """
    after = _paired("unlearned_f", unlearned_f, "oracle_f", oracle_f)
    return float((after - _paired("original_f", original_f, "oracle_f", oracle_f)).mean())


def percentile_rank(forget: Array, retain: Array, block_size: int = BLOCK_SIZE) -> PercentileRank:
    """R: rank of each forget record's nearest-retain similarity among the retain records' own (eqs. 5 to 7).

    Similarities are float64 rounded to eleven decimals, so that equal ones tie, and equal records wherever they stand.

    Parameters
    ----------
    forget : array (n, dim)
    retain : array (m, dim), m >= 2
        Of the same model.
    block_size : int, at least 1
        Records on each side of a block of similarities (see `nearest.block_rows`).

    Returns
    -------
    PercentileRank
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
    """Raise ValueError for a row that is not finite or zero."""
    for start in range(0, len(rows), ROWS):
        largest = rows[start : start + ROWS].abs().amax(1)
        for bad, what in (
            (~largest.isfinite(), "holds NaN or an infinity"),
            (largest == 0, "is a zero vector, which has no direction"),
        ):
            if bad.any():
                raise ValueError(f"{name}: record {start + int(bad.nonzero()[0, 0])} {what}")


def _row_cosines(a: torch.Tensor, b: torch.Tensor, name_a: str, name_b: str) -> np.ndarray:
    """Cosine of equal rows of two checked arrays, (n,)."""
    _same_shape(name_a, a, name_b, b)
    result = np.empty(len(a))
    for start in range(0, len(a), ROWS):
        first, second = (scaled(rows[start : start + ROWS]).cpu().numpy() for rows in (a, b))
        dot, squares, others = ((x * y).sum(1) for x, y in ((first, second), (first, first), (second, second)))
        # The root of the product, not the product of roots: equal rows then have the cosine 1 exactly.
        result[start : start + ROWS] = dot / np.sqrt(squares * others)
    return result.clip(-1, 1)


def _paired(name_a: str, a: Array, name_b: str, b: Array) -> np.ndarray:
    """Check two arrays, and take the cosine of equal rows."""
    return _row_cosines(_records(name_a, a), _records(name_b, b), name_a, name_b)


def _same_shape(name_a: str, a: torch.Tensor, name_b: str, b: torch.Tensor) -> None:
    """Raise ValueError unless the shapes are equal."""
    if a.shape != b.shape:
        raise ValueError(
            f"{name_a} has shape {tuple(a.shape)}, {name_b} {tuple(b.shape)}: the rows are one record each"
        )


def _positive(name: str, value: int) -> None:
    """Raise ValueError unless `value` is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
