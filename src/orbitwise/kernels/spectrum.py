"""Periodograms of unevenly sampled data: which frequencies the targets have, and how much each explains.

They provide initial values for spectral mixtures and periodic kernels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
OVERSAMPLING = 5
LARGEST_GRID = 4_000
MOST_ROWS = 2_000
ROUNDING = 1e-12
"""A residual below this fraction of the size of the targets is treated as rounding."""


class Peaks(NamedTuple):
    """Lines of a spectrum, strongest first: their frequencies, and the variance that each explains."""

    frequencies: Array
    variances: Array
    trend: float
    rest: float


def frequency_grid(x: Array) -> Array:
    """Frequencies from one cycle over the range of x to the Nyquist frequency of the median spacing.

    The grid is `OVERSAMPLING` times finer than the resolution 1/range, up to `LARGEST_GRID` frequencies; it
    is empty for fewer than three different points.
    """
    points = np.unique(x)
    if len(points) < 3:
        return np.zeros(0)
    extent = points[-1] - points[0]
    highest = 0.5 / np.median(np.diff(points))
    count = int(np.clip(OVERSAMPLING * highest * extent, 8, LARGEST_GRID))
    return np.linspace(1.0 / extent, max(highest, 2.0 / extent), count)


def periodogram(x: Array, y: Array, frequencies: Array) -> Array:
    """The share of the variance of y that a sinusoid of each frequency explains, with a floating mean."""
    y = y - y.mean()
    total = float(y @ y)
    if total <= 0 or not len(frequencies):
        return np.zeros(len(frequencies))
    phase = 2 * np.pi * frequencies[:, None] * (x - x.mean())[None, :]
    cos, sin = np.cos(phase), np.sin(phase)
    cos -= cos.mean(1, keepdims=True)
    sin -= sin.mean(1, keepdims=True)
    cc, ss, cs = (cos * cos).sum(1), (sin * sin).sum(1), (cos * sin).sum(1)
    yc, ys = cos @ y, sin @ y
    determinant = cc * ss - cs * cs
    # bᵀA⁻¹b of the two by two normal equations
    explained = (yc**2 * ss - 2 * yc * ys * cs + ys**2 * cc) / np.maximum(determinant, 1e-12 * (cc + ss) ** 2)
    return np.clip(explained / total, 0.0, 1.0)


def detrend(x: Array, y: Array, degree: int = 2) -> tuple[Array, float]:
    """y without its polynomial trend in x, and the share of the variance that the trend explained."""
    scaled = (x - x.mean()) / (np.ptp(x) or 1.0)
    design = np.vander(scaled, degree + 1)
    rest = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    variance = float(np.var(y))
    return rest, 0.0 if variance == 0 else max(0.0, 1.0 - float(np.var(rest)) / variance)


def spectral_peaks(x: Array, y: Array, num_peaks: int = 3) -> Peaks:
    """The strongest lines of y over one column x, by repeated fits of all lines found so far.

    Each step takes the maximum of the periodogram of the residual, refines it between its neighbours on the
    grid, and fits all lines found so far again. Long data are thinned to `MOST_ROWS` rows.
    """
    if len(x) > MOST_ROWS:
        keep = np.linspace(0, len(x) - 1, MOST_ROWS).astype(int)
        order = np.argsort(x, kind="stable")[keep]
        x, y = x[order], y[order]
    grid = frequency_grid(x)
    rest, trend = detrend(x, y)
    found: list[float] = []
    variances: list[float] = []
    left = rest
    for _ in range(num_peaks if len(grid) else 0):
        power = periodogram(x, left, grid)
        best = int(power.argmax())
        if power[best] <= 0 or np.var(left) <= (ROUNDING * np.abs(y).max()) ** 2:
            break
        found.append(_refined(x, left, grid, best))
        before, left = float(np.var(left)), _without(x, rest, np.array(found))
        variances.append(max(before - float(np.var(left)), 1e-9 * float(np.var(y))))
    order = np.argsort(variances)[::-1].astype(int)
    return Peaks(
        np.array(found)[order], np.array(variances)[order], trend * float(np.var(y)), float(np.var(left))
    )


def strongest_periods(x: Array, y: Array, num_periods: int) -> Array:
    """The periods of the highest separate peaks of one periodogram, highest first."""
    grid = frequency_grid(x)
    power = periodogram(x, y - y.mean(), grid)
    padded = np.concatenate([[0.0], power, [0.0]])
    is_peak = (padded[1:-1] > padded[:-2]) & (padded[1:-1] >= padded[2:])
    places = np.flatnonzero(is_peak)
    return 1.0 / grid[places[np.argsort(-power[places], kind="stable")][:num_periods]]


def mixture_of_column(x: Array, y: Array, count: int) -> tuple[Array, Array, Array]:
    """Means, scales and weights of the components for one column: the trend, then the lines."""
    extent = float(np.ptp(x)) or 1.0
    peaks = spectral_peaks(x, y, count - 1)
    lines = len(peaks.frequencies)
    variance = float(np.var(y)) or 1.0
    # exp(-2π²τ²s²) falls over a length of 1/(2πs): the trend over half the range, lines over all of it
    means = np.full(count, 1e-3 / extent)
    scales = np.full(count, 1.0 / (np.pi * extent))
    weights = np.full(count, 1e-3)
    weights[0] = max(peaks.trend / variance, 1e-2)
    means[1 : lines + 1] = peaks.frequencies
    scales[1 : lines + 1] = 1.0 / (2 * np.pi * extent)
    weights[1 : lines + 1] = np.maximum(peaks.variances / variance, 1e-4)
    # components without a line of their own: ever shorter memories
    spare = np.arange(count - lines - 1)
    scales[lines + 1 :] = 2.0 ** (spare + 1) / (np.pi * extent)
    return means, scales, weights


def _refined(x: Array, y: Array, grid: Array, best: int) -> float:
    """The frequency of a peak between its neighbours on the grid."""
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    fine = np.linspace(low, high, 41)
    return float(fine[periodogram(x, y, fine).argmax()])


def _without(x: Array, y: Array, frequencies: Array) -> Array:
    """y without the least-squares fit of sinusoids of these frequencies."""
    phase = 2 * np.pi * (x - x.mean())[:, None] * frequencies[None, :]
    design = np.concatenate([np.ones((len(x), 1)), np.cos(phase), np.sin(phase)], 1)
    return y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
