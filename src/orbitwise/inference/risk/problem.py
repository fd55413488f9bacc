"""The regularised risk ½|f|² + Σ_i w_i ℓ_i(L_i f + b_iᵀβ, y_i) over an RKHS (METHOD 8, RKHS eq. 2).

Rows of labels and functionals become a Gram matrix, held whole or known by its products alone; coefficients
over them make a function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from gpytorch.kernels import AdditiveKernel, ConstantKernel, Kernel, ScaleKernel
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.declarations import Stored
from orbitwise.functionals.functional import Block, Functional
from orbitwise.functionals.gradients import Gradients
from orbitwise.losses import Loss, Multinomial
from orbitwise.process.gradient_products import GradientOperator, gradient_product
from orbitwise.process.process import Process
from orbitwise.process.profiles import dot_product_profile, radial_profile


@final
@dataclass(frozen=True)
class DenseGram:
    """A Gram matrix, or a batch of them, held whole."""

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
    """A Gram matrix known by its product with columns [m, c], its columns and its diagonal [m]."""

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
    """G ⊗ I: every row of a Gram matrix once for each of c functions, which stand side by side."""

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


Vector = Float[Tensor, "*batch m"]
RIDGE = 1e-6
"""How flat, of the weights' sum, the risk may be along β before β stops moving that way."""
BETA_STEPS = 50


@dataclass(frozen=True)
class Term:
    """Some rows with one loss: their targets, and how often each row counts (λ or ν times its weight)."""

    loss: Loss
    targets: Float[Tensor, "*#batch r"]
    weights: Float[Tensor, "*#batch r"]

    @property
    def num_rows(self) -> int:
        """r."""
        return self.targets.shape[-1]


@dataclass(frozen=True)
class Solution:
    """Where a solver stopped: α, β, the values Gα + Bβ, and how far from the optimum it can be.

    With β at its best the risk is strongly convex in f, so `gap` = ½|gradient|² in the norm of the RKHS
    bounds its distance from the least risk. `history` has the risk after every iteration.
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


@final
class Problem:
    """A Gram matrix (or its products), the terms in the order of its rows, and the basis at the rows."""

    def __init__(self, gram: Gram, terms: Sequence[Term], basis: Float[Tensor, "m b"] | None = None) -> None:
        self.gram = gram
        self.terms = list(terms)
        count = sum(term.num_rows for term in terms)
        if count != gram.num_rows:
            raise ValueError(f"The terms have {count} rows together, but the Gram matrix {gram.num_rows}.")
        example = self.terms[0].targets
        self.basis = example.new_zeros(count, 0) if basis is None else basis
        shapes = [term.targets.shape[:-1] for term in self.terms]
        shapes += [term.weights.shape[:-1] for term in self.terms]
        self.batch_shape = torch.broadcast_shapes(gram.batch_shape, *shapes)
        self.weights = torch.cat(
            [term.weights.expand(*self.batch_shape, term.num_rows) for term in self.terms], -1
        )
        if not bool((self.weights >= 0).all()) or not bool(self.weights.isfinite().all()):
            raise ValueError("Weights of losses must be finite and at least 0.")

    def take(self, index: Int[Tensor, " k"], gram: Gram) -> Problem:
        """The losses of some rows, by sorted numbers, with another Gram matrix and without a basis."""
        terms, first = [], 0
        for term in self.terms:
            last = first + term.num_rows
            place = index[(index >= first) & (index < last)] - first
            weights = term.weights.expand(*term.weights.shape[:-1], term.num_rows)
            terms.append(Term(term.loss, term.targets[..., place], weights[..., place]))
            first = last
        return Problem(gram, terms)

    def lightened(self, most: float) -> Problem:
        """Every problem with weights that are, times the norms of the rows, at most `most`."""
        heaviest = (self.weights * self.gram.diagonal()).amax(-1, keepdim=True)
        factor = (most / heaviest.clamp_min(1e-300)).clamp_max(1)
        terms = [Term(term.loss, term.targets, factor * term.weights) for term in self.terms]
        return Problem(self.gram, terms, self.basis)

    @property
    def is_coupled(self) -> bool:
        """Whether a loss has a second derivative that is not diagonal."""
        return any(isinstance(term.loss, Multinomial) for term in self.terms)

    @property
    def curvature_bounds(self) -> Vector:
        """The largest second derivative of every row's loss."""
        bounds = [term.weights * term.loss.curvature_bound for term in self.terms]
        return torch.cat([part.expand(*self.batch_shape, part.shape[-1]) for part in bounds], -1)

    def zeros(self) -> Vector:
        """f = 0."""
        return self.weights.new_zeros(*self.batch_shape, self.gram.num_rows)

    def loss(self, values: Vector) -> Float[Tensor, "*batch"]:
        """Σ_i w_i ℓ_i."""
        parts = self._parts(values)
        return sum((t.weights * t.loss.value(f, t.targets)).sum(-1) for t, f in parts)  # pyright: ignore

    def slope(self, values: Vector) -> Vector:
        """w_i ℓ_i′."""
        return torch.cat([t.weights * t.loss.slope(f, t.targets) for t, f in self._parts(values)], -1)

    def curvature(self, values: Vector) -> Vector:
        """w_i ℓ_i″."""
        return torch.cat([t.weights * t.loss.curvature(f, t.targets) for t, f in self._parts(values)], -1)

    def curvature_product(self, values: Vector, direction: Float[Tensor, "*#batch m"]) -> Vector:
        """The second derivative of the losses, by the values, times a direction."""
        parts = zip(self._parts(values), self._split(direction), strict=True)
        return torch.cat(
            [t.weights * t.loss.curvature_product(f, t.targets, move) for (t, f), move in parts], -1
        )

    def beta_rows(self, beta: Float[Tensor, "*batch b"]) -> Vector:
        """Bβ."""
        return beta @ self.basis.mT

    def best_beta(self, images: Vector, beta: Float[Tensor, "*batch b"]) -> Float[Tensor, "*batch b"]:
        """β of the least risk for an f with these values Gα, by Newton's method with halved steps."""
        if self.basis.shape[-1] == 0:
            return beta
        ridge = RIDGE * self.weights.sum(-1)[..., None, None]
        identity = torch.eye(self.basis.shape[-1], dtype=beta.dtype, device=beta.device)
        loss = self.loss(images + self.beta_rows(beta))
        for _ in range(BETA_STEPS):
            values = images + self.beta_rows(beta)
            slope = self.slope(values) @ self.basis
            columns = [self.curvature_product(values, self.basis[:, j]) for j in range(len(identity))]
            hessian = torch.stack([column @ self.basis for column in columns], -1)
            step = -torch.linalg.solve(hessian + ridge * identity, slope)
            if bool(((slope * step).sum(-1).abs() <= 1e-14 * loss.abs()).all()):
                break
            size = torch.ones_like(loss)
            for _ in range(30):
                tried = self.loss(images + self.beta_rows(beta + size[..., None] * step))
                worse = tried > loss
                if not bool(worse.any()):
                    break
                size = torch.where(worse, size / 2, size)
            better = tried < loss  # pyright: ignore
            if not bool(better.any()):
                break
            beta = torch.where(better[..., None], beta + size[..., None] * step, beta)
            loss = torch.where(better, tried, loss)  # pyright: ignore
        return beta

    def certified(
        self,
        coefficients: Vector,
        images: Vector,
        beta: Float[Tensor, "*batch b"],
        iterations: int,
        products: int,
        tolerance: float,
        history: list[float],
    ) -> Solution:
        """The solution at α with its images Gα, β at its best, and its distance from the least risk."""
        beta = self.best_beta(images, beta)
        values = images + self.beta_rows(beta)
        objective = 0.5 * (coefficients * images).sum(-1) + self.loss(values)
        gradient = coefficients + self.slope(values)
        gap = 0.5 * (gradient * self.gram.product(gradient)).sum(-1).clamp_min(0)
        converged = bool((gap <= tolerance * objective.abs().clamp_min(1e-300)).all())
        return Solution(
            coefficients, beta, values, objective, gap, iterations, products + 1, converged, history
        )

    def _split(self, vector: Vector) -> tuple[Tensor, ...]:
        return torch.split(vector, [term.num_rows for term in self.terms], -1)

    def _parts(self, values: Vector) -> list[tuple[Term, Tensor]]:
        return list(zip(self.terms, self._split(values), strict=True))


