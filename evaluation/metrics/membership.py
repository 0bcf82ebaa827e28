"""Membership inference: whether an attack separates forget records from holdout records, which the model never saw.

Every attack gives a text a score, larger where it takes the text for a training text. The AUC of forget against holdout
records is the probability that a forget record scores higher, ties counted half: 1 if the attack separates them
completely, 0.5 if it cannot. The goal is the AUC of the model that was trained without the forget records. It need not
be 0.5, since the two groups may differ by nature, and unlearning can push a model's AUC below it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy

from evaluation.engine.sequences import Scores, TokenSequence
from evaluation.hook import EvaluationSession, Result

ATTACKS = ("loss", "zlib", "min_k_20", "min_k_40", "min_k_plus_plus", "reference")
"""Names of the attacks, in the order of tables. `min_k_20` and `min_k_40` take k = 0.2 and 0.4."""
SHARES = {"min_k_20": 0.2, "min_k_40": 0.4, "min_k_plus_plus": 0.2}
LEAST_RECORDS = 8
"""Fewest records per group for a test of a difference of AUCs; with fewer none keeps its level."""
_LEAST_DEVIATION = 1e-6
BLOCK = 1 << 22


def zlib_length(text: str) -> int:
    """Length of a text compressed by zlib at its default level.

    Parameters
    ----------
    text : str

    Returns
    -------
    int
        Bytes; the text is in UTF-8.
    """
    return len(zlib.compress(text.encode("utf-8")))


def lowest_mean(values: np.ndarray, share: float) -> float:
    """Mean of the floor(share·T) lowest of T values, at least one (Min-K%, Shi et al. 2023).

    Parameters
    ----------
    values : array (T,)
    share : float in (0, 1]

    Returns
    -------
    float

    Raises
    ------
    ValueError
        For no values or a share out of range.
    """
    if len(values) == 0 or not 0 < share <= 1:
        raise ValueError(f"expected values and a share in (0, 1], got {len(values)} values and {share}")
    count = max(1, int(share * len(values) + 1e-9))
    return float(np.partition(np.asarray(values, np.float64), count - 1)[:count].mean())


def normalised(log_probs: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Normalised token log-probabilities (log p − μ) / σ (Min-K%++, Zhang et al. 2024).

    Parameters
    ----------
    log_probs : array (T,)
    moments : array (T, 2)
        Mean μ and deviation σ of log p over the vocabulary; a σ below 1e-6, where the model is certain, counts as that.

    Returns
    -------
    array (T,), float64
    """
    mean, deviation = np.asarray(moments, np.float64).T
    return (np.asarray(log_probs, np.float64) - mean) / np.maximum(deviation, _LEAST_DEVIATION)


def attack_scores(
    scores: Scores, texts: Sequence[str], reference: Sequence[float] | np.ndarray | None
) -> dict[str, np.ndarray]:
    """Score of each text by every attack that the arguments allow; larger: more likely a member.

    - loss: mean log-probability per token (Yeom et al. 2018);
    - zlib: the same over `zlib_length` of the text (Carlini et al. 2021);
    - min_k_20, min_k_40: `lowest_mean` of the log-probabilities of the tokens (Shi et al. 2023);
    - min_k_plus_plus: `lowest_mean` of the `normalised` ones, k = 0.2; only if `scores` have moments;
    - reference: the mean log-probability less that under a reference model (Mireshghallah et al. 2022); only if given.

    Parameters
    ----------
    scores : Scores
        Of n texts.
    texts : sequence of n str
    reference : array (n,) or None
        Mean log-probability per token under the reference model.

    Returns
    -------
    dict of arrays (n,)
        By attack.

    Raises
    ------
    ValueError
        If the lengths differ.
    """
    if len(texts) != len(scores) or (reference is not None and len(reference) != len(scores)):
        raise ValueError(f"{len(scores)} scored sequences do not fit {len(texts)} texts or their reference values")
    mean = -scores.mean_nll
    found = {
        "loss": mean,
        "zlib": mean / np.array([zlib_length(text) for text in texts]),
        **{name: np.array([lowest_mean(x, SHARES[name]) for x in scores.log_probs]) for name in ATTACKS[2:4]},
    }
    if scores.moments is not None:
        pairs = zip(scores.log_probs, scores.moments, strict=True)
        share = SHARES["min_k_plus_plus"]
        found["min_k_plus_plus"] = np.array([lowest_mean(normalised(x, m), share) for x, m in pairs])
    if reference is not None:
        found["reference"] = mean - np.asarray(reference, np.float64)
    return found


def auc(members: Sequence[float] | np.ndarray, others: Sequence[float] | np.ndarray) -> float:
    """AUC of an attack: P(member > other) + P(member = other)/2 over all pairs (Mann–Whitney).

    Parameters
    ----------
    members, others : array (n,), array (m,)
        Scores; n, m >= 1.

    Returns
    -------
    float in [0, 1]

    Raises
    ------
    ValueError
        For an empty group or a NaN.
    """
    x, y = _groups(members, others)
    ranks = scipy.stats.rankdata(np.concatenate([x, y]))
    return float((ranks[: len(x)].sum() - len(x) * (len(x) + 1) / 2) / (len(x) * len(y)))


