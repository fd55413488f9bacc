"""The machine behind the kernel estimators: points, kernel, invariances, and the fit of one or many outputs.

A squared loss of the invariances folds them into the kernel, so that labels, classes, folds and strengths
cost an ordinary machine. Any other loss makes rows of them beside the labels, and so does a basis that they
see, such as linear functions whose slopes should be small.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from gpytorch.kernels import Kernel, RBFKernel
from jaxtyping import Bool, Float
from torch import Tensor

from orbitwise.estimators.machine_rows import InvarianceRows, LaplacianRows
from orbitwise.functionals.points import Evaluation
from orbitwise.inference.optimise.cost import Cost, dense_cost, gradient_search_cost
from orbitwise.inference.risk.folding import nearest_positive, places_among
from orbitwise.inference.risk.problem import (
    LARGEST_DENSE,
    CopiedGram,
    DenseGram,
    Machine,
    Problem,
    Solution,
    Term,
    basis_rows,
    gram_of,
)
from orbitwise.inference.risk.solvers import solve
from orbitwise.losses import Loss, Multinomial, Squared
from orbitwise.process.gradient_products import has_products
from orbitwise.process.process import Process

BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""To choose from, times the median distance."""
SEEN = 1e-9
"""What an invariance may make of a basis function before it counts as seen: rounding."""
NUMBERS_KEPT = 2**25
"""Of folded kernels that are kept: 256 MiB."""
LEAST = 1e-75
"""Of bandwidths, whose fourth powers divide second derivatives."""
PAIRED = 2000
"""Points among which the median distance is looked for."""


def median_distance(x: Float[Tensor, "n d"]) -> float:
    """The median distance of different points (of the first 2,000); 1 where all are the same."""
    size = x.abs().max().item() or 1.0
    # squares of what is very large or small are none
    distances = torch.pdist(x[:PAIRED] / size)
    apart = distances[distances > 0]
    found = size * apart.median().item() if len(apart) else 1.0
    if not LEAST < found < 1 / LEAST:
        raise ValueError(
            f"The median distance of the inputs is {found:.1g}, beyond what double precision can square: use "
            "a unit in which inputs are nearer to 1."
        )
    return found


def distinct_points(x: Float[Tensor, "n d"], unlabeled: Float[Tensor, "u d"]) -> Float[Tensor, "t d"]:
    """All points once, in a fixed order: where f should not change does not count twice."""
    return torch.unique(torch.cat([x, unlabeled]), dim=0)


