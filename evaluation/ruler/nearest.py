"""Exact cosine of each record to the nearest of many others, in blocks of bounded memory.

Two passes. The first multiplies unit vectors in float32, in blocks, and keeps the pairs that can be a record and its
nearest, given how far float32 can be wrong. The second evaluates those few pairs in float64 in a way that has one
result: unit vectors are split into whole numbers of coarse and of fine steps, of which all products and their sums are
exact. So neither the block nor the library, the device or the number of threads changes a similarity, and equal records
tie.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad

GROUP = 64
PANEL = 8
"""Blocks of keys that are held as unit vectors while every block of queries passes by."""
PENDING = 2**22
"""Pairs that are kept before they are evaluated."""
DENSE = 4
"""With more pairs per record in a block than this, evaluating the whole block is quicker."""
COARSE, FINE = 2.0**26, 2.0**21
"""Coarse steps in 1 and fine steps in a coarse one. Sums of products of coarse steps, and of coarse by fine ones, stay
below 2^53 up to 16,384 dimensions; the products of fine ones, below 1e-16 each, are left out."""
DIGITS = 11
"""Decimals of a similarity; it is evaluated to about 1e-14, so that equal ones tie though their records differ."""


def nearest_similarities(queries: torch.Tensor, keys: torch.Tensor, block_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Largest cosine of each query with a key, (n,), and of each key with another key, (m,); float64 in [-1, 1].

    queries (n, dim), keys (m, dim), m >= 2: on one device, finite and without zero vectors. Memory: some blocks of
    block_size^2 and of PANEL * block_size * dim numbers. block_size is rounded up to a multiple of GROUP.
    """
    block_size = -(-block_size // GROUP) * GROUP
    between, within = _Candidates(queries, keys, block_size), _Candidates(keys, keys, block_size, leave_one_out=True)
    for first, panel in _blocks(keys, PANEL * block_size):
        for start, block in _blocks(queries, block_size):
            for i in range(0, len(panel), block_size):
                between.add(start, first + i, block @ panel[i : i + block_size].T)
        # The similarities of keys are symmetric: each block on or above the diagonal serves its rows and its columns.
        for start, block in _blocks(keys[: first + len(panel)], block_size):
            for i in range(max(0, start - first), len(panel), block_size):
                cosines = block @ panel[i : i + block_size].T
                if first + i == start:
                    cosines.fill_diagonal_(-torch.inf)
                else:
                    within.add(first + i, start, cosines.T)
                within.add(start, first + i, cosines)
    return between.similarities(), within.similarities()


def scaled(rows: torch.Tensor) -> torch.Tensor:
    """The rows in float64, each divided by its largest magnitude: their squares neither overflow nor vanish."""
    return rows.double() / rows.abs().amax(1, keepdim=True).double()


class _Candidates:
    """Which key can be the nearest of each query, and the largest exact similarities found so far."""

    def __init__(self, queries: torch.Tensor, keys: torch.Tensor, block_size: int, leave_one_out: bool = False):
        self.queries, self.keys, self.block_size, self.leave_one_out = queries, keys, block_size, leave_one_out
        self.margin = 2 * _screening_error(queries)
        self.screened = torch.full((len(queries),), -2.0, device=queries.device)
        self.found = torch.full((len(queries),), -2.0, dtype=torch.float64, device=queries.device)
        self.pending: list[tuple[torch.Tensor, ...]] = []
        self.count = 0

    def add(self, start: int, first: int, cosines: torch.Tensor) -> None:
        """Take the float32 cosines of the queries from number `start` with the keys from number `first`."""
        rows, columns = cosines.shape
        if columns % GROUP:
            cosines = pad(cosines, (0, -columns % GROUP), value=-torch.inf)
        grouped = cosines.unflatten(1, (-1, GROUP))
        maxima = grouped.amax(2)
        screened = self.screened[start : start + rows]
        torch.maximum(screened, maxima.amax(1), out=screened)
        limit = screened - self.margin
        row, group = (maxima >= limit[:, None]).nonzero(as_tuple=True)
        values = grouped[row, group]
        pair, column = (values >= limit[row, None]).nonzero(as_tuple=True)
        if len(pair) > DENSE * rows:
            self._evaluate_block(slice(start, start + rows), slice(first, first + columns))
            return
        self.pending.append((row[pair] + start, group[pair] * GROUP + column + first, values[pair, column]))
        self.count += len(pair)
        if self.count > PENDING:
            self._evaluate_pairs()

    def similarities(self) -> np.ndarray:
        """The largest cosine of each query, once every block was added."""
        self._evaluate_pairs()
        return self.found.clamp(-1, 1).cpu().numpy().round(DIGITS)

    def _evaluate_block(self, rows: slice, columns: slice) -> None:
        queries, keys = _on_grid(self.queries[rows]), _on_grid(self.keys[columns])
        cosines = queries.coarse @ keys.coarse.T
        cosines += (queries.coarse @ keys.fine.T).add_(queries.fine @ keys.coarse.T).div_(FINE)
        cosines /= (queries.squares[:, None] * keys.squares).sqrt_()
        if self.leave_one_out and rows.start == columns.start:
            cosines.fill_diagonal_(-torch.inf)
        torch.maximum(self.found[rows], cosines.amax(1), out=self.found[rows])

    def _evaluate_pairs(self) -> None:
        """Evaluate the pending pairs that still can be the nearest."""
        if not self.pending:
            return
        rows, columns, values = (torch.cat(parts) for parts in zip(*self.pending, strict=True))
        self.pending, self.count = [], 0
        kept = values >= self.screened[rows] - self.margin
        for row, column in zip(rows[kept].split(self.block_size), columns[kept].split(self.block_size), strict=True):
            queries, keys = _on_grid(self.queries[row]), _on_grid(self.keys[column])
            cosines = _dots(queries, keys) / (queries.squares * keys.squares).sqrt_()
            self.found.scatter_reduce_(0, row, cosines, "amax")


class _Grid(NamedTuple):
    """Unit vectors (rows, dim) as whole numbers of coarse and fine steps, and their squared lengths in coarse steps."""

    coarse: torch.Tensor
    fine: torch.Tensor
    squares: torch.Tensor


def _on_grid(rows: torch.Tensor) -> _Grid:
    unit = scaled(rows)
    unit.mul_(COARSE / torch.linalg.vector_norm(unit, dim=1, keepdim=True))
    coarse = unit.round()
    fine = unit.sub_(coarse).mul_(FINE).round_()
    grid = _Grid(coarse, fine, coarse)
    return grid._replace(squares=_dots(grid, grid))


def _dots(a: _Grid, b: _Grid) -> torch.Tensor:
    """Dot product of each row with the same row of the other, in squared coarse steps. Every sum is exact."""
    mixed = torch.linalg.vecdot(a.coarse, b.fine) + torch.linalg.vecdot(a.fine, b.coarse)
    return torch.linalg.vecdot(a.coarse, b.coarse) + mixed / FINE


def _blocks(rows: torch.Tensor, size: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Blocks of at most `size` rows as float32 unit vectors, each with the number of its first row."""
    for start in range(0, len(rows), size):
        block = scaled(rows[start : start + size])
        yield start, block.div_(torch.linalg.vector_norm(block, dim=1, keepdim=True)).float()


def _screening_error(rows: torch.Tensor) -> float:
    """How far a float32 cosine of two unit vectors of the first pass can be from that of the second, at most.

    With u = 2^-24: the sum of dim products in any order (Higham 2002, section 3.1) and the rounding of both vectors to
    float32; with u = 2^-8 for both vectors where float32 products may be computed in less.
    """
    dim = rows.shape[1]
    error = (dim + 4) * 2.0**-24
    reduced = rows.device.type != "cpu" or torch.get_float32_matmul_precision() != "highest"
    return 1.01 * error + (2.0**-7 if reduced else 0.0)
