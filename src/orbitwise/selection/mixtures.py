"""Predictions averaged over models or over values of hyperparameters (Lecture 1.3).

p(y* | y) = Σ_s w_s p(y* | y, s). Its variance is the mean of the variances and the variance of the means (law
of total variance): what no single member knows of is that the members differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp
from scipy.stats import norm

LIGHTEST = 1e-12
"""Members with less weight than this are not asked."""


@final
@dataclass(frozen=True)
class PredictiveMixture:
    """Fitted regressors with weights: a regressor itself."""

    members: Sequence[Any]
    weights: NDArray[np.float64]

    def __post_init__(self) -> None:
        if len(self.members) != len(self.weights) or not len(self.members):
            raise ValueError(f"{len(self.members)} members need as many weights, not {len(self.weights)}.")
        if not (np.isfinite(self.weights).all() and (self.weights >= 0).all() and self.weights.sum() > 0):
            raise ValueError("Weights must be finite, not negative, and not all zero.")
        object.__setattr__(self, "weights", np.asarray(self.weights, float) / self.weights.sum())

    def predict(self, X: ArrayLike, return_std: bool = False, include_noise: bool = True) -> Any:
        """The mean and the deviation of new targets; with `include_noise=False`, the deviation of f."""
        weights, means, deviations = self._predictions(X, include_noise)
        # Σ w m, and Σ w s² + Σ w (m - mean)²
        mean = np.tensordot(weights, means, 1)
        if not return_std:
            return mean
        variance = np.tensordot(weights, deviations**2 + (means - mean) ** 2, 1)
        return mean, np.sqrt(variance)

    def log_density(self, X: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
        """log p(y_i | x_i, data) of every new target: the logarithm of a mixture of normals."""
        targets = np.asarray(y, dtype=float)
        weights, means, deviations = self._predictions(X, include_noise=True)
        if targets.shape != means.shape[1:]:
            raise ValueError(f"Predictions have shape {means.shape[1:]}, but y has {targets.shape}.")
        each = norm.logpdf(targets, means, deviations)
        with np.errstate(divide="ignore"):
            logarithms = np.log(weights).reshape(-1, *[1] * targets.ndim)
        return np.asarray(logsumexp(each + logarithms, axis=0))

    def quantile(self, X: ArrayLike, level: float, include_noise: bool = True) -> NDArray[np.float64]:
        """The quantile of a new y (without noise, of f) of every row: 0.025 and 0.975 bound a 95 % band."""
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, not {level}.")
        weights, means, deviations = self._predictions(X, include_noise)
        deviations = np.maximum(deviations, 1e-300)
        each = means + norm.ppf(level) * deviations
        low, high = each.min(0), each.max(0)
        for _ in range(60):
            middle = (low + high) / 2
            below = np.tensordot(weights, norm.cdf((middle - means) / deviations), 1) < level
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return (low + high) / 2

    def _predictions(
        self, X: ArrayLike, include_noise: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Weights, means and deviations of all members that count."""
        kept = [i for i, weight in enumerate(self.weights) if weight > LIGHTEST]
        pairs = [self.members[i].predict(X, return_std=True, include_noise=include_noise) for i in kept]
        means, deviations = (np.stack(each) for each in zip(*pairs, strict=True))
        return self.weights[kept] / self.weights[kept].sum(), means, deviations
