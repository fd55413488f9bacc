"""A proposal for hyperparameters: a Student-t around the mode of an approximate density, fitted to it.

Tails heavier than a Gaussian's keep the ratio of target to proposal bounded where the target is Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from torch import Tensor

from orbitwise.inference.linear_algebra import cholesky, solve_lower

SLOPE_STEP, CURVATURE_STEP, FLAT = 0.01, 0.1, 0.02
"""Differences from which slopes and curvatures are computed, and the slope that is small enough at a mode."""
FLATTEST = 0.04
"""Curvature taken where the density has less: a deviation of 5, wide for logarithms."""
WORST = 1e10
INFLATION = 1.2
"""Of covariances found from weighted draws, which miss the tails."""


@final
class StudentProposal:
    """A multivariate Student-t: location, Cholesky factor of the scale matrix, degrees of freedom."""

    def __init__(self, mean: Float[Tensor, " p"], lower: Float[Tensor, "p p"], degrees: int = 5) -> None:
        self.mean = mean
        self.lower = lower
        self.degrees = degrees

    def draw(self, generator: torch.Generator | None = None) -> Float[Tensor, " p"]:
        """A normal draw over the root of a χ² draw divided by its degrees."""
        place = None if generator is None else generator.device
        shape = (len(self.mean),)
        normal = torch.randn(shape, generator=generator, device=place, dtype=torch.float64)
        # χ² of integer degrees is a sum of squares
        squares = torch.randn(self.degrees, generator=generator, device=place, dtype=torch.float64)
        scale = (squares.square().sum() / self.degrees).sqrt()
        return self.mean + self.lower @ (normal / scale).to(self.mean)

    def log_density(self, theta: Float[Tensor, " p"]) -> float:
        """Normalised."""
        width, degrees = len(self.mean), self.degrees
        square = solve_lower(self.lower, (theta - self.mean)[:, None]).square().sum().item()
        constant = math.lgamma(0.5 * (degrees + width)) - math.lgamma(0.5 * degrees)
        constant -= 0.5 * width * math.log(math.pi * degrees) + self.lower.diagonal().log().sum().item()
        return constant - 0.5 * (degrees + width) * math.log1p(square / degrees)


def fit_proposal(
    log_density: Callable[[Tensor], float],
    start: Float[Tensor, " p"],
    num_draws: int = 100,
    generator: torch.Generator | None = None,
) -> tuple[StudentProposal, Float[Tensor, " p"]]:
    """A Student-t near exp(log_density), and the mode: curvature there, then moments of weighted draws.

    Only values are asked for, so that any process may be built from θ. Draws of the first fit, weighted by
    density over proposal, give a mean and a covariance that follow a skewed density further than its mode.
    """

    def negative(point: np.ndarray) -> float:
        value = log_density(torch.from_numpy(point.copy()))
        return -value if math.isfinite(value) else WORST

    settings = {"eps": SLOPE_STEP, "gtol": FLAT}
    mode = minimize(negative, start.double().cpu().numpy(), method="BFGS", options=settings).x
    values, vectors = np.linalg.eigh(_curvature(negative, mode))
    covariance = (vectors / np.maximum(values, FLATTEST)) @ vectors.T
    place = torch.from_numpy(mode.copy())
    proposal = StudentProposal(place, cholesky(torch.from_numpy(covariance)).lower)
    if num_draws:
        draws = torch.stack([proposal.draw(generator) for _ in range(num_draws)])
        logs = torch.tensor([log_density(each) - proposal.log_density(each) for each in draws])
        proposal = _matched(proposal, draws, logs.double())
    return proposal, place


def _matched(proposal: StudentProposal, draws: Tensor, log_weights: Tensor) -> StudentProposal:
    """The proposal with the mean and covariance of weighted draws, where enough of them count."""
    width = draws.shape[1]
    weights = torch.softmax(log_weights.nan_to_num(nan=-torch.inf), dim=0)
    if not weights.square().sum().reciprocal().item() > 10 * width:
        return proposal
    mean = weights @ draws
    centred = draws - mean
    covariance = centred.mT @ (weights[:, None] * centred)
    # the scale matrix of a Student-t is its covariance times (ν - 2)/ν; the tails were missed, so more
    scale = INFLATION * (proposal.degrees - 2) / proposal.degrees
    return StudentProposal(mean, cholesky(scale * covariance).lower, proposal.degrees)


def _curvature(function: Callable[[np.ndarray], float], point: np.ndarray) -> np.ndarray:
    """The Hessian by central differences."""
    width = len(point)
    steps = CURVATURE_STEP * np.eye(width)
    centre, hessian = function(point), np.zeros((width, width))
    for i in range(width):
        ends = function(point + steps[i]) + function(point - steps[i])
        hessian[i, i] = (ends - 2 * centre) / CURVATURE_STEP**2
        for j in range(i):
            same = function(point + steps[i] + steps[j]) + function(point - steps[i] - steps[j])
            other = function(point + steps[i] - steps[j]) + function(point - steps[i] + steps[j])
            hessian[i, j] = hessian[j, i] = (same - other) / (4 * CURVATURE_STEP**2)
    return hessian
