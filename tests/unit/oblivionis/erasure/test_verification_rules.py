"""What may be said of a request: by hand-made evidence, and by trying every combination of it."""

import itertools
import math

import numpy as np
import pytest

from oblivionis.config.schema import Certificate, Requests
from oblivionis.erasure.verification_evidence import (
    ESTIMATED,
    RETRAINED,
    WRONG_ANSWERS,
    Exchange,
    ExchangeCounts,
    Likelihood,
    RecordEvidence,
    RequestCounts,
    RequestRecords,
)
from oblivionis.erasure.verification_rules import (
    INCONCLUSIVE,
    LEAST_UNITS,
    MEANING,
    NO_RECITATION,
    NOT_TESTABLE,
    NOT_VERIFIED,
    OUTCOMES,
    OVER_UNLEARNED,
    VERIFIED,
    Thresholds,
    far_likelier,
)

LIMIT = 0.5
THRESHOLDS = Thresholds(LIMIT, 1.0, 0.5)


def judge(records, *, min_testable=1.0, **more):
    return Thresholds(LIMIT, min_testable, 0.5).judge(RequestRecords(dict(records), **more))


def judge_exchanges(records, *, min_testable=1.0):
    return Thresholds(LIMIT, min_testable, 0.5).judge_exchanges(RequestRecords(dict(records)))


def judge_counts(records, before, recited, after, *, min_testable=1.0, **more):
    *of_exchange, more["likely"] = more.pop("likely", (None, None, None))
    exchange = ExchangeCounts(before, after, more.pop("known", None), more.pop("left", None), *of_exchange)
    found = Thresholds(LIMIT, min_testable, 0.5).judge(RequestCounts(records, recited, exchange, **more))
    assert found.records == {} and found.recall == 0.0
    return found.outcome, found.why


def numbered(records):
    return {str(i): record for i, record in enumerate(records)}


def exchange(before=1.0, after=0.1, known=0.9, left=0.1, reference=None, beside=""):
    return Exchange(before, after, known, Likelihood(left, reference, beside))


def record(*exchanges, final=0.1, before=1.0, likelihood=None, units=9, oracle=0.1):
    return RecordEvidence(units, final, before, oracle, exchanges, likelihood)


ENDED = (exchange(),)
GONE = record(*ENDED)
RECITED = record(*ENDED, final=0.9)
NEVER = record(exchange(0.0, 0.0), final=0.0, before=0.5, oracle=0.0)
SHORT = record(*ENDED, units=LEAST_UNITS - 1, final=0.0, oracle=0.0)
NOTHING_DONE = record(exchange(1.0, 1.0, 0.74, 0.74), final=0.222)


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (GONE, VERIFIED),
        (RecordEvidence(9, 0.5, 0.51, None, (exchange(0.51, 0.5),)), VERIFIED),
        (RecordEvidence(9, 0.5, 0.51, None, (exchange(0.5, 0.5),)), INCONCLUSIVE),
        (RecordEvidence(9, 0.5, 0.51, None, (exchange(0.51, 0.51),)), NOT_VERIFIED),
        (RecordEvidence(9, 0.0, 1.0), INCONCLUSIVE),
        (NOTHING_DONE, NOT_VERIFIED),
        (RECITED, NOT_VERIFIED),
        (RecordEvidence(9, 0.51, 0.1), NOT_VERIFIED),
        (RecordEvidence(9, 0.9, 1.0, 0.9), NOT_TESTABLE),
        (RecordEvidence(9, 0.9, 1.0, 0.89), NOT_VERIFIED),
        (NEVER, NOT_TESTABLE),
        (SHORT, NOT_TESTABLE),
        (RecordEvidence(1, 1.0, 1.0), NOT_TESTABLE),
        (record(exchange(1.0, 2 / 3), units=3, final=2 / 3), VERIFIED),
        (record(exchange(2 / 3, 0.0), units=3, before=2 / 3, final=0.0), NOT_TESTABLE),
        (record(exchange(2 / 3, 1 / 3), units=3, before=1.0, final=0.0), INCONCLUSIVE),
        (record(exchange(1.0, 1.0), units=3), NOT_VERIFIED),
        (record(exchange(0.75, 0.5), units=4, before=0.75), VERIFIED),
        (record(*ENDED, units=LEAST_UNITS, final=0.0), VERIFIED),
        (record(exchange(1.0, 0.9), final=0.0, oracle=0.9), NOT_TESTABLE),
        (record(exchange(1.0, 0.9), final=0.0, oracle=0.89), NOT_VERIFIED),
        (record(exchange(1.0, 1.0), final=0.0, units=LEAST_UNITS - 1), NOT_TESTABLE),
        (record(exchange(1.0, 0.9), exchange(0.9, 0.1)), VERIFIED),
        (record(exchange(1.0, 0.1), exchange(0.6, 0.6)), NOT_VERIFIED),
        (record(exchange(1.0, 1.0), exchange(0.2, 0.2)), INCONCLUSIVE),
        (RecordEvidence(LEAST_UNITS, 1.0, 1.0), NOT_VERIFIED),
        (RecordEvidence(9, 0.0, None), INCONCLUSIVE),
    ],
)
def test_one_record(found, outcome):
    assert THRESHOLDS.judge_record(found)[0] == outcome


