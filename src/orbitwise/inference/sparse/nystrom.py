"""Nyström, subset of regressors and DTC: the baselines that variational inference replaced (Talk; METHOD 3).

All of them replace K among the data by Q. Nyström keeps exact covariances with queries, so that its variance
k** - k*ᵀ(Q+Σ)⁻¹k* can be negative. SoR uses Q everywhere and is overconfident away from Z. DTC adds k** - q**
to that variance. Their evidence log N(y | 0, Q+Σ) is not a bound, because it lacks the trace term. They are
provided for comparisons only.
"""

from __future__ import annotations

import math
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.model import Observations, Posterior
from orbitwise.inference.sparse.bounds import Totals, best_q, gather_totals, low_rank_terms
from orbitwise.inference.sparse.inducing import Inducing, inducing_factor, project
from orbitwise.inference.sparse.iterative import NoisySystem, Preconditioner
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.process.process import Moments, Process, Rows

Kind = Literal["nystrom", "sor", "dtc"]


def pseudo_evidence(totals: Totals, noise: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """log N(y | 0, Q+σ²I), summed over outputs: the objective of these methods, but no bound."""
    terms = low_rank_terms(totals, noise)
    constant = totals.num_outputs * totals.num_rows * math.log(2 * math.pi)
    return -0.5 * (terms.quadratic + terms.determinant + constant)


def condition(
    process: Process, rows: Observations, noise: Float[Tensor, ""], inducing: Inducing, kind: Kind
) -> NystromPosterior:
    """The approximate posterior of one of the three."""
    with torch.no_grad():
        lower = inducing_factor(process, inducing)
        totals = gather_totals(process, rows, inducing, lower, noise)
        sparse = SparsePosterior(process, inducing, best_q(totals, noise), lower)
        if kind != "nystrom":
            return NystromPosterior(kind, sparse, rows, None, None)
        system = NoisySystem(process, rows, noise)
        inverse = system.preconditioner(inducing, lower)
        weights = inverse(system.centred())
        return NystromPosterior(kind, sparse, rows, inverse, weights)


@final
class NystromPosterior(Posterior):
    """Predictions of a baseline; its variance may be negative."""

    def __init__(
        self,
        kind: Kind,
        sparse: SparsePosterior,
        rows: Observations,
        inverse: Preconditioner | None,
        weights: Float[Tensor, "n c"] | None,
    ) -> None:
        self.kind = kind
        self.sparse, self.process = sparse, sparse.process
        self.rows = rows
        self.inverse = inverse
        self.weights = weights

    def row_moments(self, rows: Rows) -> Moments:
        """Moments of rows of atoms."""
        process, exact = self.process, self.sparse.row_moments(rows)
        mean, variance = exact.mean, exact.variance[:, 0]
        if self.inverse is not None and self.weights is not None:
            cross = process.covariance(self.rows.atoms(), rows).double()
            mean = process.mean(rows).double()[:, None] + cross.mT @ self.weights
            variance = process.variance(rows).double() - (cross * self.inverse(cross)).sum(0)
        elif self.kind == "sor":
            # without what the inducing variables leave of the prior variance
            variance = variance - project(process, self.sparse.inducing, self.sparse.lower, rows).residual
        return Moments(mean, variance, mean.square() + variance[:, None])

    def covariance(self, rows: Rows) -> Float[Tensor, "*c n n"]:
        """The joint covariance of rows by the baseline, which need not be positive definite."""
        process = self.process
        if self.inverse is not None and self.weights is not None:
            cross = process.covariance(self.rows.atoms(), rows).double()
            return process.covariance(rows).double() - cross.mT @ self.inverse(cross)
        covariance = self.sparse.covariance(rows)
        if self.kind == "sor":
            # K - AᵀA is what the inducing variables leave of the prior covariance
            columns = project(process, self.sparse.inducing, self.sparse.lower, rows).total
            covariance = covariance - process.covariance(rows).double() + columns @ columns.mT
        return covariance
