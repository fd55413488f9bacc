"""The learning task of a kernel machine: targets at points, a kernel, and rows that should vanish.

Rows are functionals of f that a loss keeps small. Smoothness over a graph of neighbours is included, as fᵀLf
= |R f|² with RᵀR = L. With a squared loss the rows are folded into the kernel, so that labels, classes, folds
and strengths cost no more than for an ordinary machine. With any other loss they become further rows of the
problem, and also if they do not vanish on the unpenalised basis, such as slopes of linear functions.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, final

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Bool, Float, Int
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from orbitwise.estimators.invariances import is_none, penalty_of
from orbitwise.estimators.validation import check_numbers, check_rows
from orbitwise.functionals.averages import is_drawn
from orbitwise.functionals.derivatives import DirectionalDerivatives, Gradient
from orbitwise.functionals.functional import Block, Evaluation, Functional
from orbitwise.functionals.graphs import Weighting, neighbour_graph
from orbitwise.inference.optimise.cost import Cost, dense_cost, gradient_search_cost
from orbitwise.inference.risk.machines import (
    LARGEST_DENSE,
    ROWS_AT_ONCE,
    Folded,
    Invariances,
    Machine,
    basis_rows,
    fold,
    fold_weights,
    gram_of,
    nearest_positive,
    places_among,
    predicted_classes,
    solve,
)
from orbitwise.inference.risk.problem import (
    CopiedGram,
    DenseGram,
    Problem,
    ProductGram,
    Solution,
    Term,
)
from orbitwise.inference.risk.spans import Span
from orbitwise.losses import Loss, Multinomial, Squared
from orbitwise.orbits.orbit import Orbit
from orbitwise.process.closed_forms import parts_of_sum, radial_profile
from orbitwise.process.gradients import GradientOperator, has_products, squared_slopes
from orbitwise.process.process import Process

TOLERANCE = 1e-8
SEEN = 1e-9
"""An invariance applied to a basis function is treated as zero up to this rounding."""
NUMBERS_KEPT = 2**25
"""The most numbers in folded kernels that are kept: 256 MiB."""
LEAST = 1e-75
"""The least bandwidth, because second derivatives are divided by its fourth power."""
Functions = Literal["auto", "all", "points"]
"""All functions, or the combinations of k at the points."""
MANY_ROWS = 2000
"""With more rows than this, "auto" admits the combinations of k at the points only."""
PAIRED = 2000
"""The number of points from which the median distance is computed."""


@final
@dataclass(frozen=True)
class GraphSmoothness:
    """The penalty fᵀLf of values at all points, L the Laplacian of their graph of nearest neighbours."""

    points: Float[Tensor, "t d"]
    num_neighbours: int
    weighting: Weighting
    is_normalized: bool

    @cached_property
    def laplacian(self) -> Float[Tensor, "t t"]:
        """L."""
        if self.num_neighbours == 0:
            return torch.zeros(len(self.points), len(self.points)).to(self.points)
        count = min(self.num_neighbours, len(self.points) - 1)
        laplacian = neighbour_graph(self.points, count, self.weighting).laplacian().to_dense()
        if not self.is_normalized:
            return laplacian
        degree = laplacian.diagonal().clamp_min(1e-300).rsqrt()
        return degree[:, None] * laplacian * degree

    @cached_property
    def root(self) -> Float[Tensor, "t t"]:
        """R with RᵀR = L, from the eigenvalues and eigenvectors of L."""
        values, vectors = torch.linalg.eigh(self.laplacian)
        return values.clamp_min(0).sqrt()[:, None] * vectors.mT


@final
@dataclass(frozen=True)
class InvarianceRows:
    """Blocks of functionals, and the weight of each row's loss in units of the strength ν.

    With a `graph` the rows are R f, where f are the values at its points, the only block. L is decomposed
    only if R is needed.
    """

    blocks: list[Block]
    weights: Float[Tensor, " r"]
    graph: GraphSmoothness | None = None

    @property
    def num_rows(self) -> int:
        """r."""
        return len(self.weights)

    def is_searched(self, process: Process, others: int = 0) -> bool:
        """Whether the Gram matrix of these and `others` is too large to decompose, but has fast products."""
        is_single = len(self.blocks) == 1 and not self.blocks[0].is_expanded
        return self.num_rows + others > LARGEST_DENSE and is_single and has_products(process.kernel)

    def invariances(
        self, process: Process, x: Float[Tensor, "n d"], columns: Float[Tensor, "m d"]
    ) -> Invariances:
        """The rows in the form for folding, for f at the points x and `columns`."""
        block = self.blocks[0]
        operator = GradientOperator.of(process.kernel, block) if self.is_searched(process) else None
        if operator is not None:
            return Invariances.of_operator(operator, x, columns)
        if self.graph is None:
            return Invariances.of_rows(process, self.blocks, x, columns)
        root = self.graph.root
        left, right = (root @ process.covariance(block, Evaluation().atoms(each)) for each in (x, columns))
        return Invariances.of_matrices(root @ process.covariance(block) @ root.mT, left, right)

    @torch.no_grad()
    def span(self, process: Process, points: Float[Tensor, "t d"]) -> Span:
        """The combinations of k at the points, which for a graph are its own, and the penalty of the rows."""
        gram = process.covariance(Evaluation().atoms(points))
        if self.graph is not None:
            return Span.of_values(gram, self.graph.laplacian)
        slopes = self.blocks[0].slopes() if len(self.blocks) == 1 else None
        if slopes is not None and not slopes.is_expanded and self._unequal_weights is None:
            squares = squared_slopes(process.kernel, points, slopes)
            if squares is not None:
                return Span.of_rows(gram, squares)
        return Span.of_rows(gram, self._parts(process, points))

    def _parts(self, process: Process, points: Float[Tensor, "t d"]) -> Iterator[Float[Tensor, "_ t"]]:
        """√w cov(L g, g(points)), some rows at a time."""
        values, roots = Evaluation().atoms(points), self.weights.sqrt()[:, None]
        first = 0
        for block in self.blocks:
            inputs = len(block.points)
            each = block.num_rows // inputs
            step = max(1, ROWS_AT_ONCE // each)
            for start in range(0, inputs, step):
                part = block.rows(slice(start, start + step))
                yield roots[first : first + part.num_rows] * process.covariance(part, values)
                first += part.num_rows

    def fold(
        self,
        process: Process,
        x: Float[Tensor, "n d"],
        strengths: Sequence[float],
        points: Float[Tensor, "t d"] | None = None,
        tolerance: float = 1e-6,
    ) -> Folded:
        """k̃ of the points x for every strength, or of the `points`, x among them, with x."""
        points = x if points is None else points
        prior = process.covariance(Evaluation().atoms(points), Evaluation().atoms(x))
        inner, places = self.invariances(process, points, x), places_among(points, x)
        found = fold(prior, inner, strengths, self._unequal_weights, places, tolerance=tolerance)
        _warn_unless(found.converged)
        return found

    def coefficients(
        self, process: Process, x: Float[Tensor, "n d"], strength: float, labels: Float[Tensor, "n c"]
    ) -> Float[Tensor, "r c"]:
        """The coefficients of the blocks, from the coefficients of labels at the points x under k̃."""
        inner = self.invariances(process, x[:1], x)
        found = fold_weights(inner, labels, strength, self._unequal_weights, 1e-8, max_iterations=2000)
        _warn_unless(found.converged)
        return found.vectors if self.graph is None else self.graph.root.mT @ found.vectors

    @property
    def _unequal_weights(self) -> Tensor | None:
        return None if bool((self.weights == 1).all()) else self.weights


def laplacian_rows(
    points: Float[Tensor, "t d"], num_neighbours: int, weighting: str, is_normalized: bool
) -> InvarianceRows:
    """Smoothness over the graph of nearest neighbours: as many rows as points."""
    if weighting not in ("binary", "heat"):
        raise ValueError(f"weighting must be 'binary' or 'heat', not {weighting!r}.")
    count = num_neighbours if len(points) > 1 else 0
    graph = GraphSmoothness(points, count, "binary" if weighting == "binary" else "heat", is_normalized)
    return InvarianceRows([Evaluation().atoms(points)], torch.ones_like(points[:, 0]), graph)


def gradient_rows(x: Float[Tensor, "n d"], bandwidth: float) -> InvarianceRows:
    """All partial derivatives at all points, times the bandwidth."""
    return _counted_once([Gradient().atoms(x).scale(bandwidth)])


def spanned_rows(x: Float[Tensor, "n d"], factor: float) -> InvarianceRows:
    """Slopes along the span of x only, which are equivalent to all slopes, in at most n - 1 rows per point.

    Under a kernel of the distance, a slope across the span has no covariance with values at x, nor with
    slopes at x along the span: δ·v = 0 in S v·u - B(δ·v)(δ·u) and in S δ·v. So keeping it at zero does not
    change f, and the sum of squared slopes is the same for any orthonormal directions.
    """
    _, sizes, directions = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    directions = directions[sizes > torch.finfo(x.dtype).eps * max(x.shape) * sizes[:1]]
    if len(directions) == 0:
        directions = torch.eye(1, x.shape[-1]).to(x)
    return _counted_once([DirectionalDerivatives(directions).atoms(x).scale(factor)])


def is_isotropic(kernel: Kernel | None) -> bool:
    """Whether a kernel, None for the Gaussian one, depends only on the distance of points."""
    parts = [] if kernel is None else [part for part in kernel.modules() if isinstance(part, Kernel)]
    leaves = [] if kernel is None else [part.kernel for part in parts_of_sum(kernel)]
    return all(part.active_dims is None for part in parts) and all(
        radial_profile(leaf) is not None and leaf.lengthscale.numel() == 1 for leaf in leaves
    )


def invariance_rows(
    invariance: object,
    x: Float[Tensor, "t d"],
    bandwidth: float,
    shape: Sequence[int] | None,
    only_length_matters: bool = False,
) -> InvarianceRows | None:
    """The rows of an `invariance` argument at the points x, labelled and unlabelled; None where it is None.

    A list holds pairs (functional, inputs) or triples with weights, for rows at other inputs. If only the
    length of a gradient matters, it needs at most as many rows per point as there are other points.
    """
    if is_none(invariance):
        return None
    if only_length_matters and len(x) <= x.shape[-1]:
        if isinstance(invariance, str) and invariance == "gradient":
            return spanned_rows(x, bandwidth)
        if isinstance(invariance, Gradient) and invariance.coordinates is None:
            return spanned_rows(x, 1.0)
    if isinstance(invariance, str | Orbit):
        found = penalty_of(invariance, x, bandwidth, shape)
        if found is None:
            return None
        ones = x.new_ones(found.block.num_rows)
        return InvarianceRows([found.block], ones if found.weights is None else found.weights)
    if isinstance(invariance, Functional):
        return _counted_once([_lowered(invariance, x)])
    if not isinstance(invariance, list | tuple) or not invariance:
        raise TypeError(
            "invariance must be None, a name, a finite orbit, a functional or a list of (functional, "
            f"inputs), not {type(invariance).__name__}."
        )
    parts = [_observed(each, x) for each in invariance]
    return InvarianceRows([block for block, _ in parts], torch.cat([weights for _, weights in parts]))


def _observed(part: object, x: Tensor) -> tuple[Block, Tensor]:
    if not isinstance(part, list | tuple) or len(part) not in (2, 3) or not isinstance(part[0], Functional):
        raise ValueError("An entry of invariance is (functional, inputs) or (functional, inputs, weights).")
    inputs = check_rows(part[1], x.shape[-1], "The inputs of an invariance").to(x)
    block = _lowered(part[0], inputs)
    if len(part) == 2:
        return block, x.new_ones(block.num_rows)
    weights = torch.from_numpy(check_numbers(part[2], "The weights of an invariance", ensure_2d=False)).to(x)
    if weights.shape != (block.num_rows,) or not bool((weights > 0).all()):
        raise ValueError(
            f"{block.num_rows} rows of {type(part[0]).__name__} need as many positive weights, not shape "
            f"{tuple(weights.shape)}."
        )
    return block, weights


def _lowered(functional: Functional, x: Tensor) -> Block:
    if is_drawn(functional):
        raise ValueError(
            "An invariance of kernel machines cannot be drawn at random: freeze its orbit first."
        )
    return functional.to(x).atoms(x)


def _counted_once(blocks: list[Block]) -> InvarianceRows:
    count = sum(block.num_rows for block in blocks)
    return InvarianceRows(blocks, blocks[0].points.new_ones(count))


def _warn_unless(converged: bool) -> None:
    if not converged:
        warnings.warn(
            "The search that folds the invariances into the kernel did not converge, so they hold only in "
            "part: lower the strength, or take a wider kernel or fewer rows.",
            ConvergenceWarning,
            stacklevel=2,
        )


def median_distance(x: Float[Tensor, "n d"]) -> float:
    """The median distance of different points (among the first 2,000), or 1 if all are equal."""
    size = x.abs().max().item() or 1.0
    # squares of what is very large or small would overflow or vanish
    distances = torch.pdist(x[:PAIRED] / size)
    apart = distances[distances > 0]
    found = size * apart.median().item() if len(apart) else 1.0
    if not LEAST < found < 1 / LEAST:
        raise ValueError(
            f"The median distance of the inputs is {found:.1g}, beyond what double precision can square: use "
            "a unit in which inputs are nearer to 1."
        )
    return found


def neighbour_distance(x: Float[Tensor, "n d"], num_neighbours: int) -> float:
    """The median distance from a point (of about 2,000 that are evenly spread) to its last neighbour."""
    # about the mean, because `cdist` subtracts squares
    x, every = x - x.mean(0), -(-len(x) // PAIRED)
    size = x.abs().max().item() or 1.0
    distances = torch.cdist(x[::every] / size, x / size)
    # a point is at distance 0 of itself; copies were merged
    last = distances.kthvalue(min(num_neighbours + 1, len(x))).values.median()
    return size * last.item() or 1.0


def distinct_points(x: Float[Tensor, "n d"], unlabeled: Float[Tensor, "u d"]) -> Float[Tensor, "t d"]:
    """All distinct points in a fixed order, so that repeated points are not penalised twice."""
    return torch.unique(torch.cat([x, unlabeled]), dim=0)


@final
@dataclass(frozen=True)
class MachineTask:
    """The learning task of a kernel machine: weighted targets at labelled points x, all points, a kernel."""

    x: Float[Tensor, "n d"]
    targets: Float[Tensor, "c n"]
    weights: Float[Tensor, " n"]
    loss: Loss
    points: Float[Tensor, "t d"]
    process: Process
    rows: InvarianceRows | None
    bandwidth: float
    basis_name: str = "bias"
    invariance_loss: Loss = field(default_factory=Squared)
    functions: Functions = "all"
    _folded: dict[float, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The last folded kernels by strength, because fit and calibration need the chosen one again."""

    @property
    def basis(self) -> Float[Tensor, "n b"]:
        """The unpenalised functions at the labelled points."""
        return basis_rows([Evaluation().atoms(self.x)], self.basis_name)

    @property
    def codes(self) -> Int[Tensor, " n"]:
        """The numbers of the labels' classes."""
        return predicted_classes(self.targets)

    @property
    def has_no_label(self) -> Bool[Tensor, " t"]:
        """Which of the points are without a label."""
        found = torch.ones(len(self.points), dtype=torch.bool, device=self.points.device)
        found[self.places] = False
        return found

    @property
    def penalises_basis(self) -> bool:
        """Whether an invariance does not vanish on all unpenalised functions, as folding requires.

        Smoothness over a graph applies to the penalised part of f only, as in LapSVM.
        """
        if self.rows is None or self.rows.graph is not None:
            return False
        return bool((basis_rows(self.rows.blocks, self.basis_name).abs() > SEEN).any())

    @property
    def is_folded(self) -> bool:
        """Whether the invariances are folded into the kernel instead of being further rows."""
        return isinstance(self.invariance_loss, Squared) and not self.penalises_basis

    @property
    def is_spanned(self) -> bool:
        """Whether f is a combination of k at the points, which loses nothing with a graph of them."""
        if self.rows is None or not self.is_folded:
            return False
        is_large = self.functions == "auto" and self.rows.num_rows > MANY_ROWS
        return self.rows.graph is not None or self.functions == "points" or is_large

    @cached_property
    def span(self) -> Span:
        """The combinations of k at the points, with the penalty of the rows."""
        assert self.rows is not None
        return self.rows.span(self.process, self.points)

    @cached_property
    def places(self) -> Int[Tensor, " n"]:
        """The places of labelled points among all points."""
        return places_among(self.points, self.x)

    @property
    def cost(self) -> Cost:
        """The cost of folding the invariances, or of using them as further rows."""
        if self.rows is None:
            return Cost(0.0, 0.0)
        count, (num_points, width) = len(self.x), self.points.shape
        if self.is_spanned:
            return dense_cost(num_points, count)
        others = 0 if self.is_folded else count
        if self.rows.is_searched(self.process, others):
            # solvers of other losses take some hundred products
            return gradient_search_cost(num_points, width, count if self.is_folded else 4)
        return dense_cost(self.rows.num_rows + others, num_points)

    @torch.no_grad()
    def gram(self, strength: float) -> Float[Tensor, "n n"]:
        """The kernel of the labelled points with the invariances folded in."""
        if self.rows is not None and strength > 0:
            return self.grams([strength])[0]
        return self.process.covariance(Evaluation().atoms(self.x))

    @torch.no_grad()
    def grams(self, strengths: Sequence[float]) -> Float[Tensor, "q n n"]:
        """The kernels of the labelled points for every strength."""
        if self.is_spanned:
            plain = self.process.covariance(Evaluation().atoms(self.x))
            return torch.stack(
                [self.span.fold(each, self.places, False) if each > 0 else plain for each in strengths]
            )
        return self.labelled_part(self.cross_grams(strengths), strengths)

    @torch.no_grad()
    def cross_grams(self, strengths: Sequence[float]) -> list[Float[Tensor, "t n"]]:
        """The kernels of all points with the labelled ones, the invariances folded in, for every strength."""
        asked = [each for each in strengths if self.rows is not None and each > 0]
        if self.is_spanned:
            kernels = {each: self.span.fold(each, self.places) for each in asked}
        else:
            kernels = self._folded_kernels(asked)
        if len(asked) < len(strengths):
            points, x = (Evaluation().atoms(each) for each in (self.points, self.x))
            plain = self.process.covariance(points, x)
            kernels |= {each: plain for each in strengths if each not in kernels}
        return [kernels[each] for each in strengths]

    def _folded_kernels(self, strengths: Sequence[float]) -> dict[float, Float[Tensor, "t n"]]:
        folded = self._folded
        if self.rows is not None and not set(strengths) <= folded.keys():
            folded.clear()
            found = self.rows.fold(self.process, self.x, strengths, self.points).matrices
            if found.numel() > NUMBERS_KEPT:
                folded = {}
            folded.update(zip(strengths, found, strict=True))
        return {each: folded[each] for each in strengths}

    def labelled_part(
        self, kernels: Sequence[Float[Tensor, "t n"]], strengths: Sequence[float]
    ) -> Float[Tensor, "q n n"]:
        """The rows of labelled points in folded kernels of all points."""
        found = torch.stack([each[self.places] for each in kernels])
        is_folded = [self.rows is not None and each > 0 for each in strengths]
        # an unfinished search may leave negative eigenvalues
        found[is_folded] = nearest_positive(found[is_folded])
        return found

    def thinned(self, most: int) -> MachineTask:
        """The task with at most about so many labels, spread evenly over each class; all points stay."""
        if len(self.x) <= most:
            return self
        kept = torch.zeros_like(self.codes, dtype=torch.bool)
        for code in self.codes.unique():
            places = (self.codes == code).nonzero()[:, 0]
            count = max(2, round(most * len(places) / len(self.codes)))
            kept[places[torch.linspace(0, len(places) - 1, min(count, len(places))).round().long()]] = True
        thinned = replace(self, x=self.x[kept], targets=self.targets[:, kept], weights=self.weights[kept])
        if self.is_spanned:
            # the same points, and the same penalty
            vars(thinned)["span"] = self.span
        return thinned

    def fit(
        self,
        rate: float,
        strength: float,
        solver: str = "auto",
        generator: torch.Generator | None = None,
        tolerance: float = TOLERANCE,
    ) -> tuple[Machine, list[Solution]]:
        """The machine with one output per row of targets, or with one multinomial loss for all."""
        rows = self.rows if strength > 0 else None
        blocks = [Evaluation().atoms(self.x), *([] if rows is None else rows.blocks)]
        if rows is None or self.is_folded:
            gram, extra, basis = DenseGram(self.gram(strength)), [], self.basis
        else:
            gram, basis = gram_of(self.process, blocks), basis_rows(blocks, self.basis_name)
            extra = [Term(self.invariance_loss, torch.zeros_like(rows.weights), strength * rows.weights)]
        # one output after the other: numbers of Newton steps differ, and this saves memory
        solutions = [
            solve(problem, solver, tolerance, generator)
            for problem in self._problems(gram, rate * self.weights, extra, basis)
        ]
        coefficients = torch.stack([found.coefficients for found in solutions], -1)
        beta = torch.stack([found.beta for found in solutions], -1)
        if isinstance(self.loss, Multinomial):
            coefficients, beta = (
                each[:, 0].unflatten(0, (-1, self.loss.num_classes)) for each in (coefficients, beta)
            )
        if rows is not None and self.is_spanned:
            blocks = [Evaluation().atoms(self.points)]
            coefficients = self.span.coefficients(strength, self.places, coefficients)
        elif rows is not None and self.is_folded:
            more = rows.coefficients(self.process, self.x, strength, coefficients)
            coefficients = torch.cat([coefficients, more])
        return Machine(self.process, blocks, coefficients, beta, self.basis_name), solutions

    def _problems(
        self, gram: DenseGram | ProductGram, weights: Tensor, extra: list[Term], basis: Tensor
    ) -> list[Problem]:
        if not isinstance(self.loss, Multinomial):
            return [Problem(gram, [Term(self.loss, each, weights), *extra], basis) for each in self.targets]
        count = self.loss.num_classes
        terms = [Term(self.loss, self.targets.T.flatten(), weights.repeat_interleave(count))]
        terms += [
            Term(each.loss, each.targets.repeat_interleave(count), each.weights.repeat_interleave(count))
            for each in extra
        ]
        return [Problem(CopiedGram(gram, count), terms, torch.kron(basis, torch.eye(count).to(basis)))]
