"""Polishing: one pass over all data with frozen rows gives the best q, and leave-one-out for Gaussian noise.

The bound of the integral itself at that q comes from fresh draws of all rows (LIM 4.4, METHOD 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.functionals.averages import evenly_drawn
from orbitwise.functionals.functional import Functional
from orbitwise.inference.linear_algebra import cholesky, solve_factored, solve_lower
from orbitwise.inference.sparse import bounds as collapsed
from orbitwise.inference.sparse.bounds import best_q, collapsed_bound, precision
from orbitwise.inference.sparse.projection import (
    EstimatedProcess,
    Inducing,
    ProjectedRows,
    lower_rows,
    project_rows,
)
from orbitwise.inference.sparse.totals import Totals, held_totals
from orbitwise.inference.sparse.whitened import Whitened, WhitenedFactor
from orbitwise.inference.stochastic.variational import BoundTerms, Memory, SparsePosterior, bound_terms
from orbitwise.likelihoods.likelihood import Likelihood, Quadratic
from orbitwise.process.process import Process

DRAWS = 64
"""Draws of a row in one pass, in two halves that are Sobol sets of their own."""
LEAST_PASSES = 4
DEGREES_OF_FREEDOM = 30
"""The standard error itself is known to about an eighth of its size."""


class BoundEstimate(NamedTuple):
    """The bound on all data, averaged over fresh draws, and the standard error of that average."""

    mean: float
    standard_error: float


def average_passes(
    terms: Callable[[Int[Tensor, " _"]], BoundTerms],
    batches: Sequence[Int[Tensor, " _"]],
    divergence: float,
    num_passes: int | None = None,
) -> BoundEstimate:
    """The mean of passes over all batches, less KL; one pass where nothing is drawn.

    Batches are drawn independently of each other, rows of a batch need not be. So the variance of a pass is
    the sum of the variances of its batches, and each batch tells its own over the passes. An error needs two
    passes; None takes as many as make the error reliable.
    """
    is_drawn = False

    def one_pass() -> Float[Tensor, " b"]:
        nonlocal is_drawn
        values = []
        for index in batches:
            found = terms(index)
            is_drawn = is_drawn or found.projection.is_drawn
            values.append(found.data)
        return torch.stack(values)

    first = one_pass()
    if not is_drawn:
        return BoundEstimate(float(first.sum()) - divergence, 0.0)
    if num_passes is None:
        num_passes = max(LEAST_PASSES, 1 + math.ceil(DEGREES_OF_FREEDOM / len(batches)))
    values = torch.stack([first, *(one_pass() for _ in range(num_passes - 1))])
    error = float((values.var(0).sum() / num_passes).sqrt()) if num_passes > 1 else math.nan
    return BoundEstimate(float(values.sum(1).mean()) - divergence, error)


@torch.no_grad()
def unbiased_bound(
    process: Process | EstimatedProcess,
    functional: Functional,
    likelihood: Likelihood,
    q: Whitened | WhitenedFactor,
    inducing: Inducing,
    lower: Float[Tensor, "u u"],
    x: Float[Tensor, "n columns"],
    targets: Float[Tensor, "n c"],
    slack_residual: Float[Tensor, " n"],
    tilt: Float[Tensor, "n c"] | None,
    generator: torch.Generator,
    batch_size: int = 256,
    num_passes: int | None = None,
    weight: Float[Tensor, " n"] | None = None,
) -> BoundEstimate:
    """The bound of q on all rows, with slack and tilts from a pass of draws of its own, which start as given.

    `functional` is the one to report on, drawn and not frozen.
    """
    drawn, targets = evenly_drawn(functional, DRAWS), targets.double()
    memory = Memory(len(x), targets.shape[1], x.device)
    memory.residual, memory.seen = slack_residual.clone(), torch.ones_like(memory.seen)
    if tilt is not None:
        memory.square = tilt.square()
    batches = torch.arange(len(x), device=x.device).split(batch_size)

    def terms(index: Tensor) -> BoundTerms:
        rows = lower_rows(process, drawn, inducing, x[index], generator)
        # exact rows find their own best slack and tilts
        slack, tilts = memory.recall(index) if rows.is_drawn else (None, None)
        some = None if weight is None else weight[index]
        known = (rows, targets[index], slack, tilts)
        return bound_terms(process, likelihood, q, inducing, lower, *known, weight=some)

    for index in batches:
        found = terms(index)
        if not found.projection.is_drawn:
            break
        memory.learn(index, found)
    return average_passes(terms, batches, float(q.divergence()), num_passes)


COLUMNS_AT_ONCE = 8192


class LeaveOneOutMeans(NamedTuple):
    """Each target predicted from all others, and the variance of that prediction without noise."""

    mean: Float[Tensor, "n c"]
    variance: Float[Tensor, " n"]


@final
class Statistics:
    """What Gaussian noise of any size needs of all data: A, AWAᵀ, AW(y-m) and the residual variances r.

    `offset` holds the prior means m of the rows, zero where left out. Rows of weight w have noise σ²/w.
    """

    def __init__(
        self,
        columns: Float[Tensor, "u n"],
        residual: Float[Tensor, " n"],
        targets: Float[Tensor, "n c"],
        offset: Float[Tensor, " n"] | None = None,
        weight: Float[Tensor, " n"] | None = None,
    ) -> None:
        self.columns, self.residual, self.targets = columns, residual, targets
        self.offset = torch.zeros_like(residual) if offset is None else offset
        self.weight = torch.ones_like(residual) if weight is None else weight
        self.centred = targets - self.offset[:, None]
        weighted = columns if weight is None else columns * weight
        self.gram = weighted @ columns.mT
        self.product = weighted @ self.centred

    def totals(self, noise: float | Tensor) -> Totals:
        """What collapsed bounds need of the data."""
        square = (self.weight[:, None] * self.centred.square()).sum()
        residual = self.weight * self.residual
        slack = torch.log1p(residual / self._checked(noise)).sum()
        count, log_weight = len(self.targets), self.weight.log().sum()
        return Totals(self.gram, self.product, square, residual.sum(), slack, count, log_weight)

    def precision(self, noise: float | Tensor) -> Float[Tensor, "u u"]:
        """P = I + AWAᵀ/σ²."""
        return precision(self.totals(noise), self._checked(noise))

    def optimum(self, noise: float | Tensor) -> Whitened:
        """The best q(v) for this noise variance."""
        return best_q(self.totals(noise), self._checked(noise))

    def frozen_bound(self, noise: float | Tensor, tight: bool = True) -> Float[Tensor, ""]:
        """The collapsed bound of the rows as they were frozen, summed over outputs.

        Where rows were drawn this is the bound of another model, an average over those few draws: it chooses
        between values of the noise, and `unbiased_bound` is the one to report.
        """
        return collapsed_bound(self.totals(noise), self._checked(noise), tight)

    def leave_one_out(self, noise: float | Tensor) -> LeaveOneOutMeans:
        """μ₋ₙ = y - (y-μ)/(1-h), leverage h = w aᵀS a/σ², variance σ²h/(w(1-h)) + r (METHOD 5)."""
        noise = self._checked(noise)
        lower = cholesky(self.precision(noise)).lower
        mean = self.columns.mT @ solve_factored(lower, self.product) / noise
        parts = self.columns.split(COLUMNS_AT_ONCE, dim=1)
        leverage = self.weight * torch.cat([solve_lower(lower, part).square().sum(0) for part in parts])
        remaining = (1 - leverage / noise).clamp_min(1e-12)
        held_out = self.targets - (self.centred - mean) / remaining[:, None]
        variance = noise / self.weight * (1 - remaining) / remaining
        return LeaveOneOutMeans(held_out, variance + self.residual)

    def _checked(self, noise: float | Tensor) -> Float[Tensor, ""]:
        value = torch.as_tensor(noise, dtype=torch.float64, device=self.columns.device)
        if value.numel() != 1 or not bool(value > 0):
            raise ValueError(f"The noise is one positive variance for all outputs, not {noise!r}.")
        return value.reshape(())


def gather(
    process: Process | EstimatedProcess,
    functional: Functional,
    inducing: Inducing,
    x: Float[Tensor, "n columns"],
    targets: Float[Tensor, "n c"],
    generator: torch.Generator | None = None,
    rows_at_once: int = 512,
) -> tuple[Statistics, Float[Tensor, "u u"]]:
    """One pass over all rows, frozen as drawn once; returns the statistics and the factor of K_uu."""
    found = project_rows(process, functional, inducing, x, None, generator, rows_at_once)
    return Statistics(found.columns, found.residual, targets.double(), found.mean), found.lower


class Frozen(NamedTuple):
    """The best q of frozen rows under a quadratic likelihood, and all that it came from."""

    q: Whitened
    statistics: Statistics
    projected: ProjectedRows
    tilt: Float[Tensor, "n c"] | None
    quadratic: Quadratic

    def bound(self, tight: bool = True) -> Float[Tensor, ""]:
        """The collapsed bound of the frozen rows, which is not that of the orbit they were drawn from."""
        totals = held_totals(self.projected, self.quadratic, self.q.is_shared)
        return collapsed_bound(totals, self.projected.lower.new_ones(()), tight)


@torch.no_grad()
def best_q_of(
    process: Process,
    frozen: Functional,
    likelihood: Likelihood,
    inducing: Inducing,
    x: Float[Tensor, "n columns"],
    targets: Float[Tensor, "n c"],
    generator: torch.Generator | None = None,
    tilt: Float[Tensor, "n c"] | None = None,
    weight: Float[Tensor, " n"] | None = None,
) -> Frozen:
    """The best q of frozen rows; `tilt` is where tilts start, and a weight counts repetitions of its row."""
    projected = project_rows(process, frozen, inducing, x, None, generator)
    targets = targets.double()
    statistics = Statistics(projected.columns, projected.residual, targets, projected.mean, weight)
    if likelihood.needs_tilt:
        start = torch.ones_like(targets) if tilt is None else tilt
        tilt = collapsed.best_tilt(projected, likelihood, targets, start, weight=weight)
    else:
        tilt = None
    quadratic = likelihood.quadratic(targets, tilt).weighted(weight)
    q = collapsed.optimal_q(projected, quadratic, likelihood.shares_curvature)
    return Frozen(q, statistics, projected, tilt, quadratic)


class Polished(NamedTuple):
    """The posterior by the best q of frozen rows, their statistics, and the unbiased bound at that q.

    There are statistics for likelihoods that are quadratic in f only.
    """

    posterior: SparsePosterior
    statistics: Statistics | None
    bound: BoundEstimate


@torch.no_grad()
def polish(
    process: Process,
    functional: Functional,
    frozen: Functional,
    likelihood: Likelihood,
    inducing: Float[Tensor, "u d"],
    x: Float[Tensor, "n columns"],
    targets: Float[Tensor, "n c"],
    generator: torch.Generator,
    tilt: Float[Tensor, "n c"] | None = None,
    weight: Float[Tensor, " n"] | None = None,
) -> Polished:
    """The best q by the frozen functional, and the bound of the functional itself at that q."""
    found = best_q_of(process, frozen, likelihood, inducing, x, targets, generator, tilt, weight)
    statistics, lower = found.statistics, found.projected.lower
    parts = (inducing, lower, x, targets, statistics.residual, found.tilt, generator)
    bound = unbiased_bound(process, functional, likelihood, found.q, *parts, weight=weight)
    return Polished(SparsePosterior(process, inducing, found.q, lower), statistics, bound)
