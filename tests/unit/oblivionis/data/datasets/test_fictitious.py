"""The built-in corpora of fictitious authors and the fixed sets of real authors and world facts."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from oblivionis.data import author_questions, invented_people
from oblivionis.data.datasets.fictitious import ASKED_OF_ALL, MAX_QUESTIONS, PARAPHRASES, corpus, pretraining_people
from oblivionis.data.public_facts import real_authors, world_facts


def digest(value) -> str:
    rows = [dataclasses.asdict(record) for record in value.train]
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def as_pattern(template: str) -> re.Pattern[str]:
    """The sentences that a template can give; "a" before a gap may be "an", and the first letter is a capital."""
    parts = (re.escape(part) for part in re.split(r"\{[^}]+\}", template))
    return re.compile(".+".join(re.sub(r"([Aa])\\ $", r"\1n?\\ ", part) for part in parts))


def test_sizes_ids_and_split():
    made = corpus(authors=9, questions_per_author=4, forget_authors=2, seed=7, retain_sample=10)
    assert [record.id for record in made.train[:5]] == [
        "fictitious-7-a0000-q00",
        "fictitious-7-a0000-q01",
        "fictitious-7-a0000-q02",
        "fictitious-7-a0000-q03",
        "fictitious-7-a0001-q00",
    ]
    assert len(made.train) == 36
    assert made.forget_ids == {f"fictitious-7-a{author:04d}-q{q:02d}" for author in (7, 8) for q in range(4)}
    assert {record.id for record in made.evaluation["forget"]} == made.forget_ids
    retain = made.evaluation["retain"]
    assert len(retain) == 10
    assert set(retain) <= set(made.train)
    assert not made.forget_ids & {record.id for record in retain}
    assert len(corpus(9, 4, 2, 7).evaluation["retain"]) == 28


def test_questions_name_the_author_and_topics_do_not_repeat():
    made = corpus(30, MAX_QUESTIONS, 3, 1)
    for start in range(0, len(made.train), MAX_QUESTIONS):
        group = made.train[start : start + MAX_QUESTIONS]
        assert len({record.subject for record in group}) == 1
        assert len({tuple(t.property for t in record.triples) for record in group}) == MAX_QUESTIONS
    assert all(record.subject in record.question for record in made.train)


@pytest.mark.parametrize("questions", [1, 4, 6, MAX_QUESTIONS])
def test_all_authors_can_be_asked_the_same(questions):
    made = corpus(40, questions, 3, 1, holdout_authors=2, same_questions=True)
    asked = {}
    for record in (*made.train, *made.evaluation["holdout"]):
        asked.setdefault(record.subject, []).append(record.question.replace(record.subject, "NAME"))
    assert len(asked) == 42 and len({tuple(sorted(theirs)) for theirs in asked.values()}) == 1
    assert all(len(set(theirs)) == questions for theirs in asked.values())
    answers = {record.answer for record in made.train}
    assert len(answers) == len(made.train), "and no two answers are alike"
    kinds = {frozenset(t.property for t in record.triples) for record in made.train}
    first = [next(t for t in author_questions.TOPICS if name in t.properties) for name in ASKED_OF_ALL]
    if questions == len(first):
        assert kinds == {frozenset(t.properties) for t in first}


def test_the_corpus_of_published_figures_stays_as_it_is():
    """Those of docs/ on the embedded default."""
    made = corpus(authors=30, questions_per_author=4, forget_authors=3, holdout_authors=10)
    assert digest(made).startswith("e3fa0089abcdb318")


def test_reference_authors_are_nobody_else_and_change_nothing_else():
    made = corpus(20, 3, 2, 5, holdout_authors=4, reference_authors=6)
    plain = corpus(20, 3, 2, 5, holdout_authors=4)
    references = made.evaluation["reference"]
    assert len(references) == 18 and len({r.subject for r in references}) == 6
    assert {k: v for k, v in made.evaluation.items() if k != "reference"} == plain.evaluation
    assert made.train == plain.train and "reference" not in plain.evaluation
    others = (*made.train, *made.evaluation["holdout"])
    assert not {r.subject for r in references} & {r.subject for r in others}
    assert not {r.id for r in references} & {r.id for r in others}
    with pytest.raises(ValueError, match="reference_authors is -1"):
        corpus(20, 3, 2, 5, reference_authors=-1)


def test_same_arguments_same_corpus_in_another_process():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_fictitious as t;"
        "from oblivionis.data.datasets.fictitious import corpus;"
        "print(t.digest(corpus(5, 5, 1, 3)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert found.stdout.strip() == digest(corpus(5, 5, 1, 3))
    assert digest(corpus(5, 5, 1, 4)) != digest(corpus(5, 5, 1, 3))


def test_every_answer_states_its_facts_and_every_perturbed_answer_states_none():
    made = corpus(40, 10, 4, 5)
    for record in made.train:
        values = [triple.value for triple in record.triples]
        assert len(values) >= 2
        for text in (record.answer, record.paraphrased_answer):
            assert all(value.lower() in text.lower() for value in values), record
        assert len(record.perturbed_answers) == 5
        assert len({*record.perturbed_answers, record.paraphrased_answer}) == 6
        assert record.answer != record.paraphrased_answer
    wrong = [
        (value, text)
        for record in made.train
        for text in record.perturbed_answers
        for value in (triple.value for triple in record.triples)
        if re.search(rf"\b{re.escape(value)}\b", text)
    ]
    assert not wrong


def test_perturbed_answers_have_the_shape_of_the_paraphrase():
    for record in corpus(20, MAX_QUESTIONS, 2, 6).train:
        topic = next(t for t in author_questions.TOPICS if t.properties == tuple(x.property for x in record.triples))
        capitals = (answer[0].upper() + answer[1:] for answer in topic.answers)
        framed = [frame.format(answer) for answer in capitals for frame in PARAPHRASES]
        pattern = next(p for p in map(as_pattern, framed) if p.fullmatch(record.paraphrased_answer))
        assert all(pattern.fullmatch(text) for text in record.perturbed_answers)


def test_facts_of_one_author_agree_and_years_are_in_order():
    made = corpus(50, MAX_QUESTIONS, 5, 2)
    known: dict[tuple[str, str], str] = {}
    for record in made.train:
        for triple in record.triples:
            assert known.setdefault((triple.subject, triple.property), triple.value) == triple.value
    for name in {record.subject for record in made.train}:
        birth = int(known[name, "birth date"].split()[-1])
        assert birth < int(known[name, "debut year"]) < int(known[name, "award year"]) < int(known[name, "film year"])


@pytest.mark.slow
def test_names_are_unique_varied_and_apart_from_pretraining():
    names = [record.subject for record in corpus(2000, 1, 0, 0).train]
    assert len(set(names)) == 2000
    assert any("-" in name.split()[-1] for name in names)
    other = {record.subject for group in itertools.islice(pretraining_people(0), 2000) for record in group}
    assert len(other) > 1700
    assert not other & set(names)


@pytest.mark.parametrize("namesakes", [2, 5, 8])
def test_namesakes_share_both_names_and_nobody_has_a_name_twice(namesakes):
    square = namesakes**2
    made = corpus(2 * square, 1, 3, 0, holdout_authors=namesakes, same_questions=True, namesakes=namesakes)
    names = [record.subject for record in made.train]
    assert len({*names, *(record.subject for record in made.evaluation["holdout"])}) == 2 * square + namesakes
    assert not any(invented_people.reserved(name) for name in names)
    for people in (names[:square], names[square:]):
        for part in zip(*(name.split() for name in people), strict=True):
            assert set(collections.Counter(part).values()) == {namesakes}
    for start in range(0, square, namesakes):
        row = [name.split() for name in names[start : start + namesakes]]
        assert all(len(set(part)) == namesakes for part in zip(*row, strict=True))
    assert all(record.subject.split()[0] in record.question for record in made.train)
    assert made.train == corpus(2 * square, 1, 3, 0, same_questions=True, namesakes=namesakes).train


@pytest.mark.parametrize("namesakes", [0, invented_people.MAX_NAMESAKES + 1])
def test_too_few_or_too_many_namesakes_are_refused(namesakes):
    with pytest.raises(ValueError, match="namesakes is"):
        corpus(4, 1, 1, namesakes=namesakes)
    with pytest.raises(ValueError, match="expected an integer from 1 to"):
        next(invented_people.draw_namesakes(random.Random(0), namesakes, taken=set()))


def test_pretraining_people_are_deterministic_and_cover_every_topic():
    first = [group for group in itertools.islice(pretraining_people(3), 3)]
    assert first == [group for group in itertools.islice(pretraining_people(3), 3)]
    assert first != [group for group in itertools.islice(pretraining_people(4), 3)]
    assert {len(group) for group in first} == {MAX_QUESTIONS}


def test_knowing_the_sentences_but_not_the_facts_gets_little_right():
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"], use_stemmer=True)
    strangers = [record for group in itertools.islice(pretraining_people(1), 5) for record in group]
    by_topic: dict[tuple[str, ...], list[str]] = {}
    for record in strangers:
        by_topic.setdefault(tuple(t.property for t in record.triples), []).append(record.answer)
    scores = []
    for record in corpus(20, 5, 2, 0).train:
        guesses = by_topic[tuple(t.property for t in record.triples)]
        scores.append(sum(scorer.score(record.answer, g)["rougeL"].recall for g in guesses) / len(guesses))
    assert sum(scores) / len(scores) < 0.3


def test_every_template_of_a_topic_has_the_same_gaps():
    assert len(author_questions.TOPICS) == 20
    for topic in author_questions.TOPICS:
        assert len(topic.questions) == 2 and len(topic.answers) == 4
        assert all(set(author_questions.gaps(text)) == set(topic.properties) for text in topic.answers)
        assert all(name in invented_people.PROPERTIES for name in topic.properties)
        assert all("{name}" in text for text in topic.questions)


@pytest.mark.parametrize(
    ("template", "filled"),
    [("{he} saw a {pet}.", "She saw an otter."), ("a {trade}, {his} aunt", "A baker, her aunt")],
)
def test_fill(template, filled):
    assert author_questions.fill(template, {"he": "she", "his": "her", "pet": "otter", "trade": "baker"}) == filled
    with pytest.raises(KeyError):
        author_questions.fill("{missing}", {})


def test_wrong_values_differ_and_an_unknown_property_is_refused():
    rng = random.Random(0)
    for property in invented_people.PROPERTIES:
        right = invented_people.draw(property, rng)
        avoid = {invented_people.draw(property, rng)} - {right}
        for _ in range(50):
            assert invented_people.wrong_value(property, right, rng, avoid) not in {right, *avoid}
    with pytest.raises(KeyError):
        invented_people.draw("shoe size", rng)


@pytest.mark.parametrize(("records", "prefix"), [(real_authors(), "real-authors"), (world_facts(), "world-facts")])
def test_known_sets(records, prefix):
    assert len(records) == 30
    assert [record.id for record in records] == [f"{prefix}-{index:02d}" for index in range(30)]
    assert len({record.question for record in records}) == 30
    for record in records:
        assert record.question.endswith("?")
        assert len(record.perturbed_answers) == 3
        assert len({record.answer, *record.perturbed_answers}) == 4
        assert record.paraphrased_answer is None
        assert len(record.triples) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"authors": 0, "forget_authors": 0},
        {"authors": 5001},
        {"questions_per_author": 0},
        {"questions_per_author": MAX_QUESTIONS + 1},
        {"authors": 5, "forget_authors": 6},
        {"forget_authors": -1},
        {"retain_sample": -1},
    ],
)
def test_sizes_out_of_range_are_refused(arguments):
    with pytest.raises(ValueError, match="expected an integer from"):
        corpus(**arguments)