@pytest.mark.parametrize(
    ("records", "more", "outcome", "why"),
    [
        ([GONE, GONE], {}, VERIFIED, "all 2 records were recited before"),
        ([GONE, RECITED], {}, NOT_VERIFIED, "recites 1 of 2"),
        ([GONE, NEVER], {}, INCONCLUSIVE, "1 of 2 verified"),
        ([NEVER, RecordEvidence(9, 0.0)], {}, INCONCLUSIVE, "none of 2 verified; of the others, mostly: "),
        ([GONE, NEVER], {"min_testable": 0.5}, VERIFIED, "did not recite it before"),
        ([GONE, NEVER, NEVER], {"min_testable": 0.5}, INCONCLUSIVE, "1 of 3 verified"),
        ([NEVER], {"min_testable": 0.01}, NOT_TESTABLE, "did not recite it before"),
        ([SHORT, SHORT], {}, NOT_TESTABLE, "measurable words"),
        ([GONE], {"inconclusive_reason": "ruined"}, INCONCLUSIVE, "ruined"),
        ([RECITED], {"inconclusive_reason": "ruined"}, NOT_VERIFIED, "recites"),
        ([NOTHING_DONE], {}, NOT_VERIFIED, "right after the exchange its record was still recited"),
        (
            [NOTHING_DONE, GONE],
            {"inconclusive_reason": "ruined"},
            NOT_VERIFIED,
            "right after the exchange 1 of 2 were still recited",
        ),
        ([RECITED, NOTHING_DONE], {}, NOT_VERIFIED, "the final model recites 1 of 2"),
    ],
)
def test_a_request(records, more, outcome, why):
    found = judge(numbered(records), **more)
    assert found.outcome == outcome and why in found.why
    assert found.recall == pytest.approx(sum(r.final for r in records) / len(records))


def beside_oracle(left, final, known=0.9, count=7):
    """As many records as can be compared, all alike, right after their exchange and in the final model."""
    of = [Likelihood(prob, 0.2, RETRAINED) for prob in (left, final)]
    return [record(Exchange(1.0, 0.1, known, of[0]), likelihood=of[1])] * count


@pytest.mark.parametrize(
    ("records", "outcome", "why"),
    [
        (beside_oracle(0.2, 0.2), VERIFIED, "all 7 records"),
        (beside_oracle(0.4, 0.4), VERIFIED, "all 7 records"),
        (beside_oracle(0.2, 0.41), NOT_VERIFIED, "if not recited"),
        (beside_oracle(0.41, 0.2), NOT_VERIFIED, "right after the exchange the answers were far likelier"),
        (beside_oracle(0.2, 0.09), OVER_UNLEARNED, "far less likely"),
        (beside_oracle(0.09, 0.2), VERIFIED, "all 7 records"),
        (beside_oracle(0.45, 0.2, count=6), INCONCLUSIVE, "6 of 6 records: right after its exchange"),
        (beside_oracle(0.2, 0.45, count=1), INCONCLUSIVE, "in the final model its answer is still far likelier"),
        (beside_oracle(0.2, 0.09, count=6), VERIFIED, "all 6 records"),
    ],
)
def test_a_request_beside_the_retrained_model(records, outcome, why):
    """Seven differences of one sign have the p-value 2^-7, below 0.01; six have 2^-6, and tell nothing of the mean."""
    found = judge(numbered(records))
    assert found.outcome == outcome and why in found.why
    doubted = judge(numbered(records), inconclusive_reason="ruined")
    assert doubted.outcome == (NOT_VERIFIED if why.startswith("right after the exchange the") else INCONCLUSIVE)


