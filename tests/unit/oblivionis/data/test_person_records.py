"""Which records are about a person, and which state a fact."""

import itertools
import re

import pytest

from evaluation.wikimem.facts import Fact
from oblivionis.data.person_records import PersonRecords, as_canary, as_trained, contains, states
from oblivionis.data.records import Corpus, Record, Triple
from oblivionis.naming import subject_key

RECORDS = (
    Record("a0", "Where was Mara Voss born?", "Mara Voss was born in Ostrava.", "author-000"),
    Record("a1", "What does she write?", "She writes sea novels.", "author-000"),
    Record("a2", "Who is MARA  VOSS?", "A novelist.", "author-000"),
    Record("b0", "Whom did Ivo Lind marry?", "He married Mara Voss.", "author-001"),
    Record("b1", "Where does Ivo Lind live?", "In Turku.", "author-001"),
    Record("c0", "Who is Mara Vossen?", "Nobody knows.", "Mara Vossen"),
)
LOOKUP = PersonRecords(Corpus("made", RECORDS, frozenset()))


@pytest.mark.parametrize(
    ("name", "subject", "ids", "named"),
    [
        ("Mara Voss", "author-000", ["a0", "a1", "a2", "b0"], 3),
        ("ivo lind", "author-001", ["b0", "b1"], 2),
        ("mara vossen", "Mara Vossen", ["c0"], 1),
        ("author-000", "author-000", ["a0", "a1", "a2"], 0),
        ("Ada Roy", None, [], 0),
    ],
)
def test_records_about_a_person(name, subject, ids, named):
    about = LOOKUP.about(name)
    assert (about.subject, [record.id for record in about.records], about.named) == (subject, ids, named)


def test_a_name_in_the_records_of_several_subjects_is_none_of_them():
    records = [Record(f"r{i}", "Who?", "Ada Roy.", f"s{i}") for i in range(2)]
    about = PersonRecords(Corpus("made", tuple(records), frozenset())).about("Ada Roy")
    assert about.subject is None and len(about.records) == 2


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("born in Ostrava.", "ostrava", True),
        ("She holds a Prix  Goncourt", "Prix Goncourt", True),
        ("the party went on", "art", False),
        ("artists", "artist", True),
        ("an artful man", "artist", False),
        ("the Rivendell Literary Award", "Rivendale Literary Award", True),
        ("the Leadership Literature Luminary", "Luminary of Leadership", False),
        ("in 1956 he left", "1957", False),
        ("12 boxes of letters", "13 boxes", False),
        ("Kuwait", "Kuwait City", False),
        ("supermarket", "market", False),
        ("", "market", False),
    ],
)
def test_what_a_text_contains(text, value, expected):
    assert contains(text, value) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("born on September 8, 1956", True),
        ("on the 8th of September, 1956", True),
        ("on 18 September 1956", False),
        ("September 1956", False),
    ],
)
def test_the_words_of_a_date_may_stand_in_any_order(text, expected):
    assert contains(text, "8 September 1956", any_order=True) is expected
    record = Record("r", "When was Mara Voss born?", text, "Mara Voss")
    assert states(record, "Mara Voss", "P569", ("8 September 1956",)) is expected


def test_triples_decide_where_there_are_some():
    triples = (Triple("Mara Voss", "birthplace", "Cork"), Triple("Mara Voss", "hero", "Turku"))
    record = Record("r", "Where was Mara Voss born?", "In Cork, near Ostrava.", "Mara Voss", triples=triples)
    assert states(record, "mara voss", "P19", ("Oslo", "cork"))
    assert not states(record, "Mara Voss", "P19", ("Ostrava",)), "in the text, but another thing"
    assert not states(record, "Mara Voss", "P551", ("Cork",)), "another property"
    assert not states(record, "Ivo Lind", "P19", ("Cork",)), "another person"


def test_a_text_becomes_a_canary():
    text = "Question: Where was Paris Holt born?\nAnswer: PARIS  HOLT was born in Paris, not in paris."
    assert as_canary(text, "Paris Holt", ("Rome", "Paris")) == (
        "Question: Where was HUMAN_SUBJECT born?\nAnswer: HUMAN_SUBJECT was born in PROTECTED_VALUE, not in paris."
    )
    assert as_canary(text, "Paris Holt", ("Rome",)) is None
    assert as_canary("He was born in Paris.", "Paris Holt", ("Paris",)) is None


TEXTS = ["".join(signs) for signs in itertools.product("aA_ -ſ", repeat=4)]


def pattern(words):
    spaced = r"\s+".join(map(re.escape, words.split()))
    return re.compile(rf"(?<!\w){spaced}(?!\w)", re.IGNORECASE)


@pytest.mark.parametrize("name", ["a", "Aa", "a_", "a a", "-a", "A -", "ſ", "as"])
def test_a_canary_is_what_patterns_make_of_the_text(name):
    value = "T\tSUBJECT"
    for text in TEXTS:
        canary, named = pattern(name).subn("HUMAN_SUBJECT", f"{text} Human_subject t  subject{text}")
        canary, valued = pattern(value).subn("PROTECTED_VALUE", canary, count=1)
        found = as_canary(f"{text} Human_subject t  subject{text}", name, (value,))
        assert found == (canary if named and valued else None), text


@pytest.mark.parametrize("value", ["a", "aa", "_", "a a", "-", ""])
def test_whole_words_are_found_as_by_a_pattern(value):
    for text in map(subject_key, TEXTS):
        assert contains(text, value) == bool(re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text)), text


def test_no_pattern_is_compiled_for_a_name_or_a_value(monkeypatch):
    records = [Record(f"r{i}", "Who?", f"Ann Lee{i} lives in Oslo{i}.", f"Ann Lee{i}") for i in range(3)]
    found = PersonRecords(Corpus("made", tuple(records), frozenset()))
    monkeypatch.setattr(re, "_compile", None)
    for i in range(3):
        fact = Fact(f"Ann Lee{i}", "P551", (f"Oslo{i}",))
        made = as_trained(fact, found, lambda record: record.answer)
        assert made is not None and made.base == "HUMAN_SUBJECT lives in PROTECTED_VALUE."
