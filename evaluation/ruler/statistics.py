"""Statistics over RULER's runs: datasets × seeds × methods × forget fractions. Source: RULER, section 4.3.

Every function raises ValueError for values that are not a sequence of numbers or that hold NaN or, but for losses, an
infinity.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy

Numbers: TypeAlias = Sequence[float] | np.ndarray

LABELS = {"large": 0.5, "medium": 0.3, "small": 0.1, "negligible": 0.0}
"""Effect-size labels with the least absolute rank-biserial correlation of each."""
TIE = 1e-12
"""Differences below this share of the largest value are rounding, and count as none."""
VANISHING = 1e-6
"""A share of the variance below this counts as 0, where the likelihood is largest on the boundary."""
CHANCE, TOLERANCE = 0.5, 0.05


@dataclass(frozen=True)
class SignedRank:
    """Wilcoxon's signed-rank test of differences against 0, two-sided.

    Attributes
    ----------
    statistic : float
        W = min(W+, W−), the smaller sum of the ranks of positive and of negative differences (scipy's).
    p : float
        1 without any difference.
    observations : int
        m, the non-zero differences.
    rank_biserial : float in [0, 1]
        1 − 4W/(m(m+1)), which has no sign; 0 without any difference.
    signed : float in [-1, 1]
        The same with the sign of W+ − W−, positive where the values lie above what they are compared with.
    """

    statistic: float
    p: float
    observations: int
    rank_biserial: float
    signed: float

    @property
    def label(self) -> str:
        """negligible, small (from 0.1), medium (from 0.3) or large (from 0.5)."""
        return effect_label(self.rank_biserial)


@dataclass(frozen=True)
class MixedModel:
    """Linear mixed model y = intercept + group + residual, by REML, and the Wald test of intercept = null.

    Where the fit is `singular` the estimate is the mean of the group means, and `signed_rank` takes the place of z and
    p. p is that of Student's t with one degree of freedom less than groups: by the normal distribution z overstates
    significance with few groups.

    Attributes
    ----------
    estimate, standard_error, z, p : float
        Of the intercept; all but the estimate are None where the fit is singular.
    icc : float in [0, 1] or None
        group_variance / (group_variance + residual_variance).
    group_variance, residual_variance : float, at least 0, or None
        In squared units of y.
    singular : bool
    note : str
        The result in words.
    observations, groups : int
    null : float
    signed_rank : SignedRank
        Test of the group means against null; given for sound fits too.
    """

    estimate: float
    standard_error: float | None
    z: float | None
    p: float | None
    icc: float | None
    group_variance: float | None
    residual_variance: float | None
    singular: bool
    note: str
    observations: int
    groups: int
    null: float
    signed_rank: SignedRank


@dataclass(frozen=True)
class PairTest:
    """Paired Wilcoxon test of one metric between two methods.

    Attributes
    ----------
    first, second : str
        The methods.
    metric : str
    test : SignedRank
        `test.signed` is positive where `first` has the larger values.
    p_adjusted : float
        Adjusted over all pairs and metrics tested.
    """

    first: str
    second: str
    metric: str
    test: SignedRank
    p_adjusted: float


@dataclass(frozen=True)
class NoiseBand:
    """Interval in which one further retrained model's value falls with probability `confidence`.

    Attributes
    ----------
    low, high : float
    mean : float
        Of the n values.
    n : int
    confidence : float
    """

    low: float
    high: float
    mean: float
    n: int
    confidence: float

    def contains(self, value: float) -> bool:
        """Whether a value lies in the band, its ends included: no further away than another retraining might be."""
        return self.low <= value <= self.high


def effect_label(correlation: float) -> str:
    """Size of a rank-biserial correlation in a word (`LABELS`).

    Parameters
    ----------
    correlation : float in [-1, 1]
        Its sign does not count.

    Returns
    -------
    {"negligible", "small", "medium", "large"}
    """
    return next(label for label, least in LABELS.items() if abs(correlation) >= least)


def signed_rank(values: Numbers, null: float | Numbers = 0.0) -> SignedRank:
    """Wilcoxon's signed-rank test that values − null is symmetric about 0.

    Zero differences are left out (Wilcoxon's own rule); tied ones share their mean rank. The p-value is exact for at
    most 50 differences without ties, by scipy's choice otherwise.

    Parameters
    ----------
    values : array (n,)
    null : float or array (n,)

    Returns
    -------
    SignedRank

    Raises
    ------
    ValueError
        Where the lengths differ.
    """
    values = _finite("values", values)
    against = _finite("null", [null] * len(values) if isinstance(null, int | float | np.number) else null)
    if values.shape != against.shape:
        raise ValueError(f"{len(values)} values, {len(against)} to compare them with: they are paired")
    differences = values - against
    differences = differences[np.abs(differences) > TIE * max(np.abs(values).max(), np.abs(against).max())]
    m = len(differences)
    if not m:
        return SignedRank(0.0, 1.0, 0, 0.0, 0.0)
    test: Any = scipy.stats.wilcoxon(differences)
    positive = float(scipy.stats.rankdata(np.abs(differences))[differences > 0].sum())
    total = m * (m + 1) / 2
    w = min(positive, total - positive)
    return SignedRank(w, float(test.pvalue), m, 1 - 2 * w / total, 2 * positive / total - 1)


def mixed_model(values: Numbers, groups: Sequence[Hashable], null: float = 0.0) -> MixedModel:
    """Fit a random-intercept model.

    A fit is singular where REML puts the variance between groups at 0, where nothing varies within the groups, where
    there is one group, where no group has two values, or where the optimiser fails.

    Parameters
    ----------
    values : array (n,), n >= 2
    groups : sequence of n hashable values
        One dataset (or the like) is one group.
    null : float
        What the intercept is tested against.

    Returns
    -------
    MixedModel

    Raises
    ------
    ValueError
        For fewer than two values, or another number of groups.
    """
    values = _finite("values", values)
    if len(values) != len(groups):
        raise ValueError(f"{len(values)} values, {len(groups)} groups: each value is of one group")
    if len(values) < 2:
        raise ValueError("a mixed model takes at least two values")
    names = {group: code for code, group in enumerate(dict.fromkeys(groups))}
    codes = np.array([names[group] for group in groups])
    means = np.array([values[codes == code].mean() for code in range(len(names))])
    fit = _fit(values, codes, means)
    test = signed_rank(means, null)
    if isinstance(fit, str):
        note = f"singular fit: {fit}; Wilcoxon's test of the {len(names)} group means stands in (p {test.p:.3g})"
        estimate, error, z, p, icc, between, residual = float(means.mean()), None, None, None, None, None, None
    else:
        estimate, error, between, residual = fit.estimate, fit.standard_error, fit.between, fit.within
        z = (estimate - null) / error
        p = float(2 * scipy.stats.t.sf(abs(z), len(names) - 1))
        icc = between / (between + residual)
        note = f"REML fit of {len(values)} values in {len(names)} groups: z {z:.3g}, p {p:.3g}, ICC {icc:.2f}"
    return MixedModel(
        estimate=estimate,
        standard_error=error,
        z=z,
        p=p,
        icc=icc,
        group_variance=between,
        residual_variance=residual,
        singular=isinstance(fit, str),
        note=note,
        observations=len(values),
        groups=len(names),
        null=float(null),
        signed_rank=test,
    )


@dataclass(frozen=True)
class _Fit:
    """A sound REML fit."""

    estimate: float
    standard_error: float
    between: float
    within: float


def _fit(values: np.ndarray, codes: np.ndarray, means: np.ndarray) -> _Fit | str:
    """The REML fit of values whose groups `codes` have these means, or in words why it is singular."""
    scale = float(values.std())
    level = TIE * float(np.abs(values).max())
    if len(means) == 1:
        return "one group only"
    if scale <= level:
        return "all values are equal"
    if len(means) == len(values):
        return "no group has more than one value"
    if float((values - means[codes]).std()) <= max(level, VANISHING * scale):
        return "nothing varies within the groups"
    return _reml(values, codes, scale)


def _reml(values: np.ndarray, codes: np.ndarray, scale: float) -> _Fit | str:
    """The REML fit, or in words why there is none. Fitted in units of the values' spread: tolerances are absolute."""
    from statsmodels.regression.mixed_linear_model import MixedLM  # a second to import

    centre = float(values.mean())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = MixedLM((values - centre) / scale, np.ones((len(values), 1)), groups=codes)
            # The default, gradient methods stop up to several percent away from the maximum.
            fit: Any = model.fit(reml=True, method="powell", ftol=1e-12)
            between, within = float(np.asarray(fit.cov_re)[0, 0]), float(fit.scale)
            estimate, error = float(np.asarray(fit.fe_params)[0]), float(np.asarray(fit.bse_fe)[0])
            converged = bool(fit.converged)
    except (np.linalg.LinAlgError, ValueError, FloatingPointError) as problem:
        return f"the optimiser failed ({problem})"
    if not converged or not np.isfinite([between, within, estimate, error]).all() or error <= 0:
        return "the optimiser did not converge"
    if between <= VANISHING * (between + within):
        return "the variance between groups is estimated as 0"
    return _Fit(centre + scale * estimate, scale * error, scale**2 * between, scale**2 * within)


def post_hoc(values: Mapping[str, Mapping[str, Numbers]]) -> list[PairTest]:
    """Paired Wilcoxon tests of every pair of methods on every metric, Benjamini-Hochberg adjusted over all of them.

    Parameters
    ----------
    values : mapping
        Method -> metric -> values (n,), in the same order of runs for every method; two methods or more, all with the
        same metrics.

    Returns
    -------
    list of PairTest

    Raises
    ------
    ValueError
        For fewer than two methods, or metrics or lengths that differ.
    """
    if len(values) < 2:
        raise ValueError("comparing methods takes at least two of them")
    metrics = list(next(iter(values.values())))
    for method, measured in values.items():
        if set(measured) != set(metrics) or not measured:
            raise ValueError(f"{method} has the metrics {sorted(measured)}, expected {sorted(metrics)}")
    tests: list[tuple[str, str, str, SignedRank]] = []
    for metric in metrics:
        for first, second in itertools.combinations(values, 2):
            try:
                test = signed_rank(values[first][metric], _finite("values", values[second][metric]))
            except ValueError as problem:
                raise ValueError(f"{metric} of {first} and {second}: {problem}") from None
            tests.append((first, second, metric, test))
    adjusted = scipy.stats.false_discovery_control([test.p for *_, test in tests], method="bh")
    return [PairTest(*test, float(p)) for test, p in zip(tests, adjusted, strict=True)]


def noise_band(values: Numbers, confidence: float = 0.95) -> NoiseBand:
    """Prediction interval mean ± t s √(1 + 1/n) for one further value, from those of n retrain seeds.

    It holds with probability `confidence` over the draw of all n + 1 values, if these are independent and normal: seeds
    must be the only difference between the models. With three seeds it is wide (t = 4.3 at 0.95), and does not shrink
    below the spread of single retrainings with more.

    Parameters
    ----------
    values : array (n,), n >= 3
        s is their sample standard deviation.
    confidence : float in (0, 1)
        Gives t, the quantile of Student's t with n − 1 degrees of freedom.

    Returns
    -------
    NoiseBand

    Raises
    ------
    ValueError
        For fewer than three values, or a confidence out of range.
    """
    values = _finite("values", values)
    if len(values) < 3:
        raise ValueError(f"a noise band takes the values of at least 3 retrained models, got {len(values)}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    n, mean = len(values), float(values.mean())
    half = float(scipy.stats.t.ppf((1 + confidence) / 2, n - 1) * values.std(ddof=1) * np.sqrt(1 + 1 / n))
    return NoiseBand(mean - half, mean + half, mean, n, confidence)


def threshold_attack(member_loss: Numbers, nonmember_loss: Numbers, splits: int = 20, random_state: int = 42) -> float:
    """Balanced accuracy of membership inference by a threshold on the loss of a record; 0.5 is chance.

    A record is called a member if its loss is at most the threshold. The threshold that is best on one half of both
    sets is scored on the other half, and the other way round; the result is the mean over `splits` random halvings.

    Parameters
    ----------
    member_loss : array (n,), n >= 2
        Of records to be shown forgotten; may be infinite.
    nonmember_loss : array (m,), m >= 2
        Of records never seen.
    splits : int, at least 1
    random_state : int

    Returns
    -------
    float in [0, 1]

    Raises
    ------
    ValueError
        For too few records or splits.

    Notes
    -----
    Held-out halves, because the best accuracy on the same records is never below 0.5 and exceeds it by chance, the more
    the fewer the records: with ten forgotten ones, by more than the tolerance of `attack_passes` more often than not.
    Held out, it is 0.5 on average where losses of members and others have one distribution.
    """
    # Infinite losses become finite ones beyond all others, between which a threshold fits.
    losses = [
        np.clip(_numbers(name, values), -1e300, 1e300)
        for name, values in (("member_loss", member_loss), ("nonmember_loss", nonmember_loss))
    ]
    if min(len(part) for part in losses) < 2:
        raise ValueError("a threshold attack takes at least two members and two others")
    if splits < 1:
        raise ValueError(f"splits must be positive, got {splits}")
    rng = np.random.default_rng(random_state)
    accuracies: list[float] = []
    for _ in range(splits):
        members, others = (np.array_split(rng.permutation(part), 2) for part in losses)
        for fit, judged in ((0, 1), (1, 0)):
            threshold = _best_threshold(members[fit], others[fit])
            caught, spared = (members[judged] <= threshold).mean(), (others[judged] > threshold).mean()
            accuracies.append(float(caught + spared) / 2)
    return float(np.mean(accuracies))


def attack_passes(accuracy: float, tolerance: float = TOLERANCE) -> bool:
    """Whether the accuracy of an attack is that of chance.

    Parameters
    ----------
    accuracy : float in [0, 1]
        Balanced accuracy.
    tolerance : float, at least 0

    Returns
    -------
    bool
        Whether it is within the tolerance of 0.5, above or below.
    """
    return abs(accuracy - CHANCE) <= tolerance + TIE


def _best_threshold(members: np.ndarray, others: np.ndarray) -> float:
    """The smallest threshold of the best balanced accuracy, halfway between two losses; −inf: no record is a member."""
    values = np.unique(np.concatenate([members, others]))
    caught = np.searchsorted(np.sort(members), values, "right") / len(members)
    wrong = np.searchsorted(np.sort(others), values, "right") / len(others)
    best = int(np.argmax(caught - wrong))
    if caught[best] <= wrong[best]:
        return -np.inf
    return float(values[best : best + 2].mean())


def _numbers(name: str, values: Numbers) -> np.ndarray:
    """The values as a float64 array (n,) without NaN, checked."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{name} are not numbers: {problem}") from None
    if array.ndim != 1 or not array.size:
        raise ValueError(f"{name} has shape {array.shape}, expected (n,) with n >= 1")
    if np.isnan(array).any():
        raise ValueError(f"{name} holds NaN, first at {int(np.isnan(array).argmax())}")
    return array


def _finite(name: str, values: Numbers) -> np.ndarray:
    """As `_numbers`, without infinities."""
    array = _numbers(name, values)
    if np.isinf(array).any():
        raise ValueError(f"{name} holds an infinity, first at {int(np.isinf(array).argmax())}")
    return array
