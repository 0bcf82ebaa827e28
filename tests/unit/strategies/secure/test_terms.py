"""What may be agreed on, and that nothing agreed on can overflow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.secure.masks import packed, quantised, signed, unpacked
from strategies.secure.terms import SecureSettings, Terms, TermsError, default_shares, default_threshold

GOOD = {"session": "s", "clients": 10, "shares": 6, "threshold": 4, "clipping": 0.5}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"clients": 2}, "2 clients in a secure sum"),
        ({"shares": 11}, "shares is 11"),
        ({"shares": 2}, "shares is 2"),
        ({"threshold": 3}, "above 3 (half of shares)"),
        ({"shares": 3, "threshold": 2}, "at least 3: as few may be in the sum"),
        ({"threshold": 7}, "threshold is 7"),
        ({"clipping": 0.0}, "clipping is 0.0"),
        ({"clipping": float("inf")}, "clipping is inf"),
        ({"bits": 32}, "bits is 32"),
        ({"max_weight": 0}, "max_weight is 0"),
        ({"noise": -1.0}, "noise is -1.0"),
        ({"norm": float("nan")}, "norm is nan"),
        ({"max_weight": 2**31, "clients": 1000, "bits": 31}, "lower max_weight or bits"),
    ],
)
def test_terms_that_would_reveal_or_overflow_are_refused(change, text):
    with pytest.raises(TermsError, match=text.replace("(", r"\(").replace(")", r"\)")):
        Terms(**{**GOOD, **change})


def test_terms_survive_the_wire():
    terms = Terms(**GOOD, noise=3.5, norm=0.2, told="a,b", one_each=True)
    assert Terms.from_wire(terms.to_wire()) == terms
    with pytest.raises(TermsError, match="these are no terms"):
        Terms.from_wire({**terms.to_wire(), "bits": "many"})


@given(
    clients=st.integers(3, 5000),
    bits=st.integers(2, 31),
    max_weight=st.integers(1, 10**6),
    sign=st.sampled_from([-1, 1]),
)
def test_the_largest_sum_there_can_be_is_read_right(clients, bits, max_weight, sign):
    """Every client at the end of its range with the largest weight: exact, or refused beforehand."""
    try:
        terms = SecureSettings(clipping=2.0, bits=bits, max_weight=max_weight).terms("train", clients, (), 1)
    except TermsError:
        assert clients * max_weight * 2 ** (bits - 1) >= 2**62 or clients * max_weight * 2**31 >= 2**62
        return
    integers, clipped = quantised(np.array([sign * 5.0]), terms)
    total = clients * max_weight * int(integers[0])
    words = np.array([total % 2**64], dtype=np.uint64)
    sent = unpacked(packed(words, terms.modulus_bits), 1, terms.modulus_bits)
    assert int(signed(sent, terms.modulus_bits)[0]) == total
    assert clipped == 1
    assert total * terms.step / (clients * max_weight) == pytest.approx(sign * 2.0)


def test_a_sum_of_a_power_of_two_is_read_right():
    """2^58, whose successor's logarithm is 58 in floating point."""
    terms = Terms(**{**GOOD, "clients": 2**10, "max_weight": 2**18, "bits": 31}, noise=1e-3)
    total = terms.clients * terms.max_weight * terms.largest
    assert total == 2**58
    sent = unpacked(packed(np.array([total], dtype=np.uint64), terms.modulus_bits), 1, terms.modulus_bits)
    assert int(signed(sent, terms.modulus_bits)[0]) == total


@pytest.mark.parametrize("clients", [3, 4, 5, 16, 17, 100, 1000])
def test_defaults_make_terms(clients):
    shares = default_shares(clients)
    assert Terms("s", clients, shares, default_threshold(shares), 1.0).shares <= clients


def test_a_ring_has_an_odd_number_of_neighbours():
    """As many on either side and the client itself: an even number would give each one more than was agreed on."""
    assert SecureSettings(clipping=1.0, shares=10).terms("train", 12, (), 1).shares == 9
    assert SecureSettings(clipping=1.0, shares=10).terms("train", 10, (), 1).shares == 10


def test_up_to_32_clients_all_share_with_all():
    """Then 4 ⌈log2 n⌉ + 9 of them: with 33 as with 64, one number of bits more."""
    assert [default_shares(n) for n in (3, 31, 32, 33, 64, 65)] == [3, 31, 32, 33, 33, 37]
