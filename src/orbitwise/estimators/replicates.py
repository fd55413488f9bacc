"""Rows of equal inputs, merged without loss: a Gaussian needs only their mean, weight and scatter.

Π_i N(y_i; f, σ²)^{w_i} = N(ȳ; f, σ²/W) · exp(-S/2σ²) · (2πσ²)^{-(W-1)/2} · W^{-1/2},
with W = Σ w_i and S = Σ w_i (y_i - ȳ)².
So a weight counts repetitions, duplicated rows cost nothing, and the order of rows does not matter.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Replicates(NamedTuple):
    """Distinct inputs in a fixed order, with mean, weight and scatter of the targets seen there."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    weight: NDArray[np.float64]
    scatter: NDArray[np.float64]

    def log_factor(self, noise: Tensor) -> Tensor:
        """What merging takes out of the log likelihood, for the noise variance σ²."""
        if bool((self.weight == 1).all()):
            return torch.zeros_like(noise)
        outputs = self.y.shape[1]
        extra = float((self.weight - 1).sum())
        constant = -0.5 * outputs * (extra * math.log(2 * math.pi) + float(np.log(self.weight).sum()))
        return constant - 0.5 * outputs * extra * torch.log(noise) - 0.5 * float(self.scatter.sum()) / noise

    def without_noise(self) -> Replicates:
        """The same rows for noiseless targets: repeating one says nothing new, so it counts once."""
        rounding = self.weight[:, None] * (1e-12 * np.abs(self.y)) ** 2
        if bool((self.scatter > rounding).any()):
            raise ValueError(
                "noise=0 says that targets are exact, but equal inputs have different targets; "
                "give a positive noise, or None to learn it."
            )
        return self._replace(weight=np.ones_like(self.weight), scatter=np.zeros_like(self.scatter))


def merge(x: NDArray[np.float64], y: NDArray[np.float64], weight: NDArray[np.float64]) -> Replicates:
    """Merge rows with equal inputs; rows of weight zero are left out."""
    kept = weight > 0
    if not kept.any():
        raise ValueError("All sample weights are zero: at least one row needs a positive weight.")
    x, y, weight = x[kept], y[kept], weight[kept]
    distinct, place = np.unique(x, axis=0, return_inverse=True)
    place = place.ravel()
    # A fixed order of summation within equal inputs, so that the order of rows leaves no trace in rounding.
    order = np.lexsort((weight, *y.T, place))
    x, y, weight, place = x[order], y[order], weight[order], place[order]

    def sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Σ w over the rows of each input, for every column."""
        columns = [np.bincount(place, weight * column, len(distinct)) for column in values.T]
        return np.stack(columns, axis=1).astype(np.float64)

    total = sums(np.ones_like(y[:, :1]))
    mean = sums(y) / total
    return Replicates(distinct, mean, total[:, 0], sums((y - mean[place]) ** 2))
