"""Factorisations that do not fail, Gaussian draws and densities, and gradients that are written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

NOT_COMPUTABLE = (ValueError, torch.linalg.LinAlgError)  # pyright: ignore[reportPrivateImportUsage]
"""What is raised where a density cannot be computed, such as a matrix that cannot be factorised."""


class Factor(NamedTuple):
    """A lower Cholesky factor L with L Lᵀ = A + jitter·I."""

    lower: Float[Tensor, "*batch n n"]
    jitter: float


def cholesky(matrix: Float[Tensor, "*batch n n"]) -> Factor:
    """Factorise a covariance matrix, adding to its diagonal only as much as needed, tenfold at each try.

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
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        lower, info = torch.linalg.cholesky_ex(matrix + jitter * identity)
        if not bool(info.any()):
            return Factor(lower, jitter)
        relative *= 10
    raise ValueError(
        "The covariance matrix is far from positive definite. Rows drawn at random cannot be factorised "
        "(freeze the orbit); otherwise the kernel is not positive definite."
    )


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
    """prior - explained, no less than the rounding of a sum of `num_terms` terms: never 0 where f varies."""
    return torch.maximum(prior - explained, num_terms * torch.finfo(prior.dtype).eps * prior)


def log_determinant(lower: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    """log|L Lᵀ|."""
    return 2 * lower.diagonal(dim1=-1, dim2=-2).log().sum(-1)


def standard_normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers of the type and on the device of `like`, drawn where the generator is."""
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
"""From the inputs, and the gradient by every result, the gradient by every input."""


def handwritten_gradient(
    forward: Callable[..., tuple[Tensor, ...]], backward: Backward, *inputs: Tensor
) -> tuple[Tensor, ...]:
    """forward(*inputs), to be differentiated once, by `backward` instead of by what torch recorded.

    Where a gradient is known in closed form, this saves the memory of all that `forward` computed between.
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
    @torch.autograd.function.once_differentiable
    def backward(ctx, *slopes: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, None, *ctx.by_hand(ctx.saved_tensors, slopes)


def gaussian_log_density(
    covariance: Float[Tensor, "n n"], residual: Float[Tensor, " n"]
) -> Float[Tensor, ""]:
    """log N(r; 0, K) of one vector, with the gradient ∂/∂K = ½(ααᵀ - K⁻¹), α = K⁻¹r, written down.

    It is differentiable once; `orbitwise.inference.exact.evidence` is differentiable as often as you like.
    """
    kept: list[Tensor] = []

    def forward(covariance: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        lower, _ = cholesky(covariance)
        alpha = torch.cholesky_solve(residual[:, None], lower)[:, 0]
        kept[:] = [lower, alpha]
        constant = 0.5 * len(residual) * math.log(2 * math.pi)
        return (-0.5 * (residual @ alpha) - lower.diagonal().log().sum() - constant,)

    def backward(_: tuple[Tensor, ...], slopes: tuple[Tensor, ...]) -> Sequence[Tensor | None]:
        lower, alpha = kept
        # ½(ααᵀ - K⁻¹) for K, and -α for r
        inverse = torch.cholesky_inverse(lower)
        return 0.5 * slopes[0] * (torch.outer(alpha, alpha) - inverse), -slopes[0] * alpha

    return handwritten_gradient(forward, backward, covariance, residual)[0]
