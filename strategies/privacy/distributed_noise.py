"""Distributed discrete Gaussian noise for differential privacy under secure aggregation (numpy alone).

Each client clips its update, divides it by `step`, rounds to the nearest integers and adds its share of the noise; the
server sees only the noised sum. Kairouz, Liu and Steinke, The Distributed Discrete Gaussian Mechanism for Federated
Learning with Secure Aggregation, ICML 2021.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

NEGLIGIBLE = 1e-6
"""Relative excess of privacy loss tolerated for a sum of shares, over one discrete Gaussian of its variance."""
COUNT_SHARE = 20
"""Andrew et al. 2021: the noise on the count of clipped updates has the deviation clients / `COUNT_SHARE`."""
_BLOCK = 1 << 20


def clipped(update: NDArray, norm: float) -> NDArray[np.float64]:
    """Clip an update to an L2 norm.

    Parameters
    ----------
    update : array, any shape
    norm : float above 0
        The clipping norm C.

    Returns
    -------
    array of the same shape, float64
        A copy, scaled to the norm C if it was longer.

    Raises
    ------
    ValueError
        If the norm is out of range or the update is not finite.
    """
    if not 0 < norm < math.inf:
        raise ValueError(f"norm is {norm}, expected a finite number above 0")
    values = np.asarray(update, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("an update that is not finite cannot be clipped")
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0.0:
        return values.copy()
    scaled = values / largest  # whose square neither overflows nor vanishes
    length = float(np.linalg.norm(scaled.reshape(-1)))
    return values.copy() if length * largest <= norm else scaled * (norm / length)


def contribution(update: NDArray, norm: float, count: float) -> NDArray[np.float64]:
    """What a client adds to the secure sum: its `clipped` update and, with adaptive clipping, whether it was clipped.

    Parameters
    ----------
    update : array (n,)
    norm : float above 0
        The clipping norm C.
    count : float, at least 0
        Weight κ of the clipping indicator (see `counting`); 0 for none.

    Returns
    -------
    array (n,) or, for `count` > 0, (n + 1,), float64
        The last number is then count/2 if the update was no longer than C, else −count/2.

    Raises
    ------
    ValueError
        As `clipped`.
    """
    shortened = clipped(update, norm)
    if not count:
        return shortened
    within = not np.any(shortened != update)
    return np.append(shortened, count / 2 if within else -count / 2)


def discrete_gaussian(size: int, sigma: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Sample independent integers x with probability ∝ exp(−x²/2σ²) (discrete Gaussian), exact up to floating point.

    Rejection from the discrete Laplace distribution of scale ⌊σ⌋ + 1, the difference of two geometric ones: Canonne,
    Kamath and Steinke 2020, Algorithms 2 and 3.

    Parameters
    ----------
    size : int, at least 0
        How many.
    sigma : float in (0, 1e12]
        σ; the standard deviation is σ up to 10⁻⁴ from σ = 1 on, below that it is less.
    rng : numpy Generator

    Returns
    -------
    array (size,), int64

    Raises
    ------
    ValueError
        If `size` or `sigma` is out of range.
    """
    if not 0 < sigma <= 1e12 or size < 0:
        raise ValueError(f"size is {size} and sigma {sigma}, expected size >= 0 and 0 < sigma <= 1e12")
    scale = math.floor(sigma) + 1
    stop = -math.expm1(-1 / scale)
    sample = np.empty(size, np.int64)
    done = 0
    while done < size:
        count = min(_BLOCK, 2 * (size - done) + 16)
        drawn = rng.geometric(stop, count) - rng.geometric(stop, count)
        log_accept = -((np.abs(drawn) - sigma**2 / scale) ** 2) / (2 * sigma**2)
        kept = drawn[-rng.standard_exponential(count) < log_accept][: size - done]
        sample[done : done + kept.size] = kept
        done += kept.size
    return sample