def test_the_word_beside_the_retrained_model_asks_that_model_alone():
    estimated = [record(Exchange(1.0, 0.1, 0.9, Likelihood(0.9, 0.1, ESTIMATED)))] * 7
    for records in (estimated, [*beside_oracle(0.9, 0.2)[:6], *estimated]):
        found = judge(numbered(records))
        assert (found.outcome, found.knows) == (INCONCLUSIVE, "") and judge_exchanges(numbered(records))[0] != VERIFIED
    assert judge(numbered([RecordEvidence(9, 0.0)] * 7)).knows == ""
    assert judge(numbered(beside_oracle(0.2, 0.2))).knows == ""
    for left in (0.2, 0.9):
        assert judge(numbered(beside_oracle(left, 0.0))).knows == OVER_UNLEARNED
        assert judge(numbered(beside_oracle(left, 0.9))).knows == NOT_VERIFIED


@pytest.mark.parametrize(
    ("prob", "reference", "known", "far"),
    [
        (0.74, 0.2, 0.74, True),
        (0.33, 0.2, 0.74, False),  # 1.65 times as likely
        (0.4, 0.2, 0.4, False),  # twice as likely, not more
        (0.401, 0.2, 0.401, True),
        (0.42, 0.2, 0.9, False),  # √(0.2 · 0.9) = 0.424: more than half of the way is gone
        (0.43, 0.2, 0.9, True),
        (0.212, 0.112, 0.994, False),
        (0.9, None, 0.9, False),
        (1e-3, 0.0, 0.9, True),
        (0.0, 0.0, 0.9, False),
    ],
)
def test_far_likelier_is_twice_as_likely_and_less_than_half_of_the_way(prob, reference, known, far):
    assert far_likelier(Likelihood(prob, reference), known) is far


def test_an_answer_that_an_exchange_left_far_likelier_is_not_forgotten_whatever_the_share():
    """0.74 right after the exchange, 0.33 once training went on, 0.2 in a model that never saw it."""
    for beside in (RETRAINED, ESTIMATED, WRONG_ANSWERS):
        left = record(exchange(1.0, 0.4, 0.74, 0.74, 0.2, beside), likelihood=Likelihood(0.33, 0.2, beside))
        assert THRESHOLDS.judge_record(left)[0] == INCONCLUSIVE and beside in THRESHOLDS.judge_record(left)[1]
        found = judge({"a": left, "b": GONE}, min_testable=0.5)
        assert found.outcome == INCONCLUSIVE and "1 of 2 records: right after its exchange" in found.why
        untested = record(exchange(0.0, 0.0, 0.74, 0.74, 0.2, beside), final=0.0, before=0.1)
        assert THRESHOLDS.judge_record(untested)[0] == INCONCLUSIVE, (
            "recitation tells nothing of it, its likelihood does"
        )
    came_back = record(exchange(1.0, 0.1, 0.74, 0.2, 0.2), likelihood=Likelihood(0.7, 0.2, RETRAINED))
    assert THRESHOLDS.judge_record(came_back) == (
        INCONCLUSIVE,
        "in the final model its answer is still far likelier than in the retrained model",
    )


@pytest.mark.parametrize(
    ("exchanges", "outcome", "why"),
    [
        (ENDED, VERIFIED, "made the model forget its record"),
        ((exchange(1.0, 1.0),), NOT_VERIFIED, "right after the exchange its record was still recited"),
        ((exchange(1.0, 1.0), exchange(0.2, 0.2)), INCONCLUSIVE, "no exchange began with a model that knew it"),
        ((exchange(1.0, 0.8), exchange(0.8, 0.2)), VERIFIED, ""),
        ((exchange(0.0, 0.0),), INCONCLUSIVE, "no exchange began"),
        ((exchange(0.0, 0.0, 0.9, 0.2, 0.2),), VERIFIED, ""),
        ((exchange(0.0, 0.0, 0.9, 0.9, 0.2), exchange(0.0, 0.0, 0.2, 0.2, 0.2)), INCONCLUSIVE, "no exchange began"),
        ((exchange(1.0, 0.1, 0.9, 0.9, 0.2, ESTIMATED),), INCONCLUSIVE, "far likelier than in a model"),
        ((), INCONCLUSIVE, "no model was asked"),
    ],
)
def test_what_the_exchanges_did_whatever_the_final_model_knows(exchanges, outcome, why):
    for final in (0.0, 1.0):
        found = judge_exchanges({"a": record(*exchanges, final=final)})
        assert found[0] == outcome and why in found[1]


