"""Machines over rows of labels and functionals: Gram matrices, solvers, invariances folded into the kernel.

With a squared loss of functionals L, the machine is one of the labels alone, with the kernel k̃ = k - k_Lᵀ(N
+ s)⁻¹k_L, where N is the Gram matrix of the functionals; this serves several strengths at once (METHOD 8;
RKHS section 3). If N is too large to be factorised, conjugate gradients solve the family of shifted systems.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.declarations import Stored, require
from orbitwise.functionals.functional import Block, Evaluation, Functional, Gradients
from orbitwise.inference.linear_algebra import cholesky, plus_diagonal, solve_factored
from orbitwise.inference.risk.iterative import coordinate_descent, lbfgs, newton_cg, stochastic
from orbitwise.inference.risk.problem import DenseGram, Problem, ProductGram, Solution, Term, newton
from orbitwise.inference.sparse.iterative import solve as conjugate_gradients
from orbitwise.losses import Loss
from orbitwise.process.gradients import GradientOperator
from orbitwise.process.process import Process, Rows

BASES = ("none", "bias", "linear")
LARGEST_DENSE = 6000
"""The most rows whose Gram matrix is computed: 288 MiB in double precision, decomposed in about a minute."""
ROWS_AT_ONCE = 1024


def basis_rows(rows: Sequence[Block], basis: str) -> Float[Tensor, "m b"]:
    """Each row applied to the unpenalised functions: none, the constant 1, or 1 and all coordinates."""
    if basis not in BASES:
        raise ValueError(f"basis must be one of {', '.join(BASES)}, not {basis!r}.")
    return torch.cat([_block_basis(block, basis) for block in rows])


def _block_basis(block: Block, basis: str) -> Tensor:
    constant = block.constant_part()[:, None]
    if basis == "none":
        return constant[:, :0]
    return constant if basis == "bias" else torch.cat([constant, block.linear_part()], -1)


@torch.no_grad()
def gram_of(process: Process, rows: Sequence[Block], largest: int = LARGEST_DENSE) -> DenseGram | ProductGram:
    """The Gram matrix of all rows, as a matrix if it is small enough, otherwise through its products."""
    count = sum(block.num_rows for block in rows)
    if count <= largest:
        return DenseGram(process.covariance(list(rows)))
    sizes = [block.num_rows for block in rows]
    operators = [GradientOperator.of(process.kernel, block) for block in rows]

    def multiply(vectors: Float[Tensor, "m c"]) -> Float[Tensor, "m c"]:
        parts = vectors.split(sizes)
        results = [torch.zeros_like(part) for part in parts]
        for i, left in enumerate(rows):
            for j, right in enumerate(rows):
                if i == j and (operator := operators[i]) is not None:
                    results[i] += operator.product(parts[j])
                else:
                    results[i] += process.product(left, right, parts[j])
        return torch.cat(results)

    def pick(index: Int[Tensor, " k"]) -> Float[Tensor, "m k"]:
        units = torch.nn.functional.one_hot(index, count).to(rows[0].points)
        return multiply(units.mT)

    return ProductGram(multiply, pick, torch.cat([process.variance(block) for block in rows]))


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

    def check_parts(self) -> None:
        """Raise a ValueError if the coefficients belong to other rows or another basis."""
        require(len({block.points.shape[-1] for block in self.rows}) == 1, "rows of different widths")
        count = sum(block.num_rows for block in self.rows)
        require(len(self.coefficients) == count, "coefficients of other rows")
        width = basis_rows([self.rows[0].rows(slice(0, 1))], self.basis).shape[1]
        fits = self.beta.shape == (width, self.coefficients.shape[1])
        require(fits, "coefficients of another basis")

    def scaled(self, factors: Float[Tensor, " c"]) -> Machine:
        """Every output times its factor."""
        return Machine(self.process, self.rows, self.coefficients * factors, self.beta * factors, self.basis)

    @torch.no_grad()
    def values(self, functional: Functional, x: Tensor) -> Float[Tensor, "n c"]:
        """L_x f for every row of x."""
        found = []
        for part in x.split(ROWS_AT_ONCE):
            left = functional.atoms(part)
            total = basis_rows([left], self.basis) @ self.beta
            found.append(total + self.process.product(left, self.rows, self.coefficients))
        return torch.cat(found)


SOLVERS = ("auto", "newton", "lbfgs", "newton_cg", "random", "steepest", "stochastic")


def solve(
    problem: Problem,
    solver: str = "auto",
    tolerance: float = 1e-8,
    generator: torch.Generator | None = None,
) -> Solution:
    """Minimise the risk. "auto" is Newton's method for dense Gram matrices, else L-BFGS.

    Newton's method is by far the fastest for dense matrices. Of the solvers that need only products, L-BFGS
    in function space takes the fewest. "random" and "steepest" are coordinate descent, and "stochastic" is
    for so many rows that products with the whole matrix are too expensive.
    """
    if solver not in SOLVERS:
        raise ValueError(f"solver must be one of {', '.join(SOLVERS)}, not {solver!r}.")
    if solver == "auto":
        whole = isinstance(problem.gram, DenseGram) and not problem.is_coupled
        solver = "newton" if whole else "lbfgs"
    if solver == "newton":
        return newton(problem, tolerance=tolerance)
    if solver == "lbfgs":
        return lbfgs(problem, tolerance)
    if solver == "newton_cg":
        return newton_cg(problem, tolerance)
    if solver == "stochastic":
        return stochastic(problem, tolerance=tolerance, generator=generator)
    order = "steepest" if solver == "steepest" else "random"
    return coordinate_descent(problem, order, tolerance=tolerance, generator=generator)


NUMBERS_AT_ONCE = 2**26
"""The most numbers that the search holds, 512 MiB, which limits how many columns go together."""
VECTORS_HELD = 6
"""Vectors with one entry per functional that a column of the search needs, including temporary ones."""
ROUNDS = 6
"""The most rounds of subspace iteration for leading eigenvectors."""


@final
@dataclass(frozen=True)
class Invariances:
    """The functionals L as folding needs them, for points X (rows of k̃) and X′ (columns)."""

    num_rows: int
    product: Callable[[Tensor], tuple[Tensor, Tensor]]
    """v → N v and k_L(X)ᵀv, for v [rows, c]."""
    columns: Callable[[slice], Tensor]
    """k_L of a slice of X′ [rows, columns]."""
    gram: Callable[[], Tensor] | None = None
    """N, if it is small enough to be decomposed."""
    leading: Callable[[], Tensor] | None = None
    """A guess of the leading eigenvectors of N [rows, k], which are then projected out of the search."""

    @classmethod
    def of_rows(cls, process: Process, rows: Rows, x: Tensor, columns: Tensor) -> Invariances:
        """Functionals of any kind, with a dense N."""
        left, right = (process.covariance(rows, Evaluation().atoms(points)) for points in (x, columns))
        return cls.of_matrices(process.covariance(rows), left, right)

    @classmethod
    def of_matrices(cls, gram: Tensor, left: Tensor, right: Tensor) -> Invariances:
        """Functionals with dense N, k_L(X) and k_L(X′)."""
        return cls(len(gram), lambda v: (gram @ v, left.mT @ v), lambda part: right[:, part], lambda: gram)

    @classmethod
    def of_operator(cls, operator: GradientOperator, x: Tensor, columns: Tensor) -> Invariances:
        """Derivatives, without forming N; cheapest if X are the points of the derivatives."""
        block, values = operator.block, Evaluation().atoms(x)
        weight = block.weights.flatten()[0]
        own = (
            block.points.shape[1] == 1
            and torch.equal(block.points[:, 0], x)
            and bool((block.weights == weight).all())
            and weight.item() != 0
        )

        def both(v: Tensor) -> tuple[Tensor, Tensor]:
            if own:
                # values at the block's own points have the weights of its slopes
                image, shadow = operator.product_and_values(v)
                return image, shadow if weight.item() == 1 else shadow / weight
            return operator.product(v), operator.values_product(values, v)

        width = block.points.shape[-1]
        is_whole = block.num_directions == width and block.points.shape[1] == 1
        # d + 1 vectors are computed in several rounds, which do not pay for fewer columns
        leading = (lambda: linear_slopes(block)) if is_whole and len(columns) >= width else None
        return cls(operator.num_rows, both, lambda part: operator.columns(columns[part]), leading=leading)

    def weighted(self, weights: Float[Tensor, " r"]) -> Invariances:
        """The rows multiplied by √c, so that all have the same strength."""
        if weights.shape != (self.num_rows,) or not bool((weights > 0).all() & weights.isfinite().all()):
            raise ValueError(
                f"{self.num_rows} functionals take as many positive, finite weights, not shape "
                f"{tuple(weights.shape)} with values from {weights.min().item()} to {weights.max().item()}."
            )
        root = weights.sqrt()[:, None]

        def both(v: Tensor) -> tuple[Tensor, Tensor]:
            image, projected = self.product(root * v)
            return root * image, projected

        gram, guess = self.gram, self.leading
        return replace(
            self,
            product=both,
            columns=lambda part: root * self.columns(part),
            gram=None if gram is None else lambda: root * gram() * root.mT,
            leading=None if guess is None else lambda: root * guess(),
        )


def linear_slopes(block: Gradients) -> Float[Tensor, "r k"]:
    """All derivatives of the functions x_1, …, x_d and |x|²/2 at the points of a block.

    Under smooth kernels, these functions have the largest prior variance. So their slopes nearly span the
    eigenvectors of the d + 1 largest eigenvalues of N, which otherwise cost the search every second step.
    """
    points, width = block.points[:, 0], block.points.shape[-1]
    constant = torch.eye(width).to(points).expand(len(points), -1, -1)
    gradients = torch.cat([constant, points[:, :, None]], dim=-1)
    return torch.einsum("nkd,ndc->nkc", block.directions[:, 0], gradients).flatten(0, 1)


class Folded(NamedTuple):
    """k̃ for every strength, and the accuracy of the search (a decomposition is exact).

    `correction` is the last change of any entry relative to the largest entry of the prior, which should
    include the largest k(x,x). `bound` is a bound on the error, |k_L(x)ᵀe| ≤ √k(x,x) |r|/√shift, also
    relative to it; it is far above the error if N is far above the shift.
    """

    matrices: Float[Tensor, "q n m"]
    iterations: int
    correction: float
    bound: float
    converged: bool


class Leading(NamedTuple):
    """Eigenvectors Z of N, their eigenvalues, and k_L(X)ᵀZ."""

    vectors: Float[Tensor, "r k"]
    values: Float[Tensor, " k"]
    shadows: Float[Tensor, "n k"]

    def without(self, residual: Tensor) -> Tensor:
        """(I - ZZᵀ)r."""
        return residual - self.vectors @ (self.vectors.mT @ residual)


def find_leading(invariances: Invariances, tolerance: float, least_shift: float) -> Leading | None:
    """Eigenvectors by subspace iteration: those whose remaining error does not affect k̃."""
    if invariances.leading is None:
        return None
    vectors = torch.linalg.qr(invariances.leading()).Q
    step = NUMBERS_AT_ONCE // (VECTORS_HELD * invariances.num_rows)
    best = None
    for _ in range(ROUNDS):
        images = [invariances.product(vectors[:, part]) for part in slices(vectors.shape[1], step)]
        image, shadows = (torch.cat(each, dim=1) for each in zip(*images, strict=True))
        values, turn = torch.linalg.eigh(vectors.mT @ image)
        turned = image @ turn
        errors = (turned - (vectors @ turn) * values).norm(dim=0)
        # Leaving out E = NZ - ZΘ moves k̃ by at most k |E|/√(θ·shift); products err by eps·θ themselves.
        rounding = 8 * torch.finfo(values.dtype).eps * values.max()
        kept = errors <= (tolerance * (values.clamp_min(0) * least_shift).sqrt()).clamp_min(rounding)
        best = Leading((vectors @ turn)[:, kept], values[kept], (shadows @ turn)[:, kept])
        if bool(kept.all()):
            break
        vectors = torch.linalg.qr(turned).Q
    return best


def search_columns(
    prior: Float[Tensor, "n m"],
    invariances: Invariances,
    leading: Leading | None,
    part: slice,
    shifts: Float[Tensor, " q"],
    tolerance: float,
    max_iterations: int,
    scale: float,
) -> Folded:
    """k̃ of all shifts for a slice of the columns, by conjugate gradients on the least shift.

    Steps α_s of the other shifts come from the pivots of one shifted tridiagonal matrix, 1/α_s = 1/α + (s-s₀)
    + (β/α)(1-α_s/α) with α, β and α_s of the previous step. All terms are positive.
    """
    residual = invariances.columns(part)
    kind, least = residual.dtype, shifts.min()
    apart = (shifts - least)[:, None]
    folded = prior.repeat(len(shifts), 1, 1)
    if leading is not None:
        # k_L(X)ᵀZ(Θ + s)⁻¹Zᵀk_L(X′)
        known = (leading.values[:, None] + shifts.to(kind)[:, None, None]).reciprocal()
        folded -= leading.shadows @ (known * (leading.vectors.mT @ residual))
        residual = leading.without(residual)
    direction, (image, shadow) = residual, invariances.product(residual)
    square = _square(residual, residual)
    ratio = torch.ones(len(shifts), residual.shape[1], dtype=shifts.dtype, device=shifts.device)
    shadows = shadow.to(kind).repeat(len(shifts), 1, 1)
    coupling = torch.zeros_like(ratio)
    correction = bound = float("inf")
    small = iteration = 0
    while iteration < max_iterations and small < 2 and bound > tolerance:
        iteration += 1
        curvature = _square(direction, image) + least * _square(direction, direction)
        # columns that are solved exactly (or zero from the start) do not change any more
        step = torch.where(square > 0, square / curvature.clamp_min(1e-300), 0)
        steps = (1 / step.clamp_min(1e-300) + apart + coupling).reciprocal()
        moves = steps.to(kind)[:, None] * shadows
        folded -= moves
        correction = moves.abs().max().item() / scale
        small = small + 1 if correction <= tolerance else 0
        residual = residual - step.to(kind) * (image + least.to(kind) * direction)
        residual = residual if leading is None else leading.without(residual)
        before, square = square, _square(residual, residual)
        growth = torch.where(before > 0, square / before.clamp_min(1e-300), 0)
        shrink = steps / step.clamp_min(1e-300)
        ratio = ratio * shrink
        coupling = growth / step.clamp_min(1e-300) * (1 - shrink).clamp_min(0)
        bound = (ratio * square.sqrt() / shifts.sqrt()[:, None]).max().item() / scale**0.5
        if not square.isfinite().all():
            break
        new, shadow = invariances.product(residual)
        direction = residual + growth.to(kind) * direction
        image = new + growth.to(kind) * image
        # p_s = ζ_s r + β_s p_s, seen through k_L(X)ᵀ
        shadows = ratio.to(kind)[:, None] * shadow + (growth * shrink.square()).to(kind)[:, None] * shadows
    return Folded(folded, iteration, correction, bound, small >= 2 or bound <= tolerance)


def _square(left: Tensor, right: Tensor) -> Float[Tensor, " c"]:
    """Inner products of columns."""
    return torch.einsum("rc,rc->c", left, right).double()


def slices(count: int, step: int) -> list[slice]:
    """Slices of length `step` that cover 0, …, count - 1."""
    step = max(1, step)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


@torch.no_grad()
def fold(
    prior: Float[Tensor, "n m"],
    invariances: Invariances,
    strengths: Sequence[float],
    weights: Float[Tensor, " r"] | None = None,
    positions: Int[Tensor, " m"] | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 500,
    columns_at_once: int | None = None,
) -> Folded:
    """k̃_ν(X, X′) for every ν of `strengths` from `prior` = k(X, X′), the functionals weighted by `weights`.

    If X′ is part of X, `positions` are the indices of X′ in X, and this part of k̃ is made symmetric. The
    search ends when no entry has changed by more than `tolerance` times the largest entry of the prior in two
    steps.
    """
    shifts = _shifts(strengths).to(prior.device)
    if weights is not None:
        invariances = invariances.weighted(weights)
    if invariances.gram is not None:
        parts = _decomposed(prior, invariances, invariances.gram(), shifts)
    else:
        held = VECTORS_HELD * invariances.num_rows + 3 * len(shifts) * len(prior)
        step = NUMBERS_AT_ONCE // held if columns_at_once is None else columns_at_once
        scale = prior.abs().max().item() or 1.0
        leading = find_leading(invariances, tolerance, shifts.min().item())
        found = [
            search_columns(
                prior[:, part], invariances, leading, part, shifts, tolerance, max_iterations, scale
            )
            for part in slices(prior.shape[1], step)
        ]
        parts = Folded(
            torch.cat([each.matrices for each in found], dim=-1),
            max(each.iterations for each in found),
            max(each.correction for each in found),
            max(each.bound for each in found),
            all(each.converged for each in found),
        )
    if positions is not None:
        square = parts.matrices[:, positions]
        parts.matrices[:, positions] = (square + square.mT) / 2
    return parts


class FunctionalCoefficients(NamedTuple):
    """γ, and the relative residual |r|/|b| of the system that it solves."""

    vectors: Float[Tensor, "r c"]
    residual: float
    iterations: int
    converged: bool


@torch.no_grad()
def fold_weights(
    invariances: Invariances,
    coefficients: Float[Tensor, "m c"],
    strength: float,
    weights: Float[Tensor, " r"] | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 500,
) -> FunctionalCoefficients:
    """γ = -(N + C⁻¹/(2ν))⁻¹k_L(X′)a, with which Σ a_i k̃(x_i, ·) is f(x) = k(x, X′)a + k_L(x)ᵀγ at any x."""
    shift = _shifts([strength]).item()
    if weights is not None:
        invariances = invariances.weighted(weights)
    right = torch.zeros(1, dtype=coefficients.dtype, device=coefficients.device)
    for part in slices(len(coefficients), NUMBERS_AT_ONCE // (VECTORS_HELD * invariances.num_rows)):
        right = right + invariances.columns(part) @ coefficients[part]
    size = right.norm().item()
    if invariances.gram is not None:
        gram = invariances.gram()
        lower = cholesky(plus_diagonal(gram, shift)).lower
        vectors = solve_factored(lower, right)
        vectors = vectors if weights is None else weights.sqrt()[:, None] * vectors
        return FunctionalCoefficients(-vectors, 0.0, 0, True)
    # `solve` ends by rᵀP⁻¹r, which is |r|²/shift for P = shift·I
    found = conjugate_gradients(
        lambda v: invariances.product(v)[0] + shift * v,
        right,
        lambda v: v / shift,
        (tolerance * size) ** 2 / shift,
        max_iterations,
    )
    vectors = found.vectors if weights is None else weights.sqrt()[:, None] * found.vectors
    left = found.residual.norm().item() / max(size, torch.finfo(right.dtype).tiny)
    return FunctionalCoefficients(-vectors, left, found.iterations, found.converged)


def _decomposed(prior: Tensor, invariances: Invariances, gram: Tensor, shifts: Tensor) -> Folded:
    """All strengths from N = VΛVᵀ: k - (Vᵀk_L(X))ᵀ(Λ + s)⁻¹Vᵀk_L(X′)."""
    values, vectors = torch.linalg.eigh((gram + gram.mT) / 2)
    values = values.clamp_min(0)
    left, right = invariances.product(vectors)[1].mT, vectors.mT @ invariances.columns(slice(None))
    matrices = [prior - left.mT @ (right / (values + shift)[:, None]) for shift in shifts.to(values)]
    return Folded(torch.stack(matrices), 0, 0.0, 0.0, True)


def places_among(points: Float[Tensor, "t d"], x: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
    """The index of each row of x among the points, which include all rows of x."""
    numbers = torch.unique(torch.cat([points, x]), dim=0, return_inverse=True)[1]
    place = torch.empty_like(numbers[: len(points)])
    place[numbers[: len(points)]] = torch.arange(len(points), device=x.device)
    return place[numbers[len(points) :]]


def nearest_positive(matrices: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """The symmetric matrices with negative eigenvalues, as an unfinished search may leave, set to zero."""
    values, vectors = torch.linalg.eigh((matrices + matrices.mT) / 2)
    return (vectors * values.clamp_min(0)[..., None, :]) @ vectors.mT


def _shifts(strengths: Sequence[float]) -> Float[Tensor, " q"]:
    """1/(2ν)."""
    values = torch.tensor(list(strengths), dtype=torch.float64)
    if len(values) == 0 or not bool((values > 0).all() & values.isfinite().all()):
        raise ValueError(
            f"Strengths must be positive and finite, at least one, not {list(strengths)}; without "
            "invariance the kernel is k itself."
        )
    return 1 / (2 * values)


CHOICE_TOLERANCE = 1e-5
"""The tolerance for machines that are only compared."""
SYSTEMS_AT_ONCE = 2**25
"""The most numbers in systems of Newton's method that are solved together: 256 MiB."""


