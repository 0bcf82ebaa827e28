"""Do the figures of a served request say that its records are forgotten? PASS, FAIL or INCONCLUSIVE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluation.metrics.retrained_comparison import NEAR, OVER_UNLEARNED, STILL_KNOWN
from evaluation.ruler.rank_significance import ABOVE, LEAST_RECORDS
from oblivionis.config.schema import Certificate
from oblivionis.erasure import verification_rules
from oblivionis.erasure.verification_evidence import RequestRecords
from oblivionis.erasure.verification_records import records_of
from oblivionis.erasure.verification_rules import Thresholds
from oblivionis.measures.audit_numbers import exchange_counts
from oblivionis.reports.format import counted

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"
FORMAL = ("ledger", "binding", "scope", "commitment", "model", "exchange")
"""Checks of the evidence, not of what the model knows."""
_RESULTS = {verification_rules.VERIFIED: PASS, verification_rules.NOT_VERIFIED: FAIL}
"""Of an outcome; that of all others is INCONCLUSIVE."""
Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """One question that a certificate answers: the result, the figure that decided, and why, in words."""

    name: str
    result: str
    figure: Mapping[str, Any]
    why: str
    required: bool = True


def overall(checks: Sequence[Check]) -> str:
    """FAIL where any check fails; else PASS where every required one passes, one of them at least about what the model
    knows; else INCONCLUSIVE."""
    if any(check.result == FAIL for check in checks):
        return FAIL
    required = [check for check in checks if check.required]
    knows = any(check.name not in FORMAL for check in required)
    return PASS if knows and all(check.result == PASS for check in required) else INCONCLUSIVE


def of_all(results: Sequence[str]) -> str:
    """The result of a demand from those of its requests: FAIL of any, PASS of all, else INCONCLUSIVE."""
    if FAIL in results:
        return FAIL
    return PASS if results and set(results) == {PASS} else INCONCLUSIVE


def run_checks(evidence: Mapping[str, Any], settings: Certificate, thresholds: Thresholds) -> list[Check]:
    """All checks on `evidence`, see `oblivionis.reports.certificate.evidence`.

    `thresholds`: by which requests are judged, with the certificate's own limit on recall. Required are always the
    checks of the ledger and of the model, and one that contradicts the others: answers that the model avoids are no
    sign that it never saw them, and nothing is shown of records that others hold as well.
    """
    checks = [
        check_rouge(evidence["judgement"], thresholds),
        *(
            _about_others(checked, evidence[name])
            for name, checked in (
                ("leakage", check_leakage(evidence["leakage"], settings.max_leakage)),
                ("rank", check_rank(evidence["rank"])),
                ("oracle", check_oracle(evidence["oracle"])),
            )
        ),
        check_attacks(evidence["attacks"], settings.max_attacked_rouge, evidence.get("failed_attacks", ())),
    ]
    avoided = (evidence["oracle"] or {}).get("verdict") == OVER_UNLEARNED
    held = evidence["judgement"].get("twins") or evidence.get("final", {}).get("twins")
    required = {*settings.required, *(["oracle"] if avoided else []), *(["rouge"] if held else [])}
    wanted = [Check(c.name, c.result, c.figure, c.why, c.name in required) for c in checks]
    sealed = [check_commitment(evidence["sealed"])] if "sealed" in evidence else []
    bound = [check_ledger(evidence["ledger"]), check_binding(evidence["binding"]), check_scope(evidence["unnamed"])]
    return [*bound, *sealed, check_model(evidence), check_exchange(evidence, thresholds), *wanted]


def _about_others(check: Check, figures: Figures | None) -> Check:
    """Figures of other records than the request's tell nothing about it."""
    if figures is None or figures["own"]:
        return check
    why = f"measured on {figures['of']}, not on the request's own records: there it says {check.result}, {check.why}"
    return Check(check.name, INCONCLUSIVE, check.figure, why, check.required)