@final
@dataclass(frozen=True)
class Ground:
    """What a kernel machine is fitted from: labelled points, all points, process and invariance rows."""

    x: Float[Tensor, "n d"]
    points: Float[Tensor, "t d"]
    process: Process
    rows: InvarianceRows | LaplacianRows | None
    bandwidth: float
    basis_name: str
    _folded: dict[float, Tensor] = field(default_factory=dict, repr=False, compare=False)
    """The kernels folded last, by strength: the fit and its calibration ask for those of the choice again."""

    @classmethod
    def of(cls, estimator: Any, x: Tensor, unlabeled: Tensor, bandwidth: float | None = None) -> Ground:
        """That of an estimator's arguments; `bandwidth` goes before its own."""
        points = distinct_points(x, unlabeled)
        asked = estimator.bandwidth if bandwidth is None else bandwidth
        width = median_distance(points) if asked == "median" else float(asked)
        process = Process(None, _kernel(estimator.kernel, width)).to(x)
        rows = estimator._rows(points, width)
        if rows is not None:
            # a kernel without derivatives says so here
            process.covariance(rows.blocks[0].rows(slice(0, 1)))
        return cls(x, points, process, rows, width, estimator.basis)

    def alternatives(self, estimator: Any, unlabeled: Tensor) -> list[Ground]:
        """Grounds of several bandwidths where it is free to choose, else this one."""
        if estimator.kernel is not None or estimator.bandwidth != "median":
            return [self]
        return [Ground.of(estimator, self.x, unlabeled, factor * self.bandwidth) for factor in BANDWIDTHS]

    @property
    def basis(self) -> Float[Tensor, "n b"]:
        """The unpenalised functions at the labelled points."""
        return basis_rows([Evaluation().atoms(self.x)], self.basis_name)

    @property
    def has_no_label(self) -> Bool[Tensor, " t"]:
        """Which of the points are without a label."""
        found = torch.ones(len(self.points), dtype=torch.bool, device=self.points.device)
        found[places_among(self.points, self.x)] = False
        return found

    @property
    def basis_everywhere(self) -> Float[Tensor, "t b"]:
        """The unpenalised functions at all points."""
        return basis_rows([Evaluation().atoms(self.points)], self.basis_name)

    @property
    def is_basis_seen(self) -> bool:
        """Whether an invariance is not zero for all unpenalised functions, which folding takes for granted.

        Smoothness over a graph is asked of the penalised part of f alone, as LapSVM does.
        """
        if not isinstance(self.rows, InvarianceRows):
            return False
        seen = basis_rows(self.rows.blocks, self.basis_name)
        return bool((seen.abs() > SEEN).any())

    def cost(self, invariance_loss: Loss) -> Cost:
        """Of folding the invariances, or of the rows that they make beside the labels."""
        if self.rows is None:
            return Cost(0.0, 0.0)
        count, (num_points, width) = len(self.x), self.points.shape
        is_folded = isinstance(invariance_loss, Squared) and not self.is_basis_seen
        num_rows = len(self.rows.weights) + (0 if is_folded else count)
        is_searched = len(self.rows.blocks) == 1 and not self.rows.blocks[0].is_expanded
        if num_rows > LARGEST_DENSE and is_searched and has_products(self.process.kernel):
            # solvers of other losses take some hundred products
            return gradient_search_cost(num_points, width, count if is_folded else 4)
        # a graph is decomposed before it is folded
        return dense_cost(num_rows, num_points).times(2 if isinstance(self.rows, LaplacianRows) else 1)

    @torch.no_grad()
    def without_invariances(self) -> Float[Tensor, "n n"]:
        """The kernel of the labelled points."""
        return self.process.covariance(Evaluation().atoms(self.x))

    @torch.no_grad()
    def everywhere(self, strengths: Sequence[float]) -> list[Float[Tensor, "t n"]]:
        """The kernel of all points with the labelled ones, its invariances folded in, for every strength."""
        asked = [each for each in strengths if self.rows is not None and each > 0]
        folded = self._folded
        if self.rows is not None and not set(asked) <= folded.keys():
            folded.clear()
            found = self.rows.fold(self.process, self.x, asked, self.points).matrices
            if found.numel() > NUMBERS_KEPT:
                folded = {}
            folded.update(zip(asked, found, strict=True))
        kernels = {each: folded[each] for each in asked}
        if len(asked) < len(strengths):
            points, x = (Evaluation().atoms(each) for each in (self.points, self.x))
            plain = self.process.covariance(points, x)
            kernels |= {each: plain for each in strengths if each not in kernels}
        return [kernels[each] for each in strengths]

    def grams(self, strengths: Sequence[float]) -> Float[Tensor, "q n n"]:
        """That kernel of the labelled points alone."""
        return self.among_labelled(self.everywhere(strengths), strengths)

    def among_labelled(
        self, kernels: Sequence[Float[Tensor, "t n"]], strengths: Sequence[float]
    ) -> Float[Tensor, "q n n"]:
        """The rows of the labelled points in kernels of all points, folded with these strengths."""
        places = places_among(self.points, self.x)
        found = torch.stack([each[places] for each in kernels])
        is_folded = [self.rows is not None and each > 0 for each in strengths]
        # an unfinished search may leave negative eigenvalues
        found[is_folded] = nearest_positive(found[is_folded])
        return found

    def fit(
        self,
        loss: Loss,
        targets: Float[Tensor, "c n"],
        weights: Float[Tensor, " n"],
        rate: float,
        strength: float,
        invariance_loss: Loss,
        solver: str,
        tolerance: float,
        generator: torch.Generator | None = None,
    ) -> tuple[Machine, list[Solution]]:
        """The machine of one output for every row of targets, or of one multinomial loss for all."""
        labels = Evaluation().atoms(self.x)
        is_squared = isinstance(invariance_loss, Squared) and not self.is_basis_seen
        is_folded = self.rows is None or strength == 0 or is_squared
        rows = [labels] if self.rows is None or strength == 0 else [labels, *self.rows.blocks]
        if is_folded:
            gram = DenseGram(self.grams([strength])[0] if len(rows) > 1 else self.without_invariances())
            extra = []
        else:
            assert self.rows is not None
            gram = gram_of(self.process, rows)
            zeros = torch.zeros_like(self.rows.weights)
            extra = [Term(invariance_loss, zeros, strength * self.rows.weights)]
        basis = self.basis if is_folded else basis_rows(rows, self.basis_name)
        solutions = _solutions(
            gram, loss, targets, rate * weights, extra, basis, solver, tolerance, generator
        )
        coefficients = torch.stack([found.coefficients for found in solutions], -1)
        beta = torch.stack([found.beta for found in solutions], -1)
        if isinstance(loss, Multinomial):
            coefficients = coefficients[:, 0].unflatten(0, (-1, loss.num_classes))
            beta = beta[:, 0].unflatten(0, (-1, loss.num_classes))
        if is_folded and len(rows) > 1:
            assert self.rows is not None
            more = self.rows.coefficients(self.process, self.x, strength, coefficients)
            coefficients = torch.cat([coefficients, more])
        return Machine(self.process, rows, coefficients, beta, self.basis_name), solutions


def _solutions(
    gram: Any,
    loss: Loss,
    targets: Tensor,
    weights: Tensor,
    extra: list[Term],
    basis: Tensor,
    solver: str,
    tolerance: float,
    generator: torch.Generator | None,
) -> list[Solution]:
    if isinstance(loss, Multinomial):
        count = loss.num_classes
        terms = [Term(loss, targets.T.flatten(), weights.repeat_interleave(count))]
        terms += [
            Term(each.loss, each.targets.repeat_interleave(count), each.weights.repeat_interleave(count))
            for each in extra
        ]
        copies = torch.kron(basis, torch.eye(count).to(basis))
        problem = Problem(CopiedGram(gram, count), terms, copies)
        return [solve(problem, solver, None, tolerance, generator)]
    # one output after the other: their Newton steps differ in number, and memory stays that of one
    return [
        solve(Problem(gram, [Term(loss, each, weights), *extra], basis), solver, None, tolerance, generator)
        for each in targets
    ]


def _kernel(kernel: Kernel | None, bandwidth: float) -> Kernel:
    if kernel is not None:
        return copy.deepcopy(kernel).double()
    chosen = RBFKernel().double()
    chosen.lengthscale = torch.tensor(bandwidth, dtype=torch.float64)
    return chosen
