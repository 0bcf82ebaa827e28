"""Look-alike names against a plain reversal, and for names of many shapes."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.wikimem.names import name_variants

EXAMPLES = [
    ("Jane Doe", ("Enaj Doe", "Jane Eod", "Enaj Eod")),
    ("Voltaire", ("Eriatlov", "Oltairev", "Ltairevo")),
    ("Pele", ("Elep", "Lepe", "Epel")),
    ("Bo", ("Ob",)),
    ("Li Wei", ("Il Wei", "Li Iew", "Il Iew")),
    ("Henry V Lancaster II", ("Yrneh V Lancaster II", "Henry V Retsacnal II", "Yrneh V Retsacnal II")),
    ("Martin Luther King", ("Nitram Luther King", "Martin Luther Gnik", "Martin Rehtul King")),
    ("Martin Luther King Jr.", ("Nitram Luther King Jr.", "Martin Luther Gnik Jr.", "Martin Rehtul King Jr.")),
    ("Vincent van Gogh", ("Tnecniv van Gogh", "Vincent van Hgog", "Vincent nav Gogh")),
    ("J. K. Rowling", ("J. K. Gnilwor", "J. K. Owlingr", "J. K. Wlingro")),
    ("Jean-Luc Picard", ("Naej-Cul Picard", "Jean-Luc Dracip", "Naej-Cul Dracip")),
    ("Ai-Ling", ("Ia-Gnil", "Ia-Ingl", "Ai-Ngli")),
    ("Conan O'Brien", ("Nanoc O'Brien", "Conan O'Neirb", "Nanoc O'Neirb")),
    ("bell hooks", ("lleb hooks", "bell skooh", "lleb skooh")),
    ("KAREN", ("NERAK", "ARENK", "RENKA")),
    ("McDonald", ("Dlanodcm", "Cdonaldm", "Donaldmc")),
    ("50 Cent", ("50 Tnec", "50 Entc", "50 Ntce")),
    ("Лев Толстой", ("Вел Толстой", "Лев Йотслот", "Вел Йотслот")),
    ("毛泽东", ("东泽毛", "泽东毛", "东毛泽")),
    ("김구", ("구김",)),
    ("محمد علي", ("دمحم علي", "محمد يلع", "دمحم يلع")),
    ("Zoë", ("Ëoz", "Oëz", "Ëzo")),
]


@pytest.mark.parametrize(("name", "variants"), EXAMPLES)
def test_variants_are_those_written_down(name, variants):
    assert name_variants(name, 3) == variants
    assert name_variants(name) == variants[:2]
    assert name_variants(name, 1) == variants[:1]


def test_runs_shorter_than_a_rotation_go_on_turning():
    """The third rotation of "Ling" is the first of "Ai" again."""
    assert name_variants("Ai-Ling", 5)[3:] == ("Ia-Glin",)


def test_joiners_stay_on_their_letters_and_letters_of_two_have_a_capital():
    assert name_variants("\u0639\u0644\u06cc\u200c\u0631\u0636\u0627", 1) == (
        "\u0627\u0636\u0631\u06cc\u200c\u0644\u0639",
    )
    assert name_variants("\u01c5emal", 1) == ("Lame\u01c6",)


def test_palindromes_are_passed_over_and_their_letters_rotated():
    assert name_variants("Anna Otto") == ("Nnaa Otto", "Anna Ttoo")
    assert name_variants("Anna Berg") == ("Anna Greb", "Nnaa Berg")
    assert name_variants("Ada") == ("Daa", "Aad")


def test_marks_stay_on_their_letters():
    decomposed = unicodedata.normalize("NFD", "Zoë Šimůnek")
    assert name_variants(decomposed) == name_variants("Zoë Šimůnek") == ("Ëoz Šimůnek", "Zoë Kenůmiš")
    assert name_variants("अमिताभ")[0] == "भतामिअ"


@pytest.mark.parametrize("name", ["", "  ", "X", "J. R.", "1234", "Aa", "李 白", "Oo Ii"])
def test_a_name_without_two_different_letters_in_a_word_is_refused(name):
    with pytest.raises(ValueError, match="no look-alike"):
        name_variants(name)


def test_a_count_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        name_variants("Jane Doe", 0)


def test_two_words_of_plain_letters_are_reversed_one_at_a_time():
    for first in ("Ada", "Bruno", "Chiara", "Hannah", "Kwame", "Ingrid", "Otto", "Šárka", "Yusuf", "Zoë"):
        for surname in ("Ashworth", "Bauer", "Çelik", "Harrah", "Kovač", "Lindqvist", "Nabokov", "Okafor", "Serres"):
            backwards = f"{first[::-1].capitalize()} {surname}", f"{first} {surname[::-1].capitalize()}"
            if len({name.casefold() for name in (*backwards, f"{first} {surname}")}) == 3:
                assert name_variants(f"{first} {surname}") == backwards


@given(st.text(max_size=30), st.integers(1, 5))
def test_variants_are_few_different_and_made_of_the_same_characters(name, count):
    try:
        variants = name_variants(name, count)
    except ValueError:
        return
    normal = " ".join(unicodedata.normalize("NFC", name).split())
    assert 1 <= len(variants) <= count
    assert len({variant.casefold() for variant in [normal, *variants]}) == len(variants) + 1
    for variant in variants:
        assert len(variant.split()) == len(normal.split())
        assert sorted(variant.upper().casefold()) == sorted(normal.upper().casefold())
    assert name_variants(name, count) == variants


def test_of_many_words_all_are_turned_together_after_each_by_itself():
    """First, last, then those between."""
    found = name_variants("Jane Carl Mona Doe", 5)
    alone = ("Enaj Carl Mona Doe", "Jane Carl Mona Eod", "Jane Lrac Mona Doe", "Jane Carl Anom Doe")
    assert found == (*alone, "Enaj Lrac Anom Eod")
