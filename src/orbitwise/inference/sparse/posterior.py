"""The posterior of g through inducing variables, whichever engine found q(u)."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.declarations import Field, Stored, require
from orbitwise.functionals.functional import Atoms, Functional
from orbitwise.inference.model import Posterior
from orbitwise.inference.sparse.projection import (
    EstimatedProcess,
    Estimates,
    Inducing,
    Projection,
    check_inducing,
    frozen_rows,
    inducing_factor,
    lower_rows,
    project,
    projected_moments,
)
from orbitwise.inference.sparse.whitened import Whitened, WhitenedFactor
from orbitwise.process.process import Moments, Process, Rows


@final
class SparsePosterior(Posterior):
    """g given y through q(u): moments of any functional; drawn ones are averaged over the draws they make."""

    stored = Stored({"process": Field(read="prior")})

    def __init__(
        self,
        process: Process | EstimatedProcess,
        inducing: Inducing,
        q: Whitened | WhitenedFactor,
        lower: Float[Tensor, "u u"] | None = None,
    ) -> None:
        self.prior = process
        if isinstance(process, Process):
            self.process = process
        self.inducing = inducing
        self.q = q
        with torch.no_grad():
            self.lower = inducing_factor(self.prior, inducing) if lower is None else lower
        points = inducing.points if isinstance(inducing, Atoms) else inducing
        self.num_outputs, self.width = q.mean.shape[1], points.shape[-1]

    def check_parts(self) -> None:
        """Raise a ValueError where the inducing variables, their factor and q do not fit each other."""
        check_inducing(self.inducing, self.lower)
        require(len(self.q.mean) == len(self.lower), "a q of other inducing points")

    def moments(self, functional: Functional, x: Tensor, generator: torch.Generator | None = None) -> Moments:
        return self.row_moments(lower_rows(self.prior, functional, self.inducing, x, generator))

    def row_moments(self, rows: Rows | Estimates) -> Moments:
        """Moments of rows as they are: variances are biased upwards by O(1/S), never negative (METHOD 4)."""
        projection = self._projection(rows)
        # Estimates by groups are taken as they are, too: all pairs of groups.
        projection = projection._replace(factors=torch.ones_like(projection.factors))
        moments = projected_moments(projection, self.q)
        variance = moments.spread + moments.residual[:, None].clamp_min(0)
        return Moments(moments.mean, variance, moments.mean.square() + variance)

    def row_mean(self, rows: Rows | Estimates) -> Float[Tensor, "n c"]:
        """The posterior mean alone."""
        projection = self._projection(rows)
        return projection.total @ self.q.mean + projection.offset.sum(1, keepdim=True)

    def covariance(self, rows: Rows) -> Float[Tensor, "*c n n"]:
        """K - A(I - S)Aᵀ of rows as they are: one matrix where outputs share S, else one for each."""
        if isinstance(self.prior, EstimatedProcess):
            raise ValueError("An estimated process knows variances of its rows only, not their covariances.")
        rows = frozen_rows(rows)
        columns = self._projection(rows).total
        spread = self.q.spread(columns)
        return self.process.covariance(rows).double() - columns @ columns.mT + spread @ spread.mT

    def _projection(self, rows: Rows | Estimates) -> Projection:
        rows = rows if isinstance(rows, Estimates) else frozen_rows(rows)
        return project(self.prior, self.inducing, self.lower, rows)
