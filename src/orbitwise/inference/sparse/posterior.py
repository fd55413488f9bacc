"""The variational Gaussian q(u), and the posterior of g that it gives, whichever engine found it.

q has two forms: natural parameters for natural-gradient steps, mean and Cholesky factor for Adam.
"""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.declarations import SMALLEST, Field, Stored, is_plain_numbers, require
from orbitwise.functionals.functional import Atoms, Functional
from orbitwise.inference.linear_algebra import (
    check_factor,
    check_solution,
    cholesky,
    log_determinant,
    plus_diagonal,
    solve_factored,
)
from orbitwise.inference.model import Posterior
from orbitwise.inference.processes import ALONE, Processes
from orbitwise.inference.sparse.inducing import (
    EstimatedProcess,
    Estimates,
    Inducing,
    Prior,
    Projection,
    check_inducing,
    frozen_rows,
    inducing_factor,
    lower_rows,
    project,
)
from orbitwise.process.process import Moments, Process, Rows

DOUBLES = Field((Tensor,), dtypes=("float64",))


@final
class Whitened:
    """q(v) = N(m, S) over whitened inducing variables u = L v, by its natural parameters.

    These are the precision P = S⁻¹ and the shift h = S⁻¹m [u, c], which natural-gradient steps move along
    straight lines. One precision [u, u] is shared by all outputs if the likelihood allows it; else there is
    one per output, [c, u, u].
    """

    stored = Stored(attributes={"lower": DOUBLES, "mean": DOUBLES})

    def __init__(self, precision: Float[Tensor, "*c u u"], shift: Float[Tensor, "u c"]) -> None:
        self.precision = precision
        self.shift = shift
        self.lower = cholesky(precision).lower
        # m = P⁻¹h
        if self.is_shared:
            self.mean = solve_factored(self.lower, shift)
        else:
            self.mean = solve_factored(self.lower, shift.T[..., None])[..., 0].T

    def check_parts(self) -> None:
        """Raise a ValueError unless mean and factor belong to precision and shift: S⁻¹m = h."""
        size, outputs = self.shift.shape
        require(min(self.shift.shape) > 0, "a shift of another shape")
        shapes = ((size, size), (outputs, size, size))
        require(self.precision.shape in shapes, "a precision of another shape")
        is_like = self.lower.shape == self.precision.shape and self.mean.shape == self.shift.shape
        require(is_like, "a mean of another shape")
        check_factor(self.lower)
        mean, shift = self.mean, self.shift
        if not self.is_shared:
            mean, shift = mean.T[..., None], shift.T[..., None]
        check_solution(self.lower, mean, shift)

    @classmethod
    def prior(cls, size: int, outputs: int, shared: bool, device: torch.device | None = None) -> Whitened:
        """q equal to the prior N(0, I)."""
        identity = torch.eye(size, dtype=torch.float64, device=device)
        precision = identity if shared else identity.expand(outputs, -1, -1).clone()
        return cls(precision, identity.new_zeros(size, outputs))

    @property
    def is_shared(self) -> bool:
        """Whether one precision is shared by all outputs."""
        return self.precision.dim() == 2

    def without_common_mean(self) -> Whitened:
        """q with the average over outputs subtracted from each mean, which brings it nearer to the prior."""
        mean = self.mean - self.mean.mean(1, keepdim=True)
        # h = P m
        shift = self.precision @ (mean if self.is_shared else mean.T[..., None])
        return Whitened(self.precision, shift if self.is_shared else shift[..., 0].T)

    def divergence(self) -> Float[Tensor, ""]:
        """KL[q(v) ‖ N(0, I)] = ½(tr S + mᵀm - M + log|P|), summed over outputs."""
        size, outputs = self.shift.shape
        trace = torch.cholesky_inverse(self.lower).diagonal(dim1=-1, dim2=-2).sum(-1)
        each = trace - size + log_determinant(self.lower)
        return 0.5 * (each.sum() * (outputs if self.is_shared else 1) + self.mean.square().sum())

    def spread(self, columns: Float[Tensor, "*batch u"]) -> Float[Tensor, "*c k u"]:
        """R⁻¹a of every column a, with R Rᵀ = P: inner products are aᵀS a′. Batches are flattened."""
        flat = columns.flatten(0, -2)
        return torch.linalg.solve_triangular(self.lower, flat.T, upper=False).mT

    def step(
        self,
        columns: Float[Tensor, "n u"],
        curvature: Float[Tensor, "n c"],
        slope: Float[Tensor, "n c"],
        rate: float,
        processes: Processes = ALONE,
    ) -> Whitened:
        """Natural-gradient step: P ← (1-ρ)P + ρ(I + Σ λ a aᵀ), h ← (1-ρ)h + ρ Σ η a.

        Several processes add up the sums over their rows.
        """
        if self.is_shared:
            gram = (columns * curvature[:, :1]).T @ columns
        else:
            # One output at a time: λ a for all of them would hold n·u·c numbers.
            gram = torch.stack([(columns * each[:, None]).T @ columns for each in curvature.T])
        gram, shift = processes.sum(gram, columns.T @ slope)
        target = plus_diagonal(gram, 1.0)
        return Whitened((1 - rate) * self.precision + rate * target, (1 - rate) * self.shift + rate * shift)


