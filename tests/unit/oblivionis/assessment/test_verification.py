"""What makes the silence of a model worth nothing, and what a client may tell."""

import math

import numpy as np
import pytest

from oblivionis.assessment.audit_numbers import NAMES, check_numbers
from oblivionis.assessment.verification import doubt, moved

BEFORE = {"model_utility": 0.8}
TOLD = {"request_rouge": 0.4, "request_recited": 1, "request_short": 0, "forget_records": 3, "request_prob": 0.2}


@pytest.mark.parametrize(
    ("failed", "metrics", "before", "why"),
    [
        ({}, {"model_utility": 0.4}, BEFORE, ""),
        ({}, {"model_utility": 0.39}, BEFORE, "below 0.5"),
        ({}, {"model_utility": 0.0}, BEFORE, "below 0.5"),
        ({}, {"model_utility": math.nan}, BEFORE, "no number"),
        ({}, {}, BEFORE, "no number"),
        ({"tofu": "inf"}, {"model_utility": 0.8}, BEFORE, "tofu failed"),
        ({}, {"retain_prob": 0.1}, {"model_utility": 0.0, "retain_prob": 0.9}, "retain_prob"),
        ({}, {"model_utility": 0.1}, {}, ""),
    ],
)
def test_a_ruined_model_is_told(failed, metrics, before, why):
    found = doubt(failed, metrics, before, 0.5)
    assert (why in found) if why else found == ""


@pytest.mark.parametrize(("value", "why"), [(1e30, "times their own norm"), (math.inf, "not finite"), (1.5, "")])
def test_weights_that_cannot_be(value, why):
    start = np.ones(4, np.float32)
    found = moved(np.full(4, value, np.float32), start)
    assert (why in found) if why else found == ""


def test_sound_numbers_pass():
    assert check_numbers(TOLD, 3, 0.5) == {name: float(value) for name, value in TOLD.items()}
    leaks = {"leakage_m_bin": 0.1, "leakage_mu_lower": 0.0, "leakage_mean": 0.1, "leakage_mu_upper": 0.2}
    assert check_numbers({**TOLD, **leaks, "leakage_samples": 64, "leakage_questions": 3}, 3, 0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"request_rouge": 1.5},
        {"request_rouge": math.nan},
        {"request_rouge": True},
        {"request_rouge": "0.4"},
        {"request_rouge": [0.4]},
        {"request_rouge": 10**400},
        {"request_rouge": None},
        {"request_prob": -0.1},
        {"request_prob": math.inf},
        {"Mara Voss": 1.0},
        {"request_recited": 4},
        {"request_recited": 0.5},
        {"request_recited": -1},
        {"request_recited": 0, "request_rouge": 0.9},
        {"request_recited": 3, "request_rouge": 0.1},
        {"request_short": 3},
        {"request_twins": 4},
        {"request_twins": 0.5},
        {"forget_records": 2},
        {"forget_records": 1e12},
        {"leakage_m_bin": -1.0},
        {"leakage_m_bin": 0.0},
        {"leakage_samples": -5.0},
        {"leakage_samples": 64.0},
        {"leakage_samples": 1e12, "leakage_questions": 1.0},
        {"leakage_samples": 64.0, "leakage_questions": 4.0},
        {"leakage_samples": 64.0, "leakage_questions": 2.5},
        {"leakage_mu_lower": 0.5, "leakage_mu_upper": 0.2},
        {"leakage_mean": 0.5, "leakage_mu_upper": 0.2},
        {"ruler_mean_rank": 1.2},
        {"ruler_mean_rank": -1e300},
        {"fluency_forget_nll": -1.0},
        {"wikimem_forget_strict": 0.5, "wikimem_forget_lenient": 0.4},
        {"failed_evaluators": 0.3},
    ],
)
def test_numbers_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError):
        check_numbers({**TOLD, **wrong}, 3, 0.5)


@pytest.mark.parametrize("missing", ["request_rouge", "request_recited", "request_short", "forget_records"])
def test_what_a_verification_goes_by_must_be_told(missing):
    with pytest.raises(ValueError, match=f"{missing} is missing"):
        check_numbers({name: value for name, value in TOLD.items() if name != missing}, 3, 0.5)
    assert not any("quality" in name for name in NAMES), "that needs the retrained model"
