"""Robust factorisations, Gaussian draws and densities, and hand-written gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.declarations import LARGEST, SMALLEST, is_plain_numbers, require

NOT_COMPUTABLE = (ValueError, torch.linalg.LinAlgError)  # pyright: ignore[reportPrivateImportUsage]
"""Errors that mean that a density cannot be computed, for example if a matrix has no Cholesky factor."""
ROWS_AT_ONCE = 1024
TOLERANCE = 1e-6
"""The largest relative residual of a solve: far above rounding, far below the effect of damaged numbers."""


class Factor(NamedTuple):
    """A lower Cholesky factor L with L Lᵀ = A + jitter·I."""

    lower: Float[Tensor, "*batch n n"]
    jitter: float


def cholesky(matrix: Float[Tensor, "*batch n n"]) -> Factor:
    """Factorise a covariance matrix, adding jitter to its diagonal only if needed, ten times more at each
    try.

    The first try adds nothing; the next adds n·eps of the mean diagonal. A matrix that is not finite, or that
    needs more than a tenth of its diagonal, raises a ValueError.
    """
    lower, info = torch.linalg.cholesky_ex(matrix)
    if not bool(info.any()) and bool(lower.isfinite().all()):
        return Factor(lower, 0.0)
    diagonal = matrix.detach().diagonal(dim1=-1, dim2=-2)
    scale = float(diagonal.abs().mean())
    if not math.isfinite(scale) or not bool(matrix.isfinite().all()):
        raise ValueError("The covariance matrix has NaN or infinite entries: check inputs, kernel and noise.")
    relative = matrix.shape[-1] * torch.finfo(matrix.dtype).eps
    scale = max(scale, torch.finfo(matrix.dtype).tiny / relative)
    while relative < 0.1:
        jitter = relative * scale
        lower, info = torch.linalg.cholesky_ex(plus_diagonal(matrix, jitter))
        if not bool(info.any()):
            return Factor(lower, jitter)
        relative *= 10
    raise ValueError(
        "The covariance matrix is far from positive definite. Rows drawn at random cannot be factorised "
        "(freeze the orbit); otherwise the kernel is not positive definite."
    )


def plus_diagonal(
    matrix: Float[Tensor, "*batch n n"], value: Float[Tensor, ""] | Float[Tensor, " n"] | float
) -> Float[Tensor, "*batch n n"]:
    """A + value·I, or A + diag(value), without another matrix of that size."""
    result = matrix.clone()
    result.diagonal(dim1=-1, dim2=-2).add_(value)
    return result


def solve_lower(
    lower: Float[Tensor, "*batch n n"], right: Float[Tensor, "*batch n c"]
) -> Float[Tensor, "*batch n c"]:
    """L⁻¹ B."""
    return torch.linalg.solve_triangular(lower, right, upper=False)


def solve_factored(
    lower: Float[Tensor, "*batch n n"], right: Float[Tensor, "*batch n c"]
) -> Float[Tensor, "*batch n c"]:
    """(L Lᵀ)⁻¹ B."""
    return torch.cholesky_solve(right, lower)


def remaining_variance(
    prior: Float[Tensor, " n"], explained: Float[Tensor, " n"], num_terms: int
) -> Float[Tensor, " n"]:
    """prior - explained, but at least the rounding error of `num_terms` terms: 0 only if the prior is 0."""
    return torch.maximum(prior - explained, num_terms * torch.finfo(prior.dtype).eps * prior)


def log_determinant(lower: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    """log|L Lᵀ|."""
    return 2 * lower.diagonal(dim1=-1, dim2=-2).log().sum(-1)


def standard_normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers of the type and device of `like`, drawn on the device of the generator."""
    place = like.device if generator is None else generator.device
    return torch.randn(shape, generator=generator, device=place, dtype=like.dtype).to(like.device)


def gaussian_draws(
    mean: Tensor, covariance: Tensor, num_samples: int, generator: torch.Generator | None
) -> Tensor:
    """Joint normal draws [n, num_samples] with this mean and covariance, which may be singular.

    The mean is [n, 1], the same for all draws, or [n, num_samples], one for each.
    """
    # The square root by eigenvalues serves singular covariances too (equal points, symmetric points).
    # Eigenvalues at rounding level are zero: the eigenvectors of λ carry errors of eps/λ, which part the
    # values at symmetric points by eps/√λ.
    values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    floor = torch.finfo(values.dtype).eps ** 0.75 * values[-1]
    values = torch.where(values > floor, values, 0)
    white = standard_normal((len(values), num_samples), covariance, generator)
    return mean + vectors @ (values.sqrt()[:, None] * white)


Backward = Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], Sequence[Tensor | None]]
"""(inputs, gradients with respect to the results) → gradients with respect to the inputs."""


def handwritten_gradient(
    forward: Callable[..., tuple[Tensor, ...]], backward: Backward, *inputs: Tensor
) -> tuple[Tensor, ...]:
    """forward(*inputs), which can be differentiated once, by `backward` instead of automatic differentiation.

    If a gradient is known in closed form, this saves the memory for intermediate results of `forward`.
    """
    results = _Handwritten.apply(forward, backward, *inputs)
    assert isinstance(results, tuple)
    return results


