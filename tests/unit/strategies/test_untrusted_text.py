"""Foreign text is one plain line."""

import unicodedata

import pytest

from strategies.untrusted_text import clean, plain


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b31mred\x9b0m", "red"),
        ("\x1b]0;a title\x07after", "after"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9d0;title\x9cafter", "after"),
        ("\x1bP1$r0m\x1b\\after", "after"),
        ("\x1b(0lines\x1bc", "lines"),
        ("an unfinished \x1b]0;title", "an unfinished"),
        ("two\nlines\r\tand\x00\x7f\x85more\u2028", "two lines and more"),
        ("\u202ereversed\u2066", "reversed"),
        ("lone \ud800 surrogate", "lone surrogate"),
        ("می‌خواهم", "می‌خواهم"),
        ("Нина живёт в 北京", "Нина живёт в 北京"),
        ("non-breaking\u00a0space", "non-breaking space"),
    ],
)
def test_what_a_terminal_obeys_is_taken_out(text, expected):
    assert plain(text) == expected


@pytest.mark.slow
def test_every_character_alone_is_harmless_afterwards():
    obeyed = ("Cc", "Cs", "Zl", "Zp")
    for number in range(0x110000):
        left = plain(f"a{chr(number)}b")
        assert left.startswith("a") and not any(unicodedata.category(c) in obeyed for c in left), hex(number)


def test_it_is_cut():
    assert clean("x" * 500) == "x" * 500
    assert clean("x" * 501) == "x" * 499 + "…"
    assert len(clean("\x1b[1m" * 10**6 + "y", 20)) <= 20
