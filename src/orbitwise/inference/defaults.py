"""Default kernel and linear mean, which start at the scale of the inputs."""

from __future__ import annotations

from typing import final

import torch
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from gpytorch.means import Mean
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.declarations import SMALLEST, Stored, is_plain_numbers, require
from orbitwise.kernels.bases import log_positive

QUARTILES = 0.7413
"""The standard deviation of a normal distribution, divided by its interquartile range."""
APART = 10.0
"""If the standard deviation exceeds the one from the quartiles by this factor, a few rows are far from the
others."""
FEW = 0.1
"""The share of rows up to which rows so far from the others are few."""


@final
class LinearTrend(Mean):
    """The mean function b + wᵀ(x - centre)/spread, with learned b (`bias`) and w (`weights`).

    Centre and spread are those of the points. So w has the size of the targets, whatever the units of the
    points, and steps of one size suit all parameters.
    """

    centre: Tensor
    spread: Tensor

    stored = Stored(build="about")

    def __init__(self, points: Float[Tensor, "n d"]) -> None:
        super().__init__()
        self.register_buffer("centre", points.mean(0))
        self.register_buffer("spread", typical_spread(points))
        self.weights = nn.Parameter(torch.zeros_like(points[0]))
        self.bias = nn.Parameter(torch.zeros_like(points[0, 0]))

    @classmethod
    def about(cls, centre: Float[Tensor, " d"]) -> LinearTrend:
        """A trend about a point, whose spread is set later."""
        return cls(centre.reshape(1, -1))

    def check_parts(self) -> None:
        """Raise a ValueError where a spread is not positive."""
        require(is_plain_numbers(self.spread, SMALLEST), "a spread that is not positive")

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n"]:
        return (x - self.centre) / self.spread @ self.weights + self.bias


def default_kernel(
    points: Float[Tensor, "n d"], separate_lengthscales: bool, variance: float = 1.0
) -> Kernel:
    """A scaled RBF kernel that starts at the data's own scale, with one lengthscale or one per coordinate.

    `variance` is the initial variance of f; the default is that of standardised targets.
    """
    num_lengthscales = points.shape[-1] if separate_lengthscales else None
    base = RBFKernel(ard_num_dims=num_lengthscales, lengthscale_constraint=log_positive())
    kernel = ScaleKernel(base, outputscale_constraint=log_positive()).to(points)
    base.lengthscale = typical_distance(points, separate_lengthscales)
    kernel.outputscale = variance
    return kernel


def typical_distance(points: Float[Tensor, "n d"], separate: bool) -> Tensor:
    """An initial lengthscale: √d times the spread of each coordinate, or of all together."""
    width = points.shape[-1]
    return (
        typical_spread(points if separate else (points - points.mean(0)).reshape(-1, 1))[None, :] * width**0.5
    )


def deviations(points: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """The standard deviation of each coordinate, computed in units that avoid underflow and overflow.

    The units are powers of two, so that they do not affect rounding.
    """
    unit = torch.exp2(torch.frexp(points.abs().amax(0)).exponent.to(points))
    return (points / unit).std(0, correction=0) * unit


def _quartiles(points: Float[Tensor, "n d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
    ordered = points.sort(0).values
    return ordered[len(points) // 4], ordered[(3 * len(points)) // 4]


def typical_spread(points: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """The standard deviation of each coordinate, 1 where it varies by no more than rounding.

    Where a few rows stand far apart, such as rows of 999 for missing values, it is that of the other rows.
    """
    spread = deviations(points)
    low, high = _quartiles(points)
    middle = (high - low) * QUARTILES
    is_far = (points - points.median(0).values).abs() > APART * middle
    is_few = is_far.to(points).mean(0) <= FEW
    spread = torch.where((middle > 0) & (spread > APART * middle) & is_few, middle, spread)
    rounding = 64 * torch.finfo(points.dtype).eps * points.abs().amax(0)
    return torch.where(spread > rounding, spread, torch.ones_like(spread))
