"""Rows projected onto inducing variables u: a_n = L⁻¹ k_u(x_n), by groups of draws (METHOD 3 and 4).

u is g(Z), or any exact rows of g, say f(Z) on a finite orbit. Linear terms use the sum of the groups,
quadratic terms only the pairs of groups that `orbitwise.process.unbiased` allows, so every moment is unbiased
whether rows are exact or drawn. Rows may also come as `Estimates` from a process that is no functional of g
(LIM 6).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, final

import torch
from gpytorch.module import Module
from jaxtyping import Float
from torch import Tensor

from orbitwise.declarations import require
from orbitwise.functionals.functional import Atoms, Block, Evaluation, Functional
from orbitwise.inference.linear_algebra import check_factor, cholesky, solve_lower
from orbitwise.inference.sparse.whitened import Whitened, WhitenedFactor
from orbitwise.process.process import Process, Rows, as_blocks
from orbitwise.process.unbiased import Method, pair_factors, unbiased_variance

Inducing = Float[Tensor, "u d"] | Atoms  # patches have fewer columns than the images that are rows
"""Points Z, for u = g(Z), or exact rows, for u = L g."""
ROWS_AT_ONCE = 512
COLUMNS_AT_ONCE = 16_384
JITTER = 1e-10
"""Added to K_uu relative to its mean diagonal: u is g(Z) with a little noise, so bounds stay bounds."""


class Estimates(NamedTuple):
    """Estimates of k_fu by independent groups, whose sum is unbiased, of k_f(x, x), and of means by groups.

    Each group estimates the same, its share being one over the number of groups. `is_exact` says that nothing
    was drawn; there is then one group.
    """

    cross: Float[Tensor, "n g u"]
    variance: Float[Tensor, " n"]
    mean: Float[Tensor, "n g"] | None = None
    is_exact: bool = False

    @property
    def is_drawn(self) -> bool:
        """Whether groups were drawn."""
        return not self.is_exact


@final
class RowsNotFiniteError(ValueError):
    """The orbit, or another functional, gave points or weights that are NaN or infinite."""


class EstimatedProcess(Module, ABC):
    """Any process f whose covariances can be estimated without bias (LIM 6), in place of functionals of g.

    Its parameters are learned.
    """

    @abstractmethod
    def inducing_covariance(self, inducing: Float[Tensor, "u d"]) -> Float[Tensor, "u u"]:
        """The exact covariance of f at the inducing points."""

    @abstractmethod
    def estimates(
        self,
        x: Float[Tensor, "n d"],
        inducing: Float[Tensor, "u d"],
        generator: torch.Generator | None,
    ) -> Estimates:
        """Estimates for every row of x."""


def check_inducing(inducing: Inducing, lower: Float[Tensor, "u u"]) -> None:
    """Raise a ValueError unless this is a factor of K_uu for these inducing variables."""
    count = inducing.num_rows if isinstance(inducing, Atoms) else len(inducing)
    require(isinstance(inducing, Atoms) or inducing.dim() == 2, "inducing points that are not [u, d]")
    require(lower.shape == (count, count), "a factor of other inducing variables")
    check_factor(lower)


class PriorMoments(NamedTuple):
    """Prior moments of exact rows: covariances K_uf with the inducing variables, variances and means."""

    cross: Float[Tensor, "u n"]
    variance: Float[Tensor, " n"]
    mean: Float[Tensor, " n"]


class ProjectedRows(NamedTuple):
    """A = L⁻¹K_uf of exact or frozen rows, their residual variances r ≥ 0 and prior means, and L."""

    columns: Float[Tensor, "u n"]
    residual: Float[Tensor, " n"]
    mean: Float[Tensor, " n"]
    lower: Float[Tensor, "u u"]


class Projection(NamedTuple):
    """Whitened covariances of rows with u by groups, factors of pairs of groups, prior variance and means."""

    columns: Float[Tensor, "n g u"]
    factors: Float[Tensor, "g g"]
    variance: Float[Tensor, " n"]
    offset: Float[Tensor, "n g"]

    @property
    def is_drawn(self) -> bool:
        """Whether rows came by groups of draws."""
        return self.columns.shape[1] > 1

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
    """Mean, mean square and variance of f_n under q(v) alone, and the variance r_n that q does not reach."""

    mean: Float[Tensor, "n c"]
    mean_square: Float[Tensor, "n c"]
    spread: Float[Tensor, "n c"]
    residual: Float[Tensor, " n"]


def inducing_rows(inducing: Inducing, dtype: torch.dtype = torch.float64) -> Atoms:
    """The rows that u observes, in a precision."""
    if isinstance(inducing, Tensor):
        return Evaluation().lower(inducing.to(dtype))
    if not isinstance(inducing, Atoms) or inducing.is_drawn:
        raise ValueError(
            "Inducing variables must be exact rows of g: those of a drawn orbit change with every draw. "
            "Take points of g, or all elements of a finite orbit."
        )
    return inducing.to(dtype)


def inducing_factor(process: Process | EstimatedProcess, inducing: Inducing) -> Float[Tensor, "u u"]:
    """L with L Lᵀ = K_uu + jitter·I, in double precision: the one place that factorises K_uu.

    The jitter is `JITTER` times the mean diagonal, and more only where the factorisation needs it.
    """
    if isinstance(process, EstimatedProcess):
        covariance = process.inducing_covariance(_points(inducing)).double()
    else:
        covariance = process.covariance(inducing_rows(inducing)).double()
    jitter = JITTER * covariance.diagonal().mean()
    return cholesky(covariance + jitter * torch.eye(len(covariance)).to(covariance)).lower


def check_rows(rows: Block | Estimates) -> None:
    """Raise a RowsNotFiniteError when a functional gave points, weights or estimates that are not finite."""
    parts = (
        [rows.cross, rows.variance[:, None]] if isinstance(rows, Estimates) else [rows.points, rows.weights]
    )
    bad = torch.stack([~part.isfinite().flatten(1).all(1) for part in parts]).any(0)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise RowsNotFiniteError(
            f"The orbit gave NaN or infinite points, weights or estimates for {int(bad.sum())} of {len(bad)} "
            f"inputs, the first of them row {first} of its batch. Check transform and bounds on that input."
        )


def lower_rows(
    process: Process | EstimatedProcess,
    functional: Functional,
    inducing: Inducing,
    x: Tensor,
    generator: torch.Generator | None = None,
) -> Block | Estimates:
    """Rows to project: the functional's, or the estimates of a process that has no functionals."""
    if isinstance(process, EstimatedProcess):
        return process.estimates(x, _points(inducing), generator)
    return functional.atoms(x, generator)


