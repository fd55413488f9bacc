"""All rows, projected and kept in memory: best q(v), bound and leave-one-out for any noise (METHOD 3 and 5).

Drawn rows are drawn once, so their bound is that of another model, which averages over these few draws. It is
used to choose the noise; `orbitwise.inference.stochastic.polish` computes the bound to report.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.functionals.functional import Functional
from orbitwise.inference.linear_algebra import cholesky, solve_factored, solve_lower
from orbitwise.inference.sparse.bounds import Totals, best_q, collapsed_bound, precision, pseudo_rows
from orbitwise.inference.sparse.inducing import Inducing, Prior, ProjectedRows, project_rows
from orbitwise.inference.sparse.posterior import SparsePosterior, Whitened
from orbitwise.likelihoods.likelihood import Likelihood, Quadratic
from orbitwise.process.process import Process

COLUMNS_AT_ONCE = 8192


class LeaveOneOutMeans(NamedTuple):
    """The prediction of each target from all others, and its variance without noise."""

    mean: Float[Tensor, "n c"]
    variance: Float[Tensor, " n"]


@final
class HeldRows:
    """Projected rows, their targets and weights, and the sums AWAᵀ and AW(y-m) over them.

    A row of weight w has noise σ²/w; weights are [n], or [n, c] if they differ between outputs. `log_weight`
    replaces Σ log w if rows represent terms of another likelihood than Gaussian noise.
    """

    def __init__(
        self,
        projected: ProjectedRows,
        targets: Float[Tensor, "n c"],
        weight: Float[Tensor, " n"] | Float[Tensor, "n c"] | None = None,
        log_weight: Float[Tensor, ""] | None = None,
    ) -> None:
        self.projected, self.targets = projected, targets
        self.weight = torch.ones_like(projected.residual) if weight is None else weight
        self.log_weight = self.weight.log().sum() if log_weight is None else log_weight
        self.centred = targets - projected.mean[:, None]
        columns = projected.columns
        if self.weight.dim() == 1:
            self.gram = (columns if weight is None else columns * weight) @ columns.mT
        else:
            # One output at a time: λ a for all of them would hold n·u·c numbers.
            self.gram = torch.stack([(columns * each) @ columns.mT for each in self.weight.T])
        self.product = columns @ (self._weights * self.centred)

    @classmethod
    def of_quadratic(cls, projected: ProjectedRows, quadratic: Quadratic, shared: bool) -> HeldRows:
        """Rows that represent quadratic likelihood terms, for σ² = 1, with λ as weights."""
        return cls(projected, *pseudo_rows(quadratic, shared))

    @property
    def _weights(self) -> Float[Tensor, "n k"]:
        return self.weight[:, None] if self.weight.dim() == 1 else self.weight

    def totals(self, noise: float | Tensor) -> Totals:
        """The sums over rows for collapsed bounds."""
        square = (self._weights * self.centred.square()).sum()
        residual = self._weights * self.projected.residual[:, None]
        slack = torch.log1p(residual / self._checked(noise)).sum()
        sums = (self.gram, self.product, square, residual.sum(), slack)
        return Totals(*sums, len(self.targets), self.log_weight)

    def precision(self, noise: float | Tensor) -> Float[Tensor, "*c u u"]:
        """P = I + AWAᵀ/σ²."""
        return precision(self.totals(noise), self._checked(noise))

    def optimum(self, noise: float | Tensor) -> Whitened:
        """The best q(v) for this noise variance."""
        return best_q(self.totals(noise), self._checked(noise))

    def bound(self, noise: float | Tensor, tight: bool = True) -> Float[Tensor, ""]:
        """The collapsed bound of these rows, summed over outputs."""
        return collapsed_bound(self.totals(noise), self._checked(noise), tight)

    def leave_one_out(self, noise: float | Tensor) -> LeaveOneOutMeans:
        """μ₋ₙ = y - (y-μ)/(1-h), leverage h = w aᵀS a/σ², variance σ²h/(w(1-h)) + r; weights are [n]."""
        noise, columns = self._checked(noise), self.projected.columns
        lower = cholesky(self.precision(noise)).lower
        mean = columns.mT @ solve_factored(lower, self.product) / noise
        parts = columns.split(COLUMNS_AT_ONCE, dim=1)
        leverage = self.weight * torch.cat([solve_lower(lower, part).square().sum(0) for part in parts])
        remaining = (1 - leverage / noise).clamp_min(1e-12)
        held_out = self.targets - (self.centred - mean) / remaining[:, None]
        variance = noise / self.weight * (1 - remaining) / remaining
        return LeaveOneOutMeans(held_out, variance + self.projected.residual)

    def held_out_means(self, noise: float | Tensor) -> Float[Tensor, "n c"]:
        """Each target predicted from all others, at this variance of the noise."""
        return self.leave_one_out(noise).mean

    def log_density(self, noise: float | Tensor) -> Float[Tensor, " n"]:
        """log p(y_n | all other targets), summed over outputs."""
        mean, variance = self.leave_one_out(noise)
        spread = variance + self._checked(noise) / self.weight
        residual = self.targets - mean
        each = -0.5 * (residual.square() / spread[:, None] + torch.log(2 * math.pi * spread)[:, None])
        return each.sum(1)

    def _checked(self, noise: float | Tensor) -> Float[Tensor, ""]:
        value = torch.as_tensor(noise, dtype=torch.float64, device=self.targets.device)
        if value.numel() != 1 or not bool(value > 0):
            raise ValueError(f"The noise is one positive variance for all outputs, not {noise!r}.")
        return value.reshape(())


def hold_rows(
    process: Prior,
    functional: Functional,
    inducing: Inducing,
    x: Float[Tensor, "n columns"],
    targets: Float[Tensor, "n c"],
    generator: torch.Generator | None = None,
    weight: Float[Tensor, " n"] | None = None,
) -> HeldRows:
    """All rows, each drawn once."""
    return HeldRows(project_rows(process, functional, inducing, x, None, generator), targets.double(), weight)


class Conditioned(NamedTuple):
    """The posterior with the best q, the rows that determine it, and the best tilts of their likelihood."""

    posterior: SparsePosterior
    rows: HeldRows
    tilt: Float[Tensor, "n c"] | None

    def bound(self, tight: bool = True) -> Float[Tensor, ""]:
        """The collapsed bound of these rows."""
        return self.rows.bound(1.0, tight)


@torch.no_grad()
def condition(
    process: Process,
    functional: Functional,
    likelihood: Likelihood,
    inducing: Inducing,
    x: Float[Tensor, "n columns"],
    targets: Float[Tensor, "n c"],
    generator: torch.Generator | None = None,
    tilt: Float[Tensor, "n c"] | None = None,
    weight: Float[Tensor, " n"] | None = None,
) -> Conditioned:
    """The best q of exact or frozen rows; tilts start at `tilt`, and weights are numbers of repetitions."""
    projected, targets = project_rows(process, functional, inducing, x, None, generator), targets.double()
    if likelihood.needs_tilt:
        start = torch.ones_like(targets) if tilt is None else tilt
        tilt = best_tilt(projected, likelihood, targets, start, weight=weight)
    else:
        tilt = None
    quadratic = likelihood.quadratic(targets, tilt).weighted(weight)
    rows = HeldRows.of_quadratic(projected, quadratic, likelihood.shares_curvature)
    return Conditioned(SparsePosterior(process, inducing, rows.optimum(1.0), projected.lower), rows, tilt)


@torch.no_grad()
def best_tilt(
    projected: ProjectedRows,
    likelihood: Likelihood,
    targets: Float[Tensor, "n c"],
    tilt: Float[Tensor, "n c"],
    num_rounds: int = 10,
    weight: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, "n c"]:
    """The best tilts c = √E[f²], by rounds of coordinate ascent, each of which raises the bound.

    Under the tight bound the residual r is replaced by r/(1 + wλr).
    """
    for _ in range(num_rounds):
        quadratic = likelihood.quadratic(targets, tilt).weighted(weight)
        q = HeldRows.of_quadratic(projected, quadratic, likelihood.shares_curvature).optimum(1.0)
        mean = projected.columns.mT @ q.mean + projected.mean[:, None]
        spread = q.spread(projected.columns.mT).square().sum(-1)
        variance = spread[:, None] if q.is_shared else spread.T
        residual = projected.residual[:, None]
        tilt = (mean.square() + variance + residual / (1 + quadratic.curvature * residual)).sqrt()
    return tilt