@final
class WhitenedFactor(nn.Module):
    """q(v) = N(m, C Cᵀ) with mean [u, c] and lower factor C, [u, u] or [c, u, u], as parameters.

    Adam moves them, as in the paper (LIM 4.4), where natural-gradient steps move a `Whitened`. They start at
    the prior N(0, I).
    """

    stored = Stored(build="of")

    def __init__(self, size: int, outputs: int, shared: bool, device: torch.device | None = None) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(size, outputs, dtype=torch.float64, device=device))
        # below the diagonal C itself, on it log C: zeros are the prior
        raw = torch.zeros(size, size, dtype=torch.float64, device=device)
        self.raw = nn.Parameter(raw if shared else raw.repeat(outputs, 1, 1))

    @classmethod
    def of(cls, mean: Float[Tensor, "u c"], raw: Float[Tensor, "*c u u"]) -> WhitenedFactor:
        """One with the shapes of these parameters, whose values are set later."""
        return cls(*mean.shape, shared=raw.dim() == 2)

    def check_parts(self) -> None:
        """Raise a ValueError if the diagonal of C is too small or too large to compute with."""
        with torch.no_grad():
            diagonal = self.factor.diagonal(dim1=-1, dim2=-2)
        require(is_plain_numbers(diagonal, SMALLEST), "a factor whose diagonal is out of range")

    @property
    def is_shared(self) -> bool:
        """Whether one factor is shared by all outputs."""
        return self.raw.dim() == 2

    @property
    def factor(self) -> Float[Tensor, "*c u u"]:
        """C."""
        return self.raw.tril(-1) + torch.diag_embed(self.raw.diagonal(dim1=-1, dim2=-2).exp())

    def divergence(self) -> Float[Tensor, ""]:
        """KL[q(v) ‖ N(0, I)] = ½(|C|² + mᵀm - M) - log|C|, summed over outputs."""
        size, outputs = self.mean.shape
        logs = self.raw.diagonal(dim1=-1, dim2=-2)
        each = self.factor.square().sum((-1, -2)) - size - 2 * logs.sum(-1)
        return 0.5 * (each.sum() * (outputs if self.is_shared else 1) + self.mean.square().sum())

    def spread(self, columns: Float[Tensor, "*batch u"]) -> Float[Tensor, "*c k u"]:
        """Cᵀa of every column a: inner products are aᵀS a′. Batches are flattened."""
        return columns.flatten(0, -2) @ self.factor

    def natural(self) -> Whitened:
        """The same Gaussian by its natural parameters."""
        with torch.no_grad():
            precision = torch.cholesky_inverse(self.factor)
            shift = torch.einsum("...uw,wc->...uc", precision, self.mean)
            if not self.is_shared:
                shift = shift.diagonal(dim1=0, dim2=2)
            return Whitened(precision, shift.contiguous())