def auc_interval(
    members: Sequence[float] | np.ndarray,
    others: Sequence[float] | np.ndarray,
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of `auc`; each group is resampled by itself, with replacement.

    Groups that do not overlap give (1, 1) or (0, 0): resampling cannot show what other records would.

    Parameters
    ----------
    members, others : array (n,), array (m,)
        Scores.
    resamples : int, at least 1
    confidence : float in (0, 1)
    seed : int

    Returns
    -------
    low, high : float in [0, 1]

    Raises
    ------
    ValueError
        As `auc`, and for values out of range.
    """
    if resamples < 1 or not 0 < confidence < 1:
        raise ValueError(f"expected resamples >= 1 and confidence in (0, 1), got {resamples} and {confidence}")
    x, y = _groups(members, others)
    y = np.sort(y)
    below, not_above = np.searchsorted(y, x, side="left"), np.searchsorted(y, x, side="right")
    rng = np.random.default_rng(seed)
    block = max(1, BLOCK // (len(x) + len(y)))
    found = []
    for start in range(0, resamples, block):
        count = min(block, resamples - start)
        of_x, of_y = _resampled(rng, len(x), count), _resampled(rng, len(y), count)
        cumulative = np.zeros((count, len(y) + 1))
        np.cumsum(of_y, axis=1, out=cumulative[:, 1:])
        wins = cumulative[:, below] + cumulative[:, not_above]
        found.append(np.einsum("rn,rn->r", of_x, wins) / (2 * len(x) * len(y)))
    low, high = np.quantile(np.concatenate(found), [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _resampled(rng: np.random.Generator, size: int, count: int) -> np.ndarray:
    """How often each of `size` values occurs in each of `count` bootstrap samples, (count, size)."""
    drawn = rng.integers(0, size, (count, size)) + size * np.arange(count)[:, None]
    return np.bincount(drawn.ravel(), minlength=count * size).reshape(count, size).astype(np.float64)


def _groups(members: Any, others: Any) -> tuple[np.ndarray, np.ndarray]:
    """Both groups' scores as float64 arrays, checked."""
    x, y = np.asarray(members, np.float64), np.asarray(others, np.float64)
    if x.ndim != 1 or y.ndim != 1 or not x.size or not y.size:
        raise ValueError(f"the AUC needs members and non-members, got shapes {x.shape} and {y.shape}")
    if np.isnan(x).any() or np.isnan(y).any():
        raise ValueError("an attack's score is not a number")
    return x, y


@dataclass(frozen=True)
class Difference:
    """Difference of the AUCs of two models on the same records.

    Attributes
    ----------
    value : float in [-1, 1]
    low, high : float
        Confidence interval.
    p_value : float
        Two-sided, for a difference of 0.
    """

    value: float
    low: float
    high: float
    p_value: float


def auc_difference(
    model: tuple[Sequence[float], Sequence[float]],
    oracle: tuple[Sequence[float], Sequence[float]],
    *,
    confidence: float = 0.95,
) -> Difference | None:
    """Test of two correlated AUCs (DeLong, DeLong & Clarke-Pearson 1988).

    Student's t with the degrees of freedom of the smaller group takes the place of the normal distribution, which needs
    dozens of records: with n of them a test at 5 % rejects equal models in 9 % (n = 8) to 7 % (n = 20) of the cases,
    with t in 5 %. Where the difference has no variance at all (each model separates the groups completely), p is 1 for
    equal AUCs and else that of so many differences of one sign, 2^(1 − n).

    Parameters
    ----------
    model, oracle : (array (n,), array (m,))
        Scores of members and others, in the same order of records.
    confidence : float in (0, 1)

    Returns
    -------
    Difference or None
        None with fewer than `LEAST_RECORDS` in a group.

    Raises
    ------
    ValueError
        As `auc`, and for groups of different sizes.
    """
    (x, y), (x_oracle, y_oracle) = _groups(*model), _groups(*oracle)
    if len(x) != len(x_oracle) or len(y) != len(y_oracle):
        raise ValueError(
            f"{len(x)} and {len(y)} records of the model, {len(x_oracle)} and {len(y_oracle)} of the other"
        )
    least = min(len(x), len(y))
    if least < LEAST_RECORDS:
        return None
    first, second = _components(x, y), _components(x_oracle, y_oracle)
    value = float(first[0].mean() - second[0].mean())
    spread = [np.var(a - b, ddof=1) / len(a) for a, b in zip(first, second, strict=True)]
    error = float(np.sqrt(sum(spread)))
    width = float(scipy.special.stdtrit(least - 1, (1 + confidence) / 2)) * error
    if error > 1e-12:
        p_value = float(2 * scipy.special.stdtr(least - 1, -abs(value) / error))
    else:
        p_value = 1.0 if abs(value) < 1e-12 else 2.0 ** (1 - least)
    return Difference(value, max(-1.0, value - width), min(1.0, value + width), p_value)


def _components(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """DeLong's components: share of others below each member (n,), and of members above each other one (m,).

    Ties count half.
    """
    return _share_below(x, y), 1 - _share_below(y, x)


def _share_below(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Share of the others below each value; ties count half."""
    ordered = np.sort(others)
    return (ordered.searchsorted(values, "left") + ordered.searchsorted(values, "right")) / (2 * len(others))


@dataclass(frozen=True)
class Candidate:
    """A record whose membership is in question.

    Attributes
    ----------
    id : str
    sequence : TokenSequence
        Its answer part is scored.
    text : str
        What these tokens stand for.
    """

    id: str
    sequence: TokenSequence
    text: str


@dataclass(frozen=True)
class MembershipEvaluator:
    """AUC of each attack on the session's model, forget records (`members`) against holdout (`others`).

    Metrics: auc_<attack> with _low and _high (`auc_interval`); with `oracle` also auc_<attack>_difference and
    auc_<attack>_p (`auc_difference`) over the records that both have. Details: attack -> "members" and "others" -> id
    -> score. No metrics where a group is empty.

    Attributes
    ----------
    members, others : sequence of Candidate
    attacks : sequence of str
        Some of `ATTACKS`.
    reference : mapping of float, optional
        Mean log-probability of each record under the reference model, by id; without it (or a record in it) the attack
        `reference` is left out.
    oracle : mapping, optional
        The details of this evaluator on the retrained model.
    resamples, confidence, seed
        As in `auc_interval`.

    Raises
    ------
    ValueError
        For an unknown attack.
    """

    members: Sequence[Candidate]
    others: Sequence[Candidate]
    attacks: Sequence[str] = ATTACKS
    reference: Mapping[str, float] | None = None
    oracle: Mapping[str, Any] | None = None
    resamples: int = 1000
    confidence: float = 0.95
    seed: int = 0
    name: str = field(default="membership", init=False)

    def __post_init__(self) -> None:
        if unknown := set(self.attacks) - set(ATTACKS):
            raise ValueError(f"unknown attacks {sorted(unknown)}, expected some of {', '.join(ATTACKS)}")

    def request(self, session: EvaluationSession) -> None:
        """Announce the records, with moments where an attack needs them."""
        if self.members and self.others:
            session.request(sequences=self._sequences(), moments="min_k_plus_plus" in self.attacks)

    def evaluate(self, session: EvaluationSession) -> Result:
        """Run the attacks."""
        if not self.members or not self.others:
            return Result({})
        found = self._scored(session)
        metrics: dict[str, float] = {}
        for name, groups in found.items():
            values = [list(groups[key].values()) for key in ("members", "others")]
            metrics[f"auc_{name}"] = auc(*values)
            low, high = auc_interval(*values, resamples=self.resamples, confidence=self.confidence, seed=self.seed)
            metrics |= {f"auc_{name}_low": low, f"auc_{name}_high": high}
            if self.oracle is not None:
                metrics |= compared(name, groups, self.oracle.get(name), self.confidence)
        return Result(metrics, found)

    def _sequences(self) -> list[TokenSequence]:
        """All records."""
        return [c.sequence for c in (*self.members, *self.others)]

    def _scored(self, session: EvaluationSession) -> dict[str, dict[str, dict[str, float]]]:
        """Scores by attack, group and record."""
        candidates = (*self.members, *self.others)
        scores = session.scores(self._sequences(), moments="min_k_plus_plus" in self.attacks)
        reference = None
        if self.reference is not None and all(c.id in self.reference for c in candidates):
            reference = [self.reference[c.id] for c in candidates]
        values = attack_scores(scores, [c.text for c in candidates], reference)
        count = len(self.members)
        return {
            name: {
                "members": {c.id: float(v) for c, v in zip(self.members, values[name][:count], strict=True)},
                "others": {c.id: float(v) for c, v in zip(self.others, values[name][count:], strict=True)},
            }
            for name in ATTACKS
            if name in self.attacks and name in values
        }


def compared(
    name: str,
    model: Mapping[str, Mapping[str, float]],
    oracle: Mapping[str, Mapping[str, float]] | None,
    confidence: float,
) -> dict[str, float]:
    """Difference of two models' AUCs by one attack, as metrics.

    Parameters
    ----------
    name : str
        The attack.
    model, oracle : mapping
        Details of `MembershipEvaluator` on this attack; the records that both have are compared.
    confidence : float in (0, 1)

    Returns
    -------
    dict of float
        auc_<name>_difference with _low and _high, and auc_<name>_p; empty where there are too few records.
    """
    if oracle is None:
        return {}
    both = [[i for i in model[key] if i in oracle.get(key, {})] for key in ("members", "others")]
    if not all(both):
        return {}
    of_model, of_oracle = (
        tuple([scores[key][i] for i in ids] for key, ids in zip(("members", "others"), both, strict=True))
        for scores in (model, oracle)
    )
    found = auc_difference(of_model, of_oracle, confidence=confidence)  # type: ignore[arg-type]
    if found is None:
        return {}
    head = f"auc_{name}"
    return {
        f"{head}_difference": found.value,
        f"{head}_difference_low": found.low,
        f"{head}_difference_high": found.high,
        f"{head}_p": found.p_value,
    }
