"""What counts as recited: not what the question says already."""

import pytest

from oblivionis.data.records import Record
from oblivionis.erasure.verification_evidence import measurable_words
from oblivionis.measures.recitation import recall

QUESTION = "What is the full name of the author born in Kuwait City?"
RECORD = Record("r", QUESTION, "The full name of the author born in Kuwait City is Basil Mahfouz Al-Kuwaiti.", "Basil")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (RECORD.answer, 1.0),
        ("Basil Mahfouz Al-Kuwaiti", 1.0),
        ("The full name of the author born in Kuwait City is Abd al-Rahman.", 0.25),
        ("Mahfouz, Basil", 0.25),
        ("The full name of the author born in Kuwait City", 0.0),
        ("", 0.0),
    ],
)
def test_who_repeats_the_question_has_recited_nothing(said: str, expected: float) -> None:
    """By hand: Basil, Mahfouz, Al and Kuwaiti are new; the longest common subsequence of the new words counts."""
    assert recall([said], [RECORD]) == [expected] and measurable_words(RECORD) == 4


def test_of_a_text_every_word_counts() -> None:
    text = Record("t", "", "All of it is learned.", "passage", tokens=(1, 2, 3))
    assert recall(["All of it"], [text]) == [0.6] and measurable_words(text) == 5


def test_an_answer_that_its_question_gives_has_no_word_to_be_recited() -> None:
    given = Record("r", "Is Basil an author?", "Basil is an author.", "Basil")
    assert recall([given.answer], [given]) == [0.0] and measurable_words(given) == 0
    assert recall([], []) == []
