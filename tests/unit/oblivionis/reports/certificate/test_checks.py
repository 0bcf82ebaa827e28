"""The decisions of a certificate against numbers made by hand."""

import math

import numpy as np
import pytest
from scipy.stats import beta

from oblivionis.config.schema import Certificate, Requests
from oblivionis.erasure.verification_rules import Thresholds
from oblivionis.reports.certificate.checks import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    Check,
    check_attacks,
    check_exchange,
    check_leakage,
    check_model,
    check_oracle,
    check_rank,
    check_rouge,
    check_scope,
    leak_bounds,
    of_all,
    overall,
    run_checks,
    spent,
    upper_at,
)

THRESHOLDS = Thresholds.of(Requests())


def checks_of(found, settings=None, least_testable=1.0):
    settings = settings or Certificate()
    thresholds = Thresholds.of(Requests(verify_min_testable=least_testable), settings)
    return run_checks(found, settings, thresholds)


def leakage(upper, lower, samples=128, alpha=0.01, **more):
    found = {"upper": upper, "lower": lower, "samples": samples, "confidence": 1 - alpha, "of": "one question"}
    return {**found, "own": True, "questions": 1, "records": 1, **more}


def test_overall():
    def checks(*pairs):
        return [Check("x", result, {}, "", required) for result, required in pairs]

    assert overall(checks((PASS, True), (PASS, True))) == PASS
    assert overall(checks((PASS, True), (INCONCLUSIVE, False))) == PASS
    assert overall(checks((PASS, True), (INCONCLUSIVE, True))) == INCONCLUSIVE
    assert overall(checks((PASS, True), (FAIL, False))) == FAIL, "what was not required must not fail either"
    assert overall(checks((INCONCLUSIVE, True), (FAIL, True))) == FAIL
    names = ("ledger", "binding", "scope", "commitment", "model", "exchange")
    formal = [Check(name, PASS, {}, "", True) for name in names]
    assert overall(formal) == INCONCLUSIVE, "nothing was asked about what the model knows"
    assert overall([*formal, Check("rouge", PASS, {}, "", False)]) == INCONCLUSIVE
    assert overall([*formal, Check("rouge", PASS, {}, "", True)]) == PASS


def test_a_demand_of_several_requests():
    assert of_all([PASS, PASS]) == PASS and of_all([]) == INCONCLUSIVE
    assert of_all([PASS, INCONCLUSIVE]) == INCONCLUSIVE and of_all([INCONCLUSIVE, FAIL, PASS]) == FAIL


def exchange(before=1.0, after=0.0, known=0.9, left=0.1, reference=None):
    return {
        "before": before,
        "after": after,
        "known": known,
        "left": {"prob": left, "reference": reference, "compared_with": ""},
    }


ENDED = (exchange(),)


def judged(final, before=1.0, units=9, oracle=None, doubt="", exchanges=ENDED, likelihood=None, count=1):
    record = {"units": units, "final": final, "before": before, "oracle": oracle}
    record |= {"exchanges": list(exchanges), "likelihood": likelihood}
    records = {f"r{i}": record for i in range(count)}
    return {"outcome": "verified", "rouge": final, "doubt": doubt, "records": records}


AVOIDED = {"prob": 0.01, "reference": 0.2, "compared_with": "the retrained model"}


@pytest.mark.parametrize(
    ("found", "result", "why"),
    [
        (judged(0.5), PASS, "verified"),
        (judged(0.5001), FAIL, "not verified"),
        (judged(0.0, before=0.5), INCONCLUSIVE, "did not recite it before"),
        (judged(0.0, units=1), INCONCLUSIVE, "not testable"),
        (judged(0.0, doubt="ruined"), INCONCLUSIVE, "ruined"),
        (judged(0.0, likelihood=AVOIDED, count=7), INCONCLUSIVE, "can tell that they were there"),
        (judged(0.0, exchanges=()), INCONCLUSIVE, "right before and after its exchange"),
        (judged(0.0, exchanges=(exchange(1.0, 1.0),)), FAIL, "right after the exchange its record was still recited"),
        (judged(0.0, exchanges=(exchange(1.0, 0.5001),)), FAIL, "still recited"),
        (judged(0.0, exchanges=(exchange(1.0, 0.5),)), PASS, "verified"),
        ({"outcome": "verified", "rouge": 0.4, "why": ""}, PASS, "verified"),
        ({"outcome": "verified", "rouge": 0.5, "why": ""}, PASS, "verified"),
        ({"outcome": "verified", "rouge": 0.6, "why": ""}, FAIL, "recite"),
        ({**judged(0.0), "twins": 1}, INCONCLUSIVE, "also held"),
        ({"outcome": "not testable", "rouge": 0.0, "why": "never"}, INCONCLUSIVE, "never"),
        ({"outcome": "served", "rouge": None, "why": ""}, INCONCLUSIVE, "not asked"),
    ],
)
def test_rouge(found, result, why):
    check = check_rouge(found, THRESHOLDS)
    assert check.result == result and why in check.why


