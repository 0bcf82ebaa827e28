"""Compressed client updates: 8-bit quantisation, the k largest numbers alone, or both, with error feedback.

The difference of the model to the received one is sent, plus what earlier exchanges left out (error feedback, Seide et
al. 2014, Stich et al. 2018): with x_t = Δ_t + e_t the server gets C(x_t) and the client keeps e_{t+1} = x_t − C(x_t),
so that Σ C(x_t) = Σ Δ_t + e_1 − e_{T+1}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from strategies.arrays import view
from strategies.rounds.encoding import Encoding

METHODS = ("none", "int8", "topk", "topk_int8")
LEVELS = 127
"""int8: codes from −127 to 127."""
_MASK, _VALUES, _CODES, _SCALES = "mask", "values", "codes", "scales"


class Sent(NamedTuple):
    """A compressed update.

    Attributes
    ----------
    record : ArrayRecord
        What the client sends.
    model : array (n,), float32
        The model that the server decodes from it.
    rest : array (n,), float32
        What the client keeps for the next exchange.
    """

    record: ArrayRecord
    model: NDArray
    rest: NDArray


@dataclass(frozen=True)
class Compression(Encoding):
    """How flat updates (n,) of one array are compressed.

    Attributes
    ----------
    method : str
        One of `METHODS`.
    keep : float in (0, 1]
        Share of the numbers that `topk` and `topk_int8` send, those of the largest absolute value, at least one; a bit
        mask of n bits says which.
    block : int, at least 1
        Consecutive numbers that share a scale (`int8`, `topk_int8`).

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    method: str = "none"
    keep: float = 0.1
    block: int = 256

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method is {self.method!r}, expected one of {', '.join(METHODS)}")
        if not 0 < self.keep <= 1 or self.block < 1:
            raise ValueError(f"keep is {self.keep}, block {self.block}; expected 0 < keep <= 1 and block >= 1")

    @property
    def whole(self) -> bool:
        """Whether models are sent unchanged: nothing is left out or rounded."""
        return self.method == "none" or (self.method == "topk" and self.keep == 1)

    def longest(self, size: int) -> float:
        """Bound on the length of an update with error feedback, relative to what one exchange can produce without it.

        No exchange changes a number by more than ℓ, so that none makes an update longer than ℓ√n. Of n numbers k are
        sent, the largest. A number above mℓ was not sent in the m exchanges before; those that were sent in them stood
        at least as high and, since what is sent begins anew, are all different and other than it: mk < n. So none
        stands above ⌈n/k⌉ℓ, and k of them are no longer than √(k/n)·⌈n/k⌉ times ℓ√n, about 1/√keep. 8 bits leave up to
        a 127th of the largest behind, whence the factor 127/126.

        Parameters
        ----------
        size : int
            n.

        Returns
        -------
        float, at least 1
        """
        if self.whole:
            return 1.0
        count = size if self.method == "int8" else max(1, round(self.keep * size))
        rounded = 1.0 if self.method == "topk" else LEVELS / (LEVELS - 1)
        return math.sqrt(count / size) * -(-size // count) * rounded

    def sent(
        self, name: str, received: NDArray, model: NDArray, kept: NDArray | None, rng: np.random.Generator
    ) -> Sent:
        """Compress the update of a client.

        Parameters
        ----------
        name : str
            Name of the array in a message that is not compressed.
        received, model : array (n,), float32
            The model that came, and the one that the client made of it.
        kept : array (n,) or None
            What earlier exchanges left out.
        rng : numpy Generator
            For stochastic rounding.

        Returns
        -------
        Sent

        Raises
        ------
        ValueError
            If the update is not finite.
        """
        if self.whole:
            return Sent(ArrayRecord({name: Array(model)}), model, np.zeros_like(model))
        update = np.subtract(model, received, dtype=np.float64)
        if kept is not None:
            update += kept
        if not np.isfinite(update).all():
            raise ValueError("the update is not finite")
        arrays: dict[str, NDArray] = {}
        chosen = update
        if self.method != "int8":
            mask = largest(update, self.keep)
            arrays[_MASK], chosen = np.packbits(mask), update[mask]
        if self.method == "topk":
            arrays[_VALUES] = chosen.astype(np.float32)
        else:
            arrays[_CODES], arrays[_SCALES] = quantised(chosen, self.block, rng)
        decoded = self._decoded(arrays, update.size)
        record = ArrayRecord({part: Array(array) for part, array in arrays.items()})
        return Sent(record, _added(received, decoded), (update - decoded).astype(np.float32))

    def read(self, sent: ArrayRecord, answer: ArrayRecord) -> ArrayRecord:
        """Decode the client's model from its reply; a reply that holds a model is that model.

        Parameters
        ----------
        sent : ArrayRecord
            The model that the client received, one array (n,).
        answer : ArrayRecord
            Its reply.

        Returns
        -------
        ArrayRecord

        Raises
        ------
        ValueError
            If the reply is neither a model nor an update of this method; the message says what is wrong.
        """
        if answer.keys() == sent.keys():
            return answer
        ((name, array),) = sent.items()
        received = view(array)
        arrays = {part: view(packed) for part, packed in answer.items()}
        return ArrayRecord({name: Array(_added(received, self._decoded(arrays, received.size)))})

    def _decoded(self, arrays: dict[str, NDArray], size: int) -> NDArray[np.float64]:
        """Decode an update (size,) from the arrays of a reply."""
        parts = {"int8": {_CODES, _SCALES}, "topk": {_MASK, _VALUES}, "topk_int8": {_MASK, _CODES, _SCALES}}
        if arrays.keys() != parts.get(self.method):
            raise ValueError(f"arrays {', '.join(sorted(arrays)) or 'none'} are no update by {self.method}")
        if self.method == "int8":
            return restored(arrays[_CODES], arrays[_SCALES], self.block, size)
        bits = arrays[_MASK]
        if bits.dtype != np.uint8 or bits.shape != (-(-size // 8),):
            raise ValueError(f"the mask is no bit for each of {size} numbers")
        mask = np.unpackbits(bits)
        if mask[size:].any():
            raise ValueError(f"the mask names more than {size} numbers")
        mask = mask[:size].astype(bool)
        count, update = int(mask.sum()), np.zeros(size)
        if self.method == "topk":
            values = arrays[_VALUES]
            if values.dtype != np.float32 or values.shape != (count,):
                raise ValueError(f"{values.shape} values of {values.dtype} for {count} numbers")
            update[mask] = values
        else:
            update[mask] = restored(arrays[_CODES], arrays[_SCALES], self.block, count)
        return update


def largest(values: NDArray, keep: float) -> NDArray[np.bool_]:
    """Mask of the numbers of the largest absolute value; of equal ones the first.

    Parameters
    ----------
    values : array (n,)
    keep : float in (0, 1]
        max(1, round(keep · n)) are kept.

    Returns
    -------
    array (n,), bool
    """
    strength = np.abs(values)
    count = max(1, round(keep * strength.size))
    least = np.partition(strength, strength.size - count)[strength.size - count]
    mask = strength > least
    mask[np.flatnonzero(strength == least)[: count - int(mask.sum())]] = True
    return mask


def quantised(values: NDArray, block: int, rng: np.random.Generator) -> tuple[NDArray, NDArray]:
    """Unbiased stochastic 8-bit quantisation in blocks (QSGD, Alistarh et al. 2017): value ≈ code · scale of its block.

    The scale is the block's largest absolute value over 127, rounded up. Each value goes to one of the two neighbouring
    multiples of it at random, such that the mean is the value itself, and is off by less than one scale.

    Parameters
    ----------
    values : array (n,)
    block : int
        Numbers that share a scale.
    rng : numpy Generator

    Returns
    -------
    codes : array (n,), int8
        From −127 to 127.
    scales : array (⌈n/block⌉,), float32
    """
    count = -(-values.size // block)
    padded = np.zeros(count * block)
    padded[: values.size] = values
    rows = padded.reshape(count, block)
    exact = np.abs(rows).max(axis=1, initial=0.0) / LEVELS
    scales = exact.astype(np.float32)
    scales = np.where(scales < exact, np.nextafter(scales, np.float32(np.inf)), scales)
    steps = rows / np.where(scales > 0, scales, 1).astype(np.float64)[:, None]
    codes = np.floor(steps + rng.random(rows.shape)).clip(-LEVELS, LEVELS)
    return codes.astype(np.int8).reshape(-1)[: values.size], scales


def restored(codes: NDArray, scales: NDArray, block: int, size: int) -> NDArray[np.float64]:
    """Decode what `quantised` made.

    Parameters
    ----------
    codes : array (size,), int8
    scales : array (⌈size/block⌉,), float32
    block, size : int

    Returns
    -------
    array (size,), float64

    Raises
    ------
    ValueError
        If a shape or dtype does not fit.
    """
    count = -(-size // block)
    if codes.dtype != np.int8 or codes.shape != (size,):
        raise ValueError(f"{codes.shape} codes of {codes.dtype} for {size} numbers")
    if scales.dtype != np.float32 or scales.shape != (count,):
        raise ValueError(f"{scales.shape} scales of {scales.dtype} for {size} numbers in blocks of {block}")
    return codes * np.repeat(scales.astype(np.float64), block)[:size]


def _added(received: NDArray, update: NDArray[np.float64]) -> NDArray:
    """`received` plus an update, in its dtype."""
    with np.errstate(over="ignore", invalid="ignore"):
        return (received + update).astype(received.dtype)
