"""What kernel machines should not care about, as rows: functionals of f that a loss keeps small.

Smoothness over the graph of neighbours is one: fᵀLf = |R f|² with RᵀR = L.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast, final

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel
from jaxtyping import Float
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from orbitwise.estimators.invariances import is_none, penalty_of
from orbitwise.estimators.validation import check_numbers, check_rows
from orbitwise.functionals.averages import is_drawn
from orbitwise.functionals.derivatives import DirectionalDerivatives, Gradient
from orbitwise.functionals.functional import Block, Functional
from orbitwise.functionals.graphs import Weighting, neighbour_graph
from orbitwise.functionals.points import Evaluation
from orbitwise.inference.risk.folding import Folded, Invariances, fold, fold_weights, places_among
from orbitwise.inference.risk.problem import LARGEST_DENSE
from orbitwise.losses import Squared, loss_of
from orbitwise.orbits.orbit import Orbit
from orbitwise.process.gradient_products import GradientOperator
from orbitwise.process.process import Process
from orbitwise.process.profiles import radial_profile


@final
@dataclass(frozen=True)
class LaplacianRows:
    """The penalty ν fᵀLf of values at all points, as rows R f with RᵀR = L: as many rows as points."""

    points: Float[Tensor, "t d"]
    num_neighbours: int
    weighting: Weighting
    is_normalized: bool

    @classmethod
    def of(cls, points: Tensor, num_neighbours: int, weighting: str, is_normalized: bool) -> LaplacianRows:
        """Those of a graph of nearest neighbours, which is decomposed when its root is first needed."""
        if weighting not in ("binary", "heat"):
            raise ValueError(f"weighting must be 'binary' or 'heat', not {weighting!r}.")
        count = num_neighbours if len(points) > 1 else 0
        return cls(points, count, cast(Weighting, weighting), is_normalized)

    @cached_property
    def root(self) -> Float[Tensor, "t t"]:
        """R, from the eigenvalues and eigenvectors of L."""
        if self.num_neighbours == 0:
            return torch.zeros(len(self.points), len(self.points)).to(self.points)
        count = min(self.num_neighbours, len(self.points) - 1)
        laplacian = neighbour_graph(self.points, count, self.weighting).laplacian().to_dense()
        if self.is_normalized:
            degree = laplacian.diagonal().clamp_min(1e-300).rsqrt()
            laplacian = degree[:, None] * laplacian * degree
        values, vectors = torch.linalg.eigh(laplacian)
        return values.clamp_min(0).sqrt()[:, None] * vectors.mT

    @property
    def blocks(self) -> list[Block]:
        """f is a combination of kernels at all points."""
        return [Evaluation().atoms(self.points)]

    @property
    def weights(self) -> Float[Tensor, " t"]:
        """All rows count once."""
        return torch.ones_like(self.points[:, 0])

    def invariances(self, process: Process, x: Tensor, columns: Tensor) -> Invariances:
        """What folding needs to know of the rows."""
        own = Evaluation().atoms(self.points)
        gram = self.root @ process.covariance(own) @ self.root.mT
        left, right = (self.root @ process.covariance(own, Evaluation().atoms(each)) for each in (x, columns))
        return Invariances(
            len(gram), lambda v: (gram @ v, left.mT @ v), lambda part: right[:, part], lambda: gram
        )

    def fold(
        self,
        process: Process,
        x: Float[Tensor, "n d"],
        strengths: Sequence[float],
        points: Float[Tensor, "t d"] | None = None,
    ) -> Folded:
        """k̃ of the points x for every strength, or of the `points`, x among them, with x."""
        points = x if points is None else points
        prior = process.covariance(Evaluation().atoms(points), Evaluation().atoms(x))
        inner, places = self.invariances(process, points, x), places_among(points, x)
        return fold(prior, inner, strengths, positions=places)

    def coefficients(
        self, process: Process, x: Tensor, strength: float, labels: Float[Tensor, "n c"]
    ) -> Float[Tensor, "t c"]:
        """Those of kernels at all points, given the coefficients of labels at the points x under k̃."""
        found = fold_weights(self.invariances(process, x, x), labels, strength)
        return self.root.mT @ found.vectors


@final
@dataclass(frozen=True)
class InvarianceRows:
    """Blocks of functionals, and how much each row counts beside the strength ν."""

    blocks: list[Block]
    weights: Float[Tensor, " r"]

    @property
    def num_rows(self) -> int:
        """r."""
        return len(self.weights)

    def invariances(self, process: Process, x: Tensor, columns: Tensor) -> Invariances:
        """What folding needs to know of the rows, for f at the points x and `columns`."""
        is_large = self.num_rows > LARGEST_DENSE and len(self.blocks) == 1
        if is_large and (operator := GradientOperator.of(process.kernel, self.blocks[0])) is not None:
            return Invariances.of_operator(operator, x, columns)
        return Invariances.of_rows(process, self.blocks, x, columns)

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
        found = fold(prior, inner, strengths, self._counts, places, tolerance=tolerance)
        _warn_unless(found.converged)
        return found

    def coefficients(
        self, process: Process, x: Tensor, strength: float, labels: Float[Tensor, "n c"]
    ) -> Float[Tensor, "r c"]:
        """Those of the rows, given the coefficients of labels at the points x under k̃."""
        found = fold_weights(
            self.invariances(process, x[:1], x), labels, strength, self._counts, 1e-8, max_iterations=2000
        )
        _warn_unless(found.converged)
        return found.vectors

    @property
    def _counts(self) -> Tensor | None:
        return None if bool((self.weights == 1).all()) else self.weights


def gradient_rows(x: Float[Tensor, "n d"], bandwidth: float) -> InvarianceRows:
    """All partial derivatives at all points, times the bandwidth."""
    return _counted_once([Gradient().atoms(x).scale(bandwidth)])


def span(x: Float[Tensor, "n d"]) -> Float[Tensor, "k d"]:
    """Orthonormal directions in which the points x differ."""
    centred = x - x.mean(0)
    _, sizes, directions = torch.linalg.svd(centred, full_matrices=False)
    rounding = torch.finfo(x.dtype).eps * max(x.shape) * sizes[:1]
    return directions[sizes > rounding]


def spanned_rows(x: Float[Tensor, "n d"], factor: float) -> InvarianceRows:
    """Slopes in the directions of the span of x alone: as good as all of them, in n - 1 rows a point at most.

    Under a kernel of the distance, a slope across the span has no covariance with values at x, nor with
    slopes at x along the span: δ·v = 0 in S v·u - B(δ·v)(δ·u) and in S δ·v. So f does not change by keeping
    it at zero, and squares of slopes add up to the same in any orthonormal directions.
    """
    directions = span(x)
    if len(directions) == 0:
        directions = torch.eye(1, x.shape[-1]).to(x)
    return _counted_once([DirectionalDerivatives(directions).atoms(x).scale(factor)])


def may_turn(estimator: Any) -> bool:
    """Whether an estimator's penalty of all slopes is one of their length, however the axes are turned."""
    is_squared = isinstance(loss_of(estimator.invariance_loss), Squared)
    return is_squared and estimator.basis != "linear" and _is_isotropic(estimator.kernel)


