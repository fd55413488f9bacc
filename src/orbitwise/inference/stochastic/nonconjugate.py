"""The best q(u) for likelihoods that are not quadratic in f, on exact or frozen rows (METHOD 3).

L(q) = Σ E_q[log p(y_n | f_n)] - KL[q(v) ‖ N(0, I)] is a lower bound on the evidence for any q. At its maximum
S⁻¹ = I + AΛAᵀ and S⁻¹m = Aη, where λ and η expand the expected log-likelihood about the moments of f.
Natural-gradient steps find it. The gradient of the best bound with respect to everything else is that at the
best q.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.sparse.inducing import (
    Inducing,
    Projection,
    inducing_factor,
    project,
    project_rows,
)
from orbitwise.inference.sparse.posterior import Whitened
from orbitwise.inference.stochastic.variational import BoundTerms, projected_terms
from orbitwise.inference.stored_rows import held_rows
from orbitwise.likelihoods.likelihood import Likelihood

MAX_ROUNDS, MAX_HALVINGS = 100, 25
NEGLIGIBLE = 1e-6
"""The last round gains less than this many nats; the remaining error in q hardly changes gradients."""
ROWS_AT_ONCE = 512


class FittedQ(NamedTuple):
    """The q with the greatest bound, and the bound."""

    q: Whitened
    bound: float


@torch.no_grad()
def fit_q(
    model: LatentModel, observations: Observations, inducing: Inducing, start: Whitened | None = None
) -> FittedQ:
    """The best q of exact or frozen rows, by steps that each raise the bound; by default from the prior."""
    rows, likelihood = observations.through(model.functional), model.likelihood
    projected, targets = project_rows(model.process, rows.functional, inducing, rows.x), rows.targets
    columns = projected.held_columns().mT
    # k_n = |a_n|² + r_n
    variance = columns.square().sum(-1) + projected.residual
    projection = Projection(columns[:, None], columns.new_ones(1, 1), variance, projected.mean[:, None])
    if start is None:
        shape = (columns.shape[1], targets.shape[1])
        start = Whitened.prior(*shape, likelihood.shares_curvature, columns.device)
    q, terms, bound = start, *_bound(likelihood, start, projection, targets)
    if not torch.isfinite(bound):
        raise ValueError("The expected log-likelihood is not finite: check the scale of inputs and targets.")
    for _ in range(MAX_ROUNDS):
        raised = _raised(likelihood, q, terms, bound, targets)
        if raised is None:
            break
        gain = raised[2] - bound
        q, terms, bound = raised
        if gain < NEGLIGIBLE:
            break
    return FittedQ(q, float(bound))


def bound_at(
    model: LatentModel, observations: Observations, inducing: Inducing, q: Whitened
) -> Float[Tensor, ""]:
    """L(q), differentiable in kernel, orbit and likelihood; rows are processed in blocks."""
    lower, rows = inducing_factor(model.process, inducing), observations.through(model.functional)

    def data(part: Observations, factor: Tensor) -> Tensor:
        projection = project(model.process, inducing, factor, part.functional.atoms(held_rows(part.x)))
        return projected_terms(model.likelihood, q, projection, part.targets).data

    total = -q.divergence()
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = rows.take(slice(start, start + ROWS_AT_ONCE))
        total = total + checkpoint(data, part, lower, use_reentrant=False)
    return total


def _bound(
    likelihood: Likelihood, q: Whitened, projection: Projection, targets: Tensor
) -> tuple[BoundTerms, Tensor]:
    terms = projected_terms(likelihood, q, projection, targets)
    return terms, terms.data - q.divergence()


def _raised(
    likelihood: Likelihood, q: Whitened, terms: BoundTerms, bound: Tensor, targets: Tensor
) -> tuple[Whitened, BoundTerms, Tensor] | None:
    """q after the longest step that raises the bound, or None if no step does.

    Negative curvatures are right at the maximum, but a long step with them may lead to an indefinite
    precision. Therefore steps with zero in their place are tried as well.
    """
    columns, mean = terms.projection.total, terms.projection.offset.sum(1, keepdim=True)
    expansions = [terms.quadratic]
    if bool((terms.quadratic.curvature < 0).any()):
        expansions.append(terms.quadratic.concave(terms.moments.mean))
    rate = 1.0
    for _ in range(MAX_HALVINGS):
        for curvature, slope, _ in expansions:
            try:
                # -½λ(m + aᵀv)² + η(m + aᵀv) has the slope η - λm in aᵀv
                stepped = q.step(columns, curvature, slope - curvature * mean, rate)
                if likelihood.ignores_common_shift:
                    stepped = stepped.without_common_mean()
                found, value = _bound(likelihood, stepped, terms.projection, targets)
            except ValueError:
                continue  # the precision is not positive definite
            if value > bound:
                return stepped, found, value
        rate *= 0.5
    return None
