"""What may be agreed on, and that nothing agreed on can overflow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.secure.agreed_parameters import SecureSettings, Terms, TermsError, default_shares, default_threshold
from strategies.secure.masks import packed, quantised, signed, unpacked

GOOD = {"session": "s", "clients": 10, "shares": 6, "threshold": 4, "clipping": 0.5}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"clients": 2}, "2 clients in a secure sum"),
        ({"clients": 65_537}, "65537 clients in a secure sum, expected 3 to 65536"),
        ({"shares": 11}, "shares is 11"),
        ({"shares": 2}, "shares is 2"),
        ({"threshold": 3}, "above 3 (half of shares)"),
        ({"shares": 3, "threshold": 2}, "at least 3: as few may be in the sum"),
        ({"threshold": 7}, "threshold is 7"),
        ({"clipping": 0.0}, "clipping is 0.0"),
        ({"clipping": float("inf")}, "clipping is inf"),
        ({"bits": 32}, "bits is 32"),
        ({"bits": 1}, "bits is 1"),
        ({"counting": float("inf")}, "counting is inf"),
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
    more = {"bits": 9, "max_weight": 12, "noise": 3.5, "norm": 0.2, "counting": 0.7, "told": "a,b", "one_each": True}
    terms = Terms(**GOOD, **more)
    assert Terms.from_wire(terms.to_wire()) == terms and (terms.names, terms.tallies) == (("a", "b"), 2)
    assert len({Terms(**{**GOOD, **dict([one])}).digest for one in more.items()}) == len(more), "each is in the digest"
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


def test_how_many_must_be_left_is_more_than_six_tenths_of_the_shares():
    assert [default_threshold(n) for n in (3, 4, 5, 9, 10, 11, 33, 37)] == [3, 3, 4, 6, 7, 7, 20, 23]
    assert Terms(**{**GOOD, "threshold": 6}).threshold == 6, "all of them may be needed"


def test_integers_of_terms_by_hand():
    """Of 8 bits ±127; with noise of 10.3 steps 124 more; 10 clients of weight 5 add up to 12550, 14 bits and a sign."""
    terms = Terms(**GOOD, bits=8, max_weight=5)
    assert (terms.levels, terms.largest, terms.modulus_bits) == (127, 127, 14)
    assert terms.step == 0.5 / 127
    noised = Terms(**GOOD, bits=8, max_weight=5, noise=10.3)
    assert (noised.levels, noised.largest, noised.modulus_bits) == (127, 251, 15)


def test_settings_are_those_of_the_terms_and_the_defaults_are_told():
    terms = SecureSettings(clipping=0.7).terms("train", 10, ["a", "b"], 3)
    wire = {name: value for name, value in terms.to_wire().items() if name != "session"}
    defaults = {"bits": 22, "max_weight": 10_000, "one_each": False, "norm": 0.0, "noise": 0.0, "counting": 0.0}
    assert wire == {"clients": 10, "shares": 10, "threshold": 7, "clipping": 0.7, "told": "a,b", **defaults}
    settings = SecureSettings(clipping=0.7, shares=9, threshold=8, bits=9, max_weight=11)
    for clients, shares, threshold in ((20, 9, 8), (6, 6, 6)):
        terms = settings.terms("unlearn", clients, [], 3, one_each=True)
        assert (terms.shares, terms.threshold, terms.bits, terms.max_weight) == (shares, threshold, 9, 11)
        assert terms.one_each and terms.names == ()
    assert settings.patience == 120 and settings.tell
    asked = []
    private = SecureSettings(clipping=0.7, private=lambda *told: asked.append(told) or terms)
    assert private.terms("unlearn", 5, [], 3) is terms
    assert [(kind, given.clients, numbers) for kind, given, numbers in asked] == [("unlearn", 5, 3)]
