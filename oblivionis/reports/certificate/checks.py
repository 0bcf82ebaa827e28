"""Do the figures of a served request say that its records are forgotten? PASS, FAIL or INCONCLUSIVE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.metrics.verdict import NEAR, OVER_UNLEARNED, STILL_KNOWN
from evaluation.ruler.rank_significance import ABOVE, LEAST_RECORDS
from oblivionis.config.schema import Certificate

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"
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
    """FAIL where any check fails; else PASS where every required one passes; else INCONCLUSIVE."""
    if any(check.result == FAIL for check in checks):
        return FAIL
    return PASS if all(check.result == PASS for check in checks if check.required) else INCONCLUSIVE


def run_checks(evidence: Mapping[str, Any], settings: Certificate) -> list[Check]:
    """All checks on `evidence`, see `oblivionis.reports.certificate.evidence`; the ledger's is always required."""
    found = [
        check_rouge(evidence["final"].get("rouge"), settings.max_rouge),
        check_leakage(evidence["leakage"], settings.max_leakage),
        check_rank(evidence["rank"]),
        check_oracle(evidence["oracle"]),
        check_attacks(evidence["attacks"], settings.max_attacked_rouge),
    ]
    wanted = [Check(c.name, c.result, c.figure, c.why, c.name in settings.required) for c in found]
    return [check_ledger(evidence["ledger"]), *wanted]


def check_ledger(ledger: Figures) -> Check:
    """Is the run's ledger as it was written?"""
    figure = {"lines": ledger["lines"], "faults": len(ledger["faults"])}
    if ledger["faults"]:
        return Check("ledger", FAIL, figure, f"the run's ledger is broken: {ledger['faults'][0]}")
    return Check("ledger", PASS, figure, "the run's ledger is unbroken")


def check_rouge(rouge: float | None, limit: float) -> Check:
    """Does the final model recite the records?"""
    figure = {"mean ROUGE-L recall": rouge, "at most": limit}
    if rouge is None:
        return Check("rouge", INCONCLUSIVE, figure, "the final model was not asked for the records")
    if rouge <= limit:
        return Check("rouge", PASS, figure, "the final model's greedy answers do not recite the records")
    return Check("rouge", FAIL, figure, "the final model's greedy answers recite the records")


def check_leakage(found: Figures | None, limit: float) -> Check:
    """Is the probability that a sampled answer leaks at most `limit`?

    With confidence 1 − alpha it lies between `lower` and `upper`. PASS where `upper` is within the limit, FAIL where
    `lower` is above it; in between more samples are needed to tell.
    """
    if found is None:
        return Check("leakage", INCONCLUSIVE, {"at most": limit}, "no answers to the records were sampled")
    figure = {name: found[name] for name in ("upper", "lower", "samples", "confidence", "of")} | {"at most": limit}
    leaks = "sampled answers leak with a probability of at"
    if found["upper"] <= limit:
        return Check("leakage", PASS, figure, f"{leaks} most {found['upper']:.3g}")
    if found["lower"] > limit:
        return Check("leakage", FAIL, figure, f"{leaks} least {found['lower']:.3g}")
    least = 1 - (1 - found["confidence"]) ** (1 / found["samples"])
    why = (
        f"too few samples: even if none of {found['samples']:g} leaks, the bound is {least:.3g}"
        if least > limit
        else f"too few samples: the probability lies between {found['lower']:.3g} and {found['upper']:.3g}"
    )
    return Check("leakage", INCONCLUSIVE, figure, why)


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


def check_rank(found: Figures | None) -> Check:
    """RULER's Lens 2: do the records still lie closer to a retained record than those do to each other?

    Judged by the noise band of retrained models where there is one, else by the test of the ranks against 0.5.
    """
    if found is None:
        return Check("mean_rank", INCONCLUSIVE, {}, "the records' representations were not compared")
    named = ("mean rank", "records", "p", "band low", "band high", "of")
    figure = {k: found[k] for k in named if found.get(k) is not None}
    value = found["mean rank"]
    if found.get("band low") is not None:
        if found["band low"] <= value <= found["band high"]:
            return Check("mean_rank", PASS, figure, "within the band of retrained models")
        result = FAIL if value > found["band high"] else INCONCLUSIVE
        side = "above" if value > found["band high"] else "below"
        return Check("mean_rank", result, figure, f"{side} the band of retrained models")
    if found["records"] < LEAST_RECORDS or found.get("verdict") is None:
        why = f"too few records: it takes {LEAST_RECORDS} and a rank of each, or a band of retrained models"
        return Check("mean_rank", INCONCLUSIVE, figure, why)
    if found["verdict"] == ABOVE:
        return Check("mean_rank", FAIL, figure, "above 0.5, a sign that the records are still memorised")
    return Check("mean_rank", PASS, figure, "not above 0.5")


def check_oracle(found: Figures | None) -> Check:
    """Are the forget answers likelier than in the retrained model, which never saw them?"""
    if found is None:
        return Check("oracle", INCONCLUSIVE, {}, "there is no retrained model in the run")
    figure = {"probability": found["value"], "retrained": found["oracle"], "questions": found["questions"]}
    why = {
        STILL_KNOWN: "far likelier than in the retrained model",
        NEAR: "as likely as in the retrained model",
        OVER_UNLEARNED: "far less likely than in the retrained model: over-unlearned, which is a sign in itself",
    }.get(found["verdict"], "too few questions to tell from the retrained model")
    result = {STILL_KNOWN: FAIL, NEAR: PASS, OVER_UNLEARNED: PASS}.get(found["verdict"], INCONCLUSIVE)
    return Check("oracle", result, figure, why)


def check_attacks(found: Sequence[Figures] | None, limit: float) -> Check:
    """Did an attack bring the forget answers back: more than in the retrained model, or above `limit` without one?"""
    if not found:
        return Check("attacks", INCONCLUSIVE, {"attacks": 0}, "no attack was run on the final model")
    worst = max(found, key=lambda row: (_brought_back(row, limit), row["rouge"]))
    figure = {"attacks": len(found), "attack": worst["attack"], "ROUGE-L recall": worst["rouge"]}
    if worst["verdict"] is None:
        figure["at most"] = limit
    if _brought_back(worst, limit):
        return Check("attacks", FAIL, figure, f"{worst['attack']} brings forget answers back")
    return Check("attacks", PASS, figure, "no attack brings forget answers back")


def _brought_back(row: Figures, limit: float) -> bool:
    return row["rouge"] > limit if row["verdict"] is None else row["verdict"] == STILL_KNOWN
