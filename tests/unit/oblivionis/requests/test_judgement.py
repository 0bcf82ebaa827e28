"""What may be said of a request: by hand-made evidence, and by trying every combination of it."""

import itertools

import pytest

from oblivionis.requests.judgement import (
    INCONCLUSIVE,
    LEAST_UNITS,
    MEANING,
    NOT_TESTABLE,
    NOT_VERIFIED,
    OUTCOMES,
    OVER_UNLEARNED,
    VERIFIED,
    RecordEvidence,
    judge_counts,
    judge_record,
    judge_request,
)

LIMIT = 0.5
GONE = RecordEvidence(units=9, final=0.1, before=1.0, oracle=0.1)
RECITED = RecordEvidence(units=9, final=0.9, before=1.0, oracle=0.1)
NEVER = RecordEvidence(units=9, final=0.0, before=0.5, oracle=0.0)
SHORT = RecordEvidence(units=LEAST_UNITS - 1, final=0.0, before=1.0, oracle=0.0)


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (GONE, VERIFIED),
        (RecordEvidence(9, 0.5, 0.51), VERIFIED),
        (RECITED, NOT_VERIFIED),
        (RecordEvidence(9, 0.51, 0.1), NOT_VERIFIED),
        (RecordEvidence(9, 0.9, 1.0, 0.9), NOT_TESTABLE),
        (RecordEvidence(9, 0.9, 1.0, 0.89), NOT_VERIFIED),
        (NEVER, NOT_TESTABLE),
        (SHORT, NOT_TESTABLE),
        (RecordEvidence(2, 1.0, 1.0), NOT_TESTABLE),
        (RecordEvidence(LEAST_UNITS, 0.0, 1.0), VERIFIED),
        (RecordEvidence(LEAST_UNITS, 1.0, 1.0), NOT_VERIFIED),
        (RecordEvidence(9, 0.0, None), INCONCLUSIVE),
    ],
)
def test_one_record(found, outcome):
    assert judge_record(found, LIMIT)[0] == outcome


@pytest.mark.parametrize(
    ("records", "more", "outcome", "why"),
    [
        ([GONE, GONE], {}, VERIFIED, "all 2 records were recited before"),
        ([GONE, RECITED], {}, NOT_VERIFIED, "recites 1 of 2"),
        ([GONE, NEVER], {}, INCONCLUSIVE, "1 of 2 verified"),
        ([GONE, NEVER], {"least_testable": 0.5}, VERIFIED, "did not recite it before"),
        ([GONE, NEVER, NEVER], {"least_testable": 0.5}, INCONCLUSIVE, "1 of 3 verified"),
        ([NEVER], {"least_testable": 0.01}, NOT_TESTABLE, "did not recite it before"),
        ([SHORT, SHORT], {}, NOT_TESTABLE, "measurable words"),
        ([GONE], {"doubt": "ruined"}, INCONCLUSIVE, "ruined"),
        ([RECITED], {"doubt": "ruined"}, NOT_VERIFIED, "recites"),
        ([GONE], {"knows": OVER_UNLEARNED}, OVER_UNLEARNED, "far less likely"),
        ([NEVER], {"knows": OVER_UNLEARNED}, OVER_UNLEARNED, "far less likely"),
        ([GONE], {"knows": NOT_VERIFIED}, NOT_VERIFIED, "far likelier"),
        ([GONE], {"knows": OVER_UNLEARNED, "doubt": "ruined"}, INCONCLUSIVE, "ruined"),
    ],
)
def test_a_request(records, more, outcome, why):
    found = judge_request({str(i): r for i, r in enumerate(records)}, limit=LIMIT, **more)
    assert found.outcome == outcome and why in found.why
    assert found.recall == pytest.approx(sum(r.final for r in records) / len(records))


def test_verified_takes_every_record_and_nothing_against_it():
    """Over every combination of three records, a doubt and a verdict: verified only where all of them are gone."""
    kinds = [GONE, RECITED, NEVER, SHORT]
    for records in itertools.product(kinds, repeat=3):
        for doubt, knows in itertools.product(("", "ruined"), ("", NOT_VERIFIED, OVER_UNLEARNED)):
            found = judge_request({str(i): r for i, r in enumerate(records)}, limit=LIMIT, doubt=doubt, knows=knows)
            assert found.outcome in OUTCOMES and found.why
            assert (found.outcome == VERIFIED) == (all(r is GONE for r in records) and not doubt and not knows)
            assert (RECITED in records) <= (found.outcome == NOT_VERIFIED)
    assert set(MEANING) == set(OUTCOMES)


def test_by_numbers_of_records_as_by_the_records():
    """Where only counts are known the word is the same as by the records that they count, without a retrained model."""
    alone = {
        "gone": RecordEvidence(9, 0.0, 1.0),
        "recited": RecordEvidence(9, 1.0, 1.0),
        "never": RecordEvidence(9, 0.0, 0.0),
        "short": RecordEvidence(1, 0.0, 0.0),
    }
    for records in itertools.product(alone, repeat=3):
        of = [alone[name] for name in records]
        before = sum(r.units >= LEAST_UNITS and r.before > LIMIT for r in of)
        final = sum(r.units >= LEAST_UNITS and r.final > LIMIT for r in of)
        for least in (1.0, 0.5):
            outcome, why = judge_counts(3, before, final, untestable=records.count("short"), least_testable=least)
            expected = judge_request({str(i): r for i, r in enumerate(of)}, limit=LIMIT, least_testable=least)
            assert outcome == expected.outcome and why, (records, least)


@pytest.mark.parametrize(
    ("records", "before", "untestable", "outcome", "why"),
    [
        (1, 1, 0, VERIFIED, "its record was recited before, and is not any more"),
        (4, 4, 0, VERIFIED, "all 4 records were recited before, none is any more"),
        (4, 3, 0, VERIFIED, "only 3 of 4 records were recited before, none is any more"),
        (4, 2, 0, INCONCLUSIVE, "only 2 of 4 records were recited before, none is any more"),
        (4, 0, 3, NOT_TESTABLE, "the model did not recite them before either"),
        (4, 0, 4, NOT_TESTABLE, "their answers have fewer than 3 words"),
    ],
)
def test_numbers_of_records_in_words(records, before, untestable, outcome, why):
    assert judge_counts(records, before, 0, untestable=untestable, least_testable=0.75) == (outcome, why)


def test_without_numbers_from_before_nothing_is_verified():
    assert judge_counts(2, None, 0)[0] == INCONCLUSIVE
    assert judge_counts(2, 2, 0, doubt="ruined") == (INCONCLUSIVE, "ruined")
    assert judge_counts(2, 2, 1, doubt="ruined")[0] == NOT_VERIFIED


@pytest.mark.parametrize(("share", "verified", "records"), [(0.07, 7, 100), (0.28, 7, 25), (0.14, 7, 50)])
def test_a_share_that_is_just_reached_is_enough(share, verified, records):
    """0.07 · 100 is 7.000000000000001 in floating point."""
    assert share * records > verified
    of = {str(i): GONE if i < verified else NEVER for i in range(records)}
    assert judge_request(of, limit=LIMIT, least_testable=share).outcome == VERIFIED
    assert judge_counts(records, verified, 0, least_testable=share)[0] == VERIFIED
    of["0"] = NEVER
    assert judge_request(of, limit=LIMIT, least_testable=share).outcome == INCONCLUSIVE
    assert judge_counts(records, verified - 1, 0, least_testable=share)[0] == INCONCLUSIVE
