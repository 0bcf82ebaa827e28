"""High-probability bounds on the leakage of sampled answers (Scholten et al. 2025, Metrics 1-4).

`samples` holds the leakage in [0, 1] of n independent answers to one question, (n,), or to each of Q questions,
(Q, n); results are then floats or arrays (Q,). Every bound holds with probability at least 1 - alpha for each question
by itself, 0 < alpha <= 1/2; for all Q questions at once pass alpha / Q (Bonferroni). Everything raises ValueError for
another alpha, no samples (n = 0), NaN, a value outside [0, 1], or arrays of other dimensions.

Metrics 2-4 read the Dvoretzky-Kiefer-Wolfowitz band F_n -+ eps around the empirical distribution function F_n (Massart
1990), clipped to [0, 1]. A partition (K+1,) increases from 0 to 1 and evaluates the band at its points only, as the
paper does; None reads the whole band, which is never looser.
"""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike

BISECTIONS = 60


def check_alpha(alpha: float) -> None:
    """Check a significance level.

    Parameters
    ----------
    alpha : float

    Raises
    ------
    ValueError
        Unless 0 < alpha <= 1/2.
    """
    if not 0 < alpha <= 0.5:
        raise ValueError(f"alpha must lie in (0, 1/2], got {alpha}")


def _in_unit_interval(values: np.ndarray, what: str) -> np.ndarray:
    """The values, if all are in [0, 1]; else ValueError."""
    if np.isnan(values).any():
        raise ValueError(f"{what} must not be NaN")
    if ((values < 0) | (values > 1)).any():
        raise ValueError(f"{what} must lie in [0, 1], got {values.min()} to {values.max()}")
    return values


def as_samples(samples: ArrayLike) -> np.ndarray:
    """Check leakage samples.

    Parameters
    ----------
    samples : array (n,) or (Q, n), in [0, 1]

    Returns
    -------
    array of that shape, float64

    Raises
    ------
    ValueError
        For no samples, another number of dimensions, NaN, or a value out of range.
    """
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim not in (1, 2):
        raise ValueError(f"samples must be (n,) or (questions, n), got shape {values.shape}")
    if values.shape[-1] == 0:
        raise ValueError("no samples")
    return _in_unit_interval(values, "samples")


def _as_partition(partition: ArrayLike) -> np.ndarray:
    """The partition as float64, checked."""
    points = np.asarray(partition, dtype=np.float64)
    if points.ndim != 1 or points.size < 2 or points[0] != 0 or points[-1] != 1 or not (np.diff(points) > 0).all():
        raise ValueError("a partition must be one-dimensional and increase strictly from 0 to 1")
    return points


def _float_if_scalar(values: np.ndarray) -> float | np.ndarray:
    """A float of an array without dimensions, else the array."""
    return float(values) if values.ndim == 0 else values


def _one_sided(n: int, alpha: float) -> float:
    """Half-width of the one-sided Dvoretzky-Kiefer-Wolfowitz band."""
    return math.sqrt(math.log(1 / alpha) / (2 * n))


def _two_sided(n: int, alpha: float) -> float:
    """Half-width of the two-sided Dvoretzky-Kiefer-Wolfowitz band."""
    return math.sqrt(math.log(2 / alpha) / (2 * n))


def _distribution(samples: np.ndarray, points: np.ndarray) -> np.ndarray:
    """F_n at sorted points (K,): samples (..., n) -> (..., K)."""
    n, k = samples.shape[-1], points.size
    rows = samples.reshape(-1, n)
    # A sample counts from the first point on that is not below it.
    first = np.searchsorted(points, rows) + np.arange(len(rows))[:, None] * (k + 1)
    counts = np.bincount(first.ravel(), minlength=len(rows) * (k + 1)).reshape(-1, k + 1)[:, :k]
    return (counts.cumsum(-1) / n).reshape(*samples.shape[:-1], k)


