"""A proposal for hyperparameters: Student-t densities fitted to an approximate posterior.

Tails heavier than a Gaussian's, and a share of the draws from a wider copy, keep the ratio of target to
proposal from growing where the fit is bad: a chain that independent proposals move leaves every place soon.
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
NUM_ROUNDS = 3
FEWEST_USEFUL = 10
"""Draws that must count, for each dimension, before their moments are believed."""


def student_log_density(squares: Tensor, lower: Float[Tensor, "p p"], degrees: float) -> Tensor:
    """log t_ν(m, L Lᵀ) where |L⁻¹(θ - m)|² are `squares`."""
    width = len(lower)
    constant = math.lgamma(0.5 * (degrees + width)) - math.lgamma(0.5 * degrees)
    constant -= 0.5 * width * math.log(math.pi * degrees)
    return constant - lower.diagonal().log().sum() - 0.5 * (degrees + width) * torch.log1p(squares / degrees)


@final
class StudentProposal:
    """A Student-t of a location, the factor of its scale matrix, and degrees; a `share` is drawn wider."""

    def __init__(
        self,
        mean: Float[Tensor, " p"],
        lower: Float[Tensor, "p p"],
        degrees: int = 5,
        share: float = 0.2,
        widening: float = 3.0,
    ) -> None:
        self.mean = mean
        self.lower = lower
        self.degrees = degrees
        self.share = share
        self.widening = widening

    def draw(self, generator: torch.Generator | None = None) -> Float[Tensor, " p"]:
        """A normal draw over the root of a χ² draw divided by its degrees."""
        place = None if generator is None else generator.device
        numbers = torch.randn(
            len(self.mean) + self.degrees, generator=generator, device=place, dtype=torch.float64
        )
        wide = torch.rand((), generator=generator, device=place, dtype=torch.float64).item() < self.share
        normal, rest = numbers.split([len(self.mean), self.degrees])
        # χ² of integer degrees is a sum of squares
        scale = (rest.square().sum() / self.degrees).sqrt() / (self.widening if wide else 1.0)
        return self.mean + self.lower @ (normal / scale).to(self.mean)

    def log_density(self, theta: Float[Tensor, " p"]) -> float:
        """Normalised."""
        square = solve_lower(self.lower, (theta - self.mean)[:, None]).square().sum()
        narrow, wide = (
            student_log_density(square / scale**2, scale * self.lower, self.degrees).item()
            for scale in (1.0, self.widening)
        )
        if not 0 < self.share < 1:
            return wide if self.share else narrow
        return float(np.logaddexp(math.log(1 - self.share) + narrow, math.log(self.share) + wide))


def fit_proposal(
    log_density: Callable[[Tensor], float],
    start: Float[Tensor, " p"],
    num_draws: int = 50,
    generator: torch.Generator | None = None,
) -> tuple[StudentProposal, Float[Tensor, " p"]]:
    """A proposal near exp(log_density), and the mode: curvature there, then moments of weighted draws.

    Only values are asked for, so that any process may be built from θ. In each of three rounds `num_draws`
    draws of the last fit, weighted by density over all proposals so far, give the next mean and covariance,
    which follow a skewed density further than its mode does.
    """

    def negative(point: np.ndarray) -> float:
        value = log_density(torch.from_numpy(point.copy()))
        return -value if math.isfinite(value) else WORST

    settings = {"eps": SLOPE_STEP, "gtol": FLAT}
    mode = minimize(negative, start.double().cpu().numpy(), method="BFGS", options=settings).x
    values, vectors = np.linalg.eigh(_curvature(negative, mode))
    covariance = (vectors / np.maximum(values, FLATTEST)) @ vectors.T
    place = torch.from_numpy(mode.copy())
    proposals = [StudentProposal(place, cholesky(torch.from_numpy(covariance)).lower)]
    draws: list[Tensor] = []
    logs: list[float] = []
    for _ in range(NUM_ROUNDS if num_draws else 0):
        new = [proposals[-1].draw(generator) for _ in range(num_draws)]
        draws, logs = draws + new, logs + [log_density(theta) for theta in new]
        mixed = [np.logaddexp.reduce([each.log_density(theta) for each in proposals]) for theta in draws]
        weights = torch.tensor(logs, dtype=torch.float64) - torch.tensor(mixed, dtype=torch.float64)
        proposals.append(_matched(proposals[0], torch.stack(draws), weights))
    return proposals[-1], place


def _matched(proposal: StudentProposal, draws: Tensor, log_weights: Tensor) -> StudentProposal:
    """A proposal with the mean and covariance of weighted draws; flatter weights where few draws count."""
    log_weights, power = log_weights.nan_to_num(nan=-torch.inf), 1.0
    weights = torch.softmax(log_weights, dim=0)
    while weights.square().sum().reciprocal().item() < FEWEST_USEFUL * draws.shape[1]:
        power /= 2
        if power < 1e-3:
            return proposal
        weights = torch.softmax(power * log_weights, dim=0)
    mean = weights @ draws
    centred = draws - mean
    covariance = centred.mT @ (weights[:, None] * centred)
    # the scale matrix of a Student-t is its covariance times (ν - 2)/ν
    scale = (proposal.degrees - 2) / proposal.degrees
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