SEARCHES = 40
FLATNESS = 0.1
"""A line is searched until its slope has fallen to this part of what it was."""


def slope_at(
    problem: Problem, values: Tensor, to_values: Tensor, linear: Tensor, square: Tensor, size: Tensor
) -> Float[Tensor, "*batch"]:
    """The slope of ½|f + s d|² + losses, where ⟨f, d⟩ = linear and |d|² = square."""
    slopes = problem.slope(values + size[..., None] * to_values)
    return linear + size * square + (slopes * to_values).sum(-1)


def search(
    problem: Problem,
    values: Float[Tensor, "*batch m"],
    to_values: Float[Tensor, "*batch m"],
    linear: Float[Tensor, "*batch"],
    square: Float[Tensor, "*batch"],
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """The step of nearly the least risk, and the slope at the start. Only O(m) a trial: no kernel product."""
    first = slope_at(problem, values, to_values, linear, square, torch.zeros_like(linear))
    low, high = torch.zeros_like(linear), torch.full_like(linear, torch.inf)
    size = torch.ones_like(linear)
    is_flat = torch.zeros_like(linear, dtype=torch.bool)
    for _ in range(SEARCHES):
        there = slope_at(problem, values, to_values, linear, square, size)
        is_flat = there.abs() <= FLATNESS * first.abs()
        if bool(is_flat.all()):
            break
        low, high = torch.where(there < 0, size, low), torch.where(there < 0, high, size)
        inside = torch.where(low > 0, (low + high) / 2, high / 8)
        size = torch.where(is_flat, size, torch.where(high.isinf(), 4 * low, inside))
    # where the slope turns too abruptly to be found flat, the risk has still fallen all the way to `low`
    return torch.where(is_flat, size, low), first


BASES = ("none", "bias", "linear")
LARGEST_DENSE = 6000
"""Rows whose Gram matrix is held: 288 MiB in double precision, and decomposed in about a minute."""
ROWS_AT_ONCE = 1024


def basis_rows(rows: Sequence[Block], basis: str) -> Float[Tensor, "m b"]:
    """What each row makes of the unpenalised functions: none, the constant 1, or 1 and all coordinates."""
    if basis not in BASES:
        raise ValueError(f"basis must be one of {', '.join(BASES)}, not {basis!r}.")
    return torch.cat([_block_basis(block, basis) for block in rows])


def _block_basis(block: Block, basis: str) -> Tensor:
    if isinstance(block, Gradients):
        constant = block.points.new_zeros(block.num_rows, 1)
        linear = torch.einsum("ns,nskd->nkd", block.weights, block.directions).flatten(0, 1)
    else:
        is_value = block.order == 0
        constant = (block.weights * is_value).sum(-1, keepdim=True)
        moved = torch.where(is_value[:, None], block.points, block.filled_tangents)
        linear = (block.weights[..., None] * moved).sum(-2)
    columns = {"none": [], "bias": [constant], "linear": [constant, linear]}[basis]
    return torch.cat(columns, -1) if columns else constant[:, :0]


def has_products(kernel: Kernel) -> bool:
    """Whether products with this kernel's derivatives need not form their covariances."""
    if type(kernel) is ScaleKernel:
        return has_products(kernel.base_kernel)
    if type(kernel) is AdditiveKernel:
        return all(has_products(part) for part in kernel.kernels)  # pyright: ignore
    known = radial_profile(kernel) is not None or dot_product_profile(kernel) is not None
    return known or type(kernel) is ConstantKernel


@torch.no_grad()
def gram_of(process: Process, rows: Sequence[Block], largest: int = LARGEST_DENSE) -> DenseGram | ProductGram:
    """The Gram matrix of all rows: held where it is small enough, else known by products."""
    count = sum(block.num_rows for block in rows)
    if count <= largest:
        return DenseGram(process.covariance(list(rows)))
    sizes = [block.num_rows for block in rows]
    operators = {
        i: GradientOperator(process.kernel, block)
        for i, block in enumerate(rows)
        if isinstance(block, Gradients) and has_products(process.kernel)
    }

    def multiply(vectors: Float[Tensor, "m c"]) -> Float[Tensor, "m c"]:
        parts = vectors.split(sizes)
        results = [torch.zeros_like(part) for part in parts]
        for i, left in enumerate(rows):
            for j, right in enumerate(rows):
                if i == j and i in operators:
                    results[i] += operators[i].product(parts[j])
                else:
                    results[i] += covariance_product(process, left, right, parts[j])
        return torch.cat(results)

    def pick(index: Int[Tensor, " k"]) -> Float[Tensor, "m k"]:
        units = torch.nn.functional.one_hot(index, count).to(rows[0].points)
        return multiply(units.mT)

    return ProductGram(multiply, pick, torch.cat([process.variance(block) for block in rows]))


@torch.no_grad()
def covariance_product(
    process: Process, left: Block, right: Block, vectors: Float[Tensor, "r c"]
) -> Float[Tensor, "n c"]:
    """cov(left, right) v, without forming what structure makes needless."""
    slopes = isinstance(left, Gradients) or isinstance(right, Gradients)
    if slopes and _is_plain(left) and _is_plain(right) and has_products(process.kernel):
        return gradient_product(process.kernel, left, right, vectors)
    step = ROWS_AT_ONCE * len(left.points) // left.num_rows or 1
    parts = [left.rows(slice(start, start + step)) for start in range(0, len(left.points), step)]
    return torch.cat([process.covariance(part, right) @ vectors for part in parts])


def _is_plain(block: Block) -> bool:
    """Gradients, or one exact value a row."""
    if isinstance(block, Gradients):
        return True
    return block.num_atoms == 1 and bool((block.order == 0).all()) and block.blur is None


@final
class Machine:
    """f = Σ_i α_i z_i + Σ_j β_j b_j for rows of any kind, with several outputs."""

    stored = Stored()

    def __init__(
        self,
        process: Process,
        rows: Sequence[Block],
        coefficients: Float[Tensor, "m c"],
        beta: Float[Tensor, "b c"],
        basis: str,
    ) -> None:
        self.process, self.rows, self.basis = process, list(rows), basis
        self.coefficients, self.beta = coefficients, beta

    @torch.no_grad()
    def values(self, functional: Functional, x: Tensor) -> Float[Tensor, "n c"]:
        """L_x f of every row, also for functionals other than values."""
        found = []
        for part in x.split(ROWS_AT_ONCE):
            left = functional.atoms(part)
            total = basis_rows([left], self.basis) @ self.beta
            parts = self.coefficients.split([block.num_rows for block in self.rows])
            for block, vectors in zip(self.rows, parts, strict=True):
                total = total + covariance_product(self.process, left, block, vectors)
            found.append(total)
        return torch.cat(found)