def evidence(**more):
    nothing = dict.fromkeys(("leakage", "rank", "oracle", "attacks"))
    ledger = {"lines": 3, "faults": []}
    known = {"judgement": judged(0.0), "ledger": ledger, "binding": "", "unnamed": 0, "leakage": leakage(0.01, 0)}
    return {**nothing, **known, **more}


@pytest.mark.parametrize(
    ("found", "result", "check"),
    [
        (evidence(), PASS, ""),
        (evidence(leakage=leakage(0.01, 0, own=False)), INCONCLUSIVE, "leakage"),
        (evidence(leakage=leakage(0.9, 0.8, own=False)), INCONCLUSIVE, "leakage"),
        (evidence(leakage=leakage(0.01, 0, records=2)), INCONCLUSIVE, "leakage"),
        (evidence(binding="an earlier version"), INCONCLUSIVE, "binding"),
        (evidence(unnamed=1), INCONCLUSIVE, "scope"),
        (evidence(judgement=judged(0.0, doubt="ruined")), INCONCLUSIVE, "model"),
        (evidence(judgement=judged(0.0, exchanges=[exchange(1.0, 1.0)])), FAIL, "exchange"),
        (evidence(judgement=judged(0.0, exchanges=[exchange(left=0.9, reference=0.2)])), INCONCLUSIVE, "exchange"),
        (evidence(ledger={"lines": 3, "faults": ["line 2"]}), FAIL, "ledger"),
        (
            evidence(oracle={"verdict": "over-unlearned", "value": 0, "oracle": 1, "questions": 9, "own": True}),
            INCONCLUSIVE,
            "oracle",
        ),
    ],
)
def test_nothing_else_than_the_requests_own_records_in_a_sound_model_passes(found, result, check):
    checks = checks_of(found)
    assert overall(checks) == result
    if check:
        assert next(c.name for c in checks if c.required and c.result == result) == check


@pytest.mark.parametrize(
    ("found", "result", "why"),
    [
        (leakage(0.0353, 0.0), PASS, "at most 0.0353"),
        (leakage(0.6, 0.2), FAIL, "at least 0.2"),
        (leakage(0.2, 0.05), INCONCLUSIVE, "between 0.05 and 0.2"),
        (leakage(0.1, 0.0), PASS, "at most 0.1"),
        (leakage(0.2, 0.1), INCONCLUSIVE, "between 0.1 and 0.2"),
        (leakage(0.6, 0.2, records=2), FAIL, "only 1 of the 2 records"),
        (leakage(0.6, 0.1, records=2), INCONCLUSIVE, "only 1 of the 2 records"),
        (leakage(0.25, 0.0, samples=16), INCONCLUSIVE, "even if none of 16 leaks, the bound is 0.25"),
        (None, INCONCLUSIVE, "no answers"),
    ],
)
def test_leakage(found, result, why):
    check = check_leakage(found, 0.1)
    assert check.result == result and why in check.why


def tail(k, n, p):
    """P(X >= k) of a binomial, summed by hand."""
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


@pytest.mark.parametrize(("leaked", "samples"), [(0, 20), (1, 20), (7, 20), (20, 20)])
def test_leak_bounds_are_clopper_and_pearsons(leaked, samples):
    alpha, low, high = 0.01, 0.0, 1.0
    if leaked == samples:
        upper = 1.0
    else:
        for _ in range(100):  # where P(X <= leaked) falls to alpha
            middle = (low + high) / 2
            low, high = (middle, high) if 1 - tail(leaked + 1, samples, middle) > alpha else (low, middle)
        upper = high
    lower, same = leak_bounds(upper, 0.0, samples, alpha, 0.5)
    assert same == upper
    if leaked == 0:
        assert lower == 0.0
    else:
        assert tail(leaked, samples, lower) == pytest.approx(alpha, rel=1e-6)


