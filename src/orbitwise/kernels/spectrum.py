"""Which frequencies are in the data? Periodograms of uneven samples, their peaks, and a spectral mixture.

The spectrum of one column is that of Lomb and Scargle with a floating mean: the share of the variance that
one sinusoid explains by least squares, which needs no even grid. Peaks are taken one by one, the sinusoids of
all peaks so far fitted together and removed, so a strong line does not hide the weak ones beside it. A trend
is taken off first: otherwise it fills the lowest frequencies and hides every cycle.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import SpectralMixtureKernel
from numpy.typing import NDArray
from torch import Tensor

from orbitwise.kernels.constraints import log_positive

Array = NDArray[np.float64]
OVERSAMPLING = 5
LARGEST_GRID = 4_000
MOST_ROWS = 2_000
ROUNDING = 1e-12
"""What is left of the targets counts as rounding below this fraction of their size."""


class Peaks(NamedTuple):
    """Lines of a spectrum, strongest first: their frequencies, and the variance that each explains."""

    frequencies: Array
    variances: Array
    trend: float
    rest: float


def frequency_grid(x: Array) -> Array:
    """Frequencies from one cycle over the range of x to the Nyquist frequency of the median spacing."""
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


def spectral_peaks(x: Any, y: Any, num_peaks: int = 3) -> Peaks:
    """The strongest lines of y over one column x, by repeated fits of all lines found so far."""
    x, y = as_columns(x)[:, 0], as_vector(y)
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
    """The periods of the highest separate peaks of one periodogram, highest first: candidates to be tried."""
    grid = frequency_grid(x)
    power = periodogram(x, y - y.mean(), grid)
    padded = np.concatenate([[0.0], power, [0.0]])
    is_peak = (padded[1:-1] > padded[:-2]) & (padded[1:-1] >= padded[2:])
    places = np.flatnonzero(is_peak)
    return 1.0 / grid[places[np.argsort(-power[places], kind="stable")][:num_periods]]


def spectral_mixture(
    x: Any, y: Any, num_mixtures: int = 8, seed: int | None = None, normalize_y: bool = True
) -> SpectralMixtureKernel:
    """A spectral mixture kernel that starts from the spectrum of the data, column by column.

    The first component sits at frequency 0 and is as wide as the range of x allows: the trend. The others sit
    on the strongest lines, with the variance that each explains and the width that the range of x
    resolves. GPyTorch's own starts draw frequencies at random (`initialize_from_data`), or need an even grid
    (`initialize_from_data_empspect`). With `normalize_y` the weights are those of standardised targets, as
    `InvariantGPRegressor` takes them. A `seed` moves the start at random, for restarts. x is [n] or [n, d].
    """
    columns, targets = as_columns(x), as_vector(y)
    if len(columns) != len(targets):
        raise ValueError(f"x has {len(columns)} rows and y has {len(targets)}.")
    if num_mixtures < 1:
        raise ValueError(f"num_mixtures must be at least 1, not {num_mixtures}.")
    width = columns.shape[1]
    kernel = SpectralMixtureKernel(
        num_mixtures,
        ard_num_dims=width,
        mixture_scales_constraint=log_positive(),
        mixture_means_constraint=log_positive(),
        mixture_weights_constraint=log_positive(),
    ).double()
    set_mixture(kernel, columns, targets, seed, normalize_y)
    return kernel


def set_mixture(
    kernel: SpectralMixtureKernel, x: Array, y: Array, seed: int | None = None, normalize_y: bool = True
) -> None:
    """Give a spectral mixture kernel the start of `spectral_mixture`; x has the columns that it sees."""
    count, width = kernel.num_mixtures, x.shape[1]
    means, scales, weights = np.empty((count, width)), np.empty((count, width)), np.empty((count, width))
    for column in range(width):
        means[:, column], scales[:, column], weights[:, column] = _column_start(x[:, column], y, count)
    if seed is not None:
        random = np.random.default_rng(seed)
        means *= np.exp(0.02 * random.standard_normal(means.shape))
        scales *= np.exp(random.standard_normal(scales.shape))
        weights *= np.exp(random.standard_normal(weights.shape))
    weights /= weights.sum(0)
    total = 1.0 if normalize_y else max(float(np.var(y)), 1e-12)
    # GPyTorch multiplies the mixtures of the columns, all with the same weights.
    kernel.mixture_weights = _tensor(weights.mean(1) * total ** (1.0 / width))
    kernel.mixture_means = _tensor(means[:, None, :])
    kernel.mixture_scales = _tensor(scales[:, None, :])


def _column_start(x: Array, y: Array, count: int) -> tuple[Array, Array, Array]:
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


def as_columns(x: Any) -> Array:
    """Finite inputs as a matrix [n, d]."""
    array = np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x, dtype=np.float64)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or not len(array) or not np.isfinite(array).all():
        raise ValueError(f"x must be finite numbers [n] or [n, d], not shape {array.shape} or with NaN.")
    return array


def as_vector(y: Any) -> Array:
    """Finite targets as a vector [n]."""
    array = np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y, dtype=np.float64)
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if array.ndim != 1 or not np.isfinite(array).all():
        raise ValueError(f"y must be finite numbers [n], not shape {array.shape} or with NaN.")
    return array


def _tensor(values: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))
