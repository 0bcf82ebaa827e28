"""Clients with different LoRA ranks: how the global factors are truncated for one, and its update is merged back.

A module's global factors are A (R, in) and B (out, R). A client of rank r receives A' = T·A (r, in) and B' = B·Q
(out, r) for T (r, R) and Q (R, r) with T·Q = I, chosen such that B'·A' is the best approximation of rank r of B·A
(Eckart and Young 1936). Its changes come back as A + Q·ΔA' and B + ΔB'·T. The product of these is

    B·A + (B' + ΔB')(A' + ΔA') − B'·A'

exactly: the client's product replaces the one that it received, and what the truncation left out, which the client
never saw, stays. A client that changes nothing leaves the global model as it is, to the last bit. So the replies of
clients of any ranks are models of rank R, and averaging, clipping, history and merging work as usual;
`strategies.rules.lora_product.ProductMean` averages their products by stacking the factors. (FLoRA, Wang et al. 2024,
stacks the clients' factors without a truncation and sends all of them to everybody; FlexLoRA, Bai et al. 2024, averages
the truncations themselves, so that in a round of low ranks the rest of the global adapter is lost.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from strategies.arrays import finite, view
from strategies.rules.lora_product import ROUNDING, Floats, Pair, filled
from strategies.submodel import Submodel

_WEAKEST = 1e-3
"""Directions of A below this share of its strongest count as absent: B's step along one, and its float32 rounding
error, would be larger by the inverse of that share."""


@dataclass(frozen=True, slots=True)
class Form:
    """Layout of the flat LoRA vector of a client of lower rank.

    Attributes
    ----------
    rank : int
    size : int
        Length of the vector.
    pairs : tuple of Pair
        Positions of the factors, module by module.
    settings : mapping
        What the message to such a client says about its form.
    """

    rank: int
    size: int
    pairs: tuple[Pair, ...]
    settings: Mapping[str, str | int]


def truncation(a: NDArray, b: NDArray, rank: int) -> tuple[Floats, Floats]:
    """Matrices T and Q that truncate factors of rank R to a lower rank r, with T·Q = I.

    Parameters
    ----------
    a : array (R, in)
    b : array (out, R)
    rank : int below R
        r.

    Returns
    -------
    T : array (r, R), float64
    Q : array (R, r), float64
        B·Q·T·A is the best approximation of rank r of B·A.

    Notes
    -----
    With V (in, p) an orthonormal basis of A's rows that begins with the right singular vectors of B·A, strongest first
    (where B·A has a lower rank than r, it goes on with what is strongest in the rest of A), and M = A·V: Q is the
    matrix with orthonormal columns nearest to the first r columns of M, M₁ = Q·H, and T = H·N₁ with N₁ the first r rows
    of M⁻¹. Hence T·A = H·V₁ᵀ = Qᵀ·A·V₁·V₁ᵀ, which has the scale of A, and T is about Qᵀ where M's columns are about
    orthogonal, as those of a random A are.

    Directions in which A has next to nothing, below a thousandth of its strongest, stay out: what B·A has there is left
    as it is. Where fewer than r are left, Q begins with an orthonormal basis of them (left singular vectors of A), goes
    on with what is orthogonal to it and strongest in B, and T is Qᵀ: all of the rest of B·A is then in B'·A', and
    further rows of A' are about zero, as they are in A. So one reply that makes A degenerate stops nobody.
    """
    own = np.linalg.qr(np.asarray(a, dtype=np.float64).T)[1].T
    r_b = np.linalg.qr(np.asarray(b, dtype=np.float64))[1]
    u, strength, _ = np.linalg.svd(own, full_matrices=False)
    strong = int(np.count_nonzero(strength > _WEAKEST * strength[0]))
    if strong < rank:
        others = np.linalg.qr(u[:, :strong], mode="complete")[0][:, strong:]
        further = np.linalg.svd(r_b @ others)[2][: rank - strong].T
        q = np.concatenate([u[:, :strong], others @ further], axis=1)
        return q.T, q
    if strong < len(strength):
        own = u[:, :strong] * strength[:strong]
    _, s, vt = np.linalg.svd(r_b @ own)
    used = int(np.count_nonzero(s > ROUNDING * s[0])) if s[0] > 0 else 0
    m = own @ filled(vt, used, own, len(vt)).T
    left, strength, right = np.linalg.svd(m[:, :rank], full_matrices=False)
    inverse = np.asarray(np.linalg.pinv(m)[:rank], dtype=np.float64)
    return (right.T * strength) @ right @ inverse, left @ right


class LoraRanks:
    """Submodels of lower LoRA rank, one per client; a `strategies.submodel.Fitting`.

    Parameters
    ----------
    size : int
        Length of the global vector.
    pairs : tuple of Pair
        Its factors, module by module, all of one rank R.
    rank_of : callable (kind of exchange, client) -> int
        The client's rank; from R on it receives the global model itself.
    form_of : callable (rank) -> Form
        Layout of vectors of a lower rank.

    Raises
    ------
    ValueError
        If numbers lie outside of all pairs, or the pairs have several ranks.
    """

    def __init__(
        self, size: int, pairs: tuple[Pair, ...], rank_of: Callable[[str, int], int], form_of: Callable[[int], Form]
    ) -> None:
        if sum(p.rank * (p.inputs + p.outputs) for p in pairs) != size or len({p.rank for p in pairs}) != 1:
            raise ValueError("clients' ranks can differ in a model of LoRA factors of one rank alone")
        self._pairs, self._rank_of, self._form_of = pairs, rank_of, functools.cache(form_of)

    def __call__(self, kind: str, arrays: ArrayRecord) -> Callable[[int], Submodel | None]:
        """Submodels of one global model; clients of equal ranks share one.

        Parameters
        ----------
        kind : str
            Kind of exchange, as `Listener.exchange_started` names it.
        arrays : ArrayRecord
            The global model: one array (size,).

        Returns
        -------
        callable (client) -> Submodel or None
            None for a client that receives the global model itself.
        """
        ((name, array),) = arrays.items()
        vector = view(array)

        @functools.cache
        def of_rank(rank: int) -> Submodel:
            return _OfRank(name, vector, self._pairs, self._form_of(rank))

        def of_client(client: int) -> Submodel | None:
            rank = self._rank_of(kind, client)
            return of_rank(rank) if rank < self._pairs[0].rank else None

        return of_client


class _OfRank:
    """A `Submodel`: one global vector (size,), named `name`, truncated for clients of one rank."""

    def __init__(self, name: str, vector: NDArray, pairs: tuple[Pair, ...], form: Form) -> None:
        self._name, self._vector, self._pairs, self._form = name, vector, pairs, form
        own = np.empty(form.size, vector.dtype)
        self._maps: list[tuple[Floats, Floats]] = []
        for pair, small in zip(pairs, form.pairs, strict=True):
            a, b = pair.factors(vector)
            t, q = truncation(a, b, form.rank)
            self._maps.append((t, q))
            own[small.a_part], own[small.b_part] = (t @ a).reshape(-1), (b @ q).reshape(-1)
        self._own, self.sent = own, ArrayRecord({name: Array(own)})

    @property
    def settings(self) -> Mapping[str, str | int]:
        """Entries of the message about the form of the vector."""
        return self._form.settings

    def joined(self, answer: ArrayRecord) -> ArrayRecord:
        """The client's vector in the form of the global one; ValueError if it is not finite."""
        reply = view(answer[self._name])
        new, change = self._vector.copy(), np.subtract(reply, self._own, dtype=np.float64)
        with np.errstate(over="ignore"):
            for pair, small, (t, q) in zip(self._pairs, self._form.pairs, self._maps, strict=True):
                (a, b), (change_a, change_b) = pair.factors(self._vector), small.factors(change)
                new[pair.a_part] = (a + q @ change_a).reshape(-1)
                new[pair.b_part] = (b + change_b @ t).reshape(-1)
        if not finite(new):
            raise ValueError("its model is not finite in the global model's form")
        return ArrayRecord({self._name: Array(new)})
