"""Stochastic variational inference with inducing variables, for any likelihood.

L = (N/B) Σ_batch [E_q log p(y_n | a_nᵀv) - ½ Σ_c log(1 + λ_nc r_n)] - KL[q(v) ‖ N(0, I)] (METHOD 3). The
logarithm is replaced by its tangent at a remembered slack, so that the bound stays valid and unbiased for
drawn rows. With slack 0 it is the plain bound, the only one for likelihoods that are not quadratic.
"""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.functionals.functional import Block
from orbitwise.inference.processes import ALONE, Processes
from orbitwise.inference.sparse.inducing import Estimates, Inducing, Prior, Projection, project
from orbitwise.inference.sparse.posterior import (
    ProjectedMoments,
    Whitened,
    WhitenedFactor,
    projected_moments,
)
from orbitwise.likelihoods.likelihood import Likelihood, Quadratic
from orbitwise.process.unbiased import Method

TILT_ROUNDS = 4
MAX_HALVINGS = 30


class BoundTerms(NamedTuple):
    """The bound on a batch, and its parts for natural-gradient steps and the memory.

    `square` estimates E[f²], whose square root is the best tilt.
    """

    data: Float[Tensor, ""]
    projection: Projection
    moments: ProjectedMoments
    quadratic: Quadratic
    square: Float[Tensor, "n c"]


