"""Integers, masks and bytes."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from strategies.secure.agreed_parameters import Terms
from strategies.secure.masks import (
    Stream,
    agreed,
    fixed_point,
    new_private,
    packed,
    public_of,
    quantised,
    signed,
    unpacked,
)

TERMS = Terms("s", 10, 10, 7, 0.5)


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=20), st.integers(42, 64))
def test_words_survive_the_wire(values, bits):
    words = np.array(values, np.int64).astype(np.uint64)
    data = packed(words, bits)
    assert len(data) == len(values) * -(-bits // 8)
    assert signed(unpacked(data, len(values), bits), bits).tolist() == values


def test_another_number_of_bytes_is_refused():
    with pytest.raises(ValueError, match="9 bytes for 2 words of 5 bytes"):
        unpacked(bytes(9), 2, 40)


def test_quantised_is_the_nearest_level_and_zero_is_zero():
    update = np.random.default_rng(0).normal(0, 0.2, 10_000)
    integers, clipped = quantised(update, TERMS)
    inside = np.abs(update) <= 0.5
    assert clipped == np.count_nonzero(~inside) > 0
    assert np.abs(integers * TERMS.step - update)[inside].max() <= TERMS.step / 2 * (1 + 1e-9)
    assert np.abs(integers).max() == TERMS.levels
    assert not quantised(np.zeros(5), TERMS)[0].any()
    with pytest.raises(ValueError, match="NaN"):
        quantised(np.array([np.nan]), TERMS)


def test_two_clients_agree_on_masks_that_cancel():
    one, other = new_private(), new_private()
    words = np.zeros(1000, np.uint64)
    Stream(agreed(one, public_of(other), "masks"), "session").add(words)
    masked = words.copy()
    Stream(agreed(other, public_of(one), "masks"), "session").add(words, negative=True)
    assert masked.any()
    assert not words.any()
    assert agreed(one, public_of(other), "shares") != agreed(one, public_of(other), "masks")


def test_masks_are_uniform_and_differ_between_sessions():
    seed = bytes(range(32))
    masks = []
    for session in ("a", "b"):
        words = np.zeros(20_000, np.uint64)
        Stream(seed, session).add(words)
        masks.append(words)
    counts = np.bincount(masks[0].view(np.uint8), minlength=256)
    assert chisquare(counts).pvalue > 1e-3
    assert np.count_nonzero(masks[0] == masks[1]) == 0


def test_why_flowers_generator_is_not_used():
    """Its seed has 32 bits: seeds of 32 bytes whose words have the same XOR give the same mask."""
    seed, other = bytes(28) + b"\x07\x00\x00\x00", b"\x07\x00\x00\x00" + bytes(28)
    first, second = (pseudo_rand_gen(s, 1 << 20, [(100,)])[0] for s in (seed, other))
    assert np.array_equal(first, second), "Flower mended it: `strategies.secure.masks.Stream` could go"


def test_a_number_at_the_end_of_the_range_is_not_cut():
    integers, clipped = quantised(np.array([0.5, -0.5, 0.5000001, -3.0]), TERMS)
    assert integers.tolist() == [TERMS.levels, -TERMS.levels] * 2 and clipped == 2


def test_numbers_beside_the_update_are_in_steps_of_a_65536th_within_32768():
    told = [1.5, -1.5, 0.3, -0.3, 1e9, -1e9]
    assert fixed_point(told).tolist() == [98304, -98304, 19661, -19661, 2**31, -(2**31)]


def test_a_mask_of_many_words_goes_on_where_the_last_word_ended():
    """More than a block, at once or in two parts: the same words, none of them repeated."""
    at_once, parts = np.zeros(300_000, np.uint64), np.zeros(300_000, np.uint64)
    Stream(bytes(32), "s").add(at_once)
    stream = Stream(bytes(32), "s")
    stream.add(parts[:1000])
    stream.add(parts[1000:])
    assert np.array_equal(at_once, parts) and len(np.unique(at_once)) == 300_000
