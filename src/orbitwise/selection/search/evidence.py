"""The evidence of many small models, fast: Gram matrices from a few formulas, one factorisation, one inverse.

A search evaluates thousands of models of a few hundred rows, where the library's general path spends most of
its time between operations. Here ∂ log p(y)/∂K = ½(ααᵀ - K⁻¹) is written down, and automatic
differentiation only passes through the kernel. The tests hold it against `orbitwise.inference.exact`.
"""

from __future__ import annotations

import math
from typing import Any, final

import torch
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    Kernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from torch import Tensor

from orbitwise.functionals.atoms import Atoms
from orbitwise.inference.linear_algebra import cholesky
from orbitwise.kernels.linear import CentredLinearKernel


@final
class _LogDensity(torch.autograd.Function):
    """log N(y; 0, K) for one vector y."""

    @staticmethod
    def forward(ctx: Any, covariance: Tensor, y: Tensor) -> Tensor:  # pyright: ignore
        lower, _ = cholesky(covariance)
        alpha = torch.cholesky_solve(y[:, None], lower)[:, 0]
        ctx.save_for_backward(lower, alpha)
        return -0.5 * (y @ alpha) - lower.diagonal().log().sum() - 0.5 * len(y) * math.log(2 * math.pi)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore
        lower, alpha = ctx.saved_tensors
        # ½(ααᵀ - K⁻¹)
        inverse = torch.cholesky_inverse(lower)
        return 0.5 * gradient * (torch.outer(alpha, alpha) - inverse), None


def log_density(covariance: Tensor, y: Tensor) -> Tensor:
    """log N(y; 0, K), differentiable in K."""
    value: Any = _LogDensity.apply(covariance, y)
    return value


@final
class Distances:
    """Squared distances of points in some of their columns, each computed once."""

    def __init__(self, points: Tensor) -> None:
        self.points = points
        self.known: dict[tuple[int, ...] | None, Tensor] = {}

    def columns(self, kernel: Any) -> Tensor:
        """The columns that a kernel sees."""
        return self.points if kernel.active_dims is None else self.points[:, kernel.active_dims]

    def squared(self, kernel: Any) -> Tensor:
        """|p - q|² in the columns of a kernel."""
        key = None if kernel.active_dims is None else tuple(kernel.active_dims.tolist())
        if key not in self.known:
            seen = self.columns(kernel)
            self.known[key] = (seen[:, None, :] - seen[None, :, :]).square().sum(-1)
        return self.known[key]


def gram(kernel: Any, distances: Distances) -> Tensor:
    """k(p, q) of all pairs of points, by its formula where that is known here, else by GPyTorch."""
    kind = type(kernel)
    if kind is ScaleKernel:
        return kernel.outputscale * gram(kernel.base_kernel, distances)
    if kind is AdditiveKernel or kind is ProductKernel:
        total, *others = [gram(part, distances) for part in kernel.kernels]
        for other in others:
            total = total + other if kind is AdditiveKernel else total * other
        return total
    if kind is ConstantKernel:
        return kernel.constant.expand(len(distances.points), len(distances.points))
    if kind is CentredLinearKernel:
        seen = distances.columns(kernel) - kernel.centre
        return kernel.variance * (seen @ seen.mT)
    is_plain = (kernel.ard_num_dims or 1) == 1
    if kind is PeriodicKernel and is_plain and distances.columns(kernel).shape[1] == 1:
        # exp(-2 sin²(π τ/p)/λ) = exp((cos(2π τ/p) - 1)/λ), which has no kink at τ = 0
        angle = distances.columns(kernel)[:, 0] * (2 * math.pi / kernel.period_length.reshape(()))
        return ((angle[:, None] - angle[None, :]).cos() - 1).div(kernel.lengthscale.reshape(())).exp()
    if kind in (RBFKernel, MaternKernel, RQKernel) and is_plain:
        scaled = distances.squared(kernel) / kernel.lengthscale.reshape(()).square()
        return _radial(kernel, scaled)
    return kernel(distances.points).to_dense()


def _radial(kernel: Any, squared: Tensor) -> Tensor:
    if type(kernel) is RBFKernel:
        return (-0.5 * squared).exp()
    if type(kernel) is RQKernel:
        alpha = kernel.alpha.reshape(())
        return (-alpha * (squared / (2 * alpha)).log1p()).exp()
    distance = (squared * (2 * kernel.nu)).clamp_min(1e-30).sqrt()
    factor = {0.5: 1.0, 1.5: 1 + distance}.get(kernel.nu)
    return (1 + distance + distance.square() / 3 if factor is None else factor) * (-distance).exp()


def covariance(kernel: Kernel, atoms: Atoms) -> Tensor:
    """cov(L_i g, L_j g) = Σ_s Σ_t w_is w_jt k(p_is, p_jt), for rows of values alone."""
    rows, count = atoms.weights.shape
    unreduced = gram(kernel, Distances(atoms.points.reshape(rows * count, -1)))
    if count == 1:
        return unreduced * atoms.weights * atoms.weights.mT
    weighted = unreduced.reshape(rows, count, rows, count) * atoms.weights[:, :, None, None] * atoms.weights
    return weighted.sum((1, 3))