def _is_isotropic(kernel: Kernel | None) -> bool:
    if kernel is None:
        return True
    if type(kernel) is ScaleKernel and kernel.active_dims is None:
        return _is_isotropic(kernel.base_kernel)
    if type(kernel) is AdditiveKernel and kernel.active_dims is None:
        return all(_is_isotropic(part) for part in kernel.kernels)  # pyright: ignore
    known = radial_profile(kernel) is not None and kernel.active_dims is None
    return known and kernel.lengthscale.numel() == 1


def invariance_rows(
    invariance: Any, x: Tensor, bandwidth: float, shape: Sequence[int] | None, turns: bool = False
) -> InvarianceRows | None:
    """The rows of an `invariance` argument at the points x, labelled and unlabelled; None where it is None.

    A list holds pairs (functional, inputs) or triples with weights, for rows at other inputs. Where `turns`
    says that only the length of a gradient counts, more features than points cost no more than points.
    """
    if is_none(invariance):
        return None
    if turns and len(x) <= x.shape[-1]:
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


def _observed(part: Any, x: Tensor) -> tuple[Block, Tensor]:
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
            "The search that folds the invariances into the kernel did not converge, so that they count only "
            "in part: lower the strength, or take a wider kernel or fewer rows.",
            ConvergenceWarning,
            stacklevel=2,
        )
