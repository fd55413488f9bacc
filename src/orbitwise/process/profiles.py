"""Radial profiles κ(|p-q|²) and dot-product profiles h(pᵀΛq) with two derivatives: three formulas a kernel.

Never differentiate a GPyTorch kernel twice instead: where inputs coincide, Matérn and periodic kernels
silently give zeros (METHOD 10). The scaled squared distance is q; κ′ and κ″ are derivatives by q.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from gpytorch.kernels import Kernel, LinearKernel, MaternKernel, PolynomialKernel, RBFKernel, RQKernel
from torch import Tensor

Profile = Callable[[Tensor, int], Tensor]
SMALLEST_DISTANCE = 1e-15


def radial_profile(kernel: Kernel, rows: bool = False) -> Profile | None:
    """κ(q, order) of a kernel of the scaled squared distance q, or None for a kernel that we do not know."""
    if type(kernel) is RBFKernel:
        return rbf
    if type(kernel) is MaternKernel and kernel.nu == 1.5:
        return _matern_32
    if type(kernel) is MaternKernel and kernel.nu == 2.5:
        return _matern_52
    if type(kernel) is RQKernel:
        alpha = over_rows(kernel.alpha[..., None], kernel, rows)
        return lambda q, order: _rational_quadratic(q, order, alpha.to(q))
    return None


def dot_product_profile(kernel: Kernel, rows: bool = False) -> tuple[Tensor, Profile] | None:
    """(Λ, h(t, order)) of a kernel of the product t = pᵀΛq, or None when the kernel is not one we know."""
    if type(kernel) is LinearKernel:
        return over_rows(kernel.variance, kernel, rows), lambda t, order: _power(t, order, 0.0, 1)
    if type(kernel) is PolynomialKernel:
        offset, power = over_rows(kernel.offset[..., None], kernel, rows), int(kernel.power)
        return torch.ones_like(offset), lambda t, order: _power(t, order, offset.to(t), power)
    return None


def over_rows(parameter: Tensor, kernel: Kernel, rows: bool) -> Tensor:
    """A parameter [*batch, 1, 1 or d] of a kernel, with room for the rows where points have them."""
    return parameter.unsqueeze(-3) if rows and len(kernel.batch_shape) else parameter


def rbf(q: Tensor, order: int) -> Tensor:
    """κ = e^{-q/2}."""
    value = (-0.5 * q).exp_()
    return value if order == 0 else (-0.5) ** order * value


def _matern_32(q: Tensor, order: int) -> Tensor:
    r = _distance(q) * math.sqrt(3)
    decay = torch.exp(-r)
    if order == 0:
        return (1 + r) * decay
    if order == 1:
        return -1.5 * decay
    # κ″ = 9/4 e^{-r}/r grows like 1/r, but only meets two factors of the order of r: their product is 0 at 0.
    return torch.where(q > 0, 2.25 * decay / r, 0)


def _matern_52(q: Tensor, order: int) -> Tensor:
    r = _distance(q) * math.sqrt(5)
    decay = torch.exp(-r)
    if order == 0:
        return (1 + r + q * (5 / 3)) * decay
    return -5 / 6 * (1 + r) * decay if order == 1 else 25 / 12 * decay


def _rational_quadratic(q: Tensor, order: int, alpha: Tensor) -> Tensor:
    base = 1 + q / (2 * alpha)
    factor = (1.0, -0.5, (alpha + 1) / (4 * alpha))[order]
    return factor * base ** (-alpha - order)


def _power(t: Tensor, order: int, offset: Tensor | float, power: int) -> Tensor:
    if order > power:
        return torch.zeros_like(t)
    return math.prod(range(power, power - order, -1)) * (t + offset) ** (power - order)


def _distance(q: Tensor) -> Tensor:
    """√q, with derivative 0 instead of ∞ at 0."""
    return q.clamp_min(SMALLEST_DISTANCE**2).sqrt()
