"""How far is an unlearned model from the retrained one? One number, in standard errors of the latter's own values.

Four measures of the forget set, each between 0 and 1, two-sided: what lies above the retrained model's value is still
known, what lies below it is avoided, and both count.

| measure | m | per question or record |
| --- | --- | --- |
| probability | `forget_prob` | exp(−mean NLL) of the true answer |
| truth ratio | mean of 1/(1 + R) | right answer's share of right + wrong, R = wrong/right |
| membership | `membership_auc_loss` | forget against holdout records |
| leakage | `leakage_mean` | mean ROUGE-L recall of sampled answers |

    d_m = |m − m*| / max(σ*_m, 0.01)          D = sqrt(mean over the measures of d_m²)

m* is the retrained model's value and σ*_m its standard error over the questions (for the AUC over the records of both
groups, DeLong et al. 1988): D = 1 is as far as other questions of the same kind would move the retrained model's own
values. σ* belongs to the retrained model alone, so that all trials and all methods are measured with one ruler.

R itself is the truth ratio of Oblivionis eq. 13. Its share 1/(1 + R) falls from a model that knows the answer to one
that avoids it; TOFU's min(R, 1/R) is small for both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluation.metrics.membership import auc
from evaluation.metrics.tofu import truth_ratios

PROBABILITY, TRUTH_RATIO, MEMBERSHIP, LEAKAGE = "probability", "truth_ratio", "membership", "leakage"
MEASURES = (PROBABILITY, TRUTH_RATIO, MEMBERSHIP, LEAKAGE)
AFTER_ROUNDS = (PROBABILITY, MEMBERSHIP)
"""What is measured after each round: both take one forward pass, and no answer needs to be generated."""
METRICS = {PROBABILITY: "forget_prob", MEMBERSHIP: "membership_auc_loss", LEAKAGE: "leakage_mean"}
"""By measure, the metric of a run that it is; the truth ratio comes from the answers of each question."""
LEAST_ERROR = 0.01
"""A hundredth of the range: a retrained model that says the same to every question has no spread to measure by."""
LARGEST_DEVIATION = 0.5
"""Of anything between 0 and 1; taken where one question tells nothing of a spread."""


@dataclass(frozen=True)
class Oracle:
    """The retrained model: by measure its value and the standard error of that; its utility."""

    values: Mapping[str, float]
    errors: Mapping[str, float]
    utility: float


def measured(metrics: Mapping[str, float], log: Mapping[str, Any] | None, convention: str) -> dict[str, float]:
    """The measures that a stage's metrics and per-question log have; log None: those of a round."""
    found = {measure: float(metrics[name]) for measure, name in METRICS.items() if name in metrics}
    if log is not None and (shares := right_shares(log, convention)) is not None:
        found[TRUTH_RATIO] = float(shares.mean())
    return {measure: found[measure] for measure in MEASURES if measure in found}


def right_shares(log: Mapping[str, Any], convention: str) -> np.ndarray | None:
    """1/(1 + R) of each forget question, (n,) in [0, 1]; None where the log has no wrong answers or no finite loss."""
    try:
        ratios = truth_ratios(log, "forget", convention)
    except ValueError:
        return None
    return None if ratios is None else 1 / (1 + ratios)


def standard_errors(log: Mapping[str, Any], convention: str) -> dict[str, float]:
    """The standard error of each measure of a model, from its per-question log.

    Leakage: over the midpoints of the two bounds on each question's mean, which is what the log keeps of the samples.
    """
    found: dict[str, float] = {}
    if losses := log.get("eval_log_forget", {}).get("avg_gt_loss"):
        found[PROBABILITY] = error_of_mean(np.exp(-np.asarray(list(losses.values()), np.float64)))
    if (shares := right_shares(log, convention)) is not None:
        found[TRUTH_RATIO] = error_of_mean(shares)
    if groups := log.get("membership", {}).get("loss"):
        found[MEMBERSHIP] = error_of_auc(*(list(groups[key].values()) for key in ("members", "others")))
    if leaked := log.get("leakage"):
        found[LEAKAGE] = error_of_mean([(q["mu_lower"] + q["mu_upper"]) / 2 for q in leaked.values()])
    return found


def error_of_mean(values: Sequence[float] | np.ndarray) -> float:
    """The standard error of the mean of values (n,) in [0, 1]: s / √n; 0.5 where there is one value only."""
    values = np.asarray(values, np.float64)
    return float(values.std(ddof=1) / math.sqrt(values.size)) if values.size > 1 else LARGEST_DEVIATION


def error_of_auc(members: Sequence[float], others: Sequence[float]) -> float:
    """The standard error of an AUC (DeLong et al. 1988) from the scores (m,), (n,) of both groups.

    √(s²(V₁₀)/m + s²(V₀₁)/n), V₁₀ being the share of the others below each member, V₀₁ that of the members above each
    other, ties counted half; 0.5 where a group has one record only.
    """
    if min(len(members), len(others)) < 2:
        return LARGEST_DEVIATION
    above = np.array([auc([member], others) for member in members])
    below = np.array([auc(members, [other]) for other in others])
    return float(math.sqrt(above.var(ddof=1) / above.size + below.var(ddof=1) / below.size))


def distances(values: Mapping[str, float], oracle: Oracle, measures: Sequence[str] = MEASURES) -> dict[str, float]:
    """d_m of each of `measures` that the retrained model has.

    One that the model does not have, or that is no finite number, counts as far off as can be: m − m* = 1. A ruined
    model has such values.
    """
    found = {}
    for measure in measures:
        if measure in oracle.values:
            gap = abs(values.get(measure, math.inf) - oracle.values[measure])
            found[measure] = (min(gap, 1.0) if math.isfinite(gap) else 1.0) / max(oracle.errors[measure], LEAST_ERROR)
    return found


def distance(values: Mapping[str, float], oracle: Oracle, measures: Sequence[str] = MEASURES) -> float:
    """D, the root of the mean square of `distances`: 0 for the retrained model itself."""
    found = list(distances(values, oracle, measures).values())
    return math.sqrt(sum(d * d for d in found) / len(found))


def violation(utility: float | None, oracle: Oracle, least: float) -> float:
    """By how much the utility falls short of `least` times the retrained model's, as a share of that; else ≤ 0."""
    if utility is None or not math.isfinite(utility):
        return least
    return least - share(utility, oracle)


def share(utility: float, oracle: Oracle) -> float:
    """The utility as a share of the retrained model's."""
    return utility / oracle.utility
