"""Exact inference by conjugate gradients, without a matrix of all rows, up to about 20,000 rows (METHOD 3).

Systems (K+Σ)v = y are preconditioned by the inducing variables, and their solutions give a bracket in nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.declarations import (
    COUNT,
    OMITTED,
    RECORD,
    SMALLEST,
    Field,
    Stored,
    is_plain_numbers,
    require,
)
from orbitwise.inference.linear_algebra import (
    cholesky,
    handwritten_gradient,
    remaining_variance,
    solve_factored,
)
from orbitwise.inference.model import Observations, Posterior
from orbitwise.inference.sparse.bounds import (
    QuadraticEnds,
    Totals,
    added_up,
    best_q,
    gather_totals,
    growth,
    learned,
    low_rank_terms,
    rounding,
    signal,
    summed,
)
from orbitwise.inference.sparse.inducing import Inducing, inducing_factor, project_rows
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.process.process import Moments, Process, Rows, pairs_at_once

TILES = 4
"""Of a side of the covariance matrix and a process, where there are several."""


def covariance_product(
    process: Process, rows: Observations, vectors: Float[Tensor, "n c"]
) -> Float[Tensor, "n c"]:
    """K v, differentiable in the hyperparameters but not in v."""
    by_tiles = _CovarianceProduct(process, rows)
    parts = (vectors.detach(), *learned(process, rows))
    return handwritten_gradient(by_tiles.forward, by_tiles.backward, *parts)[0]


def cross_product(
    process: Process, queries: Rows, rows: Observations, vectors: Float[Tensor, "n c"]
) -> Float[Tensor, "q c"]:
    """K_*f v for rows of atoms, tile by tile."""
    step = _CovarianceProduct(process, rows).step
    parts = [slice(start, start + step) for start in range(0, len(rows.x), step)]
    products = (process.covariance(queries, rows.take(i).atoms()).double() @ vectors[i] for i in parts)
    return sum(products, vectors.new_zeros(()))


def prior_means(process: Process, rows: Observations) -> Float[Tensor, " n"]:
    """The prior mean of every row."""
    step = _CovarianceProduct(process, rows).step
    starts = range(0, len(rows.x), step)
    return torch.cat([process.mean(rows.take(slice(i, i + step)).atoms()).double() for i in starts])


@final
@dataclass(frozen=True)
class _CovarianceProduct:
    """(v, parameters) → K v, with the gradient in one more pass over the tiles, which processes share."""

    process: Process
    rows: Observations

    @property
    def step(self) -> int:
        """The number of observations per tile, whose pairs of atoms fit in memory."""
        return max(16, math.isqrt(pairs_at_once(self.rows.x.device)) // self.rows.num_atoms)

    def tiles(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Positions and values of the tiles of the lower half that are those of this process."""
        step, count, processes = self.step, len(self.rows.x), self.rows.processes
        if not processes.is_alone:
            # enough tiles for all processes to have about as much to do
            step = max(16, min(step, -(-count // (TILES * processes.size))))
        for place, start in enumerate(range(0, count, step)):
            below = slice(start, start + step)
            left = self.rows.take(below).atoms()
            # tiles are dealt out in turn, so that rows of tiles begin with different processes
            turn = (processes.rank - place * (place + 1) // 2) % processes.size
            for first in range(0, start + 1, step)[turn :: processes.size]:
                beside = slice(first, first + step)
                right = None if first == start else self.rows.take(beside).atoms()
                yield below, beside, self.process.covariance(left, right).double()

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        processes = self.rows.processes
        return processes.sum(processes.together(lambda: self._forward(inputs[0])))

    def _forward(self, vectors: Tensor) -> Tensor:
        result = torch.zeros_like(vectors)
        for below, beside, tile in self.tiles():
            result[below] += tile @ vectors[beside]
            if below != beside:
                result[beside] += tile.mT @ vectors[below]
        return result

    def backward(self, inputs: tuple[Tensor, ...], slopes: tuple[Tensor, ...]) -> Sequence[Tensor | None]:
        processes = self.rows.processes
        found = processes.together(lambda: self._backward(inputs, *slopes))
        return None, *added_up(processes, inputs[1:], found)

    def _backward(self, inputs: tuple[Tensor, ...], to_result: Tensor) -> list[Tensor | None]:
        vectors, *leaves = inputs
        total: list[Tensor | None] = [None] * len(leaves)
        with torch.enable_grad():
            for below, beside, tile in self.tiles():
                # dK = K̄ vᵀ, and its mirror image for a tile off the diagonal
                to_tile = to_result[below] @ vectors[beside].mT
                if below != beside:
                    to_tile = to_tile + vectors[below] @ to_result[beside].mT
                total = summed(total, torch.autograd.grad(tile, leaves, to_tile, allow_unused=True))
                del tile
        return total


@final
class Solution(NamedTuple):
    """v with its residual r, the bracket lower ≤ yᵀK̂⁻¹y ≤ upper (summed over columns), and the iterations."""

    vectors: Float[Tensor, "n c"]
    residual: Float[Tensor, "n c"]
    lower: float
    upper: float
    iterations: int
    converged: bool

    stored = Stored({"lower": RECORD, "upper": RECORD, "iterations": COUNT})


@final
class Preconditioner:
    """(Q+Σ)⁻¹ for Q = AᵀA and a diagonal Σ; A, of M·N numbers, is kept in memory."""

    def __init__(self, columns: Float[Tensor, "u n"], noise: Float[Tensor, " n"]) -> None:
        self.columns, self.noise = columns, noise
        gram = (columns / noise) @ columns.mT
        gram.diagonal().add_(1)
        self.lower = cholesky(gram).lower

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

    The best has the smallest upper bound, which does not decrease monotonically.
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


@final
@dataclass(frozen=True)
class NoisySystem:
    """The system (K+Σ)v = y - m of all rows, with Σ = σ²/w: products, solutions, and brackets."""

    process: Process
    rows: Observations
    noise: Float[Tensor, ""]

    def product(self, vectors: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        """(K+Σ)v."""
        noisy = (self.noise / self.rows.weights())[:, None] * vectors
        return covariance_product(self.process, self.rows, vectors) + noisy

    def centred(self) -> Float[Tensor, "n c"]:
        """y - m."""
        return self.rows.targets - prior_means(self.process, self.rows)[:, None]

    @torch.no_grad()
    def preconditioner(self, inducing: Inducing, lower: Float[Tensor, "u u"]) -> Preconditioner:
        """The preconditioner from inducing variables with factor L of K_uu."""
        projected = project_rows(self.process, self.rows.functional, inducing, self.rows.x, lower)
        return Preconditioner(projected.held_columns(), self.noise / self.rows.weights())

    @torch.no_grad()
    def solve(
        self,
        preconditioner: Preconditioner,
        tolerance: float,
        max_iterations: int,
        start: Float[Tensor, "n c"] | None = None,
    ) -> Solution:
        """(K+Σ)⁻¹(y-m) by conjugate gradients, from `start` if it is given."""
        return solve(self.product, self.centred(), preconditioner, tolerance, max_iterations, start)

    def bracket(
        self,
        inducing: Inducing,
        lower: Float[Tensor, "u u"],
        vectors: Float[Tensor, "n c"],
        tight: bool = True,
    ) -> QuadraticBracket:
        """The bracket at v, which is valid for any v; v = 0 gives the collapsed bound."""
        vectors, rows = vectors.detach(), self.rows
        product = self.product(vectors)
        # 2yᵀv - vᵀK̂v ≤ yᵀK̂⁻¹y ≤ 2yᵀv - vᵀK̂v + rᵀP⁻¹r
        least = (vectors * (2 * self.centred() - product)).sum()
        left = replace(rows, targets=rows.targets - product, scatter=None)
        totals = gather_totals(self.process, left, inducing, lower, self.noise, tight)
        remaining = low_rank_terms(totals, self.noise).quadratic.clamp_min(0)
        return QuadraticBracket(least, least + remaining, totals)

    @torch.no_grad()
    def safe_ends(self, vectors: Float[Tensor, "n c"], at: QuadraticBracket) -> QuadraticEnds:
        """The bracket at v and its possible rounding errors.

        The error of K v is at most γ√k_n Σ √k|v|, and (Σ √k|v|)² ≤ Σ w k · Σ v²/w. It enters 2yᵀv - vᵀK̂v
        directly and rᵀP⁻¹r through r, in addition to rounding errors of the totals.
        """
        # a kernel in single precision has errors of single precision
        coarseness = torch.finfo(self.rows.x.dtype).eps / torch.finfo(torch.float64).eps
        unit = growth(at.totals) * max(1.0, coarseness)
        weights = self.rows.weights()[:, None]
        centred = self.centred().abs()
        noisy = (self.noise / weights) * vectors.abs()
        sums = (vectors.abs() * (2 * centred + noisy)).sum()
        prior = signal(at.totals)
        square = prior * (vectors.square() / weights).sum()
        moved = unit * ((prior * square).sqrt() + (weights * (centred + noisy).square()).sum().sqrt())
        moved = moved / self.noise.sqrt()
        remaining = (at.upper - at.lower).clamp_min(0)
        through = moved * (moved + 2 * remaining.sqrt())
        own = rounding(at.totals, self.noise).quadratic
        return QuadraticEnds(at.lower, at.upper, unit * (square + sums) + through + own)


Variance = Literal["sparse", "exact"]
ROWS_AT_ONCE = 2048


def condition(
    process: Process,
    rows: Observations,
    noise: Float[Tensor, ""],
    inducing: Inducing,
    variance: Variance = "exact",
    tolerance: float = 1e-3,
    max_iterations: int = 500,
    start: Float[Tensor, "n c"] | None = None,
) -> IterativePosterior:
    """The posterior given the targets, with an error of the quadratic form of at most `tolerance` nats."""
    with torch.no_grad():
        system, lower = NoisySystem(process, rows, noise), inducing_factor(process, inducing)
        preconditioner = system.preconditioner(inducing, lower)
        solution = system.solve(preconditioner, tolerance, max_iterations, start)
        left = system.bracket(inducing, lower, solution.vectors)
        sparse = SparsePosterior(process, inducing, best_q(left.totals, noise), lower)
    return IterativePosterior(sparse, rows, noise, solution, preconditioner, variance, max_iterations)


def _refuse_solves(posterior: IterativePosterior) -> str | None:
    if posterior.preconditioner is None:
        return None
    return "a posterior with a solve for every query cannot be stored; condition with variance='sparse'."


@final
class IterativePosterior(Posterior):
    """g given y, represented by v ≈ (K+Σ)⁻¹(y-m) over all rows and a sparse posterior of the residual."""

    stored = Stored(
        {
            "preconditioner": OMITTED,
            "variance": Field(is_omitted=True, fixed="sparse"),
            "max_iterations": COUNT,
        },
        refuse=_refuse_solves,
    )

    def __init__(
        self,
        sparse: SparsePosterior,
        rows: Observations,
        noise: Float[Tensor, ""],
        solution: Solution,
        preconditioner: Preconditioner | None,
        variance: Variance,
        max_iterations: int,
    ) -> None:
        self.sparse, self.process = sparse, sparse.process
        self.rows = rows
        self.noise = noise.detach()
        self.solution = solution
        self.preconditioner = preconditioner if variance == "exact" else None
        self.max_iterations = max_iterations
        self.num_outputs, self.width = sparse.num_outputs, sparse.width

    def check_parts(self) -> None:
        """Raise a ValueError if the solution does not belong to these rows and outputs."""
        require(self.solution.vectors.shape == self.rows.targets.shape, "a solution of other rows")
        require(is_plain_numbers(self.noise, SMALLEST), "noise out of range")
        require(self.solution.vectors.shape[1] == self.num_outputs, "a solution of other outputs")

    def row_moments(self, rows: Rows) -> Moments:
        """Moments of rows of atoms."""
        mean = self.row_mean(rows)
        if self.preconditioner is None:
            variance = self.sparse.row_moments(rows).variance[:, 0]
        else:
            explained = self._explained(rows)
            variance = remaining_variance(
                self.process.variance(rows).double(), explained.sum(0), len(explained)
            )
        return Moments(mean, variance, mean.square() + variance[:, None])

    def row_mean(self, rows: Rows) -> Float[Tensor, "n c"]:
        """m* + K_*f v, plus the mean of the sparse posterior of the residual."""
        explained = cross_product(self.process, rows, self.rows, self.solution.vectors)
        return self.sparse.row_mean(rows) + explained

    def covariance(self, rows: Rows) -> Float[Tensor, "n n"]:
        """The posterior covariance of rows."""
        if self.preconditioner is None:
            return self.sparse.covariance(rows)
        cross = self._cross(rows)
        return self.process.covariance(rows).double() - cross.mT @ self._solved(cross)

    def _explained(self, rows: Rows) -> Float[Tensor, "n q"]:
        cross = self._cross(rows)
        return cross * self._solved(cross)

    def _cross(self, rows: Rows) -> Float[Tensor, "n q"]:
        parts = range(0, len(self.rows.x), ROWS_AT_ONCE)
        return torch.cat(
            [
                self.process.covariance(self.rows.take(slice(i, i + ROWS_AT_ONCE)).atoms(), rows).double()
                for i in parts
            ]
        )

    def _solved(self, cross: Float[Tensor, "n q"]) -> Float[Tensor, "n q"]:
        """K̂⁻¹ of columns; the bracket is here one of variances, whose error is the square of covariances'."""
        if self.preconditioner is None:
            raise ValueError("This posterior has sparse variances only: condition with variance='exact'.")
        tolerance = 1e-10 * float(self.noise) * cross.shape[1]
        product = NoisySystem(self.process, self.rows, self.noise).product
        return solve(product, cross, self.preconditioner, tolerance, self.max_iterations).vectors