@final
class _Handwritten(torch.autograd.Function):
    """`handwritten_gradient`, as torch records it."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx, forward: Callable[..., tuple[Tensor, ...]], backward: Backward, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.by_hand = backward
        ctx.save_for_backward(*inputs)
        return forward(*inputs)

    @staticmethod
    def backward(ctx, *slopes: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if torch.is_grad_enabled():
            # its terms would be missing from second derivatives, silently
            raise RuntimeError(
                "This evidence has a first derivative only: take differences of gradients, without "
                "create_graph=True."
            )
        return None, None, *ctx.by_hand(ctx.saved_tensors, slopes)


class GaussianTerms(NamedTuple):
    """Σ rᵀK⁻¹r over the columns r, log|K|, and what the factorisation of K needed on its diagonal."""

    square: Float[Tensor, ""]
    determinant: Float[Tensor, ""]
    jitter: float


def gaussian_terms(covariance: Float[Tensor, "n n"], residual: Float[Tensor, "n c"]) -> GaussianTerms:
    """The terms of log N(r; 0, K) that depend on K, to be differentiated once.

    One inverse costs less than half of what autograd needs to differentiate a factorisation.
    """
    kept: list[Tensor] = []
    jitter = 0.0

    def forward(covariance: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        nonlocal jitter
        lower, jitter = cholesky(covariance)
        # L⁻¹r
        white = solve_lower(lower, residual)
        kept[:] = [lower, white]
        return white.square().sum(), log_determinant(lower)

    def backward(_: tuple[Tensor, ...], slopes: tuple[Tensor, ...]) -> Sequence[Tensor | None]:
        (lower, white), (to_square, to_determinant) = kept, slopes
        # α = L⁻ᵀL⁻¹r,  d rᵀK⁻¹r = 2αᵀdr - αᵀdK α,  d log|K| = tr K⁻¹dK
        weights = torch.linalg.solve_triangular(lower.mT, white, upper=True)
        to_covariance = torch.cholesky_inverse(lower).mul_(to_determinant)
        return to_covariance.addmm_(-to_square * weights, weights.mT), 2 * to_square * weights

    square, determinant = handwritten_gradient(forward, backward, covariance, residual)
    return GaussianTerms(square, determinant, jitter)


def gaussian_log_density(
    covariance: Float[Tensor, "n n"], residual: Float[Tensor, " n"]
) -> Float[Tensor, ""]:
    """log N(r; 0, K) of one vector, differentiable once."""
    terms = gaussian_terms(covariance, residual[:, None])
    return -0.5 * (terms.square + terms.determinant + len(residual) * math.log(2 * math.pi))


def held_out_means(covariance: Float[Tensor, "n n"], residual: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
    """E[r_n | all others] under N(0, K) for every row: r - K⁻¹r/diag(K⁻¹), to be differentiated once."""
    kept: list[Tensor] = []

    def forward(covariance: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        inverse = torch.cholesky_inverse(cholesky(covariance).lower)
        weights = inverse @ residual
        kept[:] = [inverse, weights]
        return (residual - weights / inverse.diagonal()[:, None],)

    def backward(_: tuple[Tensor, ...], slopes: tuple[Tensor, ...]) -> Sequence[Tensor | None]:
        (inverse, weights), slope = kept, slopes[0]
        precision = inverse.diagonal()[:, None]
        # r̂ = r - α/diag C with C = K⁻¹, α = C r:  dα = C dr - C dK α,  dC = -C dK C
        to_weights = -slope / precision
        to_precision = (slope * weights / precision.square()).sum(1)
        through = inverse @ to_weights
        to_covariance = -(through @ weights.mT) - (inverse * to_precision) @ inverse
        return to_covariance, slope + through

    return handwritten_gradient(forward, backward, covariance, residual)[0]


def check_factor(lower: Tensor) -> None:
    """Raise a ValueError unless this is a lower Cholesky factor [*c, n, n] of an invertible matrix."""
    size = lower.shape[-1]
    require(lower.dim() in (2, 3) and lower.shape[-2] == size > 0, "a factor that is not square")
    require(is_plain_numbers(lower.diagonal(dim1=-2, dim2=-1), SMALLEST), "a diagonal that is not positive")
    for start in range(0, size, ROWS_AT_ONCE):
        above = lower[..., start : start + ROWS_AT_ONCE, start:].triu(1)
        require(not bool(above.any()), "a factor that is not triangular")
    generator = torch.Generator().manual_seed(0)
    probes = torch.randn(size, 2, generator=generator, dtype=lower.dtype)
    probes = torch.cat([torch.ones(size, 1, dtype=lower.dtype), probes], -1).to(lower)
    solved = solve_lower(lower, probes.expand(*lower.shape[:-2], -1, -1))
    require(is_plain_numbers(solved, -LARGEST, LARGEST), "a factor that cannot be solved with")


def check_solution(lower: Tensor, solution: Tensor, right: Tensor) -> None:
    """Raise a ValueError unless L Lᵀ x = b, up to rounding: |L Lᵀ x - b| ≤ ε (|L| |L|ᵀ |x| + max |b|).

    Each row is compared with its own terms, because entries of other rows do not matter for it. The terms of
    a solution are about as large as b, so sums that overflow do not belong to one.
    """
    residual = lower @ (lower.mT @ solution) - right
    half = torch.zeros_like(residual)
    for rows in _bands(lower):
        half += lower[..., rows, :].abs().mT @ solution[..., rows, :].abs()
    whole = torch.cat([lower[..., rows, :].abs() @ half for rows in _bands(lower)], dim=-2)
    whole = whole + right.abs().amax(-2, keepdim=True)
    # false for NaN
    is_solved = (residual.abs() <= TOLERANCE * whole) & whole.isfinite()
    require(bool(is_solved.all()), "numbers that do not solve what they should")


def _bands(lower: Tensor) -> list[slice]:
    """Slices of the rows of a factor, so that it is not copied as a whole."""
    return [slice(start, start + ROWS_AT_ONCE) for start in range(0, lower.shape[-1], ROWS_AT_ONCE)]
