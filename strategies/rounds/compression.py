"""What a client learned in fewer bytes: 8 bits a number, the largest numbers alone, or both.

Not the model travels but its difference to the one that was received, and beside it what earlier exchanges kept back
(error feedback, Seide et al. 2014, Stich et al. 2018): with x_t = Δ_t + e_t the server gets C(x_t) and the client keeps
e_{t+1} = x_t − C(x_t), so that Σ C(x_t) = Σ Δ_t + e_1 − e_{T+1}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from strategies.arrays import view

METHODS = ("none", "int8", "topk", "topk_int8")
LEVELS = 127
"""int8: codes from −127 to 127."""
_MASK, _VALUES, _CODES, _SCALES = "mask", "values", "codes", "scales"


class Sent(NamedTuple):
    """What a client sends, the model that the server reads in it (n,) float32, and what it keeps back (n,) float32."""

    record: ArrayRecord
    model: NDArray
    rest: NDArray


@dataclass(frozen=True, slots=True)
class Compression:
    """How vectors (n,) of one array are sent. `method`: one of `METHODS`.

    `keep`: the share of the numbers that `topk` and `topk_int8` send, those of the largest absolute value, and at least
    one; which they are says a bit for each of the n. `block`: so many numbers that follow each other share a scale
    (`int8`, `topk_int8`). Raises ValueError for values out of range.
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
        """Whether models travel as they are: nothing is left out or rounded."""
        return self.method == "none" or (self.method == "topk" and self.keep == 1)

    def longest(self, size: int) -> float:
        """How many times as long an update (size,) can be sent with error feedback as one exchange can make it.

        No exchange changes a number by more than ℓ, so that none makes an update longer than ℓ√n. Of n numbers k are
        sent, the largest. A number above mℓ was not sent in the m exchanges before; those that were sent in them stood
        at least as high and, what is sent beginning anew, are all different and other than it: mk < n. So none stands
        above ⌈n/k⌉ℓ, and k of them are no longer than √(k/n)·⌈n/k⌉ times ℓ√n, about 1/√keep. 8 bits leave up to a 127th
        of the largest behind, whence the factor 127/126.
        """
        if self.whole:
            return 1.0
        count = size if self.method == "int8" else max(1, round(self.keep * size))
        rounded = 1.0 if self.method == "topk" else LEVELS / (LEVELS - 1)
        return math.sqrt(count / size) * -(-size // count) * rounded

    def sent(
        self, name: str, received: NDArray, model: NDArray, kept: NDArray | None, rng: np.random.Generator
    ) -> Sent:
        """What a client sends that made `model` of `received`, both (n,) float32, and keeps from then on.

        `name`: what the array is called; `kept`: what it kept back before, None for nothing; `rng` rounds. ValueError
        for numbers that are not finite.
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
        told = self._told(arrays, update.size)
        record = ArrayRecord({part: Array(array) for part, array in arrays.items()})
        return Sent(record, _added(received, told), (update - told).astype(np.float32))

    def read(self, sent: ArrayRecord, answer: ArrayRecord) -> ArrayRecord:
        """The client's model in its answer to the model `sent`; an answer that holds a model is that.

        Raises ValueError, saying what is wrong, for one that is neither.
        """
        if answer.keys() == sent.keys():
            return answer
        ((name, array),) = sent.items()
        received = view(array)
        arrays = {part: view(packed) for part, packed in answer.items()}
        return ArrayRecord({name: Array(_added(received, self._told(arrays, received.size)))})

    def _told(self, arrays: dict[str, NDArray], size: int) -> NDArray[np.float64]:
        """What the arrays of an answer say of an update (size,)."""
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
        count, told = int(mask.sum()), np.zeros(size)
        if self.method == "topk":
            values = arrays[_VALUES]
            if values.dtype != np.float32 or values.shape != (count,):
                raise ValueError(f"{values.shape} values of {values.dtype} for {count} numbers")
            told[mask] = values
        else:
            told[mask] = restored(arrays[_CODES], arrays[_SCALES], self.block, count)
        return told


def largest(values: NDArray, keep: float) -> NDArray[np.bool_]:
    """Which of the values (n,) are the max(1, round(keep · n)) largest in absolute value; of equal ones the first."""
    strength = np.abs(values)
    count = max(1, round(keep * strength.size))
    least = np.partition(strength, strength.size - count)[strength.size - count]
    mask = strength > least
    mask[np.flatnonzero(strength == least)[: count - int(mask.sum())]] = True
    return mask


def quantised(values: NDArray, block: int, rng: np.random.Generator) -> tuple[NDArray, NDArray]:
    """Codes (n,) int8 and scales (⌈n/block⌉,) float32: value ≈ code · scale of its block.

    The scale is the block's largest absolute value over 127, rounded up. Each value goes to one of the two neighbouring
    multiples of it at random, such that the mean is the value itself (QSGD, Alistarh et al. 2017): unbiased, and off by
    less than one scale.
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
    """The values (size,) of codes and scales as `quantised` makes them. Raises ValueError for others."""
    count = -(-size // block)
    if codes.dtype != np.int8 or codes.shape != (size,):
        raise ValueError(f"{codes.shape} codes of {codes.dtype} for {size} numbers")
    if scales.dtype != np.float32 or scales.shape != (count,):
        raise ValueError(f"{scales.shape} scales of {scales.dtype} for {size} numbers in blocks of {block}")
    return codes * np.repeat(scales.astype(np.float64), block)[:size]


def _added(received: NDArray, update: NDArray[np.float64]) -> NDArray:
    with np.errstate(over="ignore", invalid="ignore"):
        return (received + update).astype(received.dtype)
