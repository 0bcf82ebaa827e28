"""Facts about people, from files and from the built-in authors."""

import json

import pytest

from evaluation.wikimem.facts import COUNTERFACTUALS, Fact, candidates
from evaluation.wikimem.names import name_variants
from evaluation.wikimem.properties import counterfactuals
from oblivionis.data.datasets.fictitious import corpus
from oblivionis.data.errors import DataError
from oblivionis.data.invented_people import PROPERTIES
from oblivionis.data.person_facts import PROPERTY_OF, facts_of, read_facts
from oblivionis.data.records import Record


def written(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_facts_are_read_with_one_or_several_values(tmp_path):
    path = written(
        tmp_path / "people.jsonl",
        {"subject": "Jane  Doe", "property": "P106", "values": ["biologist", "zookeeper", "biologist"]},
        {"subject": "Jane Doe", "property": "P19", "value": "Bergen", "page_views": 12},
        "",
        {"subject": "Лев Толстой", "property": "P569", "values": "1828", "cohort": "well-known"},
    )
    assert read_facts(path) == [
        Fact("Jane Doe", "P106", ("biologist", "zookeeper")),
        Fact("Jane Doe", "P19", ("Bergen",)),
        Fact("Лев Толстой", "P569", ("1828",), "well-known"),
    ]


GOOD = {"subject": "Jane Doe", "property": "P19", "values": ["Bergen"]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", r"people.jsonl:2: expected a JSON object"),
        ({"property": "P19", "values": ["Oslo"]}, r"people.jsonl:2: field 'subject' is missing"),
        ({"subjekt": "Bo", "property": "P19", "values": ["Oslo"]}, r"found 'subjekt'"),
        ({**GOOD, "values": []}, r"values must be a list of one or more"),
        ({**GOOD, "values": ["Oslo", 3]}, r"values must be a list of one or more"),
        ({**GOOD, "values": " "}, r"values must be a list of one or more"),
        ({**GOOD, "subject": 3}, r"subject must be a non-empty text, found 3"),
        ({**GOOD, "property": "P99999"}, r"people.jsonl:2: property 'P99999' is unknown; expected an id"),
        ({**GOOD, "property": "place of brith"}, r"did you mean P19 \(place of birth\)"),
        ({**GOOD, "subject": "X"}, r"people.jsonl:2: subject: the name 'X' has no look-alike"),
        ({**GOOD, "cohort": ""}, r"cohort must be a non-empty text"),
        ({**GOOD, "subject": "jane doe"}, r"people.jsonl:2: P19 of jane doe is already at people.jsonl:1"),
        ({**GOOD, "property": "P20", "cohort": "other"}, r"cohort 'other' of Jane Doe differs from None at people"),
    ],
)
def test_a_faulty_line_is_named(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        read_facts(written(tmp_path / "people.jsonl", GOOD, row))


def test_all_faulty_lines_are_reported_at_once_and_an_empty_or_missing_file_too(tmp_path):
    with pytest.raises(DataError) as caught:
        read_facts(written(tmp_path / "people.jsonl", {**GOOD, "property": "P0"}, GOOD, {"subject": "Bo"}))
    assert [problem.split(": ")[0] for problem in caught.value.problems] == ["people.jsonl:1"] + ["people.jsonl:3"] * 2
    with pytest.raises(DataError, match="at least one fact"):
        read_facts(written(tmp_path / "empty.jsonl"))
    with pytest.raises(DataError, match="not found"):
        read_facts(tmp_path / "nowhere.jsonl")


def test_the_facts_of_the_fictitious_authors_are_those_of_their_triples():
    records = corpus(authors=6, questions_per_author=20, forget_authors=1).train
    facts = facts_of(records)
    stated = {
        (triple.subject, PROPERTY_OF[triple.property], triple.value)
        for record in records
        for triple in record.triples
        if triple.property in PROPERTY_OF
    }
    assert {(fact.subject, fact.property, value) for fact in facts for value in fact.values} == stated
    assert len({(fact.subject, fact.property) for fact in facts}) == len(facts) == 6 * len(PROPERTY_OF)
    assert all(fact.cohort is None for fact in facts)
    for fact in facts:
        assert len(name_variants(fact.subject)) == 2
        assert len(candidates(fact.values, counterfactuals()[fact.property])) == COUNTERFACTUALS + 1


def test_records_without_triples_give_no_facts():
    assert facts_of([Record("a", "Who?", "Ada.", "Ada")]) == []


def test_what_the_fictitious_authors_are_asked_about_has_counterfactuals():
    assert set(PROPERTY_OF) <= set(PROPERTIES)
    assert set(PROPERTY_OF.values()) <= set(counterfactuals())
