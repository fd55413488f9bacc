"""Covariances of blocks of derivatives that share their points, without expanding them to rows.

For k = κ(|p-q|²), δ = p - q and rows (i, k) = Σ_s w_is ∂_{v_isk}, (j, l) = Σ_t w_jt ∂_{v_jtl}:
cov = Σ_st w_is w_jt [-2κ′ v_isk·v_jtl - 4κ″ (δ·v_isk)(δ·v_jtl)]. The first term contracts t before the
product over d, the second is an outer product over k and l: kernel evaluations do not grow with the number of
directions.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import AdditiveKernel, ConstantKernel, Kernel, ScaleKernel
from jaxtyping import Float
from torch import Tensor

from orbitwise.functionals.atoms import Atoms
from orbitwise.functionals.functional import Block
from orbitwise.functionals.gradients import Gradients
from orbitwise.process.jets import in_lengthscales, select, snapped_squared_distance
from orbitwise.process.profiles import SHARP, check_blur, radial_profile, variance_of, widened


def takes_gradients(kernel: Kernel, left: Block, right: Block) -> bool:
    """Whether `gradient_covariance` serves: a sum of radial kernels, no rows that mix values and slopes."""
    mixed = any(isinstance(block, Atoms) and _is_mixed(block) for block in (left, right))
    batched = max(left.points.dim(), right.points.dim()) > 3 or len(kernel.batch_shape) > 0
    return not mixed and not batched and _is_radial(kernel)


def gradient_covariance(kernel: Kernel, left: Block, right: Block) -> Float[Tensor, "n m"]:
    """The covariance of two blocks, one of them `Gradients`, the other too or atoms of values or slopes."""
    left, right = _as_gradients(left), _as_gradients(right)
    if isinstance(left, Atoms):
        return gradient_covariance(kernel, right, left).T
    if type(kernel) is ScaleKernel:
        return kernel.outputscale * gradient_covariance(kernel.base_kernel, left, right)
    if type(kernel) is AdditiveKernel:
        return sum(gradient_covariance(part, left, right) for part in kernel.kernels)  # pyright: ignore
    if type(kernel) is ConstantKernel:
        return left.points.new_zeros(left.num_rows, right.num_rows)
    profile = radial_profile(kernel)
    assert profile is not None
    (n, s, _), (m, t, _) = left.points.shape, right.points.shape
    lengthscale = kernel.lengthscale.to(left.points)
    blur, factor = (variance_of(left), variance_of(right)), 1.0
    if blur != SHARP:
        check_blur(kernel)
        lengthscale, factor = widened(lengthscale, select(kernel, left.points).shape[-1], blur)
    flat = (select(kernel, block.points).flatten(0, 1) for block in (left, right))
    p, q = in_lengthscales(*flat, lengthscale)
    v = select(kernel, left.directions) / lengthscale
    squares = snapped_squared_distance(p, q)
    weights = factor * left.weights.flatten()[:, None] * right.weights.flatten()[None, :]
    slope = (-2 * weights * profile(squares, 1)).reshape(n, s, m, t)
    # (p - q)·v for every direction k: [n s k, m t]
    along_v = (p.reshape(n, s, 1, -1) * v).sum(-1).reshape(-1, 1) - v.flatten(0, 2) @ q.T
    along_v = along_v.reshape(n, s, -1, m, t)
    if isinstance(right, Atoms):
        # ∂_v κ = 2κ′ (p - q)·v
        return -torch.einsum("nsmt,nskmt->nkm", slope, along_v).flatten(0, 1)
    w = select(kernel, right.directions) / lengthscale
    bend = (-4 * weights * profile(squares, 2)).reshape(n, s, m, t)
    along_w = (p @ w.flatten(0, 2).T).reshape(n, s, m, t, -1) - (q.reshape(m, t, 1, -1) * w).sum(-1)
    # first over t, then over s and d: Σ_s v_isk · (Σ_t slope_isjt w_jtl)
    carried = torch.einsum("nsmt,mtld->nsmld", slope, w)
    first = torch.einsum("nskd,nsmld->nkml", v, carried)
    second = torch.einsum("nskmt,nsmtl->nkml", along_v * bend[:, :, None], along_w)
    return (first + second).reshape(left.num_rows, right.num_rows)


def _is_mixed(atoms: Atoms) -> bool:
    """Whether rows mix values and slopes, or are slopes of local averages."""
    return atoms.order.unique().numel() > 1 or (atoms.blur is not None and bool(atoms.order.any()))


def _is_radial(kernel: Kernel) -> bool:
    if type(kernel) is ScaleKernel:
        # A scale copies the active dimensions of its base, which selects them itself.
        plain = kernel.active_dims is None or kernel.base_kernel.active_dims is not None
        return plain and _is_radial(kernel.base_kernel)
    if type(kernel) is AdditiveKernel and kernel.active_dims is None:
        return all(_is_radial(part) for part in kernel.kernels)  # pyright: ignore
    return type(kernel) is ConstantKernel or radial_profile(kernel) is not None


def _as_gradients(block: Block) -> Block:
    """Atoms of slopes as gradients along one direction each; gradients and atoms of values as they are."""
    if isinstance(block, Gradients) or bool((block.order == 0).all()):
        return block
    return Gradients(block.points, block.weights, block.filled_tangents[:, :, None, :])