LIKELY_BEFORE = Exchange(0.0, 0.0, 0.9, Likelihood(0.4, 0.2, RETRAINED))


@pytest.mark.parametrize(
    ("exchange", "now", "units", "outcome"),
    [
        (LIKELY_BEFORE, Likelihood(0.4, 0.2, RETRAINED), 9, VERIFIED),
        (LIKELY_BEFORE, Likelihood(0.42, 0.2, RETRAINED), 1, VERIFIED),  # √(0.2 · 0.9) = 0.424
        (LIKELY_BEFORE, Likelihood(0.43, 0.2, RETRAINED), 9, INCONCLUSIVE),
        (LIKELY_BEFORE, Likelihood(0.0, 0.2, RETRAINED), 9, VERIFIED),
        (LIKELY_BEFORE, None, 9, NOT_TESTABLE),
        (LIKELY_BEFORE, Likelihood(0.2, 0.2, WRONG_ANSWERS), 9, NOT_TESTABLE),
        (LIKELY_BEFORE, Likelihood(0.2, None), 9, NOT_TESTABLE),
        (Exchange(0.0, 0.0, 0.4, Likelihood(0.2, 0.2, RETRAINED)), Likelihood(0.2, 0.2, RETRAINED), 9, NOT_TESTABLE),
        (Exchange(0.0, 0.0, 0.9, Likelihood(0.43, 0.2, RETRAINED)), Likelihood(0.2, 0.2, RETRAINED), 9, INCONCLUSIVE),
        (Exchange(0.0, 0.0, 0.9, Likelihood(0.2, 0.2, ESTIMATED)), Likelihood(0.2, 0.2, ESTIMATED), 9, VERIFIED),
        (
            Exchange(0.0, 0.0, 0.9, Likelihood(0.2, 0.2, WRONG_ANSWERS)),
            Likelihood(0.2, 0.2, WRONG_ANSWERS),
            9,
            NOT_TESTABLE,
        ),
    ],
)
def test_where_recitation_cannot_tell_the_likelihood_of_the_answer_may(exchange, now, units, outcome):
    """Far likelier before the exchange than to a model that never saw it, and not ever since."""
    quiet = RecordEvidence(units, 0.0, 0.4, 0.0, (exchange,), now)
    assert THRESHOLDS.judge_record(quiet)[0] == outcome
    if outcome == VERIFIED:
        assert now is not None and now.compared_with in THRESHOLDS.judge_record(quiet)[1]
        assert THRESHOLDS.is_done(quiet.exchanges, 9)
        aloud = RecordEvidence(9, 0.51, 1.0, 0.0, (exchange,), now)
        assert THRESHOLDS.judge_record(aloud)[0] == NOT_VERIFIED, "what is recited is known, however unlikely"


def test_a_last_exchange_that_nothing_is_compared_with_leaves_open_what_an_earlier_one_did():
    uncompared = Exchange(0.0, 0.0, 0.9, Likelihood(0.9, None))
    found = RecordEvidence(9, 0.0, 0.4, 0.0, (LIKELY_BEFORE, uncompared), Likelihood(0.2, 0.2, RETRAINED))
    assert THRESHOLDS.judge_record(found)[0] == NOT_TESTABLE