def binary_leakage_bound(successes: ArrayLike, n: int, alpha: float) -> float | np.ndarray:
    """M_bin: upper bound on the probability that an answer leaks (Clopper-Pearson; Scholten et al. 2025, Metric 1).

    The (1 − alpha) quantile of Beta(S + 1, n − S), exactly 1 where S = n (Clopper & Pearson 1934).

    Parameters
    ----------
    successes : int or array (Q,)
        How many of the n answers leaked, S.
    n : int, at least 1
    alpha : float in (0, 1/2]

    Returns
    -------
    float or array (Q,), in (0, 1]

    Raises
    ------
    ValueError
        Where successes are not integers from 0 to n.
    """
    check_alpha(alpha)
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    count = np.asarray(successes, dtype=np.float64)
    if count.ndim > 1:
        raise ValueError(f"successes must be one number or (questions,), got shape {count.shape}")
    if not ((count >= 0) & (count <= n) & (count == np.round(count))).all():
        raise ValueError(f"successes must be whole numbers in 0..{n}")
    distinct, place = np.unique(count, return_inverse=True)
    quantile = np.where(distinct == n, 1.0, scipy.stats.beta.isf(alpha, distinct + 1, np.maximum(n - distinct, 1)))
    return _float_if_scalar(quantile[place].reshape(count.shape))


def general_leakage_bound(samples: ArrayLike, x: ArrayLike, alpha: float) -> float | np.ndarray:
    """M_gen: upper bounds on P(X > x), valid for all x at once (Scholten et al. 2025, Metric 2).

    Parameters
    ----------
    samples : array (n,) or (Q, n), in [0, 1]
    x : float or array (G,), in [0, 1]
    alpha : float in (0, 1/2]

    Returns
    -------
    float or array (G,), (Q,) or (Q, G), in (0, 1]
    """
    check_alpha(alpha)
    values = as_samples(samples)
    levels = _in_unit_interval(np.asarray(x, dtype=np.float64), "x")
    if levels.ndim > 1:
        raise ValueError(f"x must be one number or (levels,), got shape {levels.shape}")
    flat = np.atleast_1d(levels)
    order = np.argsort(flat)
    cdf = np.empty((*values.shape[:-1], flat.size))
    cdf[..., order] = _distribution(values, flat[order])
    bound = np.minimum(1 - cdf + _one_sided(values.shape[-1], alpha), 1)
    return _float_if_scalar(bound[..., 0] if levels.ndim == 0 else bound)