def test_without_a_count_the_lower_bound_follows_from_the_mean():
    """If an answer leaks with probability P, the mean is at most P + (1 - P) * 0.5: a mean of 0.8 needs P >= 0.6."""
    lower, upper = leak_bounds(0.9, 0.8, 0, 0.01, 0.5)
    assert (lower, upper) == (pytest.approx(0.6), 0.9)
    assert leak_bounds(0.3, 0.4, 0, 0.01, 0.5) == (0.0, 0.3)
    none = 1 - 0.01 ** (1 / 20)  # Clopper and Pearson's of 0 of 20, which shows nothing
    assert leak_bounds(none, 0.8, 20, 0.01, 0.5) == (pytest.approx(0.6), none), "the better of both"


@pytest.mark.parametrize(("audits", "told"), [(0, None), (1, None), (2, 2)])
def test_of_several_audits_it_says_how_many_were_made(audits, told):
    assert check_leakage(leakage(0.01, 0.0, audits=audits), 0.1).figure.get("audits made") == told


def rank(value, records=10, **more):
    return {"of": "x", "own": True, "mean rank": value, "records": records, **more}


@pytest.mark.parametrize(
    ("found", "result"),
    [
        (rank(0.9, verdict="above"), FAIL),
        (rank(0.5, verdict="near"), PASS),
        (rank(0.9, records=5, verdict="undecided"), INCONCLUSIVE),
        (rank(0.5, records=6, verdict="near"), PASS),
        (rank(0.4, **{"band low": 0.4, "band high": 0.6}), PASS),
        (rank(0.9), INCONCLUSIVE),
        (rank(0.6, **{"band low": 0.4, "band high": 0.6}), PASS),
        (rank(0.61, **{"band low": 0.4, "band high": 0.6}), FAIL),
        (rank(0.39, **{"band low": 0.4, "band high": 0.6}), INCONCLUSIVE),
        (None, INCONCLUSIVE),
    ],
)
def test_rank(found, result):
    assert check_rank(found).result == result


@pytest.mark.parametrize(("value", "side"), [(0.61, "above"), (0.39, "below")])
def test_the_side_of_the_band_is_named(value, side):
    assert check_rank(rank(value, **{"band low": 0.4, "band high": 0.6})).why.startswith(f"{side} the band")


def attack(name, rouge, verdict, *recalls):
    found = {"attack": name, "questions": 9, "before": 0.1, "rouge": rouge, "verdict": verdict}
    return {**found, "own": bool(recalls), **({"recalls": recalls, "worst": max(recalls)[0]} if recalls else {})}


def test_oracle_and_attacks():
    def oracle(verdict):
        return {"verdict": verdict, "value": 0.2, "oracle": 0.1, "questions": 9}

    results = [check_oracle(oracle(v)).result for v in ("still known", "near", "over-unlearned", "undecided")]
    assert results == [FAIL, PASS, INCONCLUSIVE, INCONCLUSIVE] and check_oracle(None).result == INCONCLUSIVE

    assert check_attacks(None, 0.5).result == INCONCLUSIVE
    assert check_attacks([attack("a", 0.9, "near"), attack("b", 0.4, None)], 0.5).result == INCONCLUSIVE
    assert check_attacks([attack("a", 0.4, None, (0.4, None))], 0.5).result == PASS
    assert check_attacks([attack("a", 0.4, "near", (0.4, 0.4), (0.6, 0.6))], 0.5).result == PASS
    assert check_attacks([attack("a", 0.4, "near", (0.4, 0.4), (0.6, 0.5))], 0.5).result == FAIL
    others = check_attacks([attack("a", 0.9, "near"), attack("b", 0.2, "still known")], 0.5)
    assert others.result == INCONCLUSIVE and "of others, b brings some back" in others.why
    for rouge, back in ((0.51, True), (0.5, False)):
        assert ("of others" in check_attacks([attack("a", rouge, None)], 0.5).why) is back
    assert check_attacks([attack("a", 0.4, None, (0.5, 0.1))], 0.5).result == PASS, "not above the limit"
    seen = check_oracle({**oracle("still known"), "seen": 2})
    assert seen.result == INCONCLUSIVE and "was trained on 2 of its records" in seen.why


@pytest.mark.parametrize(("recall", "result"), [(0.4, PASS), (0.7, FAIL)])
def test_an_attack_on_others_counts_for_nothing_beside_one_on_the_requests_own_records(recall, result):
    found = check_attacks([attack("a", 0.9, "still known"), attack("b", recall, None, (recall, None))], 0.5)
    assert found.result == result
    assert found.figure == {"attacks": 2, "attack": "b", "ROUGE-L recall": recall, "at most": 0.5}