def project(
    process: Process | EstimatedProcess,
    inducing: Inducing,
    lower: Float[Tensor, "u u"],
    rows: Rows | Estimates,
    method: Method = "halves",
) -> Projection:
    """Project rows; kernel products keep the precision of the points, the solve is in double precision."""
    if isinstance(rows, Estimates):
        return _project_estimates(lower, rows)
    process = _with_functionals(process)
    if not isinstance(rows, Atoms) or not rows.is_drawn:
        prior = prior_moments(process, inducing, rows)
        factors = prior.variance.new_ones(1, 1)
        return Projection(
            _by_group(lower, prior.cross[..., None]), factors, prior.variance, prior.mean[:, None]
        )
    points = inducing_rows(inducing, rows.points.dtype)
    parts, factors = _independent_parts(rows, method)
    variance = unbiased_variance(process.kernel, rows, method)
    cross = torch.stack([process.covariance(points, part) for part in parts], dim=-1)
    offset = torch.stack([process.mean(part) for part in parts], dim=-1)
    return Projection(_by_group(lower, cross), factors.double(), variance.double(), offset.double())


def prior_moments(process: Process, inducing: Inducing, rows: Rows) -> PriorMoments:
    """Prior moments of exact rows; the kernel keeps the precision of the inputs."""
    blocks = as_blocks(rows)
    if any(block.is_drawn for block in blocks):
        raise ValueError("Gradients and lists of blocks must be exact rows: freeze the orbit.")
    points = inducing_rows(inducing, blocks[0].points.dtype)
    cross = process.covariance(points, rows).double()
    return PriorMoments(cross, process.variance(rows).double(), process.mean(rows).double())