class ProjectedMoments(NamedTuple):
    """Mean, mean square and variance of f_n under q(v) alone, and the residual variance r_n."""

    mean: Float[Tensor, "n c"]
    mean_square: Float[Tensor, "n c"]
    spread: Float[Tensor, "n c"]
    residual: Float[Tensor, " n"]

    @property
    def full(self) -> Moments:
        """Moments of f_n with the variance that q does not reach."""
        residual = self.residual[:, None]
        return Moments(self.mean, self.spread + residual, self.mean_square + residual)


def projected_moments(projection: Projection, q: Whitened | WhitenedFactor) -> ProjectedMoments:
    """Unbiased moments of m_n + a_nᵀv under q(v)."""
    rows, groups, _ = projection.columns.shape
    means = projection.columns @ q.mean + projection.offset[..., None]
    spread = q.spread(projection.columns).unflatten(-2, (rows, groups))
    # μ² + aᵀS a, both by allowed pairs of groups
    square = projection.quadratic(means.permute(2, 0, 1)[..., None]).T
    variance = projection.quadratic(spread)
    variance = variance[:, None].expand_as(square) if q.is_shared else variance.T
    return ProjectedMoments(means.sum(1), square + variance, variance, projection.residual)


@final
class SparsePosterior(Posterior):
    """g given y through q(u): moments of any functional; drawn rows are averaged over their draws.

    `prior` is the process of g, then also called `process`, or an `EstimatedProcess` of f itself. The latter
    always predicts f(x), whatever the functional, and has no covariances of rows.
    """

    stored = Stored({"process": Field(read="prior")})

    def __init__(
        self,
        process: Prior,
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
            self.lower = inducing_factor(process, inducing) if lower is None else lower
        points = inducing.points if isinstance(inducing, Atoms) else inducing
        self.num_outputs, self.width = q.mean.shape[1], points.shape[-1]

    def check_parts(self) -> None:
        """Raise a ValueError if inducing variables, their factor and q do not match."""
        check_inducing(self.inducing, self.lower)
        require(len(self.q.mean) == len(self.lower), "a q for other inducing points")

    def mean(
        self, functional: Functional, x: Tensor, generator: torch.Generator | None = None
    ) -> Float[Tensor, "n c"]:
        return self.row_mean(lower_rows(self.prior, functional, self.inducing, x, generator))

    def moments(self, functional: Functional, x: Tensor, generator: torch.Generator | None = None) -> Moments:
        return self.row_moments(lower_rows(self.prior, functional, self.inducing, x, generator))

    def row_moments(self, rows: Rows | Estimates) -> Moments:
        """Moments of frozen rows: variances are biased upwards by O(1/S), but never negative (METHOD 4)."""
        moments = projected_moments(self._projection(rows), self.q)
        variance = moments.spread + moments.residual[:, None].clamp_min(0)
        return Moments(moments.mean, variance, moments.mean.square() + variance)

    def row_mean(self, rows: Rows | Estimates) -> Float[Tensor, "n c"]:
        """The posterior mean alone."""
        projection = self._projection(rows)
        return projection.total @ self.q.mean + projection.offset.sum(1, keepdim=True)

    def covariance(self, rows: Rows) -> Float[Tensor, "*c n n"]:
        """K - A(I - S)Aᵀ of rows, frozen first: one matrix if outputs share S, else one per output."""
        if isinstance(self.prior, EstimatedProcess):
            raise ValueError("An estimated process provides only variances of rows, not their covariances.")
        rows = frozen_rows(rows)
        columns = self._projection(rows).total
        spread = self.q.spread(columns)
        return self.prior.covariance(rows).double() - columns @ columns.mT + spread @ spread.mT

    def _projection(self, rows: Rows | Estimates) -> Projection:
        rows = rows.frozen() if isinstance(rows, Estimates) else frozen_rows(rows)
        return project(self.prior, self.inducing, self.lower, rows)
