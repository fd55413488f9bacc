"""Exact Gaussian-process inference from observations y = L g + ε of any functionals (METHOD 2; Lecture 2.3).

log p(y) = -½ (y-m)ᵀ(K+Σ)⁻¹(y-m) - ½ log|K+Σ| - (N/2) log 2π: fit, complexity and a constant. Outputs share K.

Sums of kernels can also be decomposed: independent summands of g = g₁ + g₂ + … have cov(g_i, y) = K_i, so g_i
given y has the mean K_i*ᵀ(K+Σ)⁻¹(y-m) and the variance k_i** - |L⁻¹K_i*|² (Lecture 2.8). The means add up to
that of g. The variances do not, because given y the summands are correlated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, final

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from gpytorch.means import ZeroMean
from jaxtyping import Float
from torch import Tensor

from orbitwise.declarations import Field, Stored, require
from orbitwise.functionals.functional import Block
from orbitwise.inference.linear_algebra import (
    Factor,
    check_factor,
    check_solution,
    cholesky,
    gaussian_draws,
    gaussian_terms,
    log_determinant,
    plus_diagonal,
    remaining_variance,
    solve_factored,
    solve_lower,
)
from orbitwise.inference.model import LatentModel, Observations, Posterior
from orbitwise.inference.optimise.hyperpriors import log_prior
from orbitwise.inference.stored_rows import held_rows
from orbitwise.kernels.bases import children_of
from orbitwise.process.process import Moments, Process, Rows, as_blocks

EXACT_POINTS = 8000
"""Points of g, rows times the elements of an orbit, up to which exact inference is worth its time."""


class Evidence(NamedTuple):
    """log p(y) and its terms: value = fit + complexity + constant, summed over outputs.

    `fit` is -½(y-m)ᵀ(K+Σ)⁻¹(y-m), which rewards a close fit to the data, `complexity` is -½ log|K+Σ|, which
    penalises models that could fit many data sets, and `constant` is -(N/2) log 2π. `jitter` was added to the
    diagonal to make the matrix positive definite.
    """

    value: Float[Tensor, ""]
    fit: Float[Tensor, ""]
    complexity: Float[Tensor, ""]
    constant: float
    jitter: float


class LeaveOneOut(NamedTuple):
    """Predictions of each observation from all others; the variance includes the noise."""

    mean: Float[Tensor, "n c"]
    variance: Float[Tensor, " n"]
    log_density: Float[Tensor, " n"]


def evidence(
    process: Process, rows: Rows, targets: Float[Tensor, "n c"], noise: Float[Tensor, " n"]
) -> Evidence:
    """The log marginal likelihood of the targets; `noise` is the noise variance of each row.

    It is differentiable once in the hyperparameters of the process, the rows, the targets and the noise.
    """
    covariance, residual = _noisy_covariance(process, rows, targets, noise)
    return _terms(*gaussian_terms(covariance, residual), targets)


def condition(
    process: Process, rows: Rows, targets: Float[Tensor, "n c"], noise: Float[Tensor, " n"]
) -> ExactPosterior:
    """The posterior given the targets."""
    (lower, jitter), residual = noisy_factor(process, rows, targets, noise)
    return ExactPosterior(process, rows, targets, solve_factored(lower, residual), lower, jitter)


def decompose(
    process: Process, rows: Rows, targets: Float[Tensor, "n c"], noise: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """log p(y_n | y_1, …, y_{n-1}) for every row: the evidence as a sum of predictions (LIM eq. 5).

    They follow from the Cholesky factor: L⁻¹(y-m) are the standardised one-step-ahead residuals, diag(L)
    their deviations. Sums over chunks of rows are log p(y_c | y_1, …, y_{c-1}) of the chunks.
    """
    (lower, _), residual = noisy_factor(process, rows, targets, noise)
    white = solve_lower(lower, residual)
    each = -0.5 * white.square() - lower.diagonal().log()[:, None] - 0.5 * math.log(2 * math.pi)
    return each.sum(-1)


def sample_prior(
    process: Process, rows: Rows, num_samples: int, generator: torch.Generator | None = None
) -> Float[Tensor, "n q"]:
    """Joint draws of the rows under the prior."""
    return gaussian_draws(process.mean(rows)[:, None], process.covariance(rows), num_samples, generator)


@final
@dataclass(eq=False)
class ExactPosterior(Posterior):
    """g given y: `weights` are (K+Σ)⁻¹(y-m), `lower` is the Cholesky factor of K+Σ+jitter·I.

    A row L* g has the mean m* + K*ᵀ(K+Σ)⁻¹(y-m) and the variance k** - K*ᵀ(K+Σ)⁻¹K*.
    """

    process: Process
    rows: Rows
    targets: Float[Tensor, "n c"]
    weights: Float[Tensor, "n c"]
    lower: Float[Tensor, "n n"]
    jitter: float

    stored = Stored({"jitter": Field(least=0)})

    def __post_init__(self) -> None:
        self.num_outputs, self.width = self.targets.shape[1], as_blocks(self.rows)[0].points.shape[-1]

    def check_parts(self) -> None:
        """Raise a ValueError unless rows and targets fit each other and the weights solve (K+Σ)α = y-m."""
        blocks = as_blocks(self.rows)
        require(len({block.points.shape[-1] for block in blocks}) == 1, "rows of different widths")
        count = sum(block.num_rows for block in blocks)
        require(len(self.targets) == count and self.num_outputs > 0, "targets of other rows")
        check_factor(self.lower)
        with torch.no_grad():
            residual = self.targets - self.process.mean(self.rows)[:, None]
        check_solution(self.lower, self.weights, residual)

    def row_moments(self, rows: Rows) -> Moments:
        """The posterior moments of rows of atoms."""
        cross = self.process.covariance(self.rows, rows)
        # m* + K*ᵀ(K+Σ)⁻¹(y-m),  k** - |L⁻¹K*|²
        mean = self.process.mean(rows)[:, None] + cross.mT @ self.weights
        explained = solve_lower(self.lower, cross).square().sum(0)
        variance = remaining_variance(self.process.variance(rows), explained, len(self.lower))
        return Moments(mean, variance, mean.square() + variance[:, None])

    def row_mean(self, rows: Rows) -> Float[Tensor, "n c"]:
        """The posterior mean alone, m* + cov(L* g, Σ_j α_j L_j g), which needs no solve."""
        return self.process.mean(rows)[:, None] + self.process.product(rows, self.rows, self.weights)

    def evidence(self) -> Evidence:
        """The log marginal likelihood of the targets, from the factor of the posterior."""
        residual = self.targets - self.process.mean(self.rows)[:, None]
        # (y-m)ᵀ(K+Σ)⁻¹(y-m) = (y-m)ᵀα
        square = (residual * self.weights).sum()
        return _terms(square, log_determinant(self.lower), self.jitter, self.targets)

    def covariance(self, rows: Rows) -> Float[Tensor, "n n"]:
        """The posterior covariance of rows."""
        white = solve_lower(self.lower, self.process.covariance(self.rows, rows))
        return self.process.covariance(rows) - white.mT @ white

    def leave_one_out(self) -> LeaveOneOut:
        """Each target predicted from all others: residual α_n / [K⁻¹]_nn, variance 1 / [K⁻¹]_nn."""
        variance = torch.cholesky_inverse(self.lower).diagonal().reciprocal()
        residual = self.weights * variance[:, None]
        density = -0.5 * (residual.square() / variance[:, None] + torch.log(2 * math.pi * variance)[:, None])
        return LeaveOneOut(self.targets - residual, variance, density.sum(-1))


@final
class HeldCovariance:
    """The covariance of all rows of a posterior, held to condition on noise of any size."""

    def __init__(self, posterior: ExactPosterior) -> None:
        self.posterior = posterior
        self.covariance = posterior.process.covariance(posterior.rows)
        self.residual = posterior.targets - posterior.process.mean(posterior.rows)[:, None]

    def at_noise(self, noise: float) -> ExactPosterior:
        """The posterior at this variance of the noise."""
        lower, jitter = cholesky(plus_diagonal(self.covariance, noise))
        given, weights = self.posterior, solve_factored(lower, self.residual)
        return ExactPosterior(given.process, given.rows, given.targets, weights, lower, jitter)

    def held_out_means(self, noise: float) -> Float[Tensor, "n c"]:
        """Each target predicted from all others, at this variance of the noise."""
        return self.at_noise(noise).leave_one_out().mean


@final
@dataclass(frozen=True)
class ExactEvidence:
    """The exact evidence of observations of f under Gaussian noise, plus hyperpriors.

    This is the objective of training. The functional of the model is frozen, and its atoms are computed at
    every call, because learned ranges move them. The first observations have the likelihood of the model,
    further ones those in its `others`.
    """

    model: LatentModel
    observations: Sequence[Observations]
    precision: torch.dtype = torch.float64

    def rows(self) -> list[Block]:
        """The atoms of all observations."""
        functional = self.model.functional
        return [
            (each.functional @ functional).atoms(held_rows(each.x).to(self.precision))
            for each in self.observations
        ]

    def targets(self) -> Float[Tensor, "n c"]:
        """The targets of all observations."""
        return torch.cat([each.targets for each in self.observations])

    def noise(self) -> Float[Tensor, " n"]:
        """The noise variance of every row."""
        first, *others = self.observations
        variances = zip(self.model.others, others, strict=True)
        return torch.cat(
            [
                self.model.noise / first.weights(),
                *(noise.noise.expand(len(e.targets)) for noise, e in variances),
            ]
        )

    def evidence(self) -> Float[Tensor, ""]:
        """log p(y) of all rows, including those that were merged, at the present parameters."""
        terms = evidence(self.model.process, self.rows(), self.targets(), self.noise())
        return terms.value + self.observations[0].merged_term(self.model.noise)

    def posterior(self) -> ExactPosterior:
        """The posterior of g at the present parameters."""
        return condition(self.model.process, self.rows(), self.targets(), self.noise())

    def __call__(self) -> Float[Tensor, ""]:
        return self.evidence() + log_prior(self.model.process)


def refuse_drawn(rows: Rows) -> None:
    """Raise a ValueError that names the remedy when rows were drawn at random."""
    if any(block.is_drawn for block in as_blocks(rows)):
        raise ValueError(
            "Exact inference cannot use rows drawn at random: their Gram matrix is not positive definite. "
            "Freeze the orbit first with orbit.freeze(num_nodes), or use all elements of a finite one."
        )


def _terms(square: Tensor, determinant: Tensor, jitter: float, targets: Tensor) -> Evidence:
    count, outputs = targets.shape
    fit = -0.5 * square
    complexity = -0.5 * outputs * determinant
    constant = -0.5 * outputs * count * math.log(2 * math.pi)
    return Evidence(fit + complexity + constant, fit, complexity, constant, jitter)


def check_rows(rows: Rows, targets: Tensor) -> int:
    """The number of rows; a ValueError if they were drawn at random or do not match the targets."""
    refuse_drawn(rows)
    count = sum(block.num_rows for block in as_blocks(rows))
    if targets.dim() != 2 or len(targets) != count:
        raise ValueError(f"{count} rows need targets [{count}, outputs], not shape {tuple(targets.shape)}.")
    if not bool(targets.isfinite().all()):
        raise ValueError("The targets have NaN or infinite values; remove those rows.")
    return count


def noisy_factor(process: Process, rows: Rows, targets: Tensor, noise: Tensor) -> tuple[Factor, Tensor]:
    """The Cholesky factor of K + Σ, and the residual y - m."""
    covariance, residual = _noisy_covariance(process, rows, targets, noise)
    return cholesky(covariance), residual


def _noisy_covariance(process: Process, rows: Rows, targets: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """K + Σ, and the residual y - m."""
    count = check_rows(rows, targets)
    if noise.shape != (count,):
        raise ValueError(f"{count} rows need {count} noise variances, not shape {tuple(noise.shape)}.")
    if bool((noise < 0).any()):
        raise ValueError("Noise variances must not be negative.")
    return plus_diagonal(process.covariance(rows), noise), targets - process.mean(rows)[:, None]


TOLERANCE = 1e-6
"""The largest relative difference between the kernel's variance and the sum of those of the given parts."""


