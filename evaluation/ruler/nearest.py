"""Cosine similarity of records to the nearest of many others, in blocks of bounded memory (float64)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

MEMORY = 2**30
"""Most bytes of the blocks at a time."""
DIGITS = 11
"""Decimals of a similarity, fewer than the about 13 that are right: equal ones tie for any order of the sums."""


def nearest_similarities(queries: torch.Tensor, keys: torch.Tensor, block_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Largest cosine of each query with a key, and of each key with another key.

    Parameters
    ----------
    queries : tensor (n, dim)
    keys : tensor (m, dim), m >= 2
        On the same device; both finite and without zero vectors.
    block_size : int
        See `block_rows`.

    Returns
    -------
    between : array (n,), float64, in [-1, 1]
    within : array (m,), float64, in [-1, 1]
        Rounded to `DIGITS` decimals.
    """
    size = block_rows(block_size, keys.shape[1])
    between, within = (rows.new_full((len(rows),), -torch.inf, dtype=torch.float64) for rows in (queries, keys))
    for columns, block in unit_blocks(keys, size):
        for rows, others in unit_blocks(queries, size):
            between[rows] = between[rows].maximum((others @ block.T).amax(1))
        # The cosines of keys are symmetric: a block up to the diagonal serves its rows and its columns.
        for rows, others in unit_blocks(keys[: columns.stop], size):
            cosines = others @ block.T
            if rows == columns:
                cosines.fill_diagonal_(-torch.inf)
            within[rows] = within[rows].maximum(cosines.amax(1))
            within[columns] = within[columns].maximum(cosines.amax(0))
    similar, own = (found.clamp(-1, 1).cpu().numpy().round(DIGITS) for found in (between, within))
    return similar, own


def block_rows(block_size: int, dim: int) -> int:
    """Records on each side of a block: `block_size` but 64 at least, or as many as MEMORY allows.

    Parameters
    ----------
    block_size, dim : int

    Returns
    -------
    int, at least 1
    """
    block_size = max(block_size, 64)
    while block_size > 1 and block_bytes(block_size, dim) > MEMORY:
        block_size //= 2
    return block_size


def block_bytes(rows: int, dim: int) -> int:
    """Bytes of rows × rows cosines and of the unit vectors on both sides, each with a copy while it is scaled.

    Parameters
    ----------
    rows, dim : int

    Returns
    -------
    int
    """
    return 8 * rows * (rows + 4 * dim)


def scaled(rows: torch.Tensor) -> torch.Tensor:
    """The rows, each divided by its largest magnitude, so that squares neither overflow nor vanish.

    Parameters
    ----------
    rows : tensor (n, dim)
        Without zero vectors.

    Returns
    -------
    tensor (n, dim), float64, in [-1, 1]
    """
    return rows.double() / rows.abs().amax(1, keepdim=True).double()


def unit_blocks(records: torch.Tensor, size: int) -> Iterator[tuple[slice, torch.Tensor]]:
    """Blocks of unit vectors.

    Parameters
    ----------
    records : tensor (n, dim)
        Without zero vectors.
    size : int
        Most records of a block.

    Yields
    ------
    rows : slice
        Which records.
    unit : tensor (·, dim), float64
    """
    for start in range(0, len(records), size):
        unit = scaled(records[start : start + size])
        yield slice(start, start + len(unit)), unit.div_(torch.linalg.vector_norm(unit, dim=1, keepdim=True))
