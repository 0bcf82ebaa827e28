"""Which names look alike, and which texts name somebody."""

import ctypes
import ctypes.util
import unicodedata

import pytest

from oblivionis.data.records import Record
from oblivionis.data.similar_names import Texts, look_alike, same_letters, skeleton

ALIKE = [
    ("Mara Voss", "Voss, Mara"),
    ("Mara Voss", "\u041c\u0430ra Voss"),
    ("mara voss", "\u041c\u0410RA VOSS"),
    ("Mara Voss", "Dr. Mara J. Voss"),
    ("Mara Anna Voss", "Mara Voss"),
    ("Mara Voss", "MaraVoss"),
    ("Anne-Marie", "Annemarie"),
    ("O'Brien", "O\u02bc Brien"),
    ("\u0130pek", "IPEK"),
    ("\u0130pek", "\u0131pek"),
    ("\u0393\u03b9\u03ce\u03c1\u03b3\u03bf\u03c2", "\u0393\u0399\u03a9\u03a1\u0393\u039f\u03a3"),
    ("Jos\u00e9 M\u00fcller", "Jose Muller"),
    ("\u0141ukasz", "Lukasz"),
    ("\u0639\u0644\u064a", "\u0639\u0644\u0649"),
    ("\u6bdb\u6cfd\u4e1c", "\u6bdb \u6cfd\u4e1c"),
]
OTHERS = [
    ("Mara Voss", "Mara Foss"),
    ("Mara Voss", "Ivo Lind"),
    ("Ali", "All"),
    ("author-001", "author-010"),
    ("Mara Voss", "*"),
    ("*", "+"),
    ("Mara Voss", "Mara Lind"),
]


@pytest.mark.parametrize(("name", "other"), ALIKE)
def test_names_that_look_alike(name, other):
    assert look_alike(name, other) and look_alike(other, name)


@pytest.mark.parametrize(("name", "other"), OTHERS)
def test_names_that_do_not(name, other):
    assert not look_alike(name, other) and not look_alike(other, name)


def test_other_letters_are_told_from_another_order():
    assert same_letters("Mara Voss", "Voss, Mara") and same_letters("Voss", "Mara Voss")
    assert not same_letters("Mara Voss", "\u041c\u0430ra Voss")


def icu_skeleton():
    """`uspoof_getSkeletonUTF8` of the ICU on this machine, None without one."""
    found = ctypes.util.find_library("icui18n")
    if found is None:
        return None
    library, version = ctypes.CDLL(found), found.rpartition(".so.")[2]
    start, take = (getattr(library, f"uspoof_{name}_{version}") for name in ("open", "getSkeletonUTF8"))
    start.restype = ctypes.c_void_p
    take.argtypes = [*(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_int32), ctypes.c_char_p]
    take.argtypes += [ctypes.c_int32, ctypes.c_void_p]
    checker = start(ctypes.byref(ctypes.c_int(0)))

    def of(text):
        out, data = ctypes.create_string_buffer(512), text.encode()
        length = take(checker, 0, data, len(data), out, 512, ctypes.byref(ctypes.c_int(0)))
        return out.raw[:length].decode()

    return of


def unmarked(text):
    return "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))


@pytest.mark.slow
def test_characters_look_alike_to_icu_that_look_alike_here():
    icu = icu_skeleton()
    if icu is None:
        pytest.skip("no ICU on this machine (libicui18n)")
    first, missed, other = {}, [], []
    characters = [chr(i) for i in (*range(0x21, 0xD800), *range(0x10000, 0x1F000))]
    for character in (c for c in characters if unicodedata.category(c)[0] in "LN"):
        same = first.setdefault(unmarked(icu(unmarked(character))), character)
        if skeleton(same) != skeleton(character):
            missed.append((same, character))
    mine = {}
    for character in first.values():
        same = mine.setdefault(skeleton(character), character)
        if same != character:
            other.append((same, character))
    assert len(missed) <= 5 and len(other) <= 25, "no more than editions of Unicode differ by"
    assert len(first) > 30_000


def texts(*answers):
    return Texts([Record(f"r{i}", "q", answer, "s") for i, answer in enumerate(answers)])


def test_a_text_names_who_stands_in_it_side_by_side():
    found = texts(
        "Mara Voss lives here.",
        "Voss, Mara: see file 7.",
        "MARA\u200bVOSS",
        "Mara has a dog; Voss has none.",
        "\u041c\u0430ra Voss's house",
        "the marble vossels",
        "Mara  Vo\u00adss",
        "",
    )
    assert found.naming("Mara Voss") == {0, 1, 2, 4, 6}
    assert found.naming("Mara") == {0, 1, 3, 4, 6}
    assert found.naming("*") == set() and found.naming("Ivo Lind") == set()
    assert texts("Anne Marie Roy bakes", "Annemarie Roy bakes", "Anne-Marie Roy bakes").naming("Annemarie Roy") == {
        0,
        1,
        2,
    }
    assert texts("all is well").naming("Ali") == set()


def test_the_question_counts_as_the_answer_does():
    record = Record("r", "Where does Mara Voss live?", "In Ulm.", "s")
    assert Texts([record]).naming("Mara Voss") == {0}


def test_names_in_scripts_without_spaces_are_found():
    found = texts("\u6bdb\u6cfd\u4e1c\u4f4f\u5728\u5317\u4eac", "\u5c3c\u5a1c\u4f4f\u5728\u660e\u65af\u514b")
    assert found.naming("\u6bdb\u6cfd\u4e1c") == {0}