def test_a_request_says_by_which_test_its_records_are_verified():
    quiet = RecordEvidence(9, 0.0, 0.4, 0.0, (LIKELY_BEFORE,), Likelihood(0.2, 0.2, RETRAINED))
    far = "far likelier than in the retrained model before its exchange, not after it, and not in the final model"
    recited = "recited before its exchange, not after it, and not in the final model"
    for records, why in (
        ([quiet], f"its answer was {far}"),
        ([quiet, quiet], f"all 2 records: {far}"),
        ([GONE, quiet], f"1 of 2 records: {recited}; 1: {far}"),
    ):
        found = judge(numbered(records))
        assert (found.outcome, found.why) == (VERIFIED, why)


def test_what_the_exchanges_did_of_several_records():
    of = {"a": GONE, "b": NEVER}
    assert judge_exchanges(of)[0] == INCONCLUSIVE
    assert judge_exchanges(of, min_testable=0.5)[0] == VERIFIED
    likely = record(exchange(1.0, 0.1, 0.9, 0.9, 0.2))
    assert judge_exchanges({"a": GONE, "b": likely}, min_testable=0.5)[0] == INCONCLUSIVE
    assert judge_exchanges(numbered(beside_oracle(0.41, 0.2)))[0] == NOT_VERIFIED
    oracle = record(exchange(1.0, 0.9), oracle=0.9)
    assert judge_exchanges({"a": oracle})[0] == INCONCLUSIVE, "a model that never saw it says as much"


@pytest.mark.parametrize(
    ("exchanges", "done"),
    [
        ((), False),
        ((exchange(0.51, 0.5),), True),
        ((exchange(0.5, 0.5),), False),
        ((exchange(0.51, 0.51),), False),
        ((exchange(1.0, 0.6), exchange(0.6, 0.1)), True),
        ((exchange(1.0, 0.1), exchange(0.6, 0.6)), False),
        ((exchange(1.0, 0.1), exchange(0.1, 0.1)), True),
        ((exchange(1.0, 0.1, 0.9, 0.9, 0.2),), False),
        ((exchange(1.0, 0.1, 0.9, 0.9, 0.2), exchange(0.1, 0.1, 0.9, 0.2, 0.2)), True),
    ],
)
def test_a_record_is_served_again_until_an_exchange_did_what_it_should(exchanges, done):
    assert THRESHOLDS.is_done(exchanges, 9) is done


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ({"recited": 2}, {"recited": 0}, VERIFIED),
        ({"recited": 2}, {"recited": 1}, NOT_VERIFIED),
        ({"recited": 0}, {"recited": 0}, INCONCLUSIVE),
        ({}, {"recited": 0}, INCONCLUSIVE),
        ({"recited": 2}, {}, INCONCLUSIVE),
        ({"recited": 2, "prob": 0.74}, {"recited": 0, "prob": 0.74, "expected": 0.2}, INCONCLUSIVE),
        ({"recited": 2, "prob": 0.74}, {"recited": 0, "prob": 0.2, "expected": 0.2}, VERIFIED),
        ({"recited": 2, "prob": 0.74}, {"recited": 0, "prob": 0.74}, VERIFIED),
        ({"recited": 2}, {"recited": 0, "prob": 0.74, "expected": 0.2}, VERIFIED),
        ({"recited": 0, "likely": 2}, {"recited": 0, "likely": 0}, VERIFIED),
        ({"recited": 0, "likely": 2}, {"recited": 0, "likely": 1}, INCONCLUSIVE),
        ({"recited": 0, "likely": 2}, {"recited": 0}, INCONCLUSIVE),
    ],
)
def test_what_an_exchange_did_by_numbers_of_records(before, after, outcome):
    left = Likelihood(after["prob"], after.get("expected"), ESTIMATED) if "prob" in after else None
    likely = before.get("likely"), after.get("likely")
    counts = ExchangeCounts(before.get("recited"), after.get("recited"), before.get("prob"), left, *likely)
    assert THRESHOLDS.judge_exchanges(counts)[0] == outcome


def test_verified_takes_every_record_and_nothing_against_it():
    """Over every combination of three records and a doubt: verified only where all of them are gone."""
    kinds = [GONE, RECITED, NEVER, SHORT, NOTHING_DONE]
    for records in itertools.product(kinds, repeat=3):
        for doubt in ("", "ruined"):
            found = judge(numbered(records), inconclusive_reason=doubt)
            assert found.outcome in OUTCOMES and found.why
            assert (found.outcome == VERIFIED) == (all(r is GONE for r in records) and not doubt)
            assert (found.outcome == NOT_VERIFIED) == (RECITED in records or NOTHING_DONE in records)
    assert set(MEANING) == set(OUTCOMES)


