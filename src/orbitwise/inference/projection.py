"""Rows projected onto inducing variables u = g(Z): a_n = L⁻¹ k_u(x_n), by groups of draws (METHOD 3 and 4).

Linear terms use the sum of the groups, quadratic terms only the pairs of groups that `orbitwise.process.unbiased` allows, so
every moment is unbiased whether rows are exact or drawn.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.functionals.atoms import Atoms
from orbitwise.functionals.points import Evaluation
from orbitwise.inference.linear_algebra import cholesky, solve_lower
from orbitwise.inference.whitened import Whitened
from orbitwise.process.process import Process
from orbitwise.process.unbiased import Method, pair_factors, unbiased_variance


class Projection(NamedTuple):
    """Whitened covariances of rows with u, by groups, the factors of pairs of groups, and the prior variance."""

    columns: Float[Tensor, "n g u"]
    factors: Float[Tensor, "g g"]
    variance: Float[Tensor, " n"]

    @property
    def total(self) -> Float[Tensor, "n u"]:
        """a_n: the sum over groups."""
        return self.columns.sum(1)

    def quadratic(self, values: Float[Tensor, "*c n g k"]) -> Float[Tensor, "*c n"]:
        """Σ_gh c_gh v_g·v_h: the unbiased square of a linear image of a_n."""
        return (values * torch.einsum("gh,...nhk->...ngk", self.factors, values)).sum((-1, -2))

    @property
    def residual(self) -> Float[Tensor, " n"]:
        """r_n = k_f(x_n, x_n) - |a_n|²: what the inducing variables do not explain of the prior variance."""
        return self.variance - self.quadratic(self.columns)


class ProjectedMoments(NamedTuple):
    """The mean of f_n, its mean square under q(v) alone, and the residual variance r_n that q does not reach."""

    mean: Float[Tensor, "n c"]
    mean_square: Float[Tensor, "n c"]
    residual: Float[Tensor, " n"]


def inducing_factor(process: Process, inducing: Float[Tensor, "u d"]) -> Float[Tensor, "u u"]:
    """The Cholesky factor of K_uu, in double precision."""
    return cholesky(process.covariance(Evaluation().lower(inducing.double()))).lower


def project(
    process: Process,
    inducing: Float[Tensor, "u d"],
    lower: Float[Tensor, "u u"],
    atoms: Atoms,
    method: Method = "halves",
) -> Projection:
    """Project rows; kernel products keep the precision of the points, the solve is in double precision."""
    factors = pair_factors(atoms, method)
    points = Evaluation().lower(inducing.to(atoms.points.dtype))
    if factors.has_diagonal:
        # Every draw is a group of its own: a solve for each draw.
        parts, between = [atoms.take(torch.tensor([s])) for s in range(atoms.num_atoms)], factors.matrix()
    else:
        members = [torch.nonzero(atoms.draw == g).flatten() for g in range(len(atoms.groups) + 1)]
        present = [g for g, index in enumerate(members) if len(index)]
        parts, between = [atoms.take(members[g]) for g in present], factors.between[present][:, present]
    covariances = torch.stack([process.covariance(points, part) for part in parts], dim=-1).double()
    # a = L⁻¹ k_u, one column for each row and group
    columns = solve_lower(lower, covariances.flatten(1)).unflatten(1, covariances.shape[1:]).permute(1, 2, 0)
    variance = unbiased_variance(process.kernel, atoms, method).double()
    return Projection(columns, between.double(), variance)


def projected_moments(projection: Projection, q: Whitened) -> ProjectedMoments:
    """Unbiased moments of a_nᵀv under q(v)."""
    rows, groups, _ = projection.columns.shape
    means = projection.columns @ q.mean
    spread = q.spread(projection.columns).unflatten(-2, (rows, groups))
    # μ² + aᵀS a, both by allowed pairs of groups
    square = projection.quadratic(means.permute(2, 0, 1)[..., None]).T
    variance = projection.quadratic(spread)
    variance = variance[:, None] if q.is_shared else variance.T
    return ProjectedMoments(means.sum(1), square + variance, projection.residual)