@pytest.mark.parametrize(
    ("verdict", "result", "why"),
    [
        ("still known", FAIL, "far likelier than in the retrained model"),
        ("near", PASS, "as likely as in the retrained model"),
        ("over-unlearned", INCONCLUSIVE, "far less likely than in the retrained model: the final model avoids"),
        ("undecided", INCONCLUSIVE, "too few questions to tell from the retrained model"),
    ],
)
def test_each_verdict_on_the_answers_has_its_words(verdict, result, why):
    found = check_oracle({"verdict": verdict, "value": 0.1, "oracle": 0.2, "questions": 8, "own": True})
    assert found.result == result and found.why.startswith(why)
    assert found.figure == {"probability": 0.1, "retrained": 0.2, "questions": 8}


def test_the_worst_attack_is_named_with_its_largest_recall():
    own = attack("a", 0.2, None, (0.4, None), (0.9, 0.95))
    mean = attack("b", 0.3, None, (0.3, None))
    del mean["worst"]
    found = check_attacks([mean, own], 0.5)
    assert found.result == PASS
    assert found.figure == {"attacks": 2, "attack": "a", "ROUGE-L recall": 0.9, "at most": 0.5}
    failed = check_attacks([mean], 0.5, ["c", "d"])
    assert failed.result == INCONCLUSIVE and failed.why == "these attacks failed: c, d"
    assert failed.figure["ROUGE-L recall"] == 0.3, "of one without a largest recall the mean"


def test_what_the_exchange_did_counts_whatever_is_required():
    """Only `leakage` is asked for: what training made of the record later is no sign that its exchange did anything."""
    settings = Certificate(required=["leakage"])
    assert overall(checks_of(evidence(judgement=judged(0.0, before=0.1)), settings)) == PASS
    for exchanges, result in (([exchange(1.0, 1.0)], FAIL), ([exchange(0.2, 0.2)], INCONCLUSIVE), ([], INCONCLUSIVE)):
        assert overall(checks_of(evidence(judgement=judged(0.0, exchanges=exchanges)), settings)) == result
    half = judged(0.0, count=1)
    half["records"]["faded"] = {**half["records"]["r0"], "exchanges": [exchange(0.2, 0.2)]}
    assert check_exchange({"judgement": half}, THRESHOLDS).result == INCONCLUSIVE
    assert check_exchange({"judgement": half}, Thresholds(0.5, 0.5, 0.5)).result == PASS


def test_what_an_exchange_did_by_the_clients_own_numbers():
    told = {
        "before": {"recited": 2.0, "rouge": 1.0, "prob": 0.74},
        "after": {"recited": 0.0, "rouge": 0.1, "prob": 0.2},
    }
    check = check_exchange({"judgement": {}, **told}, THRESHOLDS)
    assert check.result == PASS
    assert check.figure == {"rouge before": 1.0, "rouge right after": 0.1, "prob before": 0.74, "prob right after": 0.2}
    for after, result in (({"recited": 1.0}, FAIL), ({}, INCONCLUSIVE), (None, INCONCLUSIVE)):
        assert check_exchange({"judgement": {}, **told, "after": after}, THRESHOLDS).result == result


def test_records_that_no_part_of_the_certificate_names():
    assert check_scope(0).result == PASS
    one, two = check_scope(1), check_scope(2)
    assert (one.result, two.result) == (INCONCLUSIVE, INCONCLUSIVE) and two.figure == {"records named elsewhere": 2}
    assert one.why.startswith("1 record of the demand is named by") and two.why.startswith(
        "2 records of the demand are"
    )


def by_name(found, settings=None, least_testable=1.0):
    return {check.name: check for check in checks_of(found, settings, least_testable)}


def test_each_check_has_its_own_limit():
    settings = Certificate(max_rouge=0.3, max_leakage=0.2, max_attacked_rouge=0.8)
    rows = [attack("a", 0.7, None, (0.7, None))]
    found = evidence(judgement=judged(0.3), leakage=leakage(0.2, 0.0), attacks=rows)
    assert {by_name(found, settings)[name].result for name in ("rouge", "leakage", "attacks", "exchange")} == {PASS}
    more = evidence(
        judgement=judged(0.31, exchanges=[exchange(1.0, 0.31)]),
        leakage=leakage(0.3, 0.21),
        attacks=[attack("a", 0.7, None, (0.81, None))],
    )
    assert {by_name(more, settings)[name].result for name in ("rouge", "leakage", "attacks", "exchange")} == {FAIL}


