"""All rows, projected and kept in memory: best q(v), bound and leave-one-out for any noise (METHOD 3 and 5).

Each of several processes keeps its own rows, and sums over rows are added up.

Drawn rows are drawn once, so their bound is that of another model, which averages over these few draws. It is
used to choose the noise; `orbitwise.inference.stochastic.unbiased_bound` computes the bound to report.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.functionals.functional import Functional
from orbitwise.inference.linear_algebra import cholesky, plus_diagonal, solve_lower
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.processes import ALONE, Processes
from orbitwise.inference.sparse.bounds import Totals, best_q, collapsed_bound, precision, pseudo_rows
from orbitwise.inference.sparse.inducing import (
    Inducing,
    Prior,
    ProjectedRows,
    StreamedColumns,
    inducing_factor,
    project_rows,
)
from orbitwise.inference.sparse.posterior import ProjectedMoments, SparsePosterior, Whitened
from orbitwise.inference.stored_rows import Inputs, StoredRows
from orbitwise.likelihoods.likelihood import Likelihood, Quadratic
from orbitwise.process.process import Moments, Process

Places = Int[Tensor, " k"] | slice
"""Which rows."""
COLUMNS_AT_ONCE = 8192
STREAMED_ROWS = 512
"""Rows whose columns are computed at once where those of all are not held."""
LEAST_CURVATURE = 1e-9
"""Rows without curvature would lose their slopes."""


@final
class HeldRows:
    """Projected rows, their targets and weights, and the sums AWAᵀ and AW(y-m) over them.

    A row of weight w has noise σ²/w; weights are [n], or [n, c] if they differ between outputs. `log_weight`
    replaces Σ log w if rows represent terms of another likelihood than Gaussian noise, and `response` the
    weights when rows are left out; see `Likelihood.response`. If several `processes` share `num_rows` rows,
    all of these are those of this process. The results are those of all rows. `sums` are AWAᵀ and AW(y-m),
    where they are known.
    """

    def __init__(
        self,
        projected: ProjectedRows,
        targets: Float[Tensor, "n c"],
        weight: Float[Tensor, " n"] | Float[Tensor, "n c"] | None = None,
        log_weight: Float[Tensor, ""] | None = None,
        response: Float[Tensor, "n c"] | None = None,
        processes: Processes = ALONE,
        num_rows: int | None = None,
        sums: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.projected, self.targets, self.response = projected, targets, response
        self.processes, self.num_rows = processes, len(targets) if num_rows is None else num_rows
        self.weight = torch.ones_like(projected.residual) if weight is None else weight
        self.centred = targets - projected.mean[:, None]
        gram, product = (
            processes.together(lambda: _sums(projected, self.centred, weight)) if sums is None else sums
        )
        logs = self.weight.log().sum() if log_weight is None else log_weight
        self.gram, self.product, self.log_weight = processes.sum(gram, product, logs)

    @classmethod
    def of_quadratic(
        cls,
        projected: ProjectedRows,
        quadratic: Quadratic,
        shared: bool,
        processes: Processes = ALONE,
        num_rows: int | None = None,
    ) -> HeldRows:
        """Rows that represent quadratic likelihood terms, for σ² = 1, with λ as weights."""
        targets, weight, log_weight = pseudo_rows(quadratic, shared)
        return cls(projected, targets, weight, log_weight, None, processes, num_rows)

    @classmethod
    @torch.no_grad()
    def streamed(
        cls,
        columns: StreamedColumns,
        targets: Float[Tensor, "n c"],
        weight: Float[Tensor, " n"] | None,
        processes: Processes = ALONE,
        num_rows: int | None = None,
    ) -> HeldRows:
        """Rows of which all but A is held, after one pass over them."""
        count, lower = len(targets), columns.lower
        residual, mean = targets.new_empty(count), targets.new_empty(count)
        gram, product = torch.zeros_like(lower), targets.new_zeros(len(lower), targets.shape[1])
        for start in range(0, count, STREAMED_ROWS):
            part = slice(start, start + STREAMED_ROWS)
            block, prior = columns.at(part)
            residual[part] = (prior.variance - block.square().sum(0)).clamp_min(0)
            mean[part] = prior.mean
            weighted = block if weight is None else block * weight[part]
            gram.addmm_(weighted, block.mT)
            product.addmm_(weighted, targets[part] - prior.mean[:, None])
        projected = ProjectedRows(columns, residual, mean, lower)
        return cls(projected, targets, weight, None, None, processes, num_rows, (gram, product))

    @property
    def _weights(self) -> Float[Tensor, "n k"]:
        return self.weight[:, None] if self.weight.dim() == 1 else self.weight

    def totals(self, noise: float | Tensor) -> Totals:
        """The sums over rows for collapsed bounds."""
        square = (self._weights * self.centred.square()).sum()
        residual = self._weights * self.projected.residual[:, None]
        slack = torch.log1p(residual / self._checked(noise)).sum()
        square, trace, slack = self.processes.sum(square, residual.sum(), slack)
        sums = (self.gram, self.product, square, trace, slack)
        return Totals(*sums, self.num_rows, self.log_weight)

    def residual(self) -> Float[Tensor, " n"]:
        """The residual variances of all rows."""
        return self.processes.gather(self.projected.residual, self.num_rows)

    def precision(self, noise: float | Tensor) -> Float[Tensor, "*c u u"]:
        """P = I + AWAᵀ/σ²."""
        return precision(self.totals(noise), self._checked(noise))

    def optimum(self, noise: float | Tensor) -> Whitened:
        """The best q(v) for this noise variance."""
        return best_q(self.totals(noise), self._checked(noise))

    def bound(self, noise: float | Tensor, tight: bool = True) -> Float[Tensor, ""]:
        """The collapsed bound of these rows, summed over outputs."""
        return collapsed_bound(self.totals(noise), self._checked(noise), tight)

    def leave_one_out(self, noise: float | Tensor, rows: Places = slice(None)) -> Moments:
        """Moments of each f_n given all other rows: μ₋ₙ = μ - s w(y-μ)/σ²(1-h), variance s/(1-h) + r.

        Here s = aᵀSa, and the leverage is h = ws/σ². If there is a `response` λ, it replaces w/σ² in S and h,
        which is correct to first order in the change of the posterior. Moments are computed for these `rows`,
        each given all others.
        """
        if self.processes.is_alone:
            mean, variance = self._leave_out(noise, rows)
        else:
            places, order, counts = self._shared_out(rows)
            found = torch.stack(self._leave_out(noise, places))
            parts = self.processes.gather_parts(found.permute(1, 2, 0).contiguous(), counts)
            mean, variance = parts[order].unbind(-1)
        return Moments(mean, variance, mean.square() + variance)

    def _shared_out(self, rows: Places) -> tuple[Tensor, Tensor, list[int]]:
        """Places of those rows that are held here, where every row is among those gathered, and counts."""
        device = self.targets.device
        wanted = torch.arange(self.num_rows, device=device)[rows]
        ends = torch.tensor(self.processes.counts(self.num_rows), device=device).cumsum(0)
        owner = torch.bucketize(wanted, ends, right=True)
        order = owner.argsort(stable=True)
        mine = wanted[owner == self.processes.rank] - self.processes.share(self.num_rows).start
        return mine, order.argsort(), owner.bincount(minlength=len(ends)).tolist()

    def _leave_out(self, noise: float | Tensor, rows: Places) -> tuple[Tensor, Tensor]:
        """Mean and variance of each of these rows, which are held here, given all others."""
        noise, best = self._checked(noise), self.optimum(noise)
        residual, weights = self.projected.residual[rows], self._weights[rows]
        if self.response is None:
            response, lower = weights / noise, best.lower
        else:
            response = self.response[rows] / noise
            (gram,) = self.processes.sum(_sums(self.projected, self.centred, self.response / noise)[0])
            lower = cholesky(plus_diagonal(gram, 1.0)).lower
        lowers = lower if lower.dim() == 3 else lower[None]
        means, spreads = [], []
        for columns in self.projected.blocks(rows):
            means.append(columns.mT @ best.mean)
            parts = columns.split(COLUMNS_AT_ONCE, dim=1)
            # one output at a time, like the sums
            each = [torch.cat([solve_lower(one, part).square().sum(0) for part in parts]) for one in lowers]
            spreads.append(torch.stack(each, dim=1))
        mean, spread = torch.cat(means), torch.cat(spreads)
        # s/(1-h)
        variance = spread / (1 - response * spread).clamp_min(1e-12)
        held_out = mean - variance * weights / noise * (self.centred[rows] - mean)
        variance = (variance + residual[:, None]).expand_as(held_out)
        return held_out + self.projected.mean[rows][:, None], variance

    def held_out_means(self, noise: float | Tensor, rows: Places = slice(None)) -> Float[Tensor, "k c"]:
        """The targets of these rows, each predicted from all others, at this variance of the noise."""
        return self.leave_one_out(noise, rows).mean

    def held_out(self, rows: Places) -> Callable[[float], Float[Tensor, "k c"]]:
        """`held_out_means` of some rows at any noise; if A is streamed, their columns are computed once."""
        projected = self.projected
        if isinstance(projected.columns, Tensor) or not self.processes.is_alone:
            return partial(self.held_out_means, rows=rows)
        columns = torch.cat(list(projected.blocks(rows)), dim=1)
        part = ProjectedRows(columns, projected.residual[rows], projected.mean[rows], projected.lower)
        parts = (part, self.targets[rows], self.weight[rows], self.log_weight)
        return HeldRows(*parts, sums=(self.gram, self.product)).held_out_means

    def log_density(self, noise: float | Tensor, left_out: Moments | None = None) -> Float[Tensor, " n"]:
        """log p(y_n | all other targets), summed over outputs; `left_out` are the moments, if known."""
        held_out = self.leave_one_out(noise) if left_out is None else left_out
        targets, weights = (
            self.processes.gather(each, self.num_rows) for each in (self.targets, self._weights)
        )
        spread = held_out.variance + self._checked(noise) / weights
        residual = targets - held_out.mean
        return -0.5 * (residual.square() / spread + torch.log(2 * math.pi * spread)).sum(1)

    def _checked(self, noise: float | Tensor) -> Float[Tensor, ""]:
        value = torch.as_tensor(noise, dtype=torch.float64, device=self.targets.device)
        if value.numel() != 1 or not bool(value > 0):
            raise ValueError(f"The noise is one positive variance for all outputs, not {noise!r}.")
        return value.reshape(())


def _sums(
    projected: ProjectedRows,
    centred: Float[Tensor, "n c"],
    weight: Float[Tensor, " n"] | Float[Tensor, "n c"] | None,
) -> tuple[Tensor, Tensor]:
    """AWAᵀ and AW(y-m)."""
    grams, products, start = [], [], 0
    for columns in projected.blocks():
        part = slice(start, start + columns.shape[1])
        start = part.stop
        weighted, some = centred[part], None if weight is None else weight[part]
        if some is not None:
            weighted = (some[:, None] if some.dim() == 1 else some) * weighted
        grams.append(columns @ columns.mT if some is None else _gram(columns, some))
        products.append(columns @ weighted)
        if len(grams) > 1:
            grams, products = [grams[0].add_(grams[1])], [products[0].add_(products[1])]
    return grams[0], products[0]


def _gram(columns: Float[Tensor, "u n"], weight: Float[Tensor, " n"] | Float[Tensor, "n c"]) -> Tensor:
    """AWAᵀ, one for each output where outputs have weights of their own."""
    if weight.dim() == 1:
        return (columns * weight) @ columns.mT
    # One output at a time: λ a for all of them would hold n·u·c numbers.
    return torch.stack([(columns * each) @ columns.mT for each in weight.T])


def _moments(projected: ProjectedRows, q: Whitened) -> ProjectedMoments:
    """Moments of f at the rows under q."""
    parts = [(columns.mT @ q.mean, q.spread(columns.mT).square().sum(-1)) for columns in projected.blocks()]
    mean = torch.cat([mean for mean, _ in parts]) + projected.mean[:, None]
    spread = torch.cat([spread for _, spread in parts], dim=-1)
    spread = (spread[:, None] if q.is_shared else spread.T).expand_as(mean)
    return ProjectedMoments(mean, mean.square() + spread, spread, projected.residual)


@torch.no_grad()
def expanded_rows(
    projected: ProjectedRows, likelihood: Likelihood, targets: Float[Tensor, "n c"], q: Whitened
) -> HeldRows:
    """Rows of a likelihood that is not quadratic in f, expanded about its best q, which is their optimum."""
    moments = _moments(projected, q).full
    quadratic = likelihood.expansion(moments, targets).concave(moments.mean, LEAST_CURVATURE)
    return HeldRows.of_quadratic(projected, quadratic, likelihood.shares_curvature)


def hold_rows(
    process: Prior,
    functional: Functional,
    inducing: Inducing,
    x: Inputs,
    targets: Float[Tensor, "n c"],
    generator: torch.Generator | None = None,
    weight: Float[Tensor, " n"] | None = None,
    processes: Processes = ALONE,
    streams: bool = False,
) -> HeldRows:
    """All rows, each drawn once; with `streams`, A is not held but computed whenever it is needed."""
    rows = Observations(functional, x, targets.double(), weight, processes=processes)
    if streams and isinstance(process, Process):
        lower, mine = inducing_factor(process, inducing), share_of(rows)
        columns = StreamedColumns(process, functional, inducing, lower, mine.x)
        return processes.together(
            lambda: HeldRows.streamed(columns, mine.targets, mine.weight, processes, len(rows))
        )
    projected, mine = project_share(process, rows, inducing, generator)
    return HeldRows(projected, mine.targets, mine.weight, processes=processes, num_rows=len(rows))


def share_of(rows: Observations) -> Observations:
    """The rows of this process, all of them if it is alone; stored ones stay where they are."""
    if rows.processes.is_alone:
        return rows
    share = rows.processes.share(len(rows))
    if not isinstance(rows.x, StoredRows):
        return rows.take(share)
    weight = None if rows.weight is None else rows.weight[share]
    x = rows.x.at(np.arange(share.start, share.stop))
    return Observations(rows.functional, x, rows.targets[share], weight)


def project_share(
    process: Prior,
    rows: Observations,
    inducing: Inducing,
    generator: torch.Generator | None = None,
    streams: bool = False,
) -> tuple[ProjectedRows, Observations]:
    """The rows that are held by this process, projected; all of them if it is alone."""
    processes, share = rows.processes, rows.processes.share(len(rows))
    mine = share_of(rows)

    def projected() -> ProjectedRows:
        if generator is None or processes.is_alone:
            own = (process, rows.functional, inducing, mine.x, None, generator)
            return project_rows(*own, streams=streams)
        # rows are drawn one after the other, so that those of other processes are drawn as well
        columns, residual, mean, lower = project_rows(
            process, rows.functional, inducing, rows.x, None, generator
        )
        assert isinstance(columns, Tensor)
        return ProjectedRows(columns[:, share], residual[share], mean[share], lower)

    return processes.together(projected), mine


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
    model: LatentModel,
    observations: Observations,
    inducing: Inducing,
    generator: torch.Generator | None = None,
    tilt: Float[Tensor, "n c"] | None = None,
    streams: bool = False,
) -> Conditioned:
    """The best q of exact or frozen rows; tilts start at `tilt`, and weights are numbers of repetitions."""
    rows, likelihood = observations.through(model.functional), model.likelihood
    processes, count = rows.processes, len(rows)
    projected, mine = project_share(model.process, rows, inducing, generator, streams)
    targets, weight = mine.targets.double(), mine.weight
    if likelihood.needs_tilt:
        start = torch.ones_like(targets) if tilt is None else tilt[processes.share(count)]
        tilt = best_tilt(projected, likelihood, targets, start, weight=weight, processes=processes)
    else:
        tilt = None
    quadratic = likelihood.quadratic(targets, tilt).weighted(weight)
    held = HeldRows.of_quadratic(projected, quadratic, likelihood.shares_curvature, processes, count)
    q = held.optimum(1.0)
    if likelihood.needs_tilt:
        response = likelihood.response(_moments(projected, q).full, targets, tilt)
        held.response = response if weight is None else weight[:, None] * response
    tilt = None if tilt is None else processes.gather(tilt, count)
    return Conditioned(SparsePosterior(model.process, inducing, q, projected.lower), held, tilt)


@torch.no_grad()
def best_tilt(
    projected: ProjectedRows,
    likelihood: Likelihood,
    targets: Float[Tensor, "n c"],
    tilt: Float[Tensor, "n c"],
    num_rounds: int = 10,
    weight: Float[Tensor, " n"] | None = None,
    processes: Processes = ALONE,
) -> Float[Tensor, "n c"]:
    """The best tilts c = √E[f²], by rounds of coordinate ascent, each of which raises the bound.

    If several processes share the rows, these are the rows of this process. Under the tight bound the
    residual r is replaced by r/(1 + wλr).
    """
    for _ in range(num_rounds):
        quadratic = likelihood.quadratic(targets, tilt).weighted(weight)
        held = HeldRows.of_quadratic(projected, quadratic, likelihood.shares_curvature, processes)
        q = held.optimum(1.0)
        residual = projected.residual[:, None]
        square = _moments(projected, q).mean_square
        tilt = (square + residual / (1 + quadratic.curvature * residual)).sqrt()
    return tilt