def check_ledger(ledger: Figures) -> Check:
    """Is the run's ledger as it was written?"""
    figure = {"lines": ledger["lines"], "faults": len(ledger["faults"])}
    if ledger["faults"]:
        return Check("ledger", FAIL, figure, f"the run's ledger is broken: {ledger['faults'][0]}")
    return Check("ledger", PASS, figure, "the run's ledger is unbroken")


def check_binding(missing: str) -> Check:
    """Does the ledger name the configuration, the models and the files that the figures come from?"""
    if missing:
        return Check("binding", INCONCLUSIVE, {}, missing)
    return Check("binding", PASS, {}, "configuration, models and files are those that the ledger names")


def check_scope(unnamed: int) -> Check:
    """Is every record of the demand named by a request that is part of the certificate?"""
    if unnamed:
        those = "record of the demand is" if unnamed == 1 else "records of the demand are"
        why = f"{unnamed} {those} named by other requests, which are no part of this certificate"
        return Check("scope", INCONCLUSIVE, {"records named elsewhere": unnamed}, why)
    return Check("scope", PASS, {}, "every record of the demand is named by a request that is part of this certificate")


def check_commitment(sealed: Figures) -> Check:
    """Is the request one that its node committed to before the exchange? Where it is not, nothing is certified."""
    figure = {name: sealed[name] for name in ("clients in the sum", "records in the sum")}
    why = "the ledger's line about the exchange holds the commitment that it opens, and counts the client's part"
    return Check("commitment", PASS, figure, why)


def check_model(evidence: Figures) -> Check:
    """Is the final model still good for anything? A ruined one recites nothing."""
    reason = evidence["judgement"].get("doubt", "") or next((f"failed: {e}" for e in evidence.get("failed", ())), "")
    if reason:
        return Check("model", INCONCLUSIVE, {}, reason)
    if evidence["judgement"].get("outcome") == verification_rules.INCONCLUSIVE and not evidence["judgement"].get(
        "records"
    ):
        return Check("model", INCONCLUSIVE, {}, evidence["judgement"].get("why") or "nothing is known of the model")
    return Check("model", PASS, {}, "no evaluator failed, and the model's utility has not collapsed")


def check_exchange(evidence: Figures, thresholds: Thresholds) -> Check:
    """Did the exchange make the model forget the records, and not the training before or after it?

    By record where the evidence tells of each; else by what the client counted right before and right after it.
    """
    before, after = (evidence.get(moment) or {} for moment in ("before", "after"))
    figure = {
        f"{name} {moment}": numbers[name]
        for name in ("rouge", "prob")
        for moment, numbers in (("before", before), ("right after", after))
        if name in numbers
    }
    records = records_of(evidence["judgement"])
    outcome, why = thresholds.judge_exchanges(RequestRecords(records) if records else exchange_counts(before, after))
    return Check("exchange", _RESULTS.get(outcome, INCONCLUSIVE), figure, why)


def check_rouge(judgement: Figures, thresholds: Thresholds) -> Check:
    """Does the final model know any record that was known before? By record, where the evidence tells of each."""
    recall = judgement.get("rouge")
    figure: dict[str, Any] = {"mean ROUGE-L recall": recall, "a record is recited above": thresholds.max_recall}
    outcome, why = str(judgement.get("outcome")), str(judgement.get("why", ""))
    if records := records_of(judgement):
        judged = thresholds.judge(RequestRecords(records, judgement.get("twins", 0), judgement["doubt"]))
        outcome, why = judged.outcome, judged.why
        figure |= {"records": len(records), **judged.counts}
    elif recall is None:
        return Check("rouge", INCONCLUSIVE, figure, "the final model was not asked for the records")
    elif recall > thresholds.max_recall:
        outcome, why = verification_rules.NOT_VERIFIED, "the final model's greedy answers recite the records"
    return Check("rouge", _RESULTS.get(outcome, INCONCLUSIVE), figure, f"{outcome}: {why}" if why else outcome)


