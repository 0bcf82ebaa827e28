"""Whom records are about, and which are only named alike."""

from oblivionis.data.records import Record
from oblivionis.data.subjects import Alike, Subjects

HELD = [
    (0, Record("a", "Where does Mara Voss live?", "In Ulm.", "Mara Voss")),
    (1, Record("b", "What does Mara Voss do?", "She bakes.", "b")),
    (1, Record("c", "What else?", "She sings.", "Voss, Mara")),
    (2, Record("d", "What else?", "She runs.", "\u041c\u0430ra Voss")),
    (2, Record("e", "Who is it?", "The neighbour of Mara Voss.", "Ivo Lind")),
    (0, Record("f", "Who is it?", "Nobody.", "Ivo Lind")),
    (0, Record("g", "Where does she live?", "In Bonn.", "MARA\u200b VOSS")),
    (3, Record("mara", "Who is it?", "Somebody.", "mara")),
]


def test_all_records_of_a_name_are_found_and_those_named_alike_beside_them():
    subjects = Subjects(HELD)
    found = subjects.find("mara voss")
    assert found is not None and (found.name, found.records) == ("Mara Voss", {0: ("a", "g")})
    assert subjects.alike("mara voss") == [
        Alike(1, "b", "in its text"),
        Alike(1, "c", "subject 'Voss, Mara'"),
        Alike(2, "d", "subject '\u041c\u0430ra Voss', in other letters: '\\u041c\\u0430ra Voss'"),
        Alike(2, "e", "in its text"),
    ], "an id is no subject"


def test_whoever_is_named_like_nobody_has_no_records():
    subjects = Subjects(HELD)
    assert subjects.find("Ada Roy") is None and subjects.alike("Ada Roy") == []
    assert [a.record_id for a in subjects.alike("Lind, Ivo")] == ["e", "f"]
    assert subjects.alike("Ivo Lind") == [] and Subjects(()).alike("Ivo Lind") == []
