"""Arrays of Flower records: read without copying, averaged in float64, written back in their own dtype."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

BLOCK = 1 << 16
"""Numbers processed at a time; float64 temporaries of this size stay in the processor's cache."""

Mean = Callable[[Sequence[NDArray], Sequence[float]], NDArray[np.float64]]
"""A weighted mean of flat arrays (n,) -> (n,) float64; the weights sum to 1, and one may be negative."""

Record = TypeVar("Record", ArrayRecord, MetricRecord, ConfigRecord)

_MAGIC = np.lib.format.MAGIC_LEN
_HEADERS = {(1, 0): (2, np.lib.format.read_array_header_1_0), (2, 0): (4, np.lib.format.read_array_header_2_0)}
"""By version, how many bytes tell the header's length, and what reads both."""


def view(array: Array) -> NDArray:
    """Numbers of a Flower array as a read-only view on its bytes.

    Parameters
    ----------
    array : Array
        In numpy's npy format, of any shape.

    Returns
    -------
    ndarray

    Raises
    ------
    ValueError
        When the bytes are not one array of plain numbers.
    """
    if array.stype != "numpy.ndarray":
        raise ValueError(f"unknown serialisation {array.stype!r}")
    version = np.lib.format.read_magic(BytesIO(array.data[:_MAGIC]))
    if version not in _HEADERS:
        raise ValueError(f"unknown npy version {version}")
    text = _MAGIC + _HEADERS[version][0]
    offset = text + int.from_bytes(array.data[_MAGIC:text], "little")
    try:
        shape, fortran_order, dtype = _header(version, array.data[_MAGIC:offset])
    except Exception as error:  # numpy reads a header as Python text, which fails in as many ways as Python has
        raise ValueError(f"its header makes no sense ({type(error).__name__})") from None
    if dtype.kind not in "fiub":
        raise ValueError(f"dtype {dtype} is not numeric")
    size = math.prod(shape)
    if offset + size * dtype.itemsize != len(array.data):
        raise ValueError(f"{len(array.data) - offset} bytes for {size} numbers of {dtype}")
    if size == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(array.data, dtype, size, offset).reshape(shape, order="F" if fortran_order else "C")