class Scores(NamedTuple):
    """Held-out scores of every label, strength and λ, and their losses."""

    values: Float[Tensor, "q r c n"]
    losses: Float[Tensor, "q r"]


def held_out_scores(
    grams: Float[Tensor, "q n n"],
    basis: Float[Tensor, "n b"],
    loss: Loss,
    targets: Float[Tensor, "c n"],
    weights: Float[Tensor, " n"],
    rates: Float[Tensor, "q r"],
    folds: Int[Tensor, " n"],
) -> Scores:
    """Decision values of labels from machines trained without them; all folds, classes and λ in one batch.

    A label that is held out has weight 0; its point is still used for the invariances, like unlabelled ones
    (RKHS 6.2).
    """
    count = int(folds.max()) + 1
    seen = (folds != torch.arange(count, device=folds.device)[:, None]).to(weights) * weights
    place = folds.expand(len(grams), 1, len(targets), -1)
    step = problems_at_once(grams[0], count * len(targets))
    found = torch.empty(*rates.shape, *targets.shape, dtype=weights.dtype, device=weights.device)
    for part in (slice(first, first + step) for first in range(0, len(grams), step)):
        batch, solution = DenseGram(grams[part, None, None]), None
        # from light losses to heavy ones, each starting from the solution before
        for j in rates.mean(0).argsort().tolist():
            weighed = rates[part, j, None, None, None] * seen[:, None, :]
            terms = [Term(loss, targets, weighed.expand(-1, -1, len(targets), -1))]
            solution = newton(Problem(batch, terms, basis), solution, CHOICE_TOLERANCE)
            found[part, j] = solution.values.gather(1, place[part])[:, 0]
    held_out = (weights * loss.value(found, targets)).sum(-1).sum(-1) / weights.sum()
    return Scores(found, held_out)


def problems_at_once(gram: Float[Tensor, "n n"], count: int) -> int:
    """How many sets of `count` problems may be solved together."""
    return max(1, SYSTEMS_AT_ONCE // (count * gram.numel()))


def predicted_classes(scores: Float[Tensor, "*batch c n"]) -> Int[Tensor, "*batch n"]:
    """The indices of the classes with the highest scores."""
    return (scores[..., 0, :] > 0).long() if scores.shape[-2] == 1 else scores.argmax(-2)