def test_so_many_records_must_be_testable_as_is_set():
    half = judged(0.0)
    half["records"]["short"] = {**half["records"]["r0"], "units": 2, "exchanges": [exchange(0.2, 0.2)]}
    for least, result in ((0.5, PASS), (0.51, INCONCLUSIVE)):
        checks = by_name(evidence(judgement=half), least_testable=least)
        assert checks["rouge"].result == checks["exchange"].result == result


@pytest.mark.parametrize("more", [{"judgement": {**judged(0.0), "twins": 1}}, {"final": {"twins": 1}}])
def test_what_others_hold_as_well_requires_a_word_on_each_record(more):
    settings = Certificate(required=["leakage"])
    assert by_name(evidence(**more), settings)["rouge"].required
    assert not by_name(evidence(), settings)["rouge"].required


def test_figures_of_others_tell_nothing_whatever_they_are():
    of_others = {"own": False, "of": "all forget questions"}
    oracle = {"verdict": "still known", "value": 0.2, "oracle": 0.1, "questions": 9, **of_others}
    for name, found in (
        ("mean_rank", {"rank": rank(0.9, verdict="above") | of_others}),
        ("oracle", {"oracle": oracle}),
    ):
        check = by_name(evidence(**found))[name]
        assert check.result == INCONCLUSIVE and "measured on all forget questions" in check.why


def test_what_failed_and_what_is_sealed_is_checked():
    rows = [attack("a", 0.4, None, (0.4, None))]
    assert by_name(evidence(attacks=rows))["attacks"].result == PASS
    failed = by_name(evidence(attacks=rows, failed_attacks=["b"], failed=["muse: no memory", "mmlu: none"]))
    assert failed["attacks"].why == "these attacks failed: b"
    assert (failed["model"].result, failed["model"].why) == (INCONCLUSIVE, "failed: muse: no memory")
    sealed = {"clients in the sum": 3, "records in the sum": 5}
    assert by_name(evidence(sealed=sealed))["commitment"].figure == sealed
    assert "commitment" not in by_name(evidence())


def test_a_model_of_which_nothing_is_known():
    unknown = {"outcome": "inconclusive", "why": "not measured", "rouge": None}
    found = check_model({"judgement": unknown})
    assert (found.result, found.why) == (INCONCLUSIVE, "not measured")
    assert check_model({"judgement": {**judged(0.0), **unknown}}).result == PASS, "each record has a word of its own"


def upper_of(leaked, samples, alpha):
    """Clopper and Pearson's upper bound."""
    return np.where(leaked == samples, 1.0, beta.ppf(1 - alpha, leaked + 1, np.maximum(samples - leaked, 1)))


@pytest.mark.slow
def test_measuring_until_it_passes_passes_a_model_above_the_limit_no_more_often_than_is_said():
    """20 audits of a model just above the limit, with ever more answers, of which one PASS is enough."""
    alpha, limit, runs = 0.05, 0.05, 4000
    rng = np.random.default_rng(3)
    assert spent(alpha, 1) == alpha and sum(spent(alpha, k) for k in range(1, 2000)) < 1.5 * alpha
    ever, as_before = np.zeros(runs, bool), np.zeros(runs, bool)
    for audit in range(1, 21):
        samples = 60 + 40 * audit
        uppers = upper_of(rng.binomial(samples, 1.02 * limit, runs), samples, alpha)
        as_before |= uppers <= limit
        ever |= (
            np.array([upper_at(u, samples, alpha, audit) for u in np.unique(uppers)])[
                np.unique(uppers, return_inverse=True)[1]
            ]
            <= limit
        )
    assert ever.mean() <= 1.5 * alpha < as_before.mean()


@pytest.mark.parametrize("samples", [1, 16, 128])
@pytest.mark.parametrize("audit", [2, 3, 12])
def test_the_bound_of_a_later_audit_is_exact_for_a_question_and_an_upper_one_for_a_mean(samples, audit):
    leaked, alpha = np.arange(samples + 1), 0.01
    known, wanted = upper_of(leaked, samples, alpha), upper_of(leaked, samples, alpha / (audit * (audit + 1)))
    assert [upper_at(u, samples, alpha, audit) for u in known] == pytest.approx(wanted)
    assert [upper_at(u, samples, alpha, 1) for u in known] == list(known)
    rng = np.random.default_rng(samples)
    for _ in range(50):
        of = rng.integers(0, samples + 1, rng.integers(2, 9))
        assert upper_at(known[of].mean(), samples, alpha, audit) >= wanted[of].mean() - 1e-12
