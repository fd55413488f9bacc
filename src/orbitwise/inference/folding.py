"""Invariances folded into the kernel, for a whole path of strengths at once (METHOD 8; RKHS section 3).

With the penalty ν Σ_j c_j (L_j f)², the machine over f is an ordinary one with the kernel
k̃_ν = k - k_Lᵀ(N + C⁻¹/(2ν))⁻¹k_L, N the Gram matrix of the functionals and C = diag(c): the posterior
covariance of f given L f = 0 with noise 1/(2νc). Rows scaled by √c leave N + I/(2ν), a family of shifted
systems, which one eigendecomposition or one run of conjugate gradients solves for all ν.

The search keeps no solution: of the shifted ones it carries k_L(X)ᵀp_s and k_L(X)ᵀx_s alone, which obey the
scalar recursions of p_s and x_s, so that memory does not grow with strengths times functionals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.functionals.points import Evaluation
from orbitwise.inference.conjugate_gradients import solve
from orbitwise.process.gradient_products import GradientOperator
from orbitwise.process.process import Process, Rows

NUMBERS_AT_ONCE = 2**26
"""Numbers that the search holds at a time, 512 MiB in double precision: so many columns go together."""
VECTORS_HELD = 6
"""Vectors of the length of the functionals that one column of the search needs, temporary ones included."""


@final
@dataclass(frozen=True)
class Invariances:
    """What folding needs to know of the functionals L, for points X (rows of k̃) and X′ (columns)."""

    num_rows: int
    product: Callable[[Tensor], tuple[Tensor, Tensor]]
    """v → N v and k_L(X)ᵀv, for v [rows, c]."""
    columns: Callable[[slice], Tensor]
    """k_L of a slice of X′ [rows, columns]."""
    gram: Callable[[], Tensor] | None = None
    """N, where it is small enough to be held; then it is decomposed."""

    @classmethod
    def of_rows(cls, process: Process, rows: Rows, x: Tensor, columns: Tensor) -> Invariances:
        """Functionals of any kind, with N held."""
        left, right = (process.covariance(rows, Evaluation().atoms(points)) for points in (x, columns))
        gram = process.covariance(rows)
        return cls(len(gram), lambda v: (gram @ v, left.mT @ v), lambda part: right[:, part], lambda: gram)

    @classmethod
    def of_operator(cls, operator: GradientOperator, x: Tensor, columns: Tensor) -> Invariances:
        """Derivatives, with N never formed; cheapest where X are the points of the derivatives."""
        block, values = operator.block, Evaluation().atoms(x)
        own = (
            block.points.shape[1] == 1
            and torch.equal(block.points[:, 0], x)
            and bool((block.weights == 1).all())
        )

        def both(v: Tensor) -> tuple[Tensor, Tensor]:
            if own:
                return operator.product_and_values(v)
            return operator.product(v), operator.values_product(values, v)

        return cls(operator.num_rows, both, lambda part: operator.columns(columns[part]))

    def weighted(self, weights: Float[Tensor, " r"]) -> Invariances:
        """The rows times √c, so that all have one strength."""
        if weights.shape != (self.num_rows,) or not bool((weights > 0).all() & weights.isfinite().all()):
            raise ValueError(
                f"{self.num_rows} functionals take as many positive, finite weights, not shape "
                f"{tuple(weights.shape)} with values from {weights.min().item()} to {weights.max().item()}."
            )
        root = weights.sqrt()[:, None]

        def both(v: Tensor) -> tuple[Tensor, Tensor]:
            image, projected = self.product(root * v)
            return root * image, projected

        gram = self.gram
        held = None if gram is None else lambda: root * gram() * root.mT
        return replace(self, product=both, columns=lambda part: root * self.columns(part), gram=held)


class Folded(NamedTuple):
    """k̃ for every strength, and how far the search went (nothing is left to search after a decomposition).

    `correction` is the last change of any entry, relative to the largest of the prior, and `bound` one of its
    error, |k_L(x)ᵀe| ≤ √k(x,x) |r|/√shift, relative to it too (it should hold the largest k(x,x)): far above
    the error where N is far above the shift.
    """

    matrices: Float[Tensor, "q n m"]
    iterations: int
    correction: float
    bound: float
    converged: bool


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

    `positions` are the places of X′ in X, where it is a part of it: that part of k̃ is made symmetric. The
    search ends when no entry moved by more than `tolerance` of the largest of the prior in two steps.
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
        found = [
            _searched(prior[:, part], invariances, part, shifts, tolerance, max_iterations, scale)
            for part in _slices(prior.shape[1], step)
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
    """γ with |r|/|b| of the system that it solves."""

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
    """γ = -(N + C⁻¹/(2ν))⁻¹k_L(X′)a: a machine Σ a_i k̃(x_i, ·) is f(x) = k(x, X′)a + k_L(x)ᵀγ at any x."""
    shift = _shifts([strength]).item()
    if weights is not None:
        invariances = invariances.weighted(weights)
    right = torch.zeros(1, dtype=coefficients.dtype, device=coefficients.device)
    for part in _slices(len(coefficients), NUMBERS_AT_ONCE // (VECTORS_HELD * invariances.num_rows)):
        right = right + invariances.columns(part) @ coefficients[part]
    size = right.norm().item()
    # `solve` ends by rᵀP⁻¹r, which is |r|²/shift for P = shift·I
    found = solve(
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


def _searched(
    prior: Tensor,
    invariances: Invariances,
    part: slice,
    shifts: Tensor,
    tolerance: float,
    max_iterations: int,
    scale: float,
) -> Folded:
    """All strengths for a slice of the columns, by conjugate gradients on the least shift.

    Steps α_s of the other shifts come from the pivots of one shifted tridiagonal matrix,
    1/α_s = 1/α + (s-s₀) + (β/α)(1-α_s/α) with the α, β and α_s before: sums of positive terms.
    """
    residual = invariances.columns(part)
    kind, least = residual.dtype, shifts.min()
    apart = (shifts - least)[:, None]
    folded = prior.repeat(len(shifts), 1, 1)
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
        # columns that are solved exactly (or zero from the start) move no more
        step = torch.where(square > 0, square / curvature.clamp_min(1e-300), 0)
        steps = (1 / step.clamp_min(1e-300) + apart + coupling).reciprocal()
        moves = steps.to(kind)[:, None] * shadows
        folded -= moves
        correction = moves.abs().max().item() / scale
        small = small + 1 if correction <= tolerance else 0
        residual = residual - step.to(kind) * (image + least.to(kind) * direction)
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


def _slices(count: int, step: int) -> list[slice]:
    step = max(1, step)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def _shifts(strengths: Sequence[float]) -> Float[Tensor, " q"]:
    """1/(2ν)."""
    values = torch.tensor(list(strengths), dtype=torch.float64)
    if len(values) == 0 or not bool((values > 0).all() & values.isfinite().all()):
        raise ValueError(
            f"Strengths must be positive and finite, at least one, not {list(strengths)}; without "
            "invariance the kernel is k itself."
        )
    return 1 / (2 * values)
