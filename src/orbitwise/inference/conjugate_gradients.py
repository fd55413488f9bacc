"""Conjugate gradients for (K+Σ)v = y, preconditioned by the inducing variables, with a bracket in nats.

With P = Q+Σ ≼ K̂ = K+Σ and the residual r = y - K̂v, any v brackets the quadratic form (METHOD 3):
yᵀv + vᵀr ≤ yᵀK̂⁻¹y ≤ yᵀv + vᵀr + rᵀP⁻¹r. So rᵀP⁻¹r says how many nats are left to gain, and ends the search.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.bounds import Quadratic, growth, low_rank_terms, rounding, signal
from orbitwise.inference.linear_algebra import cholesky, solve_factored
from orbitwise.inference.products import covariance_product, prior_means
from orbitwise.inference.projection import Inducing, project_rows
from orbitwise.inference.totals import Observations, Totals, gather_totals
from orbitwise.process.process import Process


class Solution(NamedTuple):
    """v with its residual r, the bracket lower ≤ yᵀK̂⁻¹y ≤ upper (summed over columns), and the iterations."""

    vectors: Float[Tensor, "n c"]
    residual: Float[Tensor, "n c"]
    lower: float
    upper: float
    iterations: int
    converged: bool


@final
class Preconditioner:
    """(Q+Σ)⁻¹ for Q = AᵀA and a diagonal Σ: A is held, M·N numbers."""

    def __init__(self, columns: Float[Tensor, "u n"], noise: Float[Tensor, " n"]) -> None:
        self.columns, self.noise = columns, noise
        gram = (columns / noise) @ columns.mT
        gram.diagonal().add_(1)
        self.lower = cholesky(gram).lower

    @classmethod
    def of(
        cls,
        process: Process,
        rows: Observations,
        inducing: Inducing,
        lower: Float[Tensor, "u u"],
        noise: Float[Tensor, ""],
    ) -> Preconditioner:
        """That of inducing variables with factor L of K_uu, for noise variances σ²/w."""
        with torch.no_grad():
            projected = project_rows(process, rows.functional, inducing, rows.x, lower)
            return cls(projected.columns, noise / rows.weights())

    def __call__(self, right: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        # (Q+Σ)⁻¹b = Σ⁻¹b - Σ⁻¹Aᵀ(I + AΣ⁻¹Aᵀ)⁻¹AΣ⁻¹b
        scaled = right / self.noise[:, None]
        inner = solve_factored(self.lower, self.columns @ scaled)
        return scaled - (self.columns.mT @ inner) / self.noise[:, None]


@torch.no_grad()
def solve(
    product: Callable[[Tensor], Tensor],
    right: Float[Tensor, "n c"],
    precondition: Callable[[Tensor], Tensor],
    tolerance: float,
    max_iterations: int = 200,
    start: Float[Tensor, "n c"] | None = None,
) -> Solution:
    """Solve K̂v = y for all columns until Σ rᵀP⁻¹r ≤ `tolerance`, or iterations end; returns the best v seen.

    The best is the one with the least upper end of the bracket, which is not monotone.
    """
    vectors = torch.zeros_like(right) if start is None else start.clone()
    residual = right - product(vectors) if start is not None else right.clone()
    preconditioned = precondition(residual)
    direction = preconditioned
    energy = (residual * preconditioned).sum(0)
    best = _bracket(right, vectors, residual, energy, 0, tolerance)
    if start is not None and best.upper > float((right * precondition(right)).sum()):
        return solve(product, right, precondition, tolerance, max_iterations)  # worse than v = 0
    for iteration in range(1, max_iterations + 1):
        if best.converged:
            break
        moved = product(direction)
        curvature = (direction * moved).sum(0)
        step = torch.where(curvature > 0, energy / curvature.clamp_min(1e-300), 0)
        vectors = vectors + step * direction
        residual = residual - step * moved
        preconditioned = precondition(residual)
        previous, energy = energy, (residual * preconditioned).sum(0)
        direction = preconditioned + energy / previous.clamp_min(1e-300) * direction
        found = _bracket(right, vectors, residual, energy, iteration, tolerance)
        if found.upper <= best.upper:
            best = found
        if not bool(energy.isfinite().all()) or not bool((energy > 0).any()):
            break
        best = best._replace(iterations=iteration)
    return best


def _bracket(
    right: Tensor, vectors: Tensor, residual: Tensor, energy: Tensor, iterations: int, tolerance: float
) -> Solution:
    lower = float((vectors * (right + residual)).sum())
    left = float(energy.sum())
    return Solution(vectors, residual, lower, lower + left, iterations, left <= tolerance)


class QuadraticBracket(NamedTuple):
    """lower ≤ (y-m)ᵀK̂⁻¹(y-m) ≤ upper, differentiable, and the totals of the rows with the residual r."""

    lower: Float[Tensor, ""]
    upper: Float[Tensor, ""]
    totals: Totals


def quadratic_bracket(
    process: Process,
    rows: Observations,
    inducing: Inducing,
    lower: Float[Tensor, "u u"],
    noise: Float[Tensor, ""],
    vectors: Float[Tensor, "n c"],
    tight: bool = True,
) -> QuadraticBracket:
    """The bracket at a given v, valid for any: v = 0 gives the collapsed bound back.

    Means, where the process has any, are taken off the targets.
    """
    vectors = vectors.detach()
    noisy = (noise / rows.weights())[:, None] * vectors
    product = covariance_product(process, rows, vectors) + noisy
    centred = rows.targets - prior_means(process, rows)[:, None]
    # 2yᵀv - vᵀK̂v ≤ yᵀK̂⁻¹y ≤ 2yᵀv - vᵀK̂v + rᵀP⁻¹r
    least = (vectors * (2 * centred - product)).sum()
    left = Observations(rows.functional, rows.x, rows.targets - product, rows.weight)
    totals = gather_totals(process, left, inducing, lower, noise, tight)
    remaining = low_rank_terms(totals, noise).quadratic.clamp_min(0)
    return QuadraticBracket(least, least + remaining, totals)


@torch.no_grad()
def safe_quadratic(
    process: Process,
    rows: Observations,
    noise: Float[Tensor, ""],
    vectors: Float[Tensor, "n c"],
    at: QuadraticBracket,
) -> Quadratic:
    """The bracket at v with how far rounding may have moved it.

    K v is off by γ√k_n Σ √k|v|, and (Σ √k|v|)² ≤ Σ w k · Σ v²/w; that moves 2yᵀv - vᵀK̂v directly, and
    rᵀP⁻¹r through r, beside the rounding of the totals.
    """
    # a kernel in single precision is off by single precision
    coarseness = torch.finfo(rows.x.dtype).eps / torch.finfo(torch.float64).eps
    unit = growth(at.totals) * max(1.0, coarseness)
    weights = rows.weights()[:, None]
    centred = (rows.targets - prior_means(process, rows)[:, None]).abs()
    noisy = (noise / weights) * vectors.abs()
    sums = (vectors.abs() * (2 * centred + noisy)).sum()
    prior = signal(at.totals)
    square = prior * (vectors.square() / weights).sum()
    moved = unit * ((prior * square).sqrt() + (weights * (centred + noisy).square()).sum().sqrt())
    moved = moved / noise.sqrt()
    remaining = (at.upper - at.lower).clamp_min(0)
    through = moved * (moved + 2 * remaining.sqrt())
    own = rounding(at.totals, noise).quadratic
    return Quadratic(at.lower, at.upper, unit * (square + sums) + through + own)