@functools.lru_cache(maxsize=64)
def _header(version: tuple[int, int], text: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, Fortran order and dtype; clients send the same few headers, and numpy parses each as Python text."""
    return _HEADERS[version][1](BytesIO(text))


def first_record(content: RecordDict, kind: type[Record]) -> Record:
    """The first record of a kind; Flower's own properties copy all of a kind to look one up.

    Parameters
    ----------
    content : RecordDict
        With a record of the kind.
    kind : type
        ArrayRecord, MetricRecord or ConfigRecord.

    Returns
    -------
    ArrayRecord, MetricRecord or ConfigRecord
        Not a copy.
    """
    return next(record for record in content.values() if isinstance(record, kind))


def finite(array: NDArray) -> bool:
    """Whether an array holds no NaN and no infinite number.

    Parameters
    ----------
    array : array, any shape

    Returns
    -------
    bool
    """
    if array.dtype.kind != "f":
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum()):  # a finite sum has only finite terms; the reverse may fail by overflow
            return True
    return bool(np.isfinite(array).all())


def blocks(size: int) -> Iterator[slice]:
    """Cut an array into blocks of `BLOCK` numbers, the last possibly smaller.

    Parameters
    ----------
    size : int, at least 0
        How many numbers the array has.

    Yields
    ------
    slice
        Of one block.
    """
    for start in range(0, size, BLOCK):
        yield slice(start, min(start + BLOCK, size))


def weighted_sum(arrays: Sequence[NDArray], weights: Sequence[float]) -> NDArray[np.float64]:
    """Σ weight · array, in float64 and in the given order.

    Parameters
    ----------
    arrays : sequence of K arrays (n,)
        At least one.
    weights : sequence of K floats

    Returns
    -------
    array (n,), float64
    """
    total = np.multiply(arrays[0], weights[0], dtype=np.float64)
    product = np.empty_like(total)
    for array, weight in zip(arrays[1:], weights[1:], strict=True):
        np.multiply(array, weight, out=product, dtype=np.float64)
        total += product
    return total


def store(target: NDArray, block: slice, values: NDArray[np.float64]) -> None:
    """Write float64 numbers into a block of an array, rounded to its dtype.

    Parameters
    ----------
    target : array (n,), number
        Changed in place.
    block : slice
    values : array, float64
        As many as the block has.
    """
    with np.errstate(over="ignore"):
        target[block] = values if target.dtype.kind == "f" else np.rint(values)


def distance(a: ArrayRecord, b: ArrayRecord) -> float:
    """L2 distance ‖a − b‖₂ over all arrays together, in float64.

    Parameters
    ----------
    a, b : ArrayRecord
        Of the same names and shapes.

    Returns
    -------
    float
        Infinite where float64 cannot hold its square.
    """
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for name, array in a.items():
            left, right = view(array).reshape(-1), view(b[name]).reshape(-1)
            for block in blocks(left.size):
                difference = np.subtract(left[block], right[block], dtype=np.float64)
                total += float(difference @ difference)
    return math.sqrt(total)


def norm(arrays: ArrayRecord) -> float:
    """L2 norm over all arrays together, in float64.

    Parameters
    ----------
    arrays : ArrayRecord

    Returns
    -------
    float, at least 0
        Infinite where float64 cannot hold its square.
    """
    total = 0.0
    with np.errstate(over="ignore"):
        for array in arrays.values():
            flat = view(array).reshape(-1)
            for block in blocks(flat.size):
                numbers = flat[block].astype(np.float64)
                total += float(numbers @ numbers)
    return math.sqrt(total)


def merged(
    arrays: ArrayRecord, others: Sequence[ArrayRecord], weights: Sequence[float], mean: Mean | None = None
) -> ArrayRecord:
    """Merge models: φ + Σ w_u (φ_u − φ), array by array, in float64 and then in φ's dtype.

    Parameters
    ----------
    arrays : ArrayRecord
        φ.
    others : sequence of K ArrayRecord
        φ_u, with the names and shapes of φ.
    weights : sequence of K floats
        w_u; if they sum to 1, the result is the weighted mean of the φ_u.
    mean : Mean, optional
        Takes that mean in place of the formula; the weights must sum to 1.

    Returns
    -------
    ArrayRecord
    """
    result = {}
    for name, array in arrays.items():
        base = view(array)
        rows = [view(other[name]).reshape(-1) for other in others]
        flat, new = base.reshape(-1), np.empty(base.size, base.dtype)
        if mean is not None:
            store(new, slice(None), mean(rows, weights))
        for block in blocks(base.size) if mean is None else ():
            before = flat[block].astype(np.float64)
            differences = [row[block].astype(np.float64) - before for row in rows]
            store(new, block, before + weighted_sum(differences, weights))
        result[name] = Array(new.reshape(base.shape))
    return ArrayRecord(result)


def fingerprint(arrays: ArrayRecord) -> str:
    """SHA-256 of the numbers of all arrays, one array after the other; their names do not count.

    Parameters
    ----------
    arrays : ArrayRecord

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for array in arrays.values():
        digest.update(view(array).tobytes())
    return digest.hexdigest()


def with_dtypes_of(reference: ArrayRecord, arrays: ArrayRecord) -> ArrayRecord:
    """Cast arrays back to the dtypes of `reference` where a strategy changed them (as Flower's FedAdam does).

    Parameters
    ----------
    reference : ArrayRecord
    arrays : ArrayRecord
        With the names and shapes of `reference`.

    Returns
    -------
    ArrayRecord
        `arrays` itself if its dtypes are right.

    Raises
    ------
    ValueError
        When names or shapes differ.
    """
    if reference.keys() != arrays.keys():
        raise ValueError(f"expected arrays {sorted(reference)}, got {sorted(arrays)}")
    shapes = {n: (tuple(a.shape), tuple(arrays[n].shape)) for n, a in reference.items()}
    if wrong := {n: pair for n, pair in shapes.items() if pair[0] != pair[1]}:
        raise ValueError(f"shapes differ (expected, got): {wrong}")
    if all(arrays[n].dtype == a.dtype for n, a in reference.items()):
        return arrays
    return ArrayRecord({n: Array(view(arrays[n]).astype(a.dtype)) for n, a in reference.items()})