def share_sigma(multiplier: float, norm: float, step: float, dim: int, survivors: int) -> float:
    """σ of each client's share of the noise, in units of `step` (Kairouz et al., 2021, Theorem 1).

    Parameters
    ----------
    multiplier : float above 0
        Noise multiplier z.
    norm : float above 0
        Clipping norm.
    step : float above 0
        Width of the grid to which updates are rounded.
    dim : int, at least 1
        Numbers in an update.
    survivors : int, at least 1
        Least number n of clients whose shares are in the sum; more add only noise.

    Returns
    -------
    float
        σ for `discrete_gaussian`; the noise on the sum then is z·Δ or more in each number.

    Raises
    ------
    ValueError
        If a value is out of range, or τ√dim (below) is more than 10⁻⁶ of Δ/(√n σ): a smaller `step` is needed.

    Notes
    -----
    Δ = norm/step + √dim/2 is the longest that a clipped update can be once its numbers are rounded to the nearest
    integers. The sum of the shares is no discrete Gaussian, but by the theorem the mechanism is ½ε²-concentrated
    private for an update that is added or removed, with

        ε = Δ/(√n σ) + τ√dim,   τ = 10 Σ_{k=1}^{n−1} exp(−2π²σ²·k/(k+1)).

    The first part is 1/z, as of a Gaussian of multiplier z; for an update that is replaced Δ counts twice.
    """
    for name, value in (("multiplier", multiplier), ("norm", norm), ("step", step)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} is {value}, expected a finite number above 0")
    if dim < 1 or survivors < 1:
        raise ValueError(f"dim is {dim} and survivors {survivors}, expected at least 1")
    sigma = multiplier * (norm / step + math.sqrt(dim) / 2) / math.sqrt(survivors)
    excess = shortfall(sigma, survivors) * math.sqrt(dim)
    if sigma < 0.5 or excess * multiplier > NEGLIGIBLE:
        raise ValueError(
            f"step is {step:g}: with noise of {sigma:.3g} steps a share, {survivors} of them are not near enough to a "
            "discrete Gaussian; take a smaller step"
        )
    return sigma


def counting(multiplier: float, norm: float, clients: int) -> float:
    """Weight κ of the clipping indicator in adaptive clipping: clients add ± κ/2 to the sum.

    Andrew et al. 2021: noise of σ_b = `clients`/20 (at least z) on the count and of z_Δ·C on the updates,
    z_Δ = (z⁻² − (2σ_b)⁻²)^(−½), is as private as z·C on the updates alone. In one vector with the same noise everywhere
    the count weighs κ = z_Δ·C/σ_b, and what one client adds is no longer than `joint_norm`, of which the noise is z
    times.

    Parameters
    ----------
    multiplier : float above 0
        Noise multiplier z.
    norm : float above 0
        Clipping norm C.
    clients : int, at least 1
        Clients in the sum.

    Returns
    -------
    float above 0
        κ, in the unit of `norm`.
    """
    deviation = max(clients / COUNT_SHARE, multiplier)
    return norm / math.sqrt((deviation / multiplier) ** 2 - 0.25)


def joint_norm(norm: float, count: float) -> float:
    """L2 norm of an update with the clipping indicator of `contribution` appended.

    Parameters
    ----------
    norm : float, at least 0
        Of the update.
    count : float, at least 0
        Weight κ; ± κ/2 is appended.

    Returns
    -------
    float, at least 0
    """
    return math.hypot(norm, count / 2)


def shortfall(sigma: float, clients: int) -> float:
    """τ of `share_sigma`: how far the sum of the shares of `clients` is from one discrete Gaussian, at least 0.

    Parameters
    ----------
    sigma : float above 0
        σ of a share.
    clients : int, at least 1

    Returns
    -------
    float
        A bound on the log-ratio of probabilities; 0 for one client.
    """
    k = np.arange(1, clients)
    return float(10 * np.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)).sum())
