"""Mean of LoRA updates as matrices: the mean of the products B·A, not the product of the means.

With ΔW_k = B_k A_k the update of client k, mean(B)·mean(A) is not Σ α_k ΔW_k: the covariance of the factors is missing,
Σ α_k (B_k − mean(B))(A_k − mean(A)). Here Σ α_k ΔW_k is truncated to rank r by a singular value decomposition, which
gives the nearest matrix of that rank (Eckart and Young 1936).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.arrays import weighted_sum

Floats = NDArray[np.float64]

ROUNDING = 1e-12
"""Singular values below this share of the largest are float64 rounding errors."""
_WEAKEST = 0.1
"""Least singular value of the new A, as a share of what the clients' A have on average."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Position of one module's LoRA factors in a flat vector; both are stored row by row.

    Attributes
    ----------
    a, b : int
        Where A (rank, inputs) and B (outputs, rank) begin.
    rank, inputs, outputs : int
        The dimensions.
    """

    a: int
    b: int
    rank: int
    inputs: int
    outputs: int

    @property
    def a_part(self) -> slice:
        """Slice of the vector that holds A."""
        return slice(self.a, self.a + self.rank * self.inputs)

    @property
    def b_part(self) -> slice:
        """Slice of the vector that holds B."""
        return slice(self.b, self.b + self.outputs * self.rank)

    def factors(self, vector: NDArray) -> tuple[NDArray, NDArray]:
        """The factors of this module in `vector` (n,).

        Returns
        -------
        A : array (rank, inputs)
        B : array (outputs, rank)
            Views into `vector`.
        """
        return vector[self.a_part].reshape(self.rank, self.inputs), vector[self.b_part].reshape(self.outputs, self.rank)


@dataclass(frozen=True, slots=True)
class ProductMean:
    """Weighted mean of flat LoRA vectors that averages the products B·A and not the factors (`product_mean`).

    Numbers outside of all pairs are averaged as they are. Usable wherever a `strategies.arrays.Mean` is.

    Attributes
    ----------
    size : int
        Length n of the vectors.
    pairs : tuple of Pair
        Positions of the factors, one per module.
    """

    size: int
    pairs: tuple[Pair, ...]

    def __call__(self, rows: Sequence[NDArray], weights: Sequence[float]) -> Floats:
        """Average K vectors.

        Parameters
        ----------
        rows : sequence of K arrays (n,)
            One is returned as it is, in float64 and times its weight.
        weights : sequence of K floats
            They sum to 1; one may be negative.

        Returns
        -------
        array (n,), float64
            A mean with NaN or infinite numbers is the plain mean of the factors; the caller has to reject it.

        Raises
        ------
        ValueError
            If a row does not have the shape (n,).
        """
        if any(row.shape != (self.size,) for row in rows):
            raise ValueError(f"expected vectors of shape ({self.size},), got {sorted({row.shape for row in rows})}")
        mean = weighted_sum(rows, weights)
        if len(rows) == 1 or not np.isfinite(mean).all():
            return mean
        for pair in self.pairs:
            factors = [pair.factors(row) for row in rows]
            a, b = product_mean([a for a, _ in factors], [b for _, b in factors], weights)
            mean[pair.a_part], mean[pair.b_part] = a.reshape(-1), b.reshape(-1)
        return mean


def product_mean(a: Sequence[NDArray], b: Sequence[NDArray], weights: Sequence[float]) -> tuple[Floats, Floats]:
    """LoRA factors whose product is the best rank-r approximation of the mean update Σ w_k B_k A_k.

    No matrix of out × in is formed: with the factors stacked, Σ w_k B_k A_k = Q_b (R_b R_aᵀ) Q_aᵀ, and the core in
    brackets has at most Kr rows and columns.

    Parameters
    ----------
    a : sequence of K arrays (r, in)
    b : sequence of K arrays (out, r)
    weights : sequence of K floats
        w_k, one may be negative: φ + Σ (φ_k − φ) is a mean with 1 − K for φ.

    Returns
    -------
    A : array (r, in), float64
    B : array (out, r), float64

    Notes
    -----
    Of the many pairs with that product, A is the one nearest to mean(A) = Σ w_k A_k: local training and the server's
    moments depend on the coordinates, not on the product alone. With U S Vᵀ the truncated decomposition, A = M Pᵀ and
    B = U S M⁻¹, where M = mean(A) P, and P is V, filled up to r columns by the strongest directions of the rest of
    mean(A) where the product has a lower rank. Hence equal A_k stay as they are, and A is mean(A) while B is zero.

    Singular values of M below the least one of mean(A), or below a tenth of the clients' average, are raised to it: M
    is well conditioned, and no direction of A becomes too weak for B to be trained along it. The balanced choice B =
    U√S, A = √S Vᵀ makes A small as long as the product is small, and with it the gradient of B: on the embedded default
    the clients' mean loss over the first 20 rounds was 0.41 with it, 0.28 with this one and with `factors`.
    """
    q_a, r_a = np.linalg.qr(np.concatenate(a, dtype=np.float64).T)
    scaled = [np.multiply(x, weight, dtype=np.float64) for x, weight in zip(b, weights, strict=True)]
    q_b, r_b = np.linalg.qr(np.concatenate(scaled, axis=1))
    u, s, vt = np.linalg.svd(r_b @ r_a.T)
    factors = r_a.T.reshape(len(a), -1, r_a.shape[0])
    mean = np.tensordot(weights, factors, 1)
    rank = min(*mean.shape, int(np.count_nonzero(s > ROUNDING * s[0])))
    if rank == 0:
        return mean @ q_a.T, np.zeros((q_b.shape[0], mean.shape[0]))
    sizes = np.abs(weights) / np.abs(weights).sum()
    usual = np.sqrt(np.dot(sizes, np.square(factors).sum((1, 2))) / min(mean.shape))
    new_a, inverse = _near(mean, vt, rank, _WEAKEST * usual)
    return new_a @ q_a.T, q_b @ ((u[:, :rank] * s[:rank]) @ inverse[:rank])


def _near(mean: Floats, vt: Floats, rank: int, weakest: float) -> tuple[Floats, Floats]:
    """Factor A = M Pᵀ (r, c) near `mean` (r, c) with the given row space, and M⁻¹ (p, r), p = min(r, c).

    The orthonormal Pᵀ (p, c) begins with the first `rank` rows of `vt` (c, c). No singular value of M is below the
    least one of `mean`, nor below `weakest`.
    """
    basis = filled(vt, rank, mean, min(mean.shape))
    left, strength, right = np.linalg.svd(mean @ basis.T, full_matrices=False)
    strength = np.maximum(strength, max(np.linalg.svd(mean, compute_uv=False)[-1], weakest))
    return (left * strength) @ right @ basis, (right.T / strength) @ left.T


def filled(vt: Floats, rank: int, a: Floats, size: int) -> Floats:
    """Complete leading right singular vectors to an orthonormal basis of the wanted size.

    Parameters
    ----------
    vt : array (c, c)
        Orthonormal rows, of which the first `rank` are kept.
    rank : int
    a : array (r, c)
        Where it is strongest outside of the kept rows, the further rows point.
    size : int, from `rank` to min(r, c)

    Returns
    -------
    array (size, c), float64
        Orthonormal rows.
    """
    if size == rank:
        return vt[:rank]
    rest = np.linalg.svd(a @ vt[rank:].T, full_matrices=False)[2][: size - rank]
    return np.concatenate([vt[:rank], rest @ vt[rank:]])
