"""Metrics of one answer against their definitions and hand numbers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from evaluation.metrics import answer_metrics


def test_probability() -> None:
    np.testing.assert_allclose(answer_metrics.probability([0.0, math.log(4)]), [1.0, 0.25])


def test_truth_ratio_by_hand() -> None:
    # P(right) = 1/2; P(wrong) = 1/4 and 1/16: geometric mean 1/8, arithmetic mean 5/32.
    right, wrong = math.log(2), [math.log(4), math.log(16)]
    assert answer_metrics.truth_ratio(right, wrong) == pytest.approx(1 / 4)
    assert answer_metrics.truth_ratio(right, wrong, "arithmetic") == pytest.approx(5 / 16)
    both = answer_metrics.truth_ratio(np.array([right, right]), np.array([wrong, [right, right]]), "arithmetic")
    np.testing.assert_allclose(both, [5 / 16, 1.0])


def test_truth_ratio_bad_arguments() -> None:
    with pytest.raises(ValueError, match="unknown truth ratio convention 'harmonic'"):
        answer_metrics.truth_ratio(1.0, [1.0], "harmonic")
    with pytest.raises(ValueError, match="at least one wrong answer"):
        answer_metrics.truth_ratio(1.0, [])


def test_extraction_strength_and_exact_memorisation_by_definition() -> None:
    for hits in (bits for length in range(1, 7) for bits in itertools.product([False, True], repeat=length)):
        length = len(hits)
        smallest = min(k for k in range(length + 1) if all(hits[k:]))
        assert answer_metrics.extraction_strength(hits) == pytest.approx(1 - smallest / length)
        assert answer_metrics.exact_memorization(hits) == pytest.approx(sum(hits) / length)


def test_metrics_of_an_empty_answer_are_undefined() -> None:
    with pytest.raises(ValueError, match="empty answer"):
        answer_metrics.extraction_strength([])
    with pytest.raises(ValueError, match="empty answer"):
        answer_metrics.exact_memorization([])