def check_leakage(figures: Figures | None, limit: float) -> Check:
    """Is the probability that a sampled answer leaks at most `limit`?

    With confidence 1 − alpha it lies between `lower` and `upper`. PASS where `upper` is within the limit, FAIL where
    `lower` is above it; in between more samples are needed to tell.
    """
    if figures is None:
        return Check("leakage", INCONCLUSIVE, {"at most": limit}, "no answers to the records were sampled")
    figure = {name: figures[name] for name in ("upper", "lower", "samples", "confidence", "of")} | {"at most": limit}
    if figures.get("audits", 0) > 1:
        figure["audits made"] = figures["audits"]
    allowed = f", judged more strictly as audit {figures['audits']} of this model" if figures.get("corrected") else ""
    if figures.get("records") is not None and figures["questions"] < figures["records"]:
        reason = f"answers to only {figures['questions']} of the {counted(figures['records'], 'record')} were sampled"
        return Check("leakage", FAIL if figures["lower"] > limit else INCONCLUSIVE, figure, reason)
    start = "sampled answers leak with a probability of at"
    if figures["upper"] <= limit:
        return Check("leakage", PASS, figure, f"{start} most {figures['upper']:.3g}{allowed}")
    if figures["lower"] > limit:
        return Check("leakage", FAIL, figure, f"{start} least {figures['lower']:.3g}")
    least = 1 - (1 - figures["confidence"]) ** (1 / figures["samples"])
    why = (
        f"too few samples: even if none of {figures['samples']:g} leaks, the bound is {least:.3g}"
        if least > limit
        else f"too few samples: the probability lies between {figures['lower']:.3g} and {figures['upper']:.3g}"
    )
    return Check("leakage", INCONCLUSIVE, figure, f"{why}{allowed}")


def spent(alpha: float, audit: int) -> float:
    """What of alpha the bound of the k-th audit of a model may take: all at the first, alpha / (k (k + 1)) later.

    Whoever measures until it passes, with as many answers as they like each time, sees a PASS of a model above the
    limit with a probability of at most alpha (1 + 1/6 + 1/12 + ...) = 1.5 alpha: the union bound, for any number of
    audits and any rule to stop. The first audit, if it stays the only one, is judged at alpha itself.
    """
    return alpha if audit <= 1 else alpha / (audit * (audit + 1))


def upper_at(m_bin: float, samples: int, alpha: float, audit: int) -> float:
    """The upper bound at `spent(alpha, audit)` of what has the bound `m_bin` at alpha.

    Exact for one question, whose bound tells how many answers leak. Of a mean over questions it is an upper one: over
    the number of answers that leak the one bound is a concave function of the other (Jensen's inequality).
    """
    from scipy.special import betaincinv

    leaked = np.arange(samples)
    known, wanted = (
        np.append(betaincinv(leaked + 1, samples - leaked, 1 - level), 1.0) for level in (alpha, spent(alpha, audit))
    )
    return m_bin if audit <= 1 else float(np.interp(m_bin, known, wanted))


def leak_bounds(m_bin: float, mu_lower: float, samples: int, alpha: float, leaks_from: float) -> tuple[float, float]:
    """Lower and upper bound on the probability that an answer leaks, of one question from its summary.

    The upper bound M_bin is Clopper and Pearson's of the number of answers that leak, which it therefore tells: the
    lower bound is theirs, too. Where M_bin is a mean over questions and tells no number, the lower bound follows from
    that on the mean leakage, mu <= P + (1 - P) leaks_from; it holds with confidence 1 - alpha, as the upper one does.
    """
    from scipy.special import betaincinv  # the inverse of the beta distribution, without the second of scipy.stats

    by_mean = max(0.0, (mu_lower - leaks_from) / (1 - leaks_from)) if leaks_from < 1 else 0.0
    for leaked in range(samples + 1):
        bound = 1.0 if leaked == samples else float(betaincinv(leaked + 1, samples - leaked, 1 - alpha))
        if abs(bound - m_bin) < 1e-9:
            exact = float(betaincinv(leaked, samples - leaked + 1, alpha)) if leaked else 0.0
            return max(exact, by_mean), m_bin
        if bound > m_bin:
            break
    return by_mean, m_bin


