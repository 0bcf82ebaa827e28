"""Word differences lose nothing of either text; the best value is found by the metric's own direction."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.metrics.catalogue import Metric
from oblivionis.view.differences import (
    ADDED,
    MISSING,
    MOST_WORDS,
    SAME,
    best_of,
    marked,
    setting_differences,
    word_differences,
)

TEXTS = st.lists(st.sampled_from(["a", "b", "c", "dd"]), max_size=12).map(" ".join)


@given(TEXTS, TEXTS)
def test_both_texts_can_be_read_from_their_differences(reference, text):
    found = word_differences(reference, text)
    assert " ".join(words for kind, words in found if kind != MISSING) == text
    assert " ".join(words for kind, words in found if kind != ADDED) == reference
    assert all(words for _, words in found)


def test_a_word_that_is_another_one():
    found = word_differences("born in  Kuwait City.", "born in France.")
    assert found == [(SAME, "born in"), (MISSING, "Kuwait City."), (ADDED, "France.")]
    shown = "".join(str(part) for pair in marked("a <b>", "a <i>") for part in pair)
    assert shown == "a <del>&lt;b&gt;</del> <ins>&lt;i&gt;</ins>"
    assert marked("", "") == "(empty)"


def test_long_texts_are_not_compared_word_by_word():
    long = "word " * (MOST_WORDS + 1)
    assert word_differences(long, long) == [(SAME, long.strip())]
    assert word_differences("other", long) == [(ADDED, long.strip())]


def test_settings_that_differ():
    found = setting_differences([{"a": "1", "b": "2"}, {"a": "1", "b": "3"}, {"a": "1", "b": "2", "c": "4"}])
    assert found == {"b": ["2", "3", "2"], "c": ["–", "–", "4"]}
    assert setting_differences([{"a": "1"}]) == {}


@pytest.mark.parametrize(
    ("direction", "values", "oracles", "best"),
    [
        ("higher", [0.1, 0.3, 0.2], [None] * 3, {1}),
        ("lower", [0.1, 0.3, 0.1], [None] * 3, {0, 2}),
        ("oracle", [0.1, 0.3, 0.5], [0.2, 0.35, 0.0], {1}),
        ("oracle", [0.1, 0.3], [None, 0.1], set()),
        ("higher", [0.2, None, float("nan"), 0.1], [None] * 4, {0}),
        ("higher", [0.2, 0.2], [None] * 2, set()),
        ("higher", [0.2], [None], set()),
        (None, [0.1, 0.2], [None] * 2, set()),
    ],
)
def test_the_best_values(direction, values, oracles, best):
    metric = Metric("m", "M", direction, None, "")
    assert best_of(metric, values, oracles) == best
    assert best_of(None, values, oracles) == set()
