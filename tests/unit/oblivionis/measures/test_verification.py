"""What is measured at exchanges, what a client may report, and what follows from it."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oblivionis.config import compose as configuration
from oblivionis.config.schema import Requests
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_evidence import ESTIMATED, RETRAINED, WRONG_ANSWERS, Exchange, Likelihood
from oblivionis.erasure.verification_records import MOMENTS, exchanges, exchanges_of
from oblivionis.erasure.verification_rules import Thresholds
from oblivionis.measures.audit_numbers import NAMES, check_numbers, judge_numbers, own_names
from oblivionis.measures.verification import Verification
from oblivionis.runs.directory import Checkpoint, RunDirectory

THRESHOLDS = Thresholds.of(Requests())
REPORTED = {"request_rouge": 0.4, "request_recited": 1, "request_short": 0, "forget_records": 3, "request_prob": 0.2}


def test_sound_numbers_pass():
    assert check_numbers(REPORTED, 3, THRESHOLDS) == {name: float(value) for name, value in REPORTED.items()}
    leaks = {"leakage_m_bin": 0.1, "leakage_mu_lower": 0.0, "leakage_mean": 0.1, "leakage_mu_upper": 0.2}
    assert check_numbers({**REPORTED, **leaks, "leakage_samples": 64, "leakage_questions": 3}, 3, THRESHOLDS)


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
        {"request_likely": 3.0, "request_recited": 1.0, "request_expected": 0.2},
        {"request_likely": -1.0, "request_expected": 0.2},
        {"request_likely": 1.0},
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
        check_numbers({**REPORTED, **wrong}, 3, THRESHOLDS)


@pytest.mark.parametrize("missing", ["request_rouge", "request_recited", "request_short", "forget_records"])
def test_what_a_verification_goes_by_must_be_told(missing):
    with pytest.raises(ValueError, match=f"{missing} is missing"):
        check_numbers({name: value for name, value in REPORTED.items() if name != missing}, 3, THRESHOLDS)
    assert not any("quality" in name for name in NAMES), "that needs the retrained model"


# -- what exchanges did ------------------------------------------------------------------------------------------


class Knows:
    """An assessor that reads what a model knows off its vector: recall, likelihood, and what it is compared with."""

    def __init__(self, estimated=True):
        self.corpus: Any = SimpleNamespace(train=(), forget_ids=frozenset())
        self.estimated, self.asked = estimated, []

    def knowledge(self, vector, ids, *, rouge):
        self.asked.append(list(ids))
        found = {"prob": {i: float(vector[1]) for i in ids}}
        return found | ({"rouge": {i: float(vector[0]) for i in ids}} if rouge else {})

    def units(self, ids):
        return dict.fromkeys(ids, 9)

    def never_seen(self, vector, ids):
        return {i: float(vector[2]) for i in ids} if self.estimated else {}

    def wrong_answers(self, vector, ids):
        return {i: float(vector[2]) / 2 for i in ids if i != "b"}


def model(recall, prob, reference=0.2):
    return np.array([recall, prob, reference], np.float32)


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def verification(run, assessor):
    return Verification(run, configuration.compose("smoke", []), assessor, "unlearn")


def values(prob, reference, beside):
    return Likelihood(pytest.approx(prob), None if reference is None else pytest.approx(reference), beside)


def test_every_record_is_measured_right_before_and_right_after_the_exchange_that_serves_it(run):
    looks = verification(run, Knows())
    ids = tuple(f"r{i}" for i in range(50))
    looks.exchanged([Request("a", 0, ids, 1), Request("none", 1, (), 1)], [], 1, model(1.0, 0.74), model(0.1, 0.25))
    assert [row["moment"] for row in run.metrics()] == list(MOMENTS)
    found = exchanges_of(run, "unlearn")
    assert found.keys() == {"a"} and found["a"].keys() == set(ids)
    (measured,) = found["a"]["r7"]
    assert measured == Exchange(1.0, pytest.approx(0.1), pytest.approx(0.74), values(0.25, 0.2, ESTIMATED))
    assert exchanges_of(run, "retrain") == {}


def test_what_is_served_again_is_measured_until_an_exchange_did_what_it_should(run):
    assessor = Knows()
    looks = verification(run, assessor)
    a, b, c, d = (Request(name, 0, (f"{name}-record",), 1) for name in "abcd")
    looks.exchanged([a], [], 1, model(1.0, 0.74), model(0.1, 0.25))
    looks.exchanged([b], [], 2, model(1.0, 0.74), model(0.6, 0.25))
    looks.exchanged([c], [], 3, model(1.0, 0.74), model(0.1, 0.74))
    looks.exchanged([d], [], 4, model(0.4, 0.3), model(0.4, 0.2))
    assessor.asked.clear()
    looks.exchanged([], [a], 5, model(0.1, 0.2), model(0.1, 0.2))
    assert assessor.asked == [] and len(run.metrics()) == 8, "its first exchange did it"
    looks.exchanged([], [a, b, c, d], 6, model(0.6, 0.5), model(0.5, 0.5))
    assert assessor.asked == [["b-record", "c-record", "d-record"]] * 2
    found = exchanges_of(run, "unlearn")
    assert {name: len(of[f"{name}-record"]) for name, of in found.items()} == {"a": 1, "b": 2, "c": 2, "d": 2}
    assert [e.after for e in found["b"]["b-record"]] == [pytest.approx(0.6), 0.5], "in their order"
    looks.exchanged([], [c], 7, model(0.1, 0.74), model(0.6, 0.2))
    assessor.asked.clear()
    looks.exchanged([], [c], 8, model(0.6, 0.2), model(0.1, 0.2))
    assert assessor.asked == [["c-record"]] * 2, "the last of its exchanges left it recited"


def test_a_likelihood_is_compared_with_the_retrained_models_then_an_estimate_then_wrong_answers(run, monkeypatch):
    def compared(assessor):
        looks = verification(run, assessor)
        looks.exchanged([Request("x", 0, ("a", "b", "c"), 1)], [], 1, model(1.0, 0.74), model(0.1, 0.25))
        of = exchanges_of(run, "unlearn")["x"]
        run.forget_metrics_after("unlearn", 0)
        return {i: (found[0].left.reference, found[0].left.compared_with) for i, found in of.items()}

    assert compared(Knows()) == dict.fromkeys("abc", (pytest.approx(0.2), ESTIMATED))
    half = (pytest.approx(0.1), WRONG_ANSWERS)
    assert compared(Knows(estimated=False)) == {"a": half, "c": half, "b": (None, "")}
    run.finish_stage("retrain", {"stage": "retrain", "rounds": 1, "metrics": {}, "seconds": 1.0}, None)
    run.save_checkpoint(Checkpoint("retrain", 1, model(0.0, 0.15), {}, {}), keep=1)
    twins = "oblivionis.measures.verification.twins_of_requests"
    monkeypatch.setattr(twins, lambda corpus, ids: ({}, frozenset({"c"})))
    oracle, estimate = (pytest.approx(0.15), RETRAINED), (pytest.approx(0.2), ESTIMATED)
    assert compared(Knows()) == {"a": oracle, "b": oracle, "c": estimate}, "the retrained model has seen c"


def test_rows_without_their_other_half_tell_of_no_exchange(run):
    head = {"stage": "unlearn", "evaluator": "requests", "metrics": {}}
    first = {"a": {"i": {"rouge": 1.0, "prob": 0.9}, "j": {"rouge": 1.0, "prob": 0.9}}}
    run.append_metrics(
        [
            {**head, "round": 1, "moment": MOMENTS[0], "requests": first},
            {**head, "round": 1, "moment": MOMENTS[1], "requests": {"a": {"i": {"rouge": 0.1, "prob": 0.2}}}},
            {**head, "round": 2, "moment": MOMENTS[0], "requests": first},
        ]
    )
    assert exchanges_of(run, "unlearn") == {"a": {"i": (Exchange(1.0, 0.1, 0.9, Likelihood(0.2)),)}}
    assert len(exchanges(run, "unlearn", MOMENTS[0])) == 2


# -- by the numbers of a client ----------------------------------------------------------------------------------


def reported(recited, prob=0.2, expected=None, **more):
    numbers = {"request_rouge": 0.9 if recited else 0.1, "request_recited": recited, "request_short": 0.0}
    numbers |= {"request_prob": prob, "forget_records": 2.0} | more
    return numbers if expected is None else {**numbers, "request_expected": expected}


@pytest.mark.parametrize(
    ("before", "after", "final", "outcome", "why"),
    [
        (reported(2), reported(0), reported(0), "verified", "all 2 records"),
        (reported(2), reported(1), reported(0), "not verified", "right after the exchange 1 of 2"),
        (reported(2), reported(0), reported(1), "not verified", "the final model recites 1 of 2"),
        (reported(2), None, reported(0), "inconclusive", "right after the exchange was not asked"),
        (None, reported(0), reported(0), "inconclusive", "before the exchange was not asked"),
        (
            reported(2, 0.74),
            reported(0, 0.74, 0.2),
            reported(0, 0.33, 0.2),
            "inconclusive",
            "right after the exchange their answers",
        ),
        (
            reported(2, 0.74),
            reported(0, 0.2, 0.2),
            reported(0, 0.74, 0.2),
            "inconclusive",
            "in the final model their answers",
        ),
        (reported(2, 0.74), reported(0, 0.33, 0.2), reported(0, 0.33, 0.2), "verified", ""),
        (reported(2, 0.74), reported(0, 0.74), reported(0, 0.74), "verified", "all 2 records"),
        (
            reported(1, request_likely=1.0),
            reported(0, request_likely=0.0),
            reported(0, request_likely=0.0),
            "verified",
            "1 of 2 records: recited before its exchange, not after it, and not in the final model; 1: far likelier",
        ),
        (reported(1, request_likely=1.0), reported(0), reported(0), "inconclusive", "only 1 of 2"),
        (reported(2), reported(0), reported(0, request_twins=1.0), "inconclusive", "1 of its records is also held"),
        (reported(2), reported(0), reported(0, failed_evaluators=1.0), "inconclusive", "1 evaluators failed"),
        (reported(2, model_utility=0.8), reported(0), reported(0, model_utility=0.1), "inconclusive", "ruined model"),
    ],
)
def test_a_request_by_what_its_client_measured(before, after, final, outcome, why):
    numbers = {m: of for m, of in (("before", before), ("after", after), ("final", final)) if of is not None}
    found = judge_numbers(THRESHOLDS, numbers, 2)
    assert found is not None and (found.outcome, found.recall) == (outcome, final["request_rouge"])
    assert why in found.why
    ruined = judge_numbers(THRESHOLDS, numbers, 2, ruined="not finite")
    assert ruined is not None and ruined.outcome == ("not verified" if outcome == "not verified" else "inconclusive")
    assert judge_numbers(THRESHOLDS, {m: of for m, of in numbers.items() if m != "final"}, 2) is None


def test_of_a_later_exchange_counts_what_was_known_and_useful_before_the_first():
    later = {
        "before": reported(2, 0.3, model_utility=0.1),
        "after": reported(0, 0.3, 0.1),
        "final": reported(0, 0.2, 0.2),
    }
    later["final"] |= {"model_utility": 0.1}
    alone = judge_numbers(THRESHOLDS, later, 2)
    assert alone is not None and alone.why.startswith("right after the exchange their answers are still far likelier")
    known = judge_numbers(THRESHOLDS, later, 2, first=reported(2, 0.95, model_utility=0.1))
    assert known is not None and known.outcome == "verified", "√(0.1 · 0.95) = 0.31: more than half of the way is gone"
    useful = judge_numbers(THRESHOLDS, later, 2, first=reported(2, 0.95, model_utility=0.8))
    assert useful is not None and useful.outcome == "inconclusive" and "ruined model" in useful.why


def test_the_numbers_of_a_request_by_their_short_names():
    assert own_names({"request_rouge": 0.1, "ruler_mean_rank": 0.5}) == {"rouge": 0.1, "ruler_mean_rank": 0.5}
    assert check_numbers({**REPORTED, "request_expected": 0.2}, 3, THRESHOLDS)["request_expected"] == 0.2
    with pytest.raises(ValueError, match="request_expected"):
        check_numbers({**REPORTED, "request_expected": 1.5}, 3, THRESHOLDS)