@final
class Memory:
    """Residual variances and tilts of each datum from earlier visits, never from the current draws."""

    def __init__(
        self, count: int, outputs: int, device: torch.device | None = None, keep: float = 0.5
    ) -> None:
        self.residual = torch.zeros(count, dtype=torch.float64, device=device)
        self.square = torch.ones(count, outputs, dtype=torch.float64, device=device)
        self.seen = torch.zeros(count, dtype=torch.bool, device=device)
        self.typical_residual = torch.zeros((), dtype=torch.float64, device=device)
        self.typical_square = torch.ones(outputs, dtype=torch.float64, device=device)
        self.keep = keep

    def recall(self, index: Int[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Float[Tensor, "n c"]]:
        """The remembered residual and tilt √E[f²] of each datum, or typical values before its first visit."""
        seen = self.seen[index]
        residual = torch.where(seen, self.residual[index], self.typical_residual)
        square = torch.where(seen[:, None], self.square[index], self.typical_square)
        return residual, square.sqrt()

    def learn(self, index: Int[Tensor, " n"], terms: BoundTerms, processes: Processes = ALONE) -> None:
        """Average new estimates into the memory; estimates may be negative, remembered values may not.

        Of several processes, each has the terms of its share of the rows, and all remember all of them.
        """
        with torch.no_grad():
            count = len(index)
            residual = processes.gather(terms.moments.residual.clamp_min(0), count)
            square = processes.gather(terms.square.clamp_min(1e-6), count)
            keep = torch.where(self.seen[index], self.keep, 0.0).to(residual)
            self.residual[index] = keep * self.residual[index] + (1 - keep) * residual
            self.square[index] = keep[:, None] * self.square[index] + (1 - keep[:, None]) * square
            self.seen[index] = True
            self.typical_residual = residual.mean()
            self.typical_square = square.mean(0)


def bound_terms(
    process: Prior,
    likelihood: Likelihood,
    q: Whitened | WhitenedFactor,
    inducing: Inducing,
    lower: Float[Tensor, "u u"],
    rows: Block | Estimates,
    targets: Float[Tensor, "n c"],
    slack_residual: Float[Tensor, " n"] | None = None,
    tilt: Float[Tensor, "n c"] | None = None,
    method: Method = "halves",
    weight: Float[Tensor, " n"] | None = None,
) -> BoundTerms:
    """The data term Σ_n w_n of the bound for a batch of rows, to be scaled by N/B.

    Slack and tilt must not be computed from the drawn rows themselves; for exact rows, the best ones are
    computed if none are given. A weight w is the number of repetitions of a row.
    """
    if rows.is_drawn:
        check_drawn(likelihood)
        if slack_residual is None or (likelihood.needs_tilt and tilt is None):
            raise ValueError("Drawn rows need a slack and a tilt that were not computed from the same draws.")
    projection = project(process, inducing, lower, rows, method)
    return projected_terms(likelihood, q, projection, targets, slack_residual, tilt, weight)


def projected_terms(
    likelihood: Likelihood,
    q: Whitened | WhitenedFactor,
    projection: Projection,
    targets: Float[Tensor, "n c"],
    slack_residual: Float[Tensor, " n"] | None = None,
    tilt: Float[Tensor, "n c"] | None = None,
    weight: Float[Tensor, " n"] | None = None,
) -> BoundTerms:
    """Like `bound_terms`, for projected rows."""
    moments = projected_moments(projection, q)
    residual = moments.residual[:, None]
    slack_residual = moments.residual.clamp_min(0) if slack_residual is None else slack_residual
    slack_residual = slack_residual.detach()[:, None] * (1.0 if likelihood.is_quadratic else 0.0)
    if not likelihood.needs_tilt:
        tilt = None
    elif tilt is None:
        tilt = _best_tilt(likelihood, targets, moments, slack_residual, weight)
    full = moments.full
    quadratic = likelihood.expansion(full, targets, tilt).weighted(weight)
    # -½ log(1 + λr) ≥ -½ [log(1+c) + (λr - c)/(1+c)] at the slack c, in place of -½ λr
    slack = quadratic.curvature * slack_residual
    excess = quadratic.curvature * residual
    gain = 0.5 * (excess - torch.log1p(slack) - (excess - slack) / (1 + slack))
    data = (quadratic.expectation(full) + gain).sum()
    square = (moments.mean_square + residual / (1 + slack)).detach()
    return BoundTerms(data, projection, moments, quadratic, square)


def natural_step(
    likelihood: Likelihood,
    q: Whitened,
    terms: BoundTerms,
    targets: Float[Tensor, "n c"],
    scale: float,
    rate: float,
    weight: Float[Tensor, " n"] | None = None,
    processes: Processes = ALONE,
) -> Whitened:
    """q after a natural-gradient step on a batch whose data term is multiplied by `scale`.

    The expansion of a likelihood that is not quadratic is valid only locally, so the rate is halved until the
    bound of the batch rises. Each of several processes has its share of the batch.
    """
    with torch.no_grad():
        quadratic = terms.quadratic.concave(terms.moments.mean)
        columns, curvature = terms.projection.total, scale * quadratic.curvature
        # -½λ(m + aᵀv)² + η(m + aᵀv) has the slope η - λm in aᵀv
        slope = scale * quadratic.slope - curvature * terms.projection.offset.sum(1, keepdim=True)
        stepped = q.step(columns, curvature, slope, rate, processes)
        if likelihood.is_quadratic:
            return stepped
        start = scale * processes.sum(terms.data)[0] - q.divergence()
        for _ in range(MAX_HALVINGS):
            data = projected_terms(likelihood, stepped, terms.projection, targets, weight=weight).data
            if scale * processes.sum(data)[0] - stepped.divergence() >= start:
                return stepped
            rate *= 0.5
            stepped = q.step(columns, curvature, slope, rate, processes)
        return q


def check_drawn(likelihood: Likelihood) -> None:
    """Raise a ValueError if a likelihood cannot be used with rows drawn at random."""
    if not likelihood.is_quadratic:
        raise ValueError(
            f"{type(likelihood).__name__} takes exact or frozen rows only: its expected log-likelihood is "
            "not quadratic in f, so estimates from drawn rows are biased. Freeze the orbit, "
            "orbit.freeze(num_nodes), or use Gaussian, Bernoulli or Dirichlet."
        )


def _best_tilt(
    likelihood: Likelihood,
    targets: Tensor,
    moments: ProjectedMoments,
    slack_residual: Tensor,
    weight: Tensor | None,
) -> Float[Tensor, "n c"]:
    """The best tilt of exact rows, c² = E_q[f²] + r/(1 + w λ(c) r), by fixed-point iterations."""
    with torch.no_grad():
        reach, residual = moments.mean_square, moments.residual[:, None]
        tilt = (reach + residual).clamp_min(0).sqrt()
        for _ in range(TILT_ROUNDS):
            slack = likelihood.quadratic(targets, tilt).weighted(weight).curvature * slack_residual
            tilt = (reach + residual / (1 + slack)).clamp_min(0).sqrt()
    return tilt
