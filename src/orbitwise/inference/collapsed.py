"""The collapsed bound: q(u) integrated out in closed form, for exact or frozen rows (METHOD 3).

With quadratic likelihood terms -½λf² + ηf + constant, P = I + AΛAᵀ and h = Aη:
bound = Σ constant + ½ hᵀP⁻¹h - ½ log|P| - ½ Σ log(1 + λ_n r_n), for each output. For Gaussian noise this is
the tighter form of
Titsias' bound; with λr in place of the logarithm it is his own. It is deterministic, so L-BFGS trains it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from orbitwise.functionals.atoms import Atoms
from orbitwise.functionals.functional import Functional
from orbitwise.functionals.points import Evaluation
from orbitwise.inference.linear_algebra import cholesky, log_determinant, solve_lower
from orbitwise.inference.projection import inducing_factor
from orbitwise.inference.variational import SparsePosterior
from orbitwise.inference.whitened import Whitened
from orbitwise.likelihoods.likelihood import Likelihood, Quadratic
from orbitwise.process.process import Process

ROWS_AT_ONCE = 512


class Columns(NamedTuple):
    """A = L⁻¹K_uf, the residual variances r, and the factor L of K_uu."""

    columns: Float[Tensor, "u n"]
    residual: Float[Tensor, " n"]
    lower: Float[Tensor, "u u"]


def project_rows(
    process: Process, functional: Functional, inducing: Float[Tensor, "u d"], x: Float[Tensor, "n d"]
) -> Columns:
    """Project all rows, streamed forward and backward so that no more than a block's atoms are held."""
    lower = inducing_factor(process, inducing)
    points = Evaluation().lower(inducing.to(x.dtype))

    def part(rows: Tensor) -> tuple[Tensor, Tensor]:
        atoms = functional.atoms(rows)
        if not isinstance(atoms, Atoms) or atoms.is_drawn:
            raise ValueError(
                "The collapsed bound takes exact rows: freeze a drawn orbit, or use the stochastic engine."
            )
        return process.covariance(points, atoms).double(), process.variance(atoms).double()

    run: Callable[[Tensor], tuple[Tensor, Tensor]] = part
    if torch.is_grad_enabled() and len(x) > ROWS_AT_ONCE:
        run = lambda rows: checkpoint(part, rows, use_reentrant=False)  # noqa: E731
    parts = [run(rows) for rows in x.split(ROWS_AT_ONCE)]
    # A = L⁻¹ K_uf
    columns = solve_lower(lower, torch.cat([covariance for covariance, _ in parts], dim=1))
    residual = torch.cat([variance for _, variance in parts]) - columns.square().sum(0)
    return Columns(columns, residual.clamp_min(0), lower)


def collapsed_bound(
    columns: Columns, quadratic: Quadratic, shared: bool, tight: bool = True
) -> Float[Tensor, ""]:
    """The bound, summed over outputs; `shared` says that λ is the same for all of them."""
    lower = cholesky(_precision(columns.columns, quadratic, shared)).lower
    shift = columns.columns @ quadratic.slope
    # ½ hᵀP⁻¹h - ½ log|P|
    white = solve_lower(lower, shift if shared else shift.T[..., None])
    outputs = quadratic.slope.shape[1]
    fit = 0.5 * white.square().sum() - 0.5 * log_determinant(lower).sum() * (outputs if shared else 1)
    slack = quadratic.curvature * columns.residual[:, None]
    return fit + quadratic.constant.sum() - 0.5 * (torch.log1p(slack) if tight else slack).sum()


def optimal_q(columns: Columns, quadratic: Quadratic, shared: bool) -> Whitened:
    """The q(v) that the collapsed bound has integrated out."""
    return Whitened(_precision(columns.columns, quadratic, shared), columns.columns @ quadratic.slope)


def condition(
    process: Process,
    functional: Functional,
    likelihood: Likelihood,
    inducing: Float[Tensor, "u d"],
    x: Float[Tensor, "n d"],
    targets: Float[Tensor, "n c"],
    tilt: Float[Tensor, "n c"] | None = None,
) -> SparsePosterior:
    """The posterior at the present hyperparameters."""
    with torch.no_grad():
        columns = project_rows(process, functional, inducing, x)
        q = optimal_q(columns, likelihood.quadratic(targets, tilt), likelihood.shares_curvature)
        return SparsePosterior(process, inducing, q, columns.lower)


def best_tilt(
    columns: Columns,
    likelihood: Likelihood,
    targets: Float[Tensor, "n c"],
    tilt: Float[Tensor, "n c"],
    num_rounds: int = 10,
) -> Float[Tensor, "n c"]:
    """The best tilts c = √E[f²], by rounds of coordinate ascent: each raises the bound.

    Under the tight bound the residual counts as r/(1 + λr).
    """
    with torch.no_grad():
        for _ in range(num_rounds):
            quadratic = likelihood.quadratic(targets, tilt)
            q = optimal_q(columns, quadratic, likelihood.shares_curvature)
            mean = columns.columns.mT @ q.mean
            spread = q.spread(columns.columns.mT).square().sum(-1)
            variance = spread[:, None] if q.is_shared else spread.T
            residual = columns.residual[:, None]
            tilt = (mean.square() + variance + residual / (1 + quadratic.curvature * residual)).sqrt()
    return tilt


def _precision(columns: Tensor, quadratic: Quadratic, shared: bool) -> Tensor:
    identity = torch.eye(len(columns), dtype=columns.dtype, device=columns.device)
    if shared:
        return identity + (columns * quadratic.curvature[:, 0]) @ columns.mT
    return identity + (columns * quadratic.curvature.T[:, None, :]) @ columns.mT
