"""Arrays of Flower records, several of them and longer than a block, against plain numpy."""

from __future__ import annotations

import hashlib
import math
from io import BytesIO

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from strategies.arrays import (
    BLOCK,
    distance,
    fingerprint,
    finite,
    first_record,
    merged,
    norm,
    store,
    view,
    weighted_sum,
    with_dtypes_of,
)

SHAPES = {"a": (2, BLOCK - 1), "b": (3,), "c": (0, 4), "d": (BLOCK + 7,)}


def record(seed, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return ArrayRecord({name: Array(rng.normal(size=shape).astype(dtype)) for name, shape in SHAPES.items()})


def whole(arrays):
    return np.concatenate([array.numpy().reshape(-1) for array in arrays.values()]).astype(np.float64)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_lengths_are_those_of_all_arrays_together(dtype):
    a, b = record(0, dtype), record(1, dtype)
    assert norm(a) == pytest.approx(np.linalg.norm(whole(a)), rel=1e-12)
    assert distance(a, b) == pytest.approx(np.linalg.norm(whole(a) - whole(b)), rel=1e-12)
    assert distance(a, a) == 0 and norm(ArrayRecord()) == 0


def test_a_length_whose_square_no_float_holds_is_infinite():
    a, b = (ArrayRecord({"a": Array(np.array([x, 0.0]))}) for x in (1e200, -1e200))
    assert norm(a) == distance(a, b) == math.inf


@pytest.mark.parametrize("weights", [[0.25, 0.75], [0.5, 0.1], [2.0, -1.0]])
def test_models_are_merged_from_the_one_before(weights):
    """φ + Σ w (φ_u − φ), also for weights that do not sum to 1."""
    base, others = record(0), [record(1), record(2)]
    found = merged(base, others, weights)
    expected = whole(base) + sum(w * (whole(o) - whole(base)) for w, o in zip(weights, others, strict=True))
    np.testing.assert_allclose(whole(found), expected, rtol=1e-6, atol=1e-6)
    assert {name: array.numpy().shape for name, array in found.items()} == SHAPES
    mine = merged(base, others, weights, lambda rows, given: weighted_sum(rows, given) + 1)
    np.testing.assert_allclose(
        whole(mine), sum(w * whole(o) for w, o in zip(weights, others, strict=True)) + 1, rtol=1e-5, atol=1e-5
    )


def test_whole_numbers_are_rounded_to_the_nearest():
    numbers = np.zeros(6, np.int32)
    store(numbers, slice(1, 5), np.array([0.6, -0.6, 1.4, -1.4]))
    assert numbers.tolist() == [0, 1, -1, 1, -1, 0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0], True),
        ([1.0, math.nan], False),
        ([math.inf, -math.inf], False),
        ([math.inf, 1.0], False),
        ([3e38, 3e38], True),
    ],
)
def test_finite_numbers_are_told_from_others_also_where_their_sum_is_not(values, expected):
    assert finite(np.array(values, np.float32)) is expected
    assert finite(np.array([1, 2])) is True


def test_arrays_take_the_types_of_those_that_were_sent():
    sent = ArrayRecord({"a": Array(np.zeros((2, 3), np.float32)), "b": Array(np.zeros(2, np.float64))})
    same = ArrayRecord({"a": Array(np.ones((2, 3), np.float32)), "b": Array(np.ones(2, np.float64))})
    assert with_dtypes_of(sent, same) is same
    other = ArrayRecord({"b": Array(np.array([1, 2])), "a": Array(np.full((2, 3), 1 / 3))})
    found = with_dtypes_of(sent, other)
    assert {name: array.numpy().dtype.name for name, array in found.items()} == {"a": "float32", "b": "float64"}
    assert found["a"].numpy().tolist() == [[np.float32(1 / 3)] * 3] * 2 and found["b"].numpy().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": (3, 2), "b": (2,)}, r"shapes differ \(expected, got\): {'a': \(\(2, 3\), \(3, 2\)\)}"),
        ({"a": (6,), "b": (2,)}, r"shapes differ"),
        ({"a": (2, 3)}, r"expected arrays \['a', 'b'\], got \['a'\]"),
    ],
)
def test_other_names_or_shapes_are_refused(arrays, message):
    sent, other = (
        ArrayRecord({name: Array(np.zeros(shape)) for name, shape in shapes.items()})
        for shapes in ({"a": (2, 3), "b": (2,)}, arrays)
    )
    with pytest.raises(ValueError, match=message):
        with_dtypes_of(sent, other)


def test_a_fingerprint_is_the_hash_of_all_numbers_in_their_order():
    a = record(0)
    expected = hashlib.sha256(b"".join(array.numpy().tobytes() for array in a.values())).hexdigest()
    assert fingerprint(a) == expected != fingerprint(record(1))


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_view_reads_without_copying_in_either_order(order):
    numbers = np.asarray(np.arange(6.0).reshape(2, 3), order=order)
    found = view(Array(numbers))
    np.testing.assert_array_equal(found, numbers)
    assert not found.flags.writeable and not found.flags.owndata


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (1,) * 20])
def test_a_view_is_what_numpy_loads_of_every_header_and_again_of_the_same_one(shape, version):
    for dtype in ("<f4", ">f8", "u1", "?"):
        for start in (0, 1):
            numbers = (np.arange(math.prod(shape)) + start).reshape(shape).astype(dtype)
            np.lib.format.write_array(stream := BytesIO(), numbers, version)
            found = view(Array(dtype, shape, "numpy.ndarray", stream.getvalue()))
            assert found.dtype == numbers.dtype and found.shape == shape
            np.testing.assert_array_equal(found, np.load(BytesIO(stream.getvalue())))


def test_the_first_record_of_a_kind_is_that_of_flowers_own_lists():
    content = RecordDict({"m": MetricRecord({"n": 1}), "a": record(0), "b": record(1), "k": MetricRecord({"n": 2})})
    assert first_record(content, ArrayRecord) is content["a"] is next(iter(content.array_records.values()))
    assert first_record(content, MetricRecord) is content["m"] is next(iter(content.metric_records.values()))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x93NUMPY\x01\x00", "its header makes no sense"),
        (b"\x93NUMPY\x02\x00\x05\x00", "its header makes no sense"),
        (b"\x93NUMPY\x03\x00", "unknown npy version \\(3, 0\\)"),
        (b"\x93NUMPY\x01\x00\x05\x00{'a':", "its header makes no sense"),
    ],
)
def test_bytes_that_are_no_array(data, why):
    with pytest.raises(ValueError, match=why):
        view(Array("float32", (1,), "numpy.ndarray", data))


def test_complex_numbers_are_none_to_average():
    with pytest.raises(ValueError, match="dtype complex64 is not numeric"):
        view(Array(np.ones(2, np.complex64)))


def test_each_array_takes_the_type_of_its_own():
    sent = ArrayRecord({"a": Array(np.zeros(2, np.float32)), "b": Array(np.zeros(2, np.float32))})
    new = ArrayRecord({"a": Array(np.ones(2, np.float32)), "b": Array(np.ones(2, np.float64))})
    assert [array.dtype for array in with_dtypes_of(sent, new).values()] == ["float32", "float32"]
