"""The best q(u) in closed form, for exact or frozen rows under quadratic likelihood terms (METHOD 3).

With terms -½λf² + ηf + constant, P = I + AΛAᵀ and h = A(η - λm): q(v) = N(P⁻¹h, P⁻¹) for each output. The
bound itself is `orbitwise.inference.bounds.collapsed_bound`, of the totals at σ² = 1. It is deterministic, so
L-BFGS trains it. Tilts, where a likelihood has any, are improved by coordinate ascent.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.functionals.functional import Functional
from orbitwise.inference.bounds import best_q
from orbitwise.inference.projection import ProjectedRows, project_rows
from orbitwise.inference.totals import held_totals
from orbitwise.inference.variational import SparsePosterior
from orbitwise.inference.whitened import Whitened
from orbitwise.likelihoods.likelihood import Likelihood, Quadratic
from orbitwise.process.process import Process


def optimal_q(projected: ProjectedRows, quadratic: Quadratic, shared: bool) -> Whitened:
    """The q(v) that the collapsed bound has integrated out."""
    return best_q(held_totals(projected, quadratic, shared), projected.lower.new_ones(()))


def condition(
    process: Process,
    functional: Functional,
    likelihood: Likelihood,
    inducing: Float[Tensor, "u d"],
    x: Float[Tensor, "n columns"],
    targets: Float[Tensor, "n c"],
    tilt: Float[Tensor, "n c"] | None = None,
) -> SparsePosterior:
    """The posterior at the present hyperparameters."""
    with torch.no_grad():
        projected = project_rows(process, functional, inducing, x)
        q = optimal_q(projected, likelihood.quadratic(targets, tilt), likelihood.shares_curvature)
        return SparsePosterior(process, inducing, q, projected.lower)


def best_tilt(
    projected: ProjectedRows,
    likelihood: Likelihood,
    targets: Float[Tensor, "n c"],
    tilt: Float[Tensor, "n c"],
    num_rounds: int = 10,
    weight: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, "n c"]:
    """The best tilts c = √E[f²], by rounds of coordinate ascent: each raises the bound.

    Under the tight bound the residual counts as r/(1 + wλr).
    """
    with torch.no_grad():
        for _ in range(num_rounds):
            quadratic = likelihood.quadratic(targets, tilt).weighted(weight)
            q = optimal_q(projected, quadratic, likelihood.shares_curvature)
            mean = projected.columns.mT @ q.mean + projected.mean[:, None]
            spread = q.spread(projected.columns.mT).square().sum(-1)
            variance = spread[:, None] if q.is_shared else spread.T
            residual = projected.residual[:, None]
            tilt = (mean.square() + variance + residual / (1 + quadratic.curvature * residual)).sqrt()
    return tilt