@torch.no_grad()
def project_rows(
    process: Process | EstimatedProcess,
    functional: Functional,
    inducing: Inducing,
    x: Float[Tensor, "n columns"],
    lower: Float[Tensor, "u u"] | None = None,
    generator: torch.Generator | None = None,
    rows_at_once: int = ROWS_AT_ONCE,
) -> ProjectedRows:
    """A, residual variances and prior means of all rows, held; drawn rows are taken as drawn once.

    Kernel values are computed by blocks of rows. There is no gradient: `orbitwise.inference.sparse.totals`
    has the sums over rows that are trained.
    """
    lower = inducing_factor(process, inducing) if lower is None else lower
    columns = torch.empty(len(lower), len(x), dtype=torch.float64, device=x.device)
    variances, means = [], []
    for start in range(0, len(x), rows_at_once):
        part = slice(start, start + rows_at_once)
        rows = lower_rows(process, functional, inducing, x[part], generator)
        if isinstance(rows, Estimates):
            mean = torch.zeros_like(rows.variance) if rows.mean is None else rows.mean.sum(1)
            prior = PriorMoments(rows.cross.sum(1).mT.double(), rows.variance.double(), mean.double())
        else:
            prior = prior_moments(_with_functionals(process), inducing, frozen_rows(rows))
        columns[:, part] = prior.cross
        variances.append(prior.variance)
        means.append(prior.mean)
    for start in range(0, len(x), COLUMNS_AT_ONCE):
        part = slice(start, start + COLUMNS_AT_ONCE)
        columns[:, part] = solve_lower(lower, columns[:, part])
    residual = (torch.cat(variances) - columns.square().sum(0)).clamp_min(0)
    return ProjectedRows(columns, residual, torch.cat(means), lower)


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


def _independent_parts(atoms: Atoms, method: Method) -> tuple[list[Atoms], Tensor]:
    """The parts of drawn rows that may meet in pairs, and the factors of these pairs."""
    factors = pair_factors(atoms, method)
    if factors.has_diagonal:
        # Every draw is a group of its own: a solve for each draw.
        return [atoms.take(torch.tensor([s])) for s in range(atoms.num_atoms)], factors.matrix()
    members = [torch.nonzero(atoms.draw == g).flatten() for g in range(len(atoms.groups) + 1)]
    present = [g for g, index in enumerate(members) if len(index)]
    return [atoms.take(members[g]) for g in present], factors.between[present][:, present]


def _project_estimates(lower: Tensor, rows: Estimates) -> Projection:
    count, groups, _ = rows.cross.shape
    if (rows.is_exact and groups != 1) or (rows.is_drawn and groups < 2):
        raise ValueError(
            "Unbiased squares need estimates by at least two independent groups, or by one exact group, "
            f"not by {groups}."
        )
    factors = lower.new_ones(1, 1)
    if rows.is_drawn:
        # pairs of different groups, G/(G-1) each
        factors = (1 - torch.eye(groups).to(lower)) * groups / (groups - 1)
    offset = lower.new_zeros(count, groups) if rows.mean is None else rows.mean.double()
    return Projection(_by_group(lower, rows.cross.permute(2, 0, 1)), factors, rows.variance.double(), offset)


def _by_group(lower: Tensor, cross: Float[Tensor, "u n g"]) -> Float[Tensor, "n g u"]:
    # a = L⁻¹ k_u, one column for each row and group
    flat = solve_lower(lower, cross.double().flatten(1))
    return flat.unflatten(1, cross.shape[1:]).permute(1, 2, 0)


def frozen_rows(rows: Rows) -> list[Block]:
    """Rows with the draws of each taken for the whole orbit."""
    return [block.frozen() if isinstance(block, Atoms) else block for block in as_blocks(rows)]


def _with_functionals(process: Process | EstimatedProcess) -> Process:
    if isinstance(process, EstimatedProcess):
        raise ValueError("An estimated process has no functionals of g; project its own estimates.")
    return process


def _points(inducing: Inducing) -> Tensor:
    if not isinstance(inducing, Tensor):
        raise ValueError("An estimated process has no functionals of g: its inducing variables are points.")
    return inducing
