"""Covariances of blocks of derivatives that share their points, without expanding them to rows.

For k = κ(|p-q|²), δ = p - q and rows (i, k) = Σ_s w_is ∂_{v_isk}, (j, l) = Σ_t w_jt ∂_{v_jtl}:
cov = Σ_st w_is w_jt [-2κ′ v_isk·v_jtl - 4κ″ (δ·v_isk)(δ·v_jtl)]. The first term contracts t before the product over d, the
second is an outer product over k and l: kernel evaluations and elementwise work do not grow with the number of directions.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel
from jaxtyping import Float
from torch import Tensor

from orbitwise.functionals.atoms import Atoms
from orbitwise.functionals.functional import Block
from orbitwise.functionals.gradients import Gradients
from orbitwise.process.jets import select, squared_distance
from orbitwise.process.profiles import radial_profile


def has_fast_gradients(kernel: Kernel) -> bool:
    """Whether the kernel is a scaled sum of radial kernels."""
    if len(kernel.batch_shape):
        return False
    if type(kernel) is ScaleKernel and kernel.active_dims is None:
        return has_fast_gradients(kernel.base_kernel)
    if type(kernel) is AdditiveKernel and kernel.active_dims is None:
        return all(has_fast_gradients(part) for part in kernel.kernels)
    return radial_profile(kernel) is not None


def gradient_covariance(kernel: Kernel, left: Block, right: Block) -> Float[Tensor, "n m"]:
    """The covariance of two blocks, at least one of them `Gradients`, the other `Gradients` or atoms of values."""
    if isinstance(right, Atoms) and right.tangents is not None:
        right = _as_gradients(right)
    if isinstance(left, Atoms) and left.tangents is not None:
        left = _as_gradients(left)
    if isinstance(left, Atoms):
        return gradient_covariance(kernel, right, left).T
    if type(kernel) is ScaleKernel:
        return kernel.outputscale * gradient_covariance(kernel.base_kernel, left, right)
    if type(kernel) is AdditiveKernel:
        return sum(gradient_covariance(part, left, right) for part in kernel.kernels)  # pyright: ignore
    profile = radial_profile(kernel)
    lengthscale = kernel.lengthscale
    p, q = (select(kernel, block.points) / lengthscale for block in (left, right))
    v = select(kernel, left.directions) / lengthscale
    (n, s, _), (m, t, _) = p.shape, q.shape
    squares = squared_distance(p.flatten(0, 1), q.flatten(0, 1), snap=True)
    weights = left.weights.flatten()[:, None] * right.weights.flatten()[None, :]
    slope = (-2 * weights * profile(squares, 1)).reshape(n, s, m, t)
    # (p - q)·v for every direction k: [n s k, m t]
    along_v = (p[:, :, None] * v).sum(-1)[..., None] - (v.flatten(0, 2) @ q.flatten(0, 1).T).reshape(n, s, -1, m * t)
    along_v = along_v.reshape(n, s, -1, m, t)
    if isinstance(right, Atoms):
        # ∂_v κ = 2κ′ (p - q)·v
        return -torch.einsum("nsmt,nskmt->nkm", slope, along_v).flatten(0, 1)
    w = select(kernel, right.directions) / lengthscale
    bend = (-4 * weights * profile(squares, 2)).reshape(n, s, m, t)
    along_w = p.flatten(0, 1) @ w.flatten(0, 2).T
    along_w = along_w.reshape(n, s, m, t, -1) - (q[:, :, None] * w).sum(-1)
    # first over t, then over s and d: Σ_s v_isk · (Σ_t slope_isjt w_jtl)
    carried = torch.einsum("nsmt,mtld->nsmld", slope, w)
    first = torch.einsum("nskd,nsmld->nkml", v, carried)
    second = torch.einsum("nskmt,nsmtl->nkml", along_v * bend[:, :, None], along_w)
    return (first + second).reshape(left.num_rows, right.num_rows)


def _as_gradients(atoms: Atoms) -> Gradients:
    if not bool((atoms.order == 1).all()):
        raise ValueError("Rows that mix values and derivatives cannot meet a block of gradients; expand the block first.")
    return Gradients(atoms.points, atoms.weights, atoms.tangents[:, :, None, :])
