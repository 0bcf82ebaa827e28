"""When two names are the same one."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oblivionis.naming import subject_key

SAME = {
    "letter case": ("Mara Voss", "MARA VOSS", "mara voss"),
    "white space": ("Mara Voss", " Mara\u00a0 Voss\t", "Mara\u3000Voss", "Mara\u2009Voss"),
    "composed and decomposed": ("Zo\u00eb", "Zoe\u0308", "ZOE\u0308"),
    "sharp s": ("Gro\u00df", "GROSS", "Gross", "GRO\u1e9e"),
    "Greek capitals": ("\u039c\u03b1\u0390\u03bf\u03c5", "\u039c\u0391\u03aa\u0301\u039f\u03a5"),
    "final sigma": ("\u0393\u03b9\u03ce\u03c1\u03b3\u03bf\u03c2", "\u0393\u0399\u038f\u03a1\u0393\u039f\u03a3"),
    "dotted I": ("\u0130pek", "i\u0307pek"),
    "full width, ligature": ("Raffi", "\uff32\uff41\uff46\uff46\uff49", "Ra\ufb03"),
    "unseen": ("Mara Voss", "Ma\u00adra Voss", "Mara\u200b Voss", "\ufeffMara Voss\u200f", "M\u200dara\u2060 Voss"),
    "apostrophe": ("O'Brien", "O\u2019Brien", "O\u02bcBrien", "O\u00b4Brien", "O`Brien", "O\uff07Brien"),
    "apostrophe that folding makes": ("\u0149ek", "\u02bcNek", "'nek"),
    "dash": ("Anne-Marie", "Anne\u2011Marie", "Anne\u2013Marie", "Anne\u2212Marie", "Anne\uff0dMarie"),
    "Arabic points": ("\u0645\u062d\u0645\u062f", "\u0645\u064f\u062d\u064e\u0645\u0651\u064e\u062f"),
    "tatweel": ("\u0645\u062d\u0645\u062f", "\u0645\u062d\u0640\u0645\u062f"),
    "Hebrew points": ("\u05e9\u05dc\u05d5\u05dd", "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd"),
    "Persian yeh and kaf": ("\u0639\u0644\u064a", "\u0639\u0644\u06cc"),
    "kaf": ("\u0643\u0631\u064a\u0645", "\u06a9\u0631\u06cc\u0645"),
}
OTHER = [
    ("Mara Voss", "Voss, Mara"),
    ("Mara Voss", "\u041c\u0430ra Voss"),
    ("Mara Voss", "MaraVoss"),
    ("\u0130pek", "Ipek"),
    ("Jos\u00e9", "Jose"),
    ("O'Brien", "OBrien"),
    ("author-001", "author-010"),
    ("\u200b", "\u200d"),
]


@pytest.mark.parametrize("kind", SAME)
def test_what_tells_no_two_names_apart(kind):
    assert len({subject_key(name) for name in SAME[kind]}) == 1


@pytest.mark.parametrize(("name", "other"), OTHER)
def test_names_that_only_look_alike_are_two(name, other):
    assert subject_key(name) != subject_key(other)


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=20))
def test_a_key_is_a_name_of_its_own_whatever_the_normal_form(name):
    key = subject_key(name)
    assert bool(key) == bool(name.strip())
    assert subject_key(unicodedata.normalize("NFD", name)) == subject_key(unicodedata.normalize("NFC", name))
