"""Invariances folded into the kernel, for a whole path of strengths at once (METHOD 8; RKHS section 3).

With the penalty ν Σ_j c_j (L_j f)², the machine over f is an ordinary one with the kernel
k̃_ν = k - k_Lᵀ(N + C⁻¹/(2ν))⁻¹k_L, N the Gram matrix of the functionals and C = diag(c): the posterior
covariance of f given L f = 0 with noise 1/(2νc). Rows scaled by √c leave N + I/(2ν), a family of shifted
systems, which one eigendecomposition or one run of conjugate gradients solves for all ν.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.inference.conjugate_gradients import solve
from orbitwise.inference.linear_algebra import cholesky, solve_factored
from orbitwise.inference.shifted_search import (
    NUMBERS_AT_ONCE,
    VECTORS_HELD,
    Folded,
    Invariances,
    find_leading,
    search,
    slices,
)


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
        leading = find_leading(invariances, tolerance, shifts.min().item())
        found = [
            search(prior[:, part], invariances, leading, part, shifts, tolerance, max_iterations, scale)
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
    for part in slices(len(coefficients), NUMBERS_AT_ONCE // (VECTORS_HELD * invariances.num_rows)):
        right = right + invariances.columns(part) @ coefficients[part]
    size = right.norm().item()
    if invariances.gram is not None:
        gram = invariances.gram()
        lower = cholesky(gram + shift * torch.eye(len(gram)).to(gram)).lower
        vectors = solve_factored(lower, right)
        vectors = vectors if weights is None else weights.sqrt()[:, None] * vectors
        return FunctionalCoefficients(-vectors, 0.0, 0, True)
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


def places_among(points: Float[Tensor, "t d"], x: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
    """Where each row of x stands among the points, which hold all of them."""
    numbers = torch.unique(torch.cat([points, x]), dim=0, return_inverse=True)[1]
    place = torch.empty_like(numbers[: len(points)])
    place[numbers[: len(points)]] = torch.arange(len(points), device=x.device)
    return place[numbers[len(points) :]]


def nearest_positive(matrices: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """The symmetric matrices without their negative eigenvalues, which an unfinished search may leave."""
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
