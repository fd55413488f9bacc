"""Stochastic variational inference with inducing variables in g, for any likelihood whose bound is quadratic in f.

L = (N/B) Σ_batch [E_q log p(y_n | a_nᵀv) - ½ Σ_c log(1 + λ_nc r_n)] - KL[q(v) ‖ N(0, I)] (METHOD 3). The logarithm is replaced
by its tangent at a remembered slack, so that drawn rows keep the bound valid and unbiased; slack 0 is the plain bound.
"""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.functionals.atoms import Atoms
from orbitwise.functionals.functional import Functional
from orbitwise.inference.posterior import Posterior
from orbitwise.inference.projection import (
    ProjectedMoments,
    Projection,
    inducing_factor,
    project,
    projected_moments,
)
from orbitwise.inference.whitened import Whitened
from orbitwise.likelihoods.likelihood import Likelihood, Quadratic
from orbitwise.process.moments import Moments
from orbitwise.process.process import Process
from orbitwise.process.unbiased import Method


class BoundTerms(NamedTuple):
    """The bound on a batch, and what a natural-gradient step and the memory need of it."""

    data: Float[Tensor, ""]
    projection: Projection
    moments: ProjectedMoments
    quadratic: Quadratic


@final
class Memory:
    """What earlier visits told of each datum: residual variances and tilts, never computed from the current draws."""

    def __init__(self, count: int, outputs: int, device: torch.device | None = None, keep: float = 0.5) -> None:
        self.residual = torch.zeros(count, dtype=torch.float64, device=device)
        self.square = torch.ones(count, outputs, dtype=torch.float64, device=device)
        self.seen = torch.zeros(count, dtype=torch.bool, device=device)
        self.typical_residual = torch.zeros((), dtype=torch.float64, device=device)
        self.typical_square = torch.ones(outputs, dtype=torch.float64, device=device)
        self.keep = keep

    def recall(self, index: Int[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Float[Tensor, "n c"]]:
        """The remembered residual and tilt √E[f²] of each datum, typical values for one never seen."""
        seen = self.seen[index]
        residual = torch.where(seen, self.residual[index], self.typical_residual)
        square = torch.where(seen[:, None], self.square[index], self.typical_square)
        return residual, square.sqrt()

    def learn(self, index: Int[Tensor, " n"], moments: ProjectedMoments) -> None:
        """Average the new estimates into memory; estimates may be negative, memories may not."""
        with torch.no_grad():
            residual = moments.residual.clamp_min(0)
            square = (moments.mean_square + moments.residual[:, None]).clamp_min(1e-6)
            keep = torch.where(self.seen[index], self.keep, 0.0).to(residual)
            self.residual[index] = keep * self.residual[index] + (1 - keep) * residual
            self.square[index] = keep[:, None] * self.square[index] + (1 - keep[:, None]) * square
            self.seen[index] = True
            self.typical_residual = residual.mean()
            self.typical_square = square.mean(0)


def bound_terms(
    process: Process,
    likelihood: Likelihood,
    q: Whitened,
    inducing: Float[Tensor, "u d"],
    lower: Float[Tensor, "u u"],
    atoms: Atoms,
    targets: Float[Tensor, "n c"],
    slack_residual: Float[Tensor, " n"],
    tilt: Float[Tensor, "n c"] | None = None,
    method: Method = "halves",
) -> BoundTerms:
    """The data term Σ_n of the bound for a batch of rows, to be scaled by N/B."""
    projection = project(process, inducing, lower, atoms, method)
    moments = projected_moments(projection, q)
    quadratic = likelihood.quadratic(targets, tilt if likelihood.needs_tilt else None)
    expected = quadratic.expectation(Moments(moments.mean, moments.residual, moments.mean_square)).sum(-1)
    # -½ log(1 + λr) ≥ -½ [log(1+c) + (λr - c)/(1+c)] at the remembered slack c = λ·r
    slack = (quadratic.curvature * slack_residual[:, None]).detach()
    excess = (quadratic.curvature * moments.residual[:, None] - slack) / (1 + slack)
    data = (expected - 0.5 * (torch.log1p(slack) + excess).sum(-1)).sum()
    return BoundTerms(data, projection, moments, quadratic)


@final
class SparsePosterior(Posterior):
    """g given y through q(u): moments of any functional; drawn functionals are averaged over the draws they make."""

    def __init__(
        self,
        process: Process,
        inducing: Float[Tensor, "u d"],
        q: Whitened,
        lower: Float[Tensor, "u u"] | None = None,
    ) -> None:
        self.process = process
        self.inducing = inducing
        self.q = q
        with torch.no_grad():
            self.lower = inducing_factor(process, inducing) if lower is None else lower

    def moments(self, functional: Functional, x: Tensor, generator: torch.Generator | None = None) -> Moments:
        return self.row_moments(functional.atoms(x, generator))

    def row_moments(self, atoms: Atoms) -> Moments:
        """Moments of rows taken as they are: the variance is biased upwards by O(1/S) and never negative (METHOD 4)."""
        projection = project(self.process, self.inducing, self.lower, atoms.frozen())
        moments = projected_moments(projection, self.q)
        spread = moments.mean_square - moments.mean.square()
        variance = (spread + moments.residual[:, None].clamp_min(0)).clamp_min(0)
        return Moments(moments.mean, variance, moments.mean.square() + variance)
