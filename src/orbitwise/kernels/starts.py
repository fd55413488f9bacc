"""Where to start learning: hyperparameters of any spelled kernel, from the inputs and targets themselves.

Lengthscales come from the spread of the columns that a kernel sees, periods from the strongest lines of the
spectrum, centres from the mean of the inputs, amplitudes from the variance of the targets, shared among
the components. Equal kernels of a sum start apart, or gradients would move them as one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, final

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

from orbitwise.kernels.bases import name_of
from orbitwise.kernels.spectrum import as_columns, as_vector, set_mixture, spectral_peaks

Array = NDArray[np.float64]

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
