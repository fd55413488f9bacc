"""Where to start learning: hyperparameters of any spelled kernel, from the inputs and targets themselves.

Periodograms of uneven samples tell the frequencies, and the start of a spectral mixture.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple, final

import numpy as np
import torch
from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    PolynomialKernel,
    ProductKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from numpy.typing import NDArray
from torch import Tensor

from orbitwise.kernels.bases import log_positive, name_of

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


SPREADS = (1.0, 0.2, 4.0, 0.05)
"""Lengthscales of the first, second, … kernel with the same columns, in spreads of the inputs."""

NUM_PEAKS = 4


def start(kernel: Kernel, x: Any, y: Any, *, normalize_y: bool = True, seed: int | None = None) -> Kernel:
    """Set the hyperparameters of a kernel from data, and return it; those that are not learned stay.

    With `normalize_y` amplitudes are those of standardised targets, as `InvariantGPRegressor` takes them. A
    `seed` draws a start at random around the usual one, for restarts.
    """
    columns, targets = as_columns(x), as_vector(y)
    variance = 1.0 if normalize_y else max(float(np.var(targets)), 1e-12)
    random = None if seed is None else np.random.default_rng(seed)
    _Start(columns, targets, variance, random).set(kernel, 1.0)
    return kernel


def _moved(value: Any, spread: float, random: np.random.Generator | None) -> Any:
    noise = 0.0 if random is None else spread * random.standard_normal(np.shape(value))
    return value * np.exp(noise)


@final
class _Start:
    """One start: it counts the kernels of each kind that it has met, so that equal ones start apart."""

    def __init__(self, x: Array, y: Array, variance: float, random: np.random.Generator | None) -> None:
        self.x, self.y, self.variance, self.random = x, y, variance, random
        self.met: dict[Any, int] = defaultdict(int)
        self.periods: dict[int, Array] = {}

    def set(self, kernel: Kernel, share: float) -> None:
        if type(kernel) is ScaleKernel:
            _assign(
                kernel,
                "outputscale",
                _moved(self.variance * share / self._size(kernel.base_kernel), 1.0, self.random),
            )
            self.set(kernel.base_kernel, 1.0)
        elif type(kernel) is AdditiveKernel:
            parts = list(kernel.kernels)
            for part in parts:
                self.set(part, share / len(parts))  # pyright: ignore
        elif type(kernel) is ProductKernel:
            for part in kernel.kernels:
                self.set(part, share)  # pyright: ignore
        else:
            self._leaf(kernel, share)

    def _leaf(self, kernel: Any, share: float) -> None:
        name, _ = name_of(kernel)
        columns = list(range(self.x.shape[1])) if kernel.active_dims is None else kernel.active_dims.tolist()
        x = self.x[:, columns]
        spread = _spread(x)
        place = self.met[(name, *columns)]
        self.met[(name, *columns)] += 1
        if isinstance(kernel, SpectralMixtureKernel):
            seed = None if self.random is None else int(self.random.integers(2**31))
            set_mixture(kernel, x, self.y, seed, self.variance == 1.0)
            return
        if name in ("periodic", "cosine"):
            periods = np.array([self._period(column, place) for column in columns])
            # GPyTorch's cosine repeats itself after twice its period
            _assign(
                kernel,
                "period_length",
                _fit_size(kernel.period_length, periods) / (2.0 if name == "cosine" else 1.0),
            )
            if name == "periodic":
                _assign(kernel, "lengthscale", _moved(np.ones(kernel.lengthscale.numel()), 0.7, self.random))
        elif kernel.has_lengthscale:
            factor = SPREADS[place % len(SPREADS)] * len(columns) ** 0.5
            _assign(
                kernel,
                "lengthscale",
                _moved(_fit_size(kernel.lengthscale, spread) * factor, 1.2, self.random),
            )
        if name == "rq":
            _assign(kernel, "alpha", _moved(1.0, 1.0, self.random))
        if name == "linear":
            centre = x.mean(0) + (
                0.0 if self.random is None else spread * self.random.standard_normal(len(spread))
            )
            kernel.initialize(centre=_like(kernel.centre, _fit_size(kernel.centre, centre)))
        if name in ("linear", "dot"):
            size = float((spread**2).sum()) if name == "linear" else float((x**2).sum(1).mean())
            _assign(kernel, "variance", _moved(self.variance * share / max(size, 1e-300), 1.0, self.random))
        if name == "constant":
            _assign(kernel, "constant", _moved(self.variance * share, 1.0, self.random))
        if name == "polynomial":
            _assign(kernel, "offset", float((x**2).sum(1).mean()) or 1.0)

    def _period(self, column: int, place: int) -> float:
        if column not in self.periods:
            frequencies = spectral_peaks(self.x[:, column], self.y, NUM_PEAKS).frequencies
            extent = float(np.ptp(self.x[:, column])) or 1.0
            self.periods[column] = 1.0 / frequencies if len(frequencies) else np.array([extent / 3])
        periods = self.periods[column]
        if self.random is None:
            return float(periods[place % len(periods)])
        # strong lines more often; a line may be a harmonic of the cycle
        chance = 0.5 ** np.arange(len(periods))
        period = self.random.choice(periods, p=chance / chance.sum())
        return float(_moved(period * self.random.choice([1.0, 1.0, 2.0]), 0.03, self.random))

    def _size(self, kernel: Any) -> float:
        """The mean of k(x, x) of an unscaled kernel: 1, but for polynomials."""
        if isinstance(kernel, PolynomialKernel):
            squares = (self.x**2).sum(1)
            return float(((squares + squares.mean()) ** kernel.power).mean()) or 1.0
        return 1.0


def _spread(x: Array) -> Array:
    spread = x.std(0)
    return np.where(spread > 64 * np.finfo(np.float64).eps * np.abs(x).max(0), spread, 1.0)


def _fit_size(tensor: Tensor, values: Array) -> Array:
    """One value for each entry, or their geometric mean (the mean, where signs differ) for a single entry."""
    if tensor.numel() == len(values):
        return values
    return np.array([np.exp(np.log(values).mean()) if (values > 0).all() else values.mean()])


def _assign(kernel: Any, name: str, value: Any) -> None:
    raw = getattr(kernel, f"raw_{name}")
    if raw.requires_grad:
        setattr(kernel, name, _like(raw, np.asarray(value, dtype=np.float64)))


def _like(raw: Tensor, values: Array) -> Tensor:
    return torch.as_tensor(np.array(values)).to(raw).expand(raw.numel()).reshape(raw.shape).clone()
