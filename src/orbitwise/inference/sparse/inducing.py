"""Inducing variables u of g: where they are, the factor of K_uu, and rows projected onto them (METHOD 3, 4).

u is g(Z), or any exact rows of g, say f(Z) on a finite orbit. A row is projected to a_n = L⁻¹ k_u(x_n), by
groups of draws: linear terms use the sum of the groups, quadratic terms only the pairs of groups that
`orbitwise.process.unbiased` allows, so that every moment is unbiased whether rows are exact or drawn. An
`EstimatedProcess` provides only unbiased estimates of its covariances (LIM 6), which are projected in the
same way.

Points Z are chosen among the orbits of training inputs, because Z are inputs of g: at random, at cluster
centres, or greedily. The next greedy point is the one with the largest variance given the points so far. This
is a pivoted Cholesky factorisation of the candidates' covariance (Burt et al. 2020), which is never formed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from gpytorch.module import Module
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.declarations import require
from orbitwise.functionals.averages import atoms_of_part
from orbitwise.functionals.functional import Atoms, Block, Evaluation, Functional
from orbitwise.inference.linear_algebra import check_factor, cholesky, plus_diagonal, solve_lower
from orbitwise.inference.stored_rows import Inputs
from orbitwise.orbits.nodes import Part
from orbitwise.process.process import Process, Rows, as_blocks
from orbitwise.process.unbiased import Method, pair_factors, unbiased_variance

Inducing = Float[Tensor, "u d"] | Atoms  # patches have fewer columns than the images that are rows
"""Points Z, for u = g(Z), or exact rows, for u = L g."""
ROWS_AT_ONCE = 512
COLUMNS_AT_ONCE = 16_384
JITTER = 1e-10
"""Added to K_uu, relative to its mean diagonal: u is then g(Z) with a little noise, so bounds stay valid."""
EXPLAINED = 1e-10
"""A candidate is not taken if at most this fraction of its variance is left unexplained."""


class Estimates(NamedTuple):
    """Estimates for rows of a process: of k_fu by independent groups, of k_f(x, x), and of means by groups.

    The sum of `cross` over the groups is unbiased: with G groups, each estimates 1/G of k_fu. `variance` is
    unbiased too. `is_exact` means that nothing was drawn; there is then one group.
    """

    cross: Float[Tensor, "n g u"]
    variance: Float[Tensor, " n"]
    mean: Float[Tensor, "n g"] | None = None
    is_exact: bool = False

    @property
    def is_drawn(self) -> bool:
        """Whether anything was drawn."""
        return not self.is_exact

    @property
    def offset(self) -> Float[Tensor, "n g"]:
        """Prior means by groups, zero if none are given."""
        return torch.zeros_like(self.cross[..., 0]) if self.mean is None else self.mean

    def factors(self) -> Float[Tensor, "g g"]:
        """The factors of pairs of groups: G/(G-1) for different groups, 0 for a group with itself."""
        groups = self.cross.shape[1]
        if self.is_exact != (groups == 1):
            raise ValueError(
                "Unbiased squares need estimates by at least two independent groups, or by one exact group, "
                f"not by {groups}{' exact ones' if self.is_exact else ''}."
            )
        ones = self.cross.new_ones(groups, groups, dtype=torch.float64)
        return ones if self.is_exact else (ones - ones.diagonal().diag()) * groups / (groups - 1)

    def rows(self, index: slice) -> Estimates:
        """Estimates for some of the rows."""
        mean = None if self.mean is None else self.mean[index]
        return Estimates(self.cross[index], self.variance[index], mean, self.is_exact)

    def frozen(self) -> Estimates:
        """The same estimates treated as exact covariances, in one group."""
        cross, offset = self.cross.sum(1, keepdim=True), self.offset.sum(1, keepdim=True)
        return Estimates(cross, self.variance, offset, is_exact=True)


class EstimatedProcess(Module, ABC):
    """Any process f whose covariances can be estimated without bias (LIM 6), in place of functionals of g.

    A subclass provides the exact covariance of inducing variables u = f(Z), or of others at the points Z, and
    estimates of k_fu and k_f(x, x) at any inputs. Its parameters are learned. Joint covariances and joint
    samples of rows are not available.
    """

    @abstractmethod
    def inducing_covariance(self, inducing: Float[Tensor, "u d"]) -> Float[Tensor, "u u"]:
        """The exact covariance K_uu of the inducing variables at these points."""

    @abstractmethod
    def estimates(
        self,
        x: Float[Tensor, "n d"],
        inducing: Float[Tensor, "u d"],
        generator: torch.Generator | None,
    ) -> Estimates:
        """Estimates for every row of x, drawn afresh in each call."""


Prior = Process | EstimatedProcess
"""What is known of f: a process g of which rows are functionals, or estimates of covariances of f alone."""


@final
class RowsNotFiniteError(ValueError):
    """The orbit, or another functional, gave points or weights that are NaN or infinite."""


class PriorMoments(NamedTuple):
    """Prior moments of exact rows: covariances K_uf with the inducing variables, variances and means."""

    cross: Float[Tensor, "u n"]
    variance: Float[Tensor, " n"]
    mean: Float[Tensor, " n"]


@final
@dataclass(frozen=True)
class StreamedColumns:
    """A = L⁻¹K_uf of exact or frozen rows, of which nothing is held: it is computed whenever it is read."""

    process: Process
    functional: Functional
    inducing: Inducing
    lower: Float[Tensor, "u u"]
    x: Inputs

    @torch.no_grad()
    def at(self, rows: slice | Int[Tensor, " k"]) -> tuple[Float[Tensor, "u k"], PriorMoments]:
        """The columns of some rows, and their prior moments."""
        atoms = frozen_rows(self.functional.atoms(self.x[rows]))
        prior = prior_moments(self.process, self.inducing, atoms)
        return solve_lower(self.lower, prior.cross), prior


class ProjectedRows(NamedTuple):
    """A = L⁻¹K_uf of exact or frozen rows, their residual variances r ≥ 0 and prior means, and L."""

    columns: Float[Tensor, "u n"] | StreamedColumns
    residual: Float[Tensor, " n"]
    mean: Float[Tensor, " n"]
    lower: Float[Tensor, "u u"]

    def blocks(self, rows: slice | Int[Tensor, " k"] = slice(None)) -> Iterator[Float[Tensor, "u _"]]:
        """The columns of these rows: at once where they are held, else some at a time."""
        if isinstance(self.columns, Tensor):
            yield self.columns[:, rows]
            return
        number = torch.arange(len(self.residual))[rows.cpu() if isinstance(rows, Tensor) else rows]
        for part in number.split(ROWS_AT_ONCE):
            yield self.columns.at(part)[0]

    def held_columns(self) -> Float[Tensor, "u n"]:
        """The columns of all rows, in memory."""
        return torch.cat(list(self.blocks()), dim=1)


class Projection(NamedTuple):
    """Whitened covariances of rows with u by groups, factors of pairs of groups, variances and means."""

    columns: Float[Tensor, "n g u"]
    factors: Float[Tensor, "g g"]
    variance: Float[Tensor, " n"]
    offset: Float[Tensor, "n g"]

    @property
    def is_drawn(self) -> bool:
        """Whether rows were drawn in groups."""
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


def inducing_rows(inducing: Inducing, dtype: torch.dtype = torch.float64) -> Atoms:
    """The atoms that define u, in a precision."""
    if isinstance(inducing, Tensor):
        return Evaluation().lower(inducing.to(dtype))
    if not isinstance(inducing, Atoms) or inducing.is_drawn:
        raise ValueError(
            "Inducing variables must be exact rows of g, but those of a drawn orbit change with every draw. "
            "Use points of g, or all elements of a finite orbit."
        )
    return inducing.to(dtype)


def inducing_factor(process: Prior, inducing: Inducing) -> Float[Tensor, "u u"]:
    """L with L Lᵀ = K_uu + jitter·I, in double precision: the one place that factorises K_uu.

    The jitter is `JITTER` times the mean diagonal, and more only if the factorisation needs it.
    """
    if isinstance(process, EstimatedProcess):
        covariance = process.inducing_covariance(_points(inducing)).double()
    else:
        covariance = process.covariance(inducing_rows(inducing)).double()
    jitter = JITTER * covariance.diagonal().mean()
    return cholesky(plus_diagonal(covariance, jitter)).lower


def check_inducing(inducing: Inducing, lower: Float[Tensor, "u u"]) -> None:
    """Raise a ValueError unless this is a factor of K_uu for these inducing variables."""
    count = inducing.num_rows if isinstance(inducing, Atoms) else len(inducing)
    require(isinstance(inducing, Atoms) or inducing.dim() == 2, "inducing points that are not [u, d]")
    require(lower.shape == (count, count), "a factor of other inducing variables")
    check_factor(lower)


def check_finite(rows: Block | Estimates) -> None:
    """Raise a RowsNotFiniteError if points, weights or estimates of a functional are not finite."""
    is_estimated = isinstance(rows, Estimates)
    parts = (rows.cross, rows.variance[:, None]) if is_estimated else (rows.points, rows.weights)
    bad = torch.stack([~part.isfinite().flatten(1).all(1) for part in parts]).any(0)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise RowsNotFiniteError(
            f"The orbit returned NaN or infinite points, weights or estimates for {int(bad.sum())} of "
            f"{len(bad)} "
            f"inputs, the first of them row {first} of its batch. Check transform and bounds on that input."
        )


def lower_rows(
    process: Prior,
    functional: Functional,
    inducing: Inducing,
    x: Float[Tensor, "n columns"],
    generator: torch.Generator | None = None,
) -> Block | Estimates:
    """The rows to project: atoms of the functional, or estimates of an estimated process."""
    return lower_part(process, functional, inducing, x.__getitem__, Part(0, len(x), len(x)), generator)


def lower_part(
    process: Prior,
    functional: Functional,
    inducing: Inducing,
    inputs: Callable[[slice], Tensor],
    part: Part,
    generator: torch.Generator | None = None,
) -> Block | Estimates:
    """The rows to project of a part of a batch, as they are in the whole batch; see `atoms_of_part`."""
    if isinstance(process, EstimatedProcess):
        return process.estimates(inputs(slice(None)), _points(inducing), generator).rows(part.rows)
    return atoms_of_part(functional, inputs, part, generator)


def frozen_rows(rows: Rows) -> list[Block]:
    """The rows with their draws treated as the whole orbit."""
    return [block.frozen() if isinstance(block, Atoms) else block for block in as_blocks(rows)]


def prior_moments(process: Process, inducing: Inducing, rows: Rows) -> PriorMoments:
    """Prior moments of exact rows; the kernel is evaluated in the precision of the inputs."""
    blocks = as_blocks(rows)
    if any(block.is_drawn for block in blocks):
        raise ValueError("Gradients and lists of blocks must be exact rows: freeze the orbit.")
    points = inducing_rows(inducing, blocks[0].points.dtype)
    cross = process.covariance(points, rows).double()
    return PriorMoments(cross, process.variance(rows).double(), process.mean(rows).double())


def project(
    process: Prior,
    inducing: Inducing,
    lower: Float[Tensor, "u u"],
    rows: Rows | Estimates,
    method: Method = "halves",
) -> Projection:
    """Project rows, with drawn atoms kept separate by groups, so that only independent groups are paired.

    Kernel products are in the precision of the points, and the solve with the factor `lower` of K_uu in
    double precision.
    """
    if isinstance(rows, Estimates):
        factors, cross = rows.factors(), rows.cross.permute(2, 0, 1)
        variance, offset = rows.variance, rows.offset
    elif isinstance(process, EstimatedProcess):
        raise ValueError("An estimated process has no functionals of g: project its own estimates.")
    elif not isinstance(rows, Atoms) or not rows.is_drawn:
        prior = prior_moments(process, inducing, rows)
        factors, cross = prior.variance.new_ones(1, 1), prior.cross[..., None]
        variance, offset = prior.variance, prior.mean[:, None]
    else:
        points = inducing_rows(inducing, rows.points.dtype)
        parts, factors = _independent_parts(rows, method)
        variance = unbiased_variance(process.kernel, rows, method)
        cross = torch.stack([process.covariance(points, part) for part in parts], dim=-1)
        offset = torch.stack([process.mean(part) for part in parts], dim=-1)
    # a = L⁻¹ k_u, one column for each row and group
    columns = solve_lower(lower, cross.double().flatten(1)).unflatten(1, cross.shape[1:]).permute(1, 2, 0)
    return Projection(columns, factors.double(), variance.double(), offset.double())


@torch.no_grad()
def project_rows(
    process: Prior,
    functional: Functional,
    inducing: Inducing,
    x: Inputs,
    lower: Float[Tensor, "u u"] | None = None,
    generator: torch.Generator | None = None,
    rows_at_once: int = ROWS_AT_ONCE,
    streams: bool = False,
) -> ProjectedRows:
    """A, residual variances and prior means of all rows, in memory; drawn rows are drawn once.

    Kernel values are computed in blocks of rows, without gradients; those of sums over rows are in
    `orbitwise.inference.sparse.bounds`. With `streams`, A of exact or frozen rows is not held, but computed
    whenever it is needed.
    """
    lower = inducing_factor(process, inducing) if lower is None else lower
    if streams and isinstance(process, Process):
        return _streamed_rows(StreamedColumns(process, functional, inducing, lower, x), rows_at_once)
    columns = torch.empty(len(lower), len(x), dtype=torch.float64, device=x.device)
    variances, means = [], []
    for start in range(0, len(x), rows_at_once):
        part = slice(start, start + rows_at_once)
        if isinstance(process, EstimatedProcess):
            rows = process.estimates(x[part], _points(inducing), generator)
            prior = PriorMoments(rows.cross.sum(1).mT, rows.variance.double(), rows.offset.sum(1).double())
        else:
            prior = prior_moments(process, inducing, frozen_rows(functional.atoms(x[part], generator)))
        columns[:, part] = prior.cross
        variances.append(prior.variance)
        means.append(prior.mean)
    for start in range(0, len(x), COLUMNS_AT_ONCE):
        part = slice(start, start + COLUMNS_AT_ONCE)
        columns[:, part] = solve_lower(lower, columns[:, part])
    residual = (torch.cat(variances) - columns.square().sum(0)).clamp_min(0)
    return ProjectedRows(columns, residual, torch.cat(means), lower)


def _streamed_rows(columns: StreamedColumns, rows_at_once: int) -> ProjectedRows:
    residuals, means = [], []
    for start in range(0, len(columns.x), rows_at_once):
        block, prior = columns.at(slice(start, start + rows_at_once))
        residuals.append((prior.variance - block.square().sum(0)).clamp_min(0))
        means.append(prior.mean)
    return ProjectedRows(columns, torch.cat(residuals), torch.cat(means), columns.lower)


def _independent_parts(atoms: Atoms, method: Method) -> tuple[list[Atoms], Tensor]:
    """The parts of drawn rows that may be paired, and the factors of these pairs."""
    factors = pair_factors(atoms, method)
    if factors.has_diagonal:
        # every draw is a separate group, with its own solve
        return [atoms.take(torch.tensor([s])) for s in range(atoms.num_atoms)], factors.matrix()
    members = [torch.nonzero(atoms.draw == g).flatten() for g in range(len(atoms.groups) + 1)]
    present = [g for g, index in enumerate(members) if len(index)]
    return [atoms.take(members[g]) for g in present], factors.between[present][:, present]


def _points(inducing: Inducing) -> Float[Tensor, "u d"]:
    """The inducing points of an estimated process, which cannot be rows of g."""
    if not isinstance(inducing, Tensor):
        raise ValueError("An estimated process has no functionals of g: its inducing variables are points.")
    return inducing


def random_orbit_points(
    functional: Functional,
    x: Inputs,
    num_inducing: int,
    generator: torch.Generator,
    rows_at_once: int = 256,
) -> Float[Tensor, "u e"]:
    """Inputs in random order, each moved to a random point of its orbit; repeated with new moves if
    necessary.

    Repeated points are left out, so there may be fewer than requested.
    """
    _check_count(num_inducing)
    place = generator.device
    rounds = range(-(-num_inducing // len(x)))
    orders = [torch.randperm(len(x), generator=generator, device=place).to(x.device) for _ in rounds]
    chosen = torch.cat(orders)[:num_inducing]
    parts = []
    with torch.no_grad():
        for index in chosen.split(rows_at_once):
            atoms = functional.atoms(x[index], generator)
            weights = atoms.weights.abs()
            # for a row without weights, all points are equally likely
            weights = torch.where(weights.sum(-1, keepdim=True) > 0, weights, torch.ones_like(weights))
            pick = torch.multinomial(weights.to(place), 1, generator=generator).to(x.device)
            parts.append(atoms.points[torch.arange(len(index), device=x.device), pick[:, 0]])
    return _distinct(torch.cat(parts))


@dataclass(frozen=True)
class Choice:
    """The indices of the chosen candidates, and the remaining variance before each choice and in the end."""

    index: Int[Tensor, " u"]
    trace: Float[Tensor, " v"]


def greedy_choice(
    process: Process,
    candidates: Float[Tensor, "m d"] | Atoms,
    num_inducing: int,
    separation: float = EXPLAINED,
    enough: float = 0.0,
) -> Choice:
    """Choose up to `num_inducing` candidates, each with the largest variance given those before it.

    Candidates are points of g or any exact rows. O(C·M²) time and O(C·M) memory for C candidates. A candidate
    is not taken if less than the fraction `separation` of its variance is left, or no more than rounding, so
    that K_uu stays well conditioned and duplicates are never taken; of equal candidates the first is taken.
    The choice stops early if no candidate is left, or if the total remaining variance is at most `enough`.
    """
    _check_count(num_inducing)
    with torch.no_grad():
        rows = Evaluation().lower(candidates) if isinstance(candidates, Tensor) else candidates
        left = process.variance(rows).double()
        # a remainder at the level of rounding is not variance
        rounding = 8 * torch.finfo(rows.points.dtype).eps
        floor = max(separation, rounding) * left.clamp_min(0)
        factor = left.new_zeros(min(num_inducing, len(left)), len(left))
        taken = torch.zeros_like(left, dtype=torch.bool)
        chosen: list[int] = []
        trace = [float(left.sum())]
        for place in range(len(factor)):
            eligible = torch.where((left > floor) & ~taken, left, -torch.inf)
            pivot = int(eligible.argmax())
            if trace[-1] <= enough or not math.isfinite(float(eligible[pivot])):
                break
            column = process.covariance(rows.rows(slice(pivot, pivot + 1)), rows)[0].double()
            # l = (k_p - Σ_j l_jp l_j)/√v_p,  v ← v - l²
            column = (column - factor[:place, pivot] @ factor[:place]) / left[pivot].sqrt()
            factor[place] = column
            left = left - column.square()
            taken[pivot] = True
            chosen.append(pivot)
            trace.append(float(left.clamp_min(0).sum()))
    index = torch.tensor(chosen, dtype=torch.long, device=left.device)
    return Choice(index, left.new_tensor(trace))


def cluster_centres(
    points: Float[Tensor, "n d"], num_inducing: int, generator: torch.Generator, most: int = 20_000
) -> Float[Tensor, "u d"]:
    """The centres of k-means on at most `most` random points, distinct.

    Coordinates are rounded to seven digits of their range, so that the result does not depend on the rounding
    of a CPU.
    """
    from sklearn.cluster import KMeans  # takes long to import, and few fits need it

    _check_count(num_inducing)
    order = torch.randperm(len(points), generator=generator, device=generator.device)[:most]
    sample = _distinct(points[order.to(points.device)])
    if len(sample) <= num_inducing:
        return sample
    seed = int(torch.randint(2**31, (1,), generator=generator, device=generator.device))
    means = KMeans(num_inducing, n_init=1, max_iter=20, random_state=seed)  # pyright: ignore[reportArgumentType]
    rows = sample.double().cpu().numpy()
    # each column by its own range, because columns may differ in scale; constant ones stay as they are
    unit = 1e-7 * np.ptp(rows, axis=0)
    rounded = np.where(unit > 0, np.round(rows / np.where(unit > 0, unit, 1.0)) * unit, rows)
    centres = means.fit(rounded).cluster_centers_
    return _distinct(torch.from_numpy(np.asarray(centres)).to(points))


def first_of_equals(points: Float[Tensor, "n d"]) -> Int[Tensor, " m"]:
    """The indices of the distinct points: the first of each set of equal ones."""
    _, group = torch.unique(points, dim=0, return_inverse=True)
    first = torch.full((int(group.max()) + 1,), len(points), device=points.device)
    place = torch.arange(len(points), device=points.device)
    return first.scatter_reduce(0, group, place, "amin").sort().values


def _distinct(points: Float[Tensor, "n d"]) -> Float[Tensor, "m d"]:
    """The points without repetitions, in order of first occurrence."""
    return points[first_of_equals(points)]


def _check_count(num_inducing: int) -> None:
    if num_inducing < 1:
        raise ValueError(f"There must be at least one inducing point, not {num_inducing}.")
