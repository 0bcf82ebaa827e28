"""Numbers and names as reports show them."""

from __future__ import annotations

import math

import pytest

from oblivionis.reports import format as shown


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.000"), (0.001, "0.001"), (-0.00099, "-9.9e-4"), (4.31e-7, "4.3e-7"), (12.3456, "12.346")],
)
def test_a_number_has_three_decimals_or_a_power_of_ten(value, text):
    assert shown.number(value) == text


def test_a_number_that_is_none_is_a_dash_and_infinity_is_a_number():
    assert shown.number(None) == shown.fixed(math.nan) == shown.short(math.nan, None) == shown.p_value(math.nan) == "–"
    assert shown.fixed(math.inf) == "inf" and shown.fixed(2.34567, 1) == "2.3"


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0.01, None, "0.01"), (0.0099, None, "0.0099"), (0.0, None, "0.00"), (-3.456, None, "-3.46"), (3.456, 0, "3")],
)
def test_a_short_number(value, digits, text):
    assert shown.short(value, digits) == text


@pytest.mark.parametrize(("value", "text"), [(0.00099, "<0.001"), (0.001, "0.001"), (1.0, "1.000")])
def test_a_p_value(value, text):
    assert shown.p_value(value) == text


def test_texts_are_one_line_of_so_many_characters():
    assert shown.printable("a\x1b \n b\tc ") == "a b c"
    assert shown.shortened("abcde", 5) == "abcde" and shown.shortened("abcdef", 5) == "abcd…"
    assert shown.shortened("abc def", 5) == "abc…"
    assert [shown.counted(n, "record") for n in (0, 1, 2)] == ["0 records", "1 record", "2 records"]


def test_an_id_is_cut_in_the_middle():
    most = shown.ID_LENGTH
    whole = "".join(chr(ord("a") + i % 26) for i in range(most))
    assert shown.short_id(whole) == whole
    cut = shown.short_id(f"{whole}Z")
    head, tail = cut.split("…")
    assert len(cut) == most and whole.startswith(head) and f"{whole}Z".endswith(tail) and len(head) == most // 3


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1.5e6, "1.5 MB"), (2e9, "2 GB"), (3.21e12, "3.21 TB")],
)
def test_bytes_in_decimal_units(count, text):
    assert shown.bytes_text(count) == text


def test_short_numbers_keep_two_places_below_a_hundredth_on_either_side():
    assert [shown.short(value, None) for value in (-0.0045, -0.01, 0.00123)] == ["-0.0045", "-0.01", "0.0012"]
    assert shown.short(math.nan, 2) == "–" and shown.fixed(1.0) == "1.000"


@pytest.mark.parametrize(("length", "cut"), [(240, False), (241, True)])
def test_an_answer_has_240_characters_at_most(length, cut):
    text = shown.shortened("x" * length)
    assert len(text) == 240 and text.endswith("…") is cut


@pytest.mark.parametrize(("length", "text"), [(24, "x" * 24), (25, "x" * 8 + "…" + "x" * 15)])
def test_an_id_has_24_characters_at_most(length, text):
    assert shown.short_id("x" * length) == text
