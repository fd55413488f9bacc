"""The evidence by importance sampling from a Student-t at the Laplace fit, with signs of degenerate weights.

p(y) = E_q[p(y, z)/q(z)]. The estimate of p(y) is unbiased; its logarithm has the standard error sd(w)/(w̄ √S).
The shape k of a generalised Pareto fitted to the largest weights tells whether that error can be believed:
above 0.7 it cannot (Vehtari, Simpson, Gelman, Yao and Gabry 2024; fit by Zhang and Stephens 2009).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.hyperparameters import Hyperparameters
from orbitwise.selection.laplace import LaplaceFit
from orbitwise.selection.proposals import Proposal

LARGEST_SHAPE = 0.7
SMALLEST_SHARE = 0.01


@final
@dataclass(frozen=True)
class ImportanceSample:
    """Weighted samples of z's posterior, and the log evidence as the mean of their weights."""

    log_evidence: float
    standard_error: float
    effective_size: float
    pareto_shape: float
    points: Float[Tensor, "q p"]
    weights: Float[Tensor, " q"]

    @property
    def is_degenerate(self) -> bool:
        """Whether a few weights make up the estimate."""
        too_few = self.effective_size < max(10.0, SMALLEST_SHARE * len(self.points))
        return too_few or not self.pareto_shape <= LARGEST_SHAPE


def importance(
    hyperparameters: Hyperparameters,
    fit: LaplaceFit,
    num_samples: int = 1000,
    num_adaptations: int = 1,
    generator: torch.Generator | None = None,
) -> ImportanceSample:
    """Sample around a Laplace fit; each adaptation first moves the proposal to the posterior that it saw.

    An adaptation uses a quarter of `num_samples`, which are then thrown away, so that the estimate stays
    unbiased.
    """
    if num_samples < 50:
        raise ValueError(f"num_samples={num_samples} is too few to judge the weights; take at least 50.")
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    proposal = fit.proposal()
    if not len(fit.mode):
        ones = torch.ones(num_samples, dtype=torch.float64)
        return ImportanceSample(
            fit.log_evidence,
            0.0,
            float(num_samples),
            -math.inf,
            proposal.sample(num_samples, generator),
            ones,
        )
    for _ in range(num_adaptations):
        points, logarithms = _weighted(hyperparameters, proposal, max(50, num_samples // 4), generator)
        weights = torch.softmax(logarithms, 0)
        # Moments of too few effective samples would make matters worse.
        if 1 / weights.square().sum().item() > 4 * len(fit.mode):
            proposal = Proposal.fitted(points, weights)
    points, logarithms = _weighted(hyperparameters, proposal, num_samples, generator)
    sample = summarise(points, logarithms)
    if sample.is_degenerate:
        warnings.warn(
            f"Importance weights are degenerate: {sample.effective_size:.0f} effective of {num_samples} "
            f"samples, Pareto shape {sample.pareto_shape:.2f} (at most {LARGEST_SHAPE} is safe). The log "
            "evidence and its error cannot be trusted: take more samples, or method='bridge'.",
            stacklevel=2,
        )
    return sample


def summarise(points: Float[Tensor, "q p"], logarithms: Float[Tensor, " q"]) -> ImportanceSample:
    """The estimate from points and the logarithms of their weights p(y, z)/q(z)."""
    count = len(logarithms)
    total = torch.logsumexp(logarithms, 0)
    if not bool(total.isfinite()):
        raise ValueError("No sample has a finite density: check the hyperpriors and the log evidence.")
    weights = (logarithms - total).exp()
    effective = 1 / weights.square().sum().item()
    # sd(w)/(w̄ √S), with Σw² = 1/ESS for weights of sum 1
    error = math.sqrt(max(0.0, count / effective - 1) / (count - 1))
    shape = pareto_shape(logarithms)
    return ImportanceSample((total - math.log(count)).item(), error, effective, shape, points, weights)


def pareto_shape(logarithms: Float[Tensor, " q"]) -> float:
    """The shape k of the generalised Pareto distribution of the largest weights; k ≥ ½ has no variance."""
    count = len(logarithms)
    size = min(count // 5, math.ceil(3 * math.sqrt(count)))
    if size < 5:
        return math.inf
    ordered = (logarithms - logarithms.max()).exp().sort().values.double()
    tail = ordered[-size:] - ordered[-size - 1]
    if tail[-1] <= 1e-12 * ordered[-1]:
        return -math.inf  # all weights are equal
    # Zhang and Stephens: a posterior mean of b = -k/σ over a grid, then k = mean log(1 - b x)
    number = 30 + math.isqrt(size)
    quartile = tail[int(size / 4 + 0.5) - 1].clamp_min(1e-300)
    steps = torch.arange(1, number + 1, dtype=torch.float64)
    grid = 1 / tail[-1] + (1 - (number / (steps - 0.5)).sqrt()) / (3 * quartile)
    shapes = torch.log1p(-grid[:, None] * tail[None, :]).mean(-1)
    likelihood = size * ((-grid / shapes).log() - shapes - 1)
    b = (torch.softmax(likelihood, 0) * grid).sum()
    shape = torch.log1p(-b * tail).mean().item()
    # a weak prior around ½ steadies small samples
    return (size * shape + 10 * 0.5) / (size + 10)


def _weighted(
    hyperparameters: Hyperparameters, proposal: Proposal, num_samples: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    points = proposal.sample(num_samples, generator)
    with torch.no_grad():
        values = torch.stack([hyperparameters.log_density(point) for point in points])
    logarithms = values - proposal.log_density(points)
    return points, torch.where(logarithms.isnan(), -torch.inf, logarithms)
