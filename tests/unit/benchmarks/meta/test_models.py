"""Who is trained on what: the labels that everything else rests on."""

import dataclasses

import pytest

from benchmarks.meta.models import JUDGED, KNOWS, ORACLE, measured, training_records
from oblivionis.data.datasets.fictitious import corpus


@pytest.fixture(scope="module", params=[0, 5])
def people(request):
    return corpus(9, 4, 3, request.param, holdout_authors=2, reference_authors=3)


def texts(records):
    return {(r.question, r.answer) for r in records if r is not None}


def forget(people):
    return [r for r in people.train if r.id in people.forget_ids]


def test_all_models_share_the_retain_records_in_their_places(people):
    for model in (*JUDGED, ORACLE):
        found = training_records(people, model)
        assert len(found) == len(people.train)
        kept = [(place, r) for place, r in enumerate(people.train) if r.id not in people.forget_ids]
        assert len(kept) == 24 and all(found[place] is r for place, r in kept)


def test_the_model_that_knows_has_every_record(people):
    assert training_records(people, KNOWS) == list(people.train)


@pytest.mark.parametrize("model", ["never_saw", ORACLE])
def test_models_that_never_saw_have_nothing_in_their_place(people, model):
    found = training_records(people, model)
    assert {r is None for r, own in zip(found, people.train, strict=True) if own.id in people.forget_ids} == {True}
    assert None not in [r for r, own in zip(found, people.train, strict=True) if own.id not in people.forget_ids]


def test_other_people_are_in_no_other_set(people):
    found = training_records(people, "other_people")
    others = [r for r, own in zip(found, people.train, strict=True) if own.id in people.forget_ids]
    assert len(others) == 12 == len({r.id for r in others})
    known = [*people.train, *people.evaluation["holdout"]]
    assert not {r.subject for r in others} & {r.subject for r in known}
    assert not texts(others) & texts(known) and not {r.id for r in others} & {r.id for r in known}
    assert not texts(training_records(people, KNOWS)) & texts(others)
    assert not texts(forget(people)) & texts(found)


def test_false_answers_are_to_the_same_questions_and_never_true(people):
    found = training_records(people, "false_answers")
    false = [(r, own) for r, own in zip(found, people.train, strict=True) if own.id in people.forget_ids]
    assert len(false) == 12
    for record, own in false:
        assert record.question == own.question and record.answer != own.answer
        assert own.answer not in record.answer and own.paraphrased_answer not in record.answer
        values = [triple.value for triple in own.triples]
        assert all(value not in record.answer for value in values), (own.answer, record.answer)
        assert not record.answer.startswith(("In other words", "Biographers"))


def test_the_truth_ratio_does_not_ask_for_the_false_answer_that_was_learned(people):
    asked = {r.id: r for r in measured(people).evaluation["forget"]}
    for record, own in zip(training_records(people, "false_answers"), people.train, strict=True):
        if own.id in people.forget_ids:
            wrong = asked[own.id].perturbed_answers
            assert len(wrong) == 4 and not any(record.answer in text for text in wrong)
            assert asked[own.id].answer == own.answer and own.answer in asked[own.id].paraphrased_answer


def test_too_few_other_people_and_records_without_false_answers_are_told(people):
    few = dataclasses.replace(people, evaluation={"reference": people.evaluation["reference"][:11]})
    with pytest.raises(ValueError, match="fewer records about other people"):
        training_records(few, "other_people")
    bare = dataclasses.replace(people, train=tuple(dataclasses.replace(r, perturbed_answers=()) for r in people.train))
    with pytest.raises(ValueError, match="has no perturbed answer"):
        training_records(bare, "false_answers")
