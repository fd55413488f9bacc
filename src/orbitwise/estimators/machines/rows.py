"""What kernel machines should not care about, as rows: functionals of f that a loss keeps small.

Smoothness over the graph of neighbours is one of them: fᵀLf = |R f|² with RᵀR = L.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from orbitwise.estimators.invariances import is_none, penalty_of
from orbitwise.estimators.validation import check_numbers, check_rows
from orbitwise.functionals.averages import is_drawn
from orbitwise.functionals.derivatives import DirectionalDerivatives, Gradient
from orbitwise.functionals.functional import Block, Functional
from orbitwise.functionals.gradients import Gradients
from orbitwise.functionals.graphs import Weighting, neighbour_graph
from orbitwise.functionals.points import Evaluation
from orbitwise.inference.risk.machines import (
    LARGEST_DENSE,
    Folded,
    Invariances,
    fold,
    fold_weights,
    has_products,
    leaf_kernels,
    places_among,
)
from orbitwise.orbits.orbit import Orbit
from orbitwise.process.gradient_products import GradientOperator
from orbitwise.process.process import Process
from orbitwise.process.profiles import radial_profile


@final
@dataclass(frozen=True)
class GraphSmoothness:
    """The penalty fᵀLf of values at all points, L the Laplacian of their graph of nearest neighbours."""

    points: Float[Tensor, "t d"]
    num_neighbours: int
    weighting: Weighting
    is_normalized: bool

    @cached_property
    def root(self) -> Float[Tensor, "t t"]:
        """R with RᵀR = L, from the eigenvalues and eigenvectors of L."""
        if self.num_neighbours == 0:
            return torch.zeros(len(self.points), len(self.points)).to(self.points)
        count = min(self.num_neighbours, len(self.points) - 1)
        laplacian = neighbour_graph(self.points, count, self.weighting).laplacian().to_dense()
        if self.is_normalized:
            degree = laplacian.diagonal().clamp_min(1e-300).rsqrt()
            laplacian = degree[:, None] * laplacian * degree
        values, vectors = torch.linalg.eigh(laplacian)
        return values.clamp_min(0).sqrt()[:, None] * vectors.mT


@final
@dataclass(frozen=True)
class InvarianceRows:
    """Blocks of functionals, and the weight of each row's loss in units of the strength ν.

    With a `graph` the rows are R f, f the values at its points, which are the only block. L is decomposed
    when R is first needed.
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
        is_single = len(self.blocks) == 1 and isinstance(self.blocks[0], Gradients)
        return self.num_rows + others > LARGEST_DENSE and is_single and has_products(process.kernel)

    def invariances(
        self, process: Process, x: Float[Tensor, "n d"], columns: Float[Tensor, "m d"]
    ) -> Invariances:
        """What folding needs to know of the rows, for f at the points x and `columns`."""
        block = self.blocks[0]
        if isinstance(block, Gradients) and self.is_searched(process):
            return Invariances.of_operator(GradientOperator(process.kernel, block), x, columns)
        if self.graph is None:
            return Invariances.of_rows(process, self.blocks, x, columns)
        root = self.graph.root
        left, right = (root @ process.covariance(block, Evaluation().atoms(each)) for each in (x, columns))
        return Invariances.of_matrices(root @ process.covariance(block) @ root.mT, left, right)

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
        """Those of the blocks, given the coefficients of labels at the points x under k̃."""
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
    """Slopes along the span of x alone: as good as all of them, in at most n - 1 rows per point.

    Under a kernel of the distance, a slope across the span has no covariance with values at x, nor with
    slopes at x along the span: δ·v = 0 in S v·u - B(δ·v)(δ·u) and in S δ·v. So f does not change by keeping
    it at zero, and the squares of slopes have the same sum in any orthonormal directions.
    """
    _, sizes, directions = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    directions = directions[sizes > torch.finfo(x.dtype).eps * max(x.shape) * sizes[:1]]
    if len(directions) == 0:
        directions = torch.eye(1, x.shape[-1]).to(x)
    return _counted_once([DirectionalDerivatives(directions).atoms(x).scale(factor)])


def is_isotropic(kernel: Kernel | None) -> bool:
    """Whether a kernel, None for the Gaussian one, depends on the distance of points alone."""
    parts = [] if kernel is None else [part for part in kernel.modules() if isinstance(part, Kernel)]
    leaves = [] if kernel is None else leaf_kernels(kernel)
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

    A list holds pairs (functional, inputs) or triples with weights, for rows at other inputs. Where only the
    length of a gradient matters, however the axes are turned, a gradient needs no more rows per point than
    there are other points.
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
            f"{block.num_rows} rows of {type(part[0]).__name__} take as many positive weights, not shape "
            f"{tuple(weights.shape)}."
        )
    return block, weights


def _lowered(functional: Functional, x: Tensor) -> Block:
    if is_drawn(functional):
        raise ValueError(
            "An invariance of kernel machines cannot be drawn afresh at every step: freeze its orbit first."
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