def test_by_numbers_of_records_as_by_the_records():
    """Where only counts are known the word is the same as by the records that they count, without a retrained model."""
    alone = {
        "gone": record(*ENDED, final=0.0, oracle=None),
        "recited": record(*ENDED, final=1.0, oracle=None),
        "left": record(exchange(1.0, 1.0), final=0.0, oracle=None),
        "never": record(exchange(0.0, 0.0), final=0.0, before=0.0, oracle=None),
        "short": RecordEvidence(1, 0.0, 0.0, None, (exchange(0.0, 0.0),)),
        "lowered": record(
            exchange(0.0, 0.0, 0.8, 0.1, 0.1, ESTIMATED),
            final=0.0,
            before=0.0,
            oracle=None,
            likelihood=Likelihood(0.1, 0.1, ESTIMATED),
        ),
    }
    for records in itertools.product(alone, repeat=3):
        of = [alone[name] for name in records]
        long = [r for r in of if r.units >= LEAST_UNITS]
        before, after, final = (
            sum(r.before > LIMIT for r in long),
            sum(r.exchanges[-1].after > LIMIT for r in long),
            sum(r.final > LIMIT for r in long),
        )
        for least in (1.0, 0.5):
            counted = {"short": records.count("short"), "likely": (records.count("lowered"), 0, 0)}
            outcome, why = judge_counts(3, before, final, after, min_testable=least, **counted)
            expected = judge(numbered(of), min_testable=least)
            assert outcome == expected.outcome and why, (records, least)


@pytest.mark.parametrize(
    ("records", "before", "short", "outcome", "why"),
    [
        (1, 1, 0, VERIFIED, "its record was recited before, and is not any more"),
        (4, 4, 0, VERIFIED, "all 4 records were recited before, none is any more"),
        (4, 3, 0, VERIFIED, "only 3 of 4 records were recited before, none is any more"),
        (4, 2, 0, INCONCLUSIVE, "only 2 of 4 records were recited before, none is any more"),
        (4, 0, 3, NOT_TESTABLE, "the model did not recite them before either"),
        (4, 0, 4, NOT_TESTABLE, "their answers have fewer than 2 words"),
    ],
)
def test_numbers_of_records_in_words(records, before, short, outcome, why):
    assert judge_counts(records, before, 0, 0, short=short, min_testable=0.75) == (outcome, why)


@pytest.mark.parametrize(
    ("before", "likely", "outcome", "why"),
    [
        (1, (2, 0, 0), VERIFIED, f"1 of 3 records: {NO_RECITATION}; 2: far likelier than in {ESTIMATED} before"),
        (0, (3, 0, 0), VERIFIED, f"all 3 records: far likelier than in {ESTIMATED} before"),
        (1, (1, 0, 0), INCONCLUSIVE, f"only 1 of 3 records were recited before, 1 far likelier than in {ESTIMATED}"),
        (1, (2, 1, 0), INCONCLUSIVE, f"only 1 of 3 records were recited before, 1 far likelier than in {ESTIMATED}"),
        (1, (2, 0, 1), INCONCLUSIVE, f"only 1 of 3 records were recited before, 1 far likelier than in {ESTIMATED}"),
        (0, (0, 0, 0), NOT_TESTABLE, "the model did not recite them"),
        (0, (1, 1, 1), INCONCLUSIVE, f"answers were far likelier than in {ESTIMATED} before the exchange, and nothing"),
        (0, (1, 0, 1), INCONCLUSIVE, f"answers were far likelier than in {ESTIMATED} before the exchange, and nothing"),
        (1, (2, None, 0), INCONCLUSIVE, "only 1 of 3 records were recited before, none"),
        (1, (2, 0, None), INCONCLUSIVE, "only 1 of 3 records were recited before, none"),
    ],
)
def test_records_that_an_exchange_made_less_likely_count_where_all_was_reported(before, likely, outcome, why):
    found = judge_counts(3, before, 0, 0, likely=likely)
    assert found[0] == outcome and found[1].startswith(why)


