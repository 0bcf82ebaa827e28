"""Noise that the clients bring themselves, a share each, so that only their noised sum is ever seen (numpy alone).

For secure aggregation over integers: each client clips its update, divides it by `step`, rounds to the nearest integers
and adds its share; the server sees the sum. Kairouz, Liu and Steinke, The Distributed Discrete Gaussian Mechanism for
Federated Learning with Secure Aggregation, ICML 2021.
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
    """`update`, any shape, in float64 and shortened to the L2 norm `norm` > 0 if it is longer.

    Raises ValueError for a norm out of range, and for an update that is not finite: nothing bounds what it would do.
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
    """What a client adds to a sum in which it is hidden: its `clipped` update (n,).

    For `count` > 0 with one number more behind it, count/2 if the update was no longer than the norm and −count/2 if it
    was. Raises as `clipped`.
    """
    shortened = clipped(update, norm)
    if not count:
        return shortened
    within = not np.any(shortened != update)
    return np.append(shortened, count / 2 if within else -count / 2)


def discrete_gaussian(size: int, sigma: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """(size,) independent integers x, each with probability ∝ exp(−x²/2σ²); exact up to floating point.

    Rejection from the discrete Laplace distribution of scale ⌊σ⌋ + 1, which is the difference of two geometric ones:
    Canonne, Kamath and Steinke 2020, Algorithms 2 and 3. The deviation is σ up to 10⁻⁴ from σ = 1 on, below that it is
    less. Raises ValueError for σ ≤ 0 or above 10¹², or size < 0.
    """
    if not 0 < sigma <= 1e12 or size < 0:
        raise ValueError(f"size is {size} and sigma {sigma}, expected size >= 0 and 0 < sigma <= 1e12")
    scale = math.floor(sigma) + 1
    stop = -math.expm1(-1 / scale)
    found = np.empty(size, np.int64)
    done = 0
    while done < size:
        count = min(_BLOCK, 2 * (size - done) + 16)
        drawn = rng.geometric(stop, count) - rng.geometric(stop, count)
        log_accept = -((np.abs(drawn) - sigma**2 / scale) ** 2) / (2 * sigma**2)
        kept = drawn[-rng.standard_exponential(count) < log_accept][: size - done]
        found[done : done + kept.size] = kept
        done += kept.size
    return found


def share_sigma(multiplier: float, norm: float, step: float, dim: int, survivors: int) -> float:
    """σ of `discrete_gaussian` for each client's share, in units of `step`.

    With the shares of `survivors` clients at least, the noise on the sum is z·Δ or more in each of its `dim` numbers: z
    is `multiplier`, and Δ = norm/step + √dim/2 the longest that a clipped update can be once its numbers are rounded
    to the nearest integers. The sum of the shares is no discrete Gaussian, but by Theorem 1 of Kairouz et al. the
    mechanism is ½ε²-concentrated private for an update that is added or removed, with

        ε = Δ/(√n σ) + τ√dim,   τ = 10 Σ_{k=1}^{n−1} exp(−2π²σ²·k/(k+1)).

    The first part is 1/z, as of a Gaussian of multiplier z; for one that is replaced Δ counts twice. More survivors add
    only noise. Raises ValueError for values out of range, and where the second part is more than 10⁻⁶ of the first:
    then the grid is too coarse, and `step` must be smaller.
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
    """κ: clients that add ± κ/2 to the sum tell how many of their updates were no longer than `norm`, C.

    Andrew et al. 2021: noise of σ_b = `clients`/20 (at least z, the multiplier) on the count and of z_Δ·C on the
    updates, z_Δ = (z⁻² − (2σ_b)⁻²)^(−½), is as private as z·C on the updates alone. In one vector that takes the same
    noise everywhere the count weighs κ = z_Δ·C/σ_b, and what one client adds is no longer than `joint_norm`, of which
    the noise is z times.
    """
    deviation = max(clients / COUNT_SHARE, multiplier)
    return norm / math.sqrt((deviation / multiplier) ** 2 - 0.25)


def joint_norm(norm: float, count: float) -> float:
    """How long an update of the length `norm` is with ± `count`/2 behind it."""
    return math.hypot(norm, count / 2)


def shortfall(sigma: float, clients: int) -> float:
    """τ above: how far the sum of so many shares is from one discrete Gaussian, as a log-ratio of probabilities."""
    k = np.arange(1, clients)
    return float(10 * np.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)).sum())
