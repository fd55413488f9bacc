"""Exact inference by conjugate gradients: no matrix of all rows is formed, N to some 20,000 (METHOD 3).

The mean is K_*f v with v from conjugate gradients, plus what inducing variables say of the residual.
Variances come from the inducing variables, too small close to them, or exactly, by a solve a query.
"""

from __future__ import annotations

from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.bounds import best_q
from orbitwise.inference.conjugate_gradients import Preconditioner, Solution, quadratic_bracket, solve
from orbitwise.inference.linear_algebra import remaining_variance
from orbitwise.inference.posterior import Posterior
from orbitwise.inference.products import covariance_product, cross_product, prior_means
from orbitwise.inference.projection import Inducing, inducing_factor
from orbitwise.inference.totals import Observations
from orbitwise.inference.variational import SparsePosterior
from orbitwise.process.process import Moments, Process, Rows

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
    """The posterior given the targets, with at most `tolerance` nats of the quadratic form left unsolved."""
    with torch.no_grad():
        lower = inducing_factor(process, inducing)
        preconditioner = Preconditioner.of(process, rows, inducing, lower, noise)
        solution = solve_rows(process, rows, noise, preconditioner, tolerance, max_iterations, start)
        left = quadratic_bracket(process, rows, inducing, lower, noise, solution.vectors)
        sparse = SparsePosterior(process, inducing, best_q(left.totals, noise), lower)
    return IterativePosterior(sparse, rows, noise, solution, preconditioner, variance, max_iterations)


def solve_rows(
    process: Process,
    rows: Observations,
    noise: Float[Tensor, ""],
    preconditioner: Preconditioner,
    tolerance: float,
    max_iterations: int,
    start: Float[Tensor, "n c"] | None = None,
) -> Solution:
    """(K+Σ)⁻¹(y-m) by conjugate gradients, warm where `start` is given."""
    with torch.no_grad():
        centred = rows.targets - prior_means(process, rows)[:, None]
        return solve(
            lambda v: noisy_product(process, rows, noise, v),
            centred,
            preconditioner,
            tolerance,
            max_iterations,
            start,
        )


def noisy_product(
    process: Process, rows: Observations, noise: Float[Tensor, ""], vectors: Float[Tensor, "n c"]
) -> Float[Tensor, "n c"]:
    """(K+Σ)v, with Σ = σ²/w."""
    return covariance_product(process, rows, vectors) + (noise / rows.weights())[:, None] * vectors


@final
class IterativePosterior(Posterior):
    """g given y, held as v ≈ (K+Σ)⁻¹(y-m) over all rows and a sparse posterior of what v leaves."""

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
        self.sparse = sparse
        self.rows = rows
        self.noise = noise.detach()
        self.solution = solution
        self.preconditioner = preconditioner if variance == "exact" else None
        self.max_iterations = max_iterations

    @property
    def process(self) -> Process:
        """The base process."""
        return self.sparse.process  # pyright: ignore

    def row_moments(self, rows: Rows) -> Moments:
        """Moments of rows that were lowered already."""
        mean = self.row_mean(rows)
        if self.preconditioner is None:
            variance = self.sparse.row_moments(rows).variance[:, 0]  # pyright: ignore
        else:
            explained = self._explained(rows)
            variance = remaining_variance(
                self.process.variance(rows).double(), explained.sum(0), len(explained)
            )
        return Moments(mean, variance, mean.square() + variance[:, None])

    def row_mean(self, rows: Rows) -> Float[Tensor, "n c"]:
        """m* + K_*f v, and what the sparse posterior says of the residual."""
        explained = cross_product(self.process, rows, self.rows, self.solution.vectors)
        return self.sparse.row_mean(rows) + explained  # pyright: ignore

    def covariance(self, rows: Rows) -> Float[Tensor, "n n"]:
        """The posterior covariance of rows."""
        if self.preconditioner is None:
            return self.sparse.covariance(rows)  # pyright: ignore
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
        product = lambda v: noisy_product(self.process, self.rows, self.noise, v)  # noqa: E731
        return solve(product, cross, self.preconditioner, tolerance, self.max_iterations).vectors