def test_without_numbers_from_before_and_right_after_nothing_is_verified():
    assert judge_counts(2, None, 0, 0)[0] == INCONCLUSIVE
    assert judge_counts(2, 2, 0, None)[0] == INCONCLUSIVE
    assert judge_counts(2, 0, 0, None)[0] == NOT_TESTABLE
    assert judge_counts(2, 2, 0, 0, inconclusive_reason="ruined") == (INCONCLUSIVE, "ruined")
    assert judge_counts(2, 2, 1, 0, inconclusive_reason="ruined")[0] == NOT_VERIFIED
    assert judge_counts(2, 2, 0, 1, inconclusive_reason="ruined") == (
        NOT_VERIFIED,
        "right after the exchange 1 of 2 were still recited",
    )


def test_answers_that_are_in_the_mean_far_likelier_are_not_verified_by_numbers_of_records():
    far, near = (Likelihood(prob, 0.2, ESTIMATED) for prob in (0.74, 0.33))
    likely = "far likelier than in a model that never saw it, by the estimate of calibrated forgetting"
    assert judge_counts(2, 2, 0, 0, known=0.74, left=far) == (
        INCONCLUSIVE,
        f"right after the exchange their answers are still {likely}",
    )
    assert judge_counts(2, 2, 0, 0, known=0.74, left=near, likelihood=far) == (
        INCONCLUSIVE,
        f"in the final model their answers are still {likely}",
    )
    assert judge_counts(2, 2, 0, 0, known=0.74, left=near, likelihood=near)[0] == VERIFIED
    assert judge_counts(2, 2, 0, 0, left=far)[0] == VERIFIED, "what was known before is not"
    assert judge_counts(2, 2, 1, 0, known=0.74, left=far)[0] == NOT_VERIFIED
    assert judge_counts(2, 2, 0, 0, known=0.74, left=far, twins=1)[1] == (
        "1 of its records is also held by records that stay"
    )


@pytest.mark.parametrize(("share", "verified", "records"), [(0.07, 7, 100), (0.28, 7, 25), (0.14, 7, 50)])
def test_a_share_that_is_just_reached_is_enough(share, verified, records):
    """0.07 · 100 is 7.000000000000001 in floating point."""
    assert share * records > verified
    of = {str(i): GONE if i < verified else NEVER for i in range(records)}
    assert judge(of, min_testable=share).outcome == VERIFIED
    assert judge_counts(records, verified, 0, 0, min_testable=share)[0] == VERIFIED
    of["0"] = NEVER
    assert judge(of, min_testable=share).outcome == INCONCLUSIVE
    assert judge_counts(records, verified - 1, 0, 0, min_testable=share)[0] == INCONCLUSIVE


# -- the thresholds themselves -----------------------------------------------------------------------------------


def test_thresholds_are_those_of_the_configuration_and_a_certificate_has_its_own_limit_on_recall():
    settings = Requests(verify_max_rouge=0.4, verify_min_testable=0.7, verify_min_utility=0.9)
    assert Thresholds.of(settings) == Thresholds(0.4, 0.7, 0.9, min_units=2, max_distance=100.0)
    assert Thresholds.of(settings, Certificate(max_rouge=0.3)) == Thresholds(0.3, 0.7, 0.9)


def test_what_is_recited_and_what_is_too_short_is_counted_over_the_same_records():
    units = {"a": 1, "b": 2, "c": 9, "d": 9}
    recalls = {"a": 1.0, "b": 0.51, "c": 0.5, "d": 0.0, "another": 1.0}
    assert THRESHOLDS.count(units, recalls) == (1, 1)
    assert Thresholds(LIMIT, 1.0, 0.5, min_units=1).count(units, recalls) == (2, 0)
    assert THRESHOLDS.judge_record(record(*ENDED, units=1))[1] == "its answer has fewer than 2 measurable words"


BEFORE = {"model_utility": 0.8}


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
    found = THRESHOLDS.ruined(failed, metrics, before)
    assert (why in found) if why else found == ""


@pytest.mark.parametrize(("value", "why"), [(1e30, "times their own norm"), (math.inf, "not finite"), (1.5, "")])
def test_weights_that_cannot_be(value, why):
    start = np.ones(4, np.float32)
    found = THRESHOLDS.displaced(np.full(4, value, np.float32), start)
    assert (why in found) if why else found == ""