class Component(NamedTuple):
    """The posterior of one summand at some rows; `kernel` is None for the mean function."""

    kernel: Kernel | None
    mean: Float[Tensor, "n c"]
    variance: Float[Tensor, " n"]


def summands(kernel: Kernel) -> list[Kernel]:
    """The summands of a kernel after multiplying out scales and products, (a + b)·c = a·c + b·c.

    They share their hyperparameters with it.
    """
    if isinstance(kernel, AdditiveKernel):
        return [part for each in children_of(kernel) for part in summands(each)]
    if isinstance(kernel, ScaleKernel):
        parts = summands(kernel.base_kernel)
        return [kernel] if len(parts) == 1 else [_scaled(kernel, part) for part in parts]
    if isinstance(kernel, ProductKernel):
        factors = [summands(each) for each in children_of(kernel)]
        if all(len(parts) == 1 for parts in factors):
            return [kernel]
        return [ProductKernel(*choice) for choice in product(*factors)]
    return [kernel]


def components(
    posterior: ExactPosterior, rows: Rows, parts: Sequence[Kernel] | None = None
) -> list[Component]:
    """The posterior of each summand of the process at `rows`; their means add up to the posterior mean.

    `parts` are kernels that sum to that of the process, such as sums of some of its summands; the default is
    `summands(kernel)`. A nonzero mean function comes first, with variance zero.
    """
    process = posterior.process
    parts = summands(process.kernel) if parts is None else list(parts)
    whole, found = process.variance(rows), []
    if not isinstance(process.mean_module, ZeroMean):
        mean = process.mean(rows)[:, None].expand(-1, posterior.targets.shape[1])
        found.append(Component(None, mean, torch.zeros_like(whole)))
    total = torch.zeros_like(whole)
    for part in parts:
        summand = Process(None, part, process.one_sided)
        # K_i*, the covariance of y with this summand alone
        cross, prior = summand.covariance(posterior.rows, rows), summand.variance(rows)
        # K_i*ᵀ(K+Σ)⁻¹(y-m),  k_i** - |L⁻¹K_i*|²
        explained = solve_lower(posterior.lower, cross).square().sum(0)
        variance = remaining_variance(prior, explained, len(posterior.lower))
        found.append(Component(part, cross.mT @ posterior.weights, variance))
        total = total + prior
    if not torch.allclose(total, whole, rtol=TOLERANCE, atol=TOLERANCE * float(whole.detach().abs().max())):
        raise ValueError(
            f"The {len(parts)} parts do not sum to the kernel of the process: their prior variances add up "
            f"to {float(total.detach().mean()):.4g} on average, not {float(whole.detach().mean()):.4g}. Give "
            "kernels that do, such as those of summands(kernel), alone or added."
        )
    return found


def _scaled(scale: ScaleKernel, part: Kernel) -> ScaleKernel:
    """One summand, multiplied by the scale of the sum."""
    constraint = scale.constraint_for_parameter_name("raw_outputscale")
    scaled = ScaleKernel(part, outputscale_constraint=constraint, batch_shape=scale.batch_shape)
    scaled.raw_outputscale = scale.raw_outputscale
    return scaled
