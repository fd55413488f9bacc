"""Polishing: one pass over all data sets q to its optimum for a Gaussian likelihood, and tells bound and leave-one-out.

With A = [a_1, …, a_N] from frozen rows and noise σ²: P = I + AAᵀ/σ², m = P⁻¹Ay/σ²; the collapsed bound is
log N(y | 0, AᵀA + σ²I) - ½ Σ log(1 + r_n/σ²) for each output (METHOD 3 and 5). Many inducing points are cheap here.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.functionals.functional import Functional
from orbitwise.inference.linear_algebra import cholesky, log_determinant, solve_factored, solve_lower
from orbitwise.inference.projection import inducing_factor
from orbitwise.inference.whitened import Whitened
from orbitwise.functionals.points import Evaluation
from orbitwise.process.process import Process


class LeaveOneOutMeans(NamedTuple):
    """Each target predicted from all others, and the variance of that prediction without noise."""

    mean: Float[Tensor, "n c"]
    variance: Float[Tensor, " n"]


@final
class Statistics:
    """What a Gaussian likelihood needs of all data, whatever its noise: A, AAᵀ, Ay and the residual variances r."""

    def __init__(
        self,
        columns: Float[Tensor, "u n"],
        residual: Float[Tensor, " n"],
        targets: Float[Tensor, "n c"],
    ) -> None:
        self.columns, self.residual, self.targets = columns, residual, targets
        self.gram = columns @ columns.mT
        self.product = columns @ targets

    def precision(self, noise: float | Tensor) -> Float[Tensor, "u u"]:
        """P = I + AAᵀ/σ²."""
        precision = self.gram / noise
        precision.diagonal().add_(1)
        return precision

    def optimum(self, noise: float) -> Whitened:
        """The best q(v) for this noise variance."""
        return Whitened(self.precision(noise), self.product / noise)

    def bound(self, noise: float | Tensor, tight: bool = True) -> Float[Tensor, ""]:
        """The collapsed bound, summed over outputs."""
        lower = cholesky(self.precision(noise)).lower
        count, outputs = self.targets.shape
        # yᵀ(Q+σ²I)⁻¹y = (|y|² - |R⁻¹Ay|²/σ²)/σ²,  log|Q+σ²I| = N log σ² + log|P|
        fit = (self.targets.square().sum() - solve_lower(lower, self.product).square().sum() / noise) / noise
        determinant = count * torch.log(torch.as_tensor(noise)) + log_determinant(lower)
        slack = torch.log1p(self.residual / noise) if tight else self.residual / noise
        each = determinant + count * math.log(2 * math.pi) + slack.sum()
        return -0.5 * (fit + outputs * each)

    def leave_one_out(self, noise: float) -> LeaveOneOutMeans:
        """μ₋ₙ = y - (y-μ)/(1-h), with leverage h = aᵀS a/σ² and variance σ²h/(1-h) + r (METHOD 5)."""
        lower = cholesky(self.precision(noise)).lower
        mean = self.columns.mT @ solve_factored(lower, self.product) / noise
        remaining = torch.cat(
            [1 - solve_lower(lower, part).square().sum(0) / noise for part in self.columns.split(8192, dim=1)]
        )
        remaining = remaining.clamp_min(1e-12)
        held_out = self.targets - (self.targets - mean) / remaining[:, None]
        return LeaveOneOutMeans(held_out, noise * (1 - remaining) / remaining + self.residual)


def gather(
    process: Process,
    functional: Functional,
    inducing: Float[Tensor, "u d"],
    x: Float[Tensor, "n d"],
    targets: Float[Tensor, "n c"],
    generator: torch.Generator | None = None,
    rows_at_once: int = 512,
) -> tuple[Statistics, Float[Tensor, "u u"]]:
    """One pass over all rows, taken as drawn once; returns the statistics and the factor of K_uu."""
    with torch.no_grad():
        lower = inducing_factor(process, inducing)
        points = Evaluation().lower(inducing.to(x.dtype))
        columns = torch.empty(len(inducing), len(x), dtype=torch.float64, device=x.device)
        variances = []
        for start in range(0, len(x), rows_at_once):
            atoms = functional.atoms(x[start : start + rows_at_once], generator).frozen()
            columns[:, start : start + rows_at_once] = process.covariance(points, atoms).double()
            variances.append(process.variance(atoms).double())
        for start in range(0, len(x), 16384):
            columns[:, start : start + 16384] = solve_lower(lower, columns[:, start : start + 16384])
        residual = (torch.cat(variances) - columns.square().sum(0)).clamp_min(0)
    return Statistics(columns, residual, targets.double()), lower
