"""The regularised risk ½|f|² + Σ_i w_i ℓ_i(L_i f + b_iᵀβ, y_i) over an RKHS, and Newton's method for it.

A problem consists of a Gram matrix of its rows, dense or known only through products, of losses, weights and
an unpenalised basis (METHOD 8, RKHS eq. 2). Newton's method needs dense Gram matrices and solves a batch of
problems at once: folds, classes, a grid of λ and ν.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from orbitwise.inference.linear_algebra import cholesky, solve_factored
from orbitwise.losses import Loss, Multinomial

Vector = Float[Tensor, "*batch m"]
RIDGE = 1e-6
"""The least curvature of the risk along β, relative to the sum of the weights, so that flat losses do not let
β run away."""
BETA_STEPS = 50
SEARCHES = 40
FLATNESS = 0.1
"""A line search ends when the slope has fallen to this fraction of its initial value."""
LOOSE, LOOSE_ITERATIONS = 1e-2, 20
"""Tolerance and iterations of the lighter problems on the way to a heavy one."""
STALLED = 4
"""Newton's method ends after this many iterations without progress beyond rounding."""


@final
@dataclass(frozen=True)
class DenseGram:
    """A dense Gram matrix, or a batch of them."""

    matrix: Float[Tensor, "*batch m m"]

    @property
    def num_rows(self) -> int:
        """m."""
        return self.matrix.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        """Of a batch of problems."""
        return self.matrix.shape[:-2]

    def product(self, vectors: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m"]:
        """Gα."""
        if self.matrix.dim() == 2:
            return vectors @ self.matrix
        return (self.matrix @ vectors[..., None])[..., 0]

    def columns(self, index: Int[Tensor, " k"]) -> Float[Tensor, "*batch m k"]:
        """Some columns."""
        return self.matrix[..., index]

    def diagonal(self) -> Float[Tensor, "*batch m"]:
        """|z_i|² of every row."""
        return self.matrix.diagonal(dim1=-2, dim2=-1)


@final
@dataclass(frozen=True)
class ProductGram:
    """A Gram matrix given by its products with vectors [m, c], its columns and its diagonal [m]."""

    multiply: Callable[[Tensor], Tensor]
    pick: Callable[[Tensor], Tensor]
    norms: Float[Tensor, " m"]
    batch_shape: torch.Size = torch.Size()  # noqa: RUF009

    @property
    def num_rows(self) -> int:
        """m."""
        return len(self.norms)

    def product(self, vectors: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m"]:
        """Gα."""
        flat = vectors.reshape(-1, self.num_rows)
        return self.multiply(flat.mT).mT.reshape(vectors.shape)

    def columns(self, index: Int[Tensor, " k"]) -> Float[Tensor, "m k"]:
        """Some columns."""
        return self.pick(index)

    def diagonal(self) -> Float[Tensor, " m"]:
        """|z_i|² of every row."""
        return self.norms


@final
@dataclass(frozen=True)
class CopiedGram:
    """G ⊗ I: every row of a Gram matrix once for each of c functions, in adjacent entries."""

    single: DenseGram | ProductGram
    num_copies: int

    @property
    def num_rows(self) -> int:
        """m·c."""
        return self.single.num_rows * self.num_copies

    @property
    def batch_shape(self) -> torch.Size:
        """Of a batch of problems."""
        return self.single.batch_shape

    def product(self, vectors: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m"]:
        """(G ⊗ I)α."""
        split = vectors.unflatten(-1, (-1, self.num_copies)).movedim(-1, 0)
        return torch.stack([self.single.product(each) for each in split], -1).flatten(-2)

    def columns(self, index: Int[Tensor, " k"]) -> Float[Tensor, "*batch m k"]:
        """Some columns."""
        single = self.single.columns(index // self.num_copies)
        places = torch.nn.functional.one_hot(index % self.num_copies, self.num_copies).to(single)
        return (single[..., :, None, :] * places.mT).flatten(-3, -2)

    def diagonal(self) -> Float[Tensor, "*batch m"]:
        """|z_i|² of every row."""
        return self.single.diagonal().repeat_interleave(self.num_copies, -1)


Gram = DenseGram | ProductGram | CopiedGram


@final
@dataclass(frozen=True)
class Term:
    """Rows with the same loss: their targets, and the factor of each row's loss (λ or ν times its weight)."""

    loss: Loss
    targets: Float[Tensor, "*#batch r"]
    weights: Float[Tensor, "*#batch r"]

    @property
    def num_rows(self) -> int:
        """r."""
        return self.targets.shape[-1]


@final
@dataclass(frozen=True)
class Solution:
    """The result of a solver: α, β, the values Gα + Bβ, and a bound on the distance from the optimum.

    With optimal β the risk is strongly convex in f, so `gap` = ½|gradient|² in the norm of the RKHS bounds
    its distance from the least risk. `history` holds the risk after every iteration.
    """

    coefficients: Vector
    beta: Float[Tensor, "*batch b"]
    values: Vector
    objective: Float[Tensor, "*batch"]
    gap: Float[Tensor, "*batch"]
    iterations: int
    products: int
    converged: bool
    history: list[float]


class Iterate(NamedTuple):
    """A function f = Σ_i α_i z_i + Σ_j β_j b_j, or a step between two: α, the images Gα, and β."""

    coefficients: Vector
    images: Vector
    beta: Float[Tensor, "*batch b"]

    def moved(self, step: Iterate, size: Float[Tensor, "*batch"]) -> Iterate:
        """f + size · step."""
        return Iterate(*(part + size[..., None] * move for part, move in zip(self, step, strict=True)))


@final
class Problem:
    """A Gram matrix (or its products), the terms in the order of its rows, and the basis at the rows."""

    def __init__(self, gram: Gram, terms: Sequence[Term], basis: Float[Tensor, "m b"] | None = None) -> None:
        self.gram = gram
        self.terms = list(terms)
        count = sum(term.num_rows for term in terms)
        if count != gram.num_rows:
            raise ValueError(
                f"The terms have {count} rows together, but the Gram matrix has {gram.num_rows}."
            )
        example = self.terms[0].targets
        self.basis = example.new_zeros(count, 0) if basis is None else basis
        shapes = [each.shape[:-1] for term in self.terms for each in (term.targets, term.weights)]
        self.batch_shape = torch.broadcast_shapes(gram.batch_shape, *shapes)
        self.weights = torch.cat(
            [term.weights.expand(*self.batch_shape, term.num_rows) for term in self.terms], -1
        )
        if not bool((self.weights >= 0).all()) or not bool(self.weights.isfinite().all()):
            raise ValueError("Weights of losses must be finite and at least 0.")

    def take(
        self, index: Int[Tensor, " k"], gram: Gram, basis: Float[Tensor, "k b"] | None = None
    ) -> Problem:
        """The losses of some rows, given by sorted indices, with another Gram matrix and another basis."""
        terms, first = [], 0
        for term, weights in zip(self.terms, self._split(self.weights), strict=True):
            place = index[(index >= first) & (index < first + term.num_rows)] - first
            terms.append(Term(term.loss, term.targets[..., place], weights[..., place]))
            first += term.num_rows
        return Problem(gram, terms, basis)

    def select(self, active: Bool[Tensor, "*batch"]) -> Problem:
        """The `active` problems of a batch, in one batch dimension."""
        matrix = _matrix(self)
        if matrix.dim() > 2:
            matrix = matrix.expand(*self.batch_shape, *matrix.shape[-2:])[active]
        terms = [
            Term(term.loss, term.targets.expand(*self.batch_shape, -1)[active], weights[active])
            for term, weights in zip(self.terms, self._split(self.weights), strict=True)
        ]
        return Problem(DenseGram(matrix), terms, self.basis)

    def lightened(self, most: float) -> Problem:
        """Every problem with its weights reduced until, times the norms of rows, they are at most `most`."""
        heaviest = (self.weights * self.gram.diagonal()).amax(-1, keepdim=True)
        factor = (most / heaviest.clamp_min(1e-300)).clamp_max(1)
        terms = [Term(term.loss, term.targets, factor * term.weights) for term in self.terms]
        return Problem(self.gram, terms, self.basis)

    @property
    def is_coupled(self) -> bool:
        """Whether a loss has a second derivative that is not diagonal."""
        return any(isinstance(term.loss, Multinomial) for term in self.terms)

    def iterate(self, start: Solution | None = None) -> Iterate:
        """f = 0, or the solution of a similar problem."""
        zeros = self.weights.new_zeros(*self.batch_shape, self.gram.num_rows)
        beta = zeros.new_zeros(*self.batch_shape, self.basis.shape[-1])
        if start is None:
            return Iterate(zeros, zeros.clone(), beta)
        coefficients = start.coefficients.expand_as(zeros).clone()
        return Iterate(coefficients, self.gram.product(coefficients), start.beta.expand_as(beta).clone())

    def values(self, f: Iterate) -> Vector:
        """L_i f + b_iᵀβ of every row."""
        return f.images + f.beta @ self.basis.mT

    def risk(self, f: Iterate) -> Float[Tensor, "*batch"]:
        """½|f|² + Σ_i w_i ℓ_i."""
        return 0.5 * (f.coefficients * f.images).sum(-1) + self.loss(self.values(f))

    def loss(self, values: Vector) -> Float[Tensor, "*batch"]:
        """Σ_i w_i ℓ_i."""
        return self._weighted(values, lambda loss, f, y: loss.value(f, y)).sum(-1)

    def slope(self, values: Vector) -> Vector:
        """w_i ℓ_i′."""
        return self._weighted(values, lambda loss, f, y: loss.slope(f, y))

    def curvature(self, values: Vector) -> Vector:
        """w_i ℓ_i″."""
        return self._weighted(values, lambda loss, f, y: loss.curvature(f, y))

    def curvature_product(self, values: Vector, direction: Float[Tensor, "*#batch m"]) -> Vector:
        """Hv, with H the second derivative of the losses by the values."""
        moves = iter(self._split(direction))
        return self._weighted(values, lambda loss, f, y: loss.curvature_product(f, y, next(moves)))

    def basis_curvature(
        self, values: Vector
    ) -> tuple[Float[Tensor, "*batch m b"], Float[Tensor, "*batch b b"]]:
        """HB, and BᵀHB with a ridge."""
        columns = [self.curvature_product(values, column) for column in self.basis.mT]
        bent = torch.stack(columns, -1) if columns else self.basis
        ridge = RIDGE * self.weights.sum(-1)[..., None, None]
        return bent, self.basis.mT @ bent + ridge * torch.eye(len(columns)).to(self.basis)

    def line_search(
        self, f: Iterate, step: Iterate
    ) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """The size of the step that nearly minimises the risk, and the slope at f; needs no products."""
        values, to_values = self.values(f), self.values(step)
        linear = (step.coefficients * f.images).sum(-1)
        square = (step.coefficients * step.images).sum(-1)

        def slope(size: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
            # d/ds of ½|f + s d|² + losses
            losses = self.slope(values + size[..., None] * to_values) * to_values
            return linear + size * square + losses.sum(-1)

        low, high = torch.zeros_like(linear), torch.full_like(linear, torch.inf)
        size, first = torch.ones_like(linear), slope(low)
        is_flat = torch.zeros_like(linear, dtype=torch.bool)
        for _ in range(SEARCHES):
            there = slope(size)
            is_flat = there.abs() <= FLATNESS * first.abs()
            if bool(is_flat.all()):
                break
            low, high = torch.where(there < 0, size, low), torch.where(there < 0, high, size)
            inside = torch.where(low > 0, (low + high) / 2, high / 8)
            size = torch.where(is_flat, size, torch.where(high.isinf(), 4 * low, inside))
        # where the slope turns too abruptly to be found flat, the risk has still fallen all the way to `low`
        return torch.where(is_flat, size, low), first

    def with_best_beta(self, f: Iterate) -> Iterate:
        """f with the β of the least risk, by Newton's method."""
        if self.basis.shape[-1] == 0:
            return f
        still, loss = torch.zeros_like(f.images), self.loss(self.values(f))
        for _ in range(BETA_STEPS):
            values = self.values(f)
            slope = self.slope(values) @ self.basis
            step = Iterate(still, still, -torch.linalg.solve(self.basis_curvature(values)[1], slope))
            if bool(((slope * step.beta).sum(-1).abs() <= 1e-14 * loss.abs()).all()):
                break
            tried = f.moved(step, self.line_search(f, step)[0])
            reached = self.loss(self.values(tried))
            better = reached < loss
            if not bool(better.any()):
                break
            f = f._replace(beta=torch.where(better[..., None], tried.beta, f.beta))
            loss = torch.where(better, reached, loss)
        return f

    def certified(
        self, f: Iterate, iterations: int, products: int, tolerance: float, history: list[float]
    ) -> Solution:
        """The solution at f with optimal β, and the bound on its distance from the least risk."""
        f = self.with_best_beta(f)
        values, objective = self.values(f), self.risk(f)
        gradient = f.coefficients + self.slope(values)
        gap = 0.5 * (gradient * self.gram.product(gradient)).sum(-1).clamp_min(0)
        converged = bool((gap <= tolerance * objective.abs().clamp_min(1e-300)).all())
        return Solution(
            f.coefficients, f.beta, values, objective, gap, iterations, products + 1, converged, history
        )

    def _split(self, vector: Vector) -> tuple[Tensor, ...]:
        return torch.split(vector, [term.num_rows for term in self.terms], -1)

    def _weighted(self, values: Vector, part: Callable[[Loss, Tensor, Tensor], Tensor]) -> Vector:
        pairs = zip(self.terms, self._split(values), strict=True)
        return torch.cat([term.weights * part(term.loss, f, term.targets) for term, f in pairs], -1)


@final
class CurvedRows:
    """The system I + √W G √W of the rows whose losses have a curvature W > 0."""

    def __init__(self, matrix: Float[Tensor, "*#batch m m"], curvature: Vector) -> None:
        most = int((curvature > 0).sum(-1).amax())
        kept, self.index = curvature.topk(max(1, most), dim=-1, sorted=False)
        self.root = kept.sqrt()
        rows, columns = self.index[..., :, None], self.index[..., None, :]
        if matrix.dim() == 2:
            own = matrix[rows, columns]
        else:
            matrix = matrix.expand(*curvature.shape, matrix.shape[-1])
            own = matrix.gather(-2, rows.expand(*self.index.shape, matrix.shape[-1]))
            own = own.gather(-1, columns.expand(*self.index.shape, self.index.shape[-1]))
        system = own.mul_(self.root[..., :, None]).mul_(self.root[..., None, :])
        system.diagonal(dim1=-2, dim2=-1).add_(1)
        self.lower = cholesky(system).lower

    def inner(self, vectors: Float[Tensor, "*batch m c"]) -> Float[Tensor, "*batch m c"]:
        """√W (I + √W G √W)⁻¹ √W v."""
        index = self.index[..., None].expand(*self.index.shape, vectors.shape[-1])
        root = self.root[..., None]
        solved = root * solve_factored(self.lower, root * vectors.gather(-2, index))
        return torch.zeros_like(vectors).scatter(-2, index, solved)


@torch.no_grad()
def newton(
    problem: Problem,
    start: Solution | None = None,
    tolerance: float = 1e-10,
    max_iterations: int = 100,
) -> Solution:
    """The least risk of every problem of a batch, to a relative gap of `tolerance`.

    If weights are so large that a first step from f = 0 would be far off, problems with smaller weights are
    solved first, each with ten times the weights of the one before.
    """
    if not isinstance(problem.gram, DenseGram) or problem.is_coupled:
        raise ValueError("Newton's method needs a dense Gram matrix and a loss of single entries.")
    count = 0
    if start is None:
        heaviest = float((problem.weights * problem.gram.diagonal()).amax())
        for step in range(1, 1 + max(0, math.ceil(math.log10(max(heaviest, 1.0))))):
            start = _minimised(problem.lightened(10.0**step), start, LOOSE, LOOSE_ITERATIONS)
            count += start.iterations
    found = _minimised(problem, start, tolerance, max_iterations)
    return replace(found, iterations=found.iterations + count, products=found.products + count)


def _minimised(problem: Problem, start: Solution | None, tolerance: float, max_iterations: int) -> Solution:
    f = problem.iterate(start)
    risk = problem.risk(f)
    gain = torch.full_like(risk, torch.inf)
    history = [float(risk.sum())]
    stalled = torch.zeros_like(risk, dtype=torch.long)
    for _ in range(max_iterations):
        active = (gain > 0.1 * tolerance * risk.abs()) & (stalled < STALLED)
        if not bool(active.any()):
            break
        part, here = problem.select(active), Iterate(*(each[active] for each in f))
        step = _newton_step(part, here)
        size, slope = part.line_search(here, step)
        tried, before = part.risk(here.moved(step, size)), risk[active]
        # a full step promises to gain half of its slope
        gain[active] = -0.5 * slope
        stalled[active] = torch.where(tried < before, 0, stalled[active] + 1)
        size = torch.where(tried <= before, size, 0)
        for each, new in zip(f, here.moved(step, size), strict=True):
            each[active] = new
        risk[active] = torch.where(tried <= before, tried, before)
        history.append(float(risk.sum()))
    count = len(history) - 1
    f = f._replace(images=problem.gram.product(f.coefficients))
    return problem.certified(f, count, count, tolerance, history)


def _newton_step(problem: Problem, f: Iterate) -> Iterate:
    """Newton's step of α, Gα and β."""
    basis, values = problem.basis, problem.values(f)
    inner = CurvedRows(_matrix(problem), problem.curvature(values)).inner

    # (I + WG)δα + WBδβ = -(α + wℓ′) and Bᵀ(α + δα) = 0, in steps, which stay exact for heavy losses
    gradient = f.coefficients + problem.slope(values)
    free = inner(problem.gram.product(gradient)[..., None])[..., 0] - gradient
    coupling = inner(basis.expand(*values.shape, -1))
    normal = basis.mT @ coupling
    # where no row depends on β, a ridge keeps it from running away
    diagonal = normal.diagonal(dim1=-2, dim2=-1).sum(-1) / max(1, basis.shape[-1])
    total = problem.weights.sum(-1)
    ridge = torch.where(diagonal > 1e-12 * total, 1e-10 * diagonal, RIDGE * total)[..., None, None]
    identity = torch.eye(basis.shape[-1]).to(basis)
    to_beta = torch.linalg.solve(normal + ridge * identity, (f.coefficients + free) @ basis)
    to_alpha = free - (coupling @ to_beta[..., None])[..., 0]
    return Iterate(to_alpha, problem.gram.product(to_alpha), to_beta)


def _matrix(problem: Problem) -> Float[Tensor, "*batch m m"]:
    assert isinstance(problem.gram, DenseGram)
    return problem.gram.matrix