def check_rank(figures: Figures | None) -> Check:
    """RULER's Lens 2: do the records still lie closer to a retained record than those do to each other?

    Judged by the noise band of retrained models where there is one, else by the test of the ranks against 0.5.
    """
    if figures is None:
        return Check("mean_rank", INCONCLUSIVE, {}, "the records' representations were not compared")
    named = ("mean rank", "records", "p", "band low", "band high", "of")
    figure = {k: figures[k] for k in named if figures.get(k) is not None}
    value = figures["mean rank"]
    if figures.get("band low") is not None:
        if figures["band low"] <= value <= figures["band high"]:
            return Check("mean_rank", PASS, figure, "within the band of retrained models")
        result = FAIL if value > figures["band high"] else INCONCLUSIVE
        side = "above" if value > figures["band high"] else "below"
        return Check("mean_rank", result, figure, f"{side} the band of retrained models")
    if figures["records"] < LEAST_RECORDS or figures.get("verdict") is None:
        why = f"too few records: it takes {LEAST_RECORDS} and a rank of each, or a band of retrained models"
        return Check("mean_rank", INCONCLUSIVE, figure, why)
    if figures["verdict"] == ABOVE:
        return Check("mean_rank", FAIL, figure, "above 0.5, a sign that the records are still memorised")
    return Check("mean_rank", PASS, figure, "not above 0.5")


def check_oracle(figures: Figures | None) -> Check:
    """Are the forget answers likelier than in the retrained model? Nothing follows where that has seen them."""
    if figures is None:
        return Check("oracle", INCONCLUSIVE, {}, "there is no retrained model in the run")
    if figures.get("seen"):
        why = f"the retrained model was trained on {figures['seen']} of its records, in these words or nearly"
        return Check("oracle", INCONCLUSIVE, {"records that it has seen": figures["seen"]}, why)
    figure = {"probability": figures["value"], "retrained": figures["oracle"], "questions": figures["questions"]}
    why = {
        STILL_KNOWN: "far likelier than in the retrained model",
        NEAR: "as likely as in the retrained model",
        OVER_UNLEARNED: "far less likely than in the retrained model: "
        f"{verification_rules.MEANING[verification_rules.OVER_UNLEARNED]}",
    }.get(figures["verdict"], "too few questions to tell from the retrained model")
    result = {STILL_KNOWN: FAIL, NEAR: PASS}.get(figures["verdict"], INCONCLUSIVE)
    return Check("oracle", result, figure, why)


def check_attacks(attacks: Sequence[Figures] | None, limit: float, failed: Sequence[str] = ()) -> Check:
    """Did an attack bring an answer about the request's records back: above `limit`, and more of it than the retrained
    model says under the same attack? Not shown to be so while some `failed`."""
    if not attacks:
        return Check("attacks", INCONCLUSIVE, {"attacks": 0}, "no attack was run on the final model")
    own = [row for row in attacks if row["own"]]
    worst = max(own or attacks, key=lambda row: (_brought_back(row, limit), _most(row)))
    figure = {"attacks": len(attacks), "attack": worst["attack"], "ROUGE-L recall": _most(worst), "at most": limit}
    if not own:
        others = f"; of others, {worst['attack']} brings some back" if _brought_back(worst, limit) else ""
        return Check("attacks", INCONCLUSIVE, figure, f"no attack asked for the request's own records{others}")
    if _brought_back(worst, limit):
        return Check("attacks", FAIL, figure, f"{worst['attack']} brings an answer about the request's records back")
    if failed:
        return Check("attacks", INCONCLUSIVE, figure, f"these attacks failed: {', '.join(failed)}")
    return Check("attacks", PASS, figure, "no attack brings an answer about the request's records back")


def _most(row: Figures) -> float:
    """The largest recall of an answer about the request's records, else the mean over what was asked."""
    return row.get("worst", row["rouge"])


def _brought_back(row: Figures, limit: float) -> bool:
    """Own records: is any recited that the retrained model, under the same attack, does not say as well?"""
    if row["own"]:
        return any(said > limit and (oracle is None or said > oracle) for said, oracle in row["recalls"])
    return row["rouge"] > limit if row["verdict"] is None else row["verdict"] == STILL_KNOWN
