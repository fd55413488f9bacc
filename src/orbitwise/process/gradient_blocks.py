"""Covariances of blocks of derivatives that share their points, without expanding them to rows.

For k = κ(|p-q|²), δ = p - q and rows (i, k) = Σ_s w_is ∂_{v_isk}, (j, l) = Σ_t w_jt ∂_{v_jtl}:
cov = Σ_st w_is w_jt [-2κ′ v_isk·v_jtl - 4κ″ (δ·v_isk)(δ·v_jtl)]. The first term contracts t before the
product over d, the second is an outer product over k and l: kernel evaluations do not grow with the number of
directions.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float
from torch import Tensor

from orbitwise.functionals.atoms import Block, Gradients
from orbitwise.process.jets import in_lengthscales, snapped_squared_distance
from orbitwise.process.profiles import (
    SHARP,
    Part,
    check_blur,
    parts_of_sum,
    radial_profile,
    variance_of,
    widened,
)


def takes_gradients(kernel: Kernel, left: Block, right: Block) -> bool:
    """Whether `gradient_covariance` serves: a sum of radial kernels, and rows of values or of slopes.

    Rows that mix the two, and slopes of local averages, are for the general path.
    """
    if max(left.points.dim(), right.points.dim()) > 3 or len(kernel.batch_shape) > 0:
        return False
    if any(block.has_slopes and (block.has_values or block.blur is not None) for block in (left, right)):
        return False
    return all(part.is_radial or not part.has_slopes for part in parts_of_sum(kernel))


def gradient_covariance(kernel: Kernel, left: Block, right: Block) -> Float[Tensor, "n m"]:
    """The covariance of two blocks, one of them `Gradients`, the other too or atoms of values or slopes."""
    if (slopes := left.slopes()) is None:
        return gradient_covariance(kernel, right, left).T
    total = slopes.points.new_zeros(slopes.num_rows, right.num_rows)
    for part in parts_of_sum(kernel):
        if part.has_slopes:
            total = total + part.scale * _radial_covariance(part, slopes, right)
    return total


def _radial_covariance(part: Part, left: Gradients, right: Block) -> Float[Tensor, "n m"]:
    kernel, profile = part.kernel, radial_profile(part.kernel)
    assert profile is not None
    (n, s, _), (m, t, _) = left.points.shape, right.points.shape
    lengthscale = kernel.lengthscale.to(left.points)
    blur, factor = (variance_of(left), variance_of(right)), torch.ones_like(lengthscale[..., :1])
    if blur != SHARP:
        check_blur(kernel)
        lengthscale, factor = widened(lengthscale, part.select(left.points).shape[-1], blur)
    p, q = (part.select(block.points).flatten(0, 1) for block in (left, right))
    p, q = in_lengthscales(p, q, lengthscale)
    v = part.select(left.directions) / lengthscale
    squares = snapped_squared_distance(p, q)
    weights = factor * left.weights.flatten()[:, None] * right.weights.flatten()[None, :]
    slope = (-2 * weights * profile(squares, 1)).reshape(n, s, m, t)
    # (p - q)·v for every direction k: [n s k, m t]
    along_v = (p.reshape(n, s, 1, -1) * v).sum(-1).reshape(-1, 1) - v.flatten(0, 2) @ q.T
    along_v = along_v.reshape(n, s, -1, m, t)
    if (others := right.slopes()) is None:
        # ∂_v κ = 2κ′ (p - q)·v
        return -torch.einsum("nsmt,nskmt->nkm", slope, along_v).flatten(0, 1)
    w = part.select(others.directions) / lengthscale
    bend = (-4 * weights * profile(squares, 2)).reshape(n, s, m, t)
    along_w = (p @ w.flatten(0, 2).T).reshape(n, s, m, t, -1) - (q.reshape(m, t, 1, -1) * w).sum(-1)
    # first over t, then over s and d: Σ_s v_isk · (Σ_t slope_isjt w_jtl)
    carried = torch.einsum("nsmt,mtld->nsmld", slope, w)
    first = torch.einsum("nskd,nsmld->nkml", v, carried)
    second = torch.einsum("nskmt,nsmtl->nkml", along_v * bend[:, :, None], along_w)
    return (first + second).reshape(left.num_rows, right.num_rows)