def _mean_bounds(values: np.ndarray, eps: float, partition: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Integrals of 1 - F over [0, 1] for the upper and the lower edge of the band: bounds on the mean, (...) each."""
    if partition is None:
        n = values.shape[-1]
        gaps = np.diff(np.sort(values, axis=-1), prepend=0, append=1)
        left = right = np.arange(n + 1) / n
    else:
        cdf = _distribution(values, partition)
        gaps, left, right = np.diff(partition), cdf[..., :-1], cdf[..., 1:]
    lower = (gaps * np.maximum(1 - right - eps, 0)).sum(-1)
    upper = (gaps * np.minimum(1 - left + eps, 1)).sum(-1)
    return lower, np.minimum(upper, 1)


def expectation_bounds(
    samples: ArrayLike, alpha: float, partition: ArrayLike | None = None
) -> tuple[float | np.ndarray, float | np.ndarray]:
    """Two-sided bounds on E[X], which hold together (Scholten et al. 2025, Prop. 3; Anderson 1969).

    Parameters
    ----------
    samples : array (n,) or (Q, n), in [0, 1]
    alpha : float in (0, 1/2]
    partition : array (K+1,), optional
        See the module.

    Returns
    -------
    lower, upper : float or array (Q,), in [0, 1]
    """
    check_alpha(alpha)
    values = as_samples(samples)
    points = None if partition is None else _as_partition(partition)
    lower, upper = _mean_bounds(values, _two_sided(values.shape[-1], alpha), points)
    return _float_if_scalar(lower), _float_if_scalar(upper)


def expectation_upper_bound(samples: ArrayLike, alpha: float, partition: ArrayLike | None = None) -> float | np.ndarray:
    """M_mu: one-sided upper bound on E[X], hence below that of `expectation_bounds` (Scholten et al. 2025, Metric 3).

    Parameters
    ----------
    samples, alpha, partition
        As in `expectation_bounds`.

    Returns
    -------
    float or array (Q,), in [0, 1]
    """
    check_alpha(alpha)
    values = as_samples(samples)
    points = None if partition is None else _as_partition(partition)
    return _float_if_scalar(_mean_bounds(values, _one_sided(values.shape[-1], alpha), points)[1])


def std_upper_bound(samples: ArrayLike, alpha: float, partition: ArrayLike | None = None) -> float | np.ndarray:
    """M_sigma: upper bound on the standard deviation of X (Scholten et al. 2025, Metric 4).

    Parameters
    ----------
    samples, alpha, partition
        As in `expectation_bounds`.

    Returns
    -------
    float or array (Q,), at least 0
        At most 1/2 without a partition.

    Notes
    -----
    With a partition, the paper's formula with two corrections. Its sign of delta_i is read as the indicator of
    delta_i > 0 (as in the authors' code). Its term -eta_0 F(tau_0) is dropped: it takes away the probability of X = 0,
    which then belongs to no bin, and the bound fails wherever that is large, as for a fair coin. Such a bound can
    exceed 1/2.

    Without a partition, the largest standard deviation that any distribution on [0, 1] within the band has (Romano &
    Wolf 2002). It is at most 1/2, and at most sqrt(a (1 - a)) for the worst a within `expectation_bounds`.
    """
    check_alpha(alpha)
    values = as_samples(samples)
    eps = _two_sided(values.shape[-1], alpha)
    if partition is None:
        variance = _largest_variance(np.sort(np.atleast_2d(values), axis=-1), eps).reshape(values.shape[:-1])
        return _float_if_scalar(np.sqrt(variance))
    points = _as_partition(partition)
    lower, upper = (bound[..., None] for bound in _mean_bounds(values, eps, points))
    spread = np.maximum((points - lower) ** 2, (points - upper) ** 2)
    eta = np.maximum(spread[..., :-1], spread[..., 1:])
    delta = eta[..., :-1] - eta[..., 1:]
    cdf = _distribution(values, points)[..., 1:-1]
    band = np.where(delta > 0, np.minimum(cdf + eps, 1), np.maximum(cdf - eps, 0))
    return _float_if_scalar(np.sqrt(np.maximum(eta[..., -1] + (delta * band).sum(-1), 0)))


def _largest_variance(ordered: np.ndarray, eps: float) -> np.ndarray:
    """Largest variance of a distribution on [0, 1] within eps of the empirical one: sorted (Q, n) -> (Q,).

    It puts mass eps at 0 and at 1 and takes both from the quantiles u to u + 2 eps. The variance grows in u as long as
    their two ends lie on average below the mean, and falls afterwards.
    """
    if eps >= 0.5:
        return np.full(len(ordered), 0.25)
    n, rows = ordered.shape[-1], np.arange(len(ordered))
    first, second = (np.pad(x.cumsum(-1) / n, ((0, 0), (1, 0))) for x in (ordered, ordered**2))

    def position(u: np.ndarray) -> np.ndarray:
        return np.minimum((u * n).astype(np.int64), n - 1)

    def moment(cumulated: np.ndarray, power: int, u: np.ndarray) -> np.ndarray:
        """E[X^power] with the quantiles u to u + 2 eps moved to the ends."""

        def below(u: np.ndarray) -> np.ndarray:
            j = position(u)
            return cumulated[rows, j] + (u - j / n) * ordered[rows, j] ** power

        return eps + cumulated[:, -1] - below(u + 2 * eps) + below(u)

    low, high = np.zeros(len(ordered)), np.full(len(ordered), 1 - 2 * eps)
    for _ in range(BISECTIONS):
        u = (low + high) / 2
        ends = ordered[rows, position(u)] + ordered[rows, position(u + 2 * eps)]
        past = ends > 2 * moment(first, 1, u)
        low, high = np.where(past, low, u), np.where(past, u, high)
    return np.clip(moment(second, 2, low) - moment(first, 1, low) ** 2, 0, 0.25)


def ed_score(samples: ArrayLike, rho: float = 2.0) -> float | np.ndarray:
    """Expectation-deviation score: mean + rho · population standard deviation (Scholten et al. 2025); no guarantee.

    Parameters
    ----------
    samples : array (n,) or (Q, n), in [0, 1]
    rho : float, at least 0

    Returns
    -------
    float or array (Q,)

    Raises
    ------
    ValueError
        For a rho that is negative or not finite.
    """
    if not 0 <= rho < math.inf:
        raise ValueError(f"rho must be finite and at least 0, got {rho}")
    values = as_samples(samples)
    return _float_if_scalar(values.mean(-1) + rho * values.std(-1))


def samples_needed(epsilon: float, alpha: float) -> int:
    """Fewest samples whose two-sided band is at most epsilon wide to each side: n >= ln(2 / alpha) / (2 epsilon²).

    Parameters
    ----------
    epsilon : float above 0
    alpha : float in (0, 1/2]

    Returns
    -------
    int, at least 1

    Raises
    ------
    ValueError
        For an epsilon or alpha out of range.
    """
    check_alpha(alpha)
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, got {epsilon}")
    return max(math.ceil(math.log(2 / alpha) / (2 * epsilon**2)), 1)
