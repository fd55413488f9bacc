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
    """log N(y; 0, K) for one vector y, differentiable in both."""

    @staticmethod
    def forward(ctx: Any, covariance: Tensor, y: Tensor) -> Tensor:  # pyright: ignore
        lower, _ = cholesky(covariance)
        alpha = torch.cholesky_solve(y[:, None], lower)[:, 0]
        ctx.save_for_backward(lower, alpha)
        return -0.5 * (y @ alpha) - lower.diagonal().log().sum() - 0.5 * len(y) * math.log(2 * math.pi)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore
        lower, alpha = ctx.saved_tensors
        # ½(ααᵀ - K⁻¹), and -α for y
        inverse = torch.cholesky_inverse(lower)
        return 0.5 * gradient * (torch.outer(alpha, alpha) - inverse), -gradient * alpha


def log_density(covariance: Tensor, y: Tensor) -> Tensor:
    """log N(y; 0, K)."""
    value: Any = _LogDensity.apply(covariance, y)
    return value


@final
class Pairs:
    """All pairs of two lists of points; squared distances in some of their columns are computed once."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self.left, self.right = left, right
        self.known: dict[tuple[int, ...] | None, Tensor] = {}

    def columns(self, kernel: Any) -> tuple[Tensor, Tensor]:
        """The columns that a kernel sees."""
        if kernel.active_dims is None:
            return self.left, self.right
        return self.left[:, kernel.active_dims], self.right[:, kernel.active_dims]

    def squared(self, kernel: Any) -> Tensor:
        """|p - q|² in the columns of a kernel."""
        key = None if kernel.active_dims is None else tuple(kernel.active_dims.tolist())
        if key not in self.known:
            left, right = self.columns(kernel)
            self.known[key] = (left[:, None, :] - right[None, :, :]).square().sum(-1)
        return self.known[key]


def gram(kernel: Any, pairs: Pairs) -> Tensor:
    """k(p, q) of all pairs, by its formula where that is known here, else by GPyTorch."""
    kind = type(kernel)
    if kind is ScaleKernel:
        return kernel.outputscale * gram(kernel.base_kernel, pairs)
    if kind is AdditiveKernel or kind is ProductKernel:
        total, *others = [gram(part, pairs) for part in kernel.kernels]
        for other in others:
            total = total + other if kind is AdditiveKernel else total * other
        return total
    if kind is ConstantKernel:
        return kernel.constant.expand(len(pairs.left), len(pairs.right))
    left, right = pairs.columns(kernel)
    if kind is CentredLinearKernel:
        return kernel.variance * ((left - kernel.centre) @ (right - kernel.centre).mT)
    is_plain = (kernel.ard_num_dims or 1) == 1
    if kind is PeriodicKernel and is_plain and left.shape[1] == 1:
        # exp(-2 sin²(π τ/p)/λ) = exp((cos(2π τ/p) - 1)/λ), which has no kink at τ = 0
        angle = (left - right.mT) * (2 * math.pi / kernel.period_length.reshape(()))
        return (angle.cos() - 1).div(kernel.lengthscale.reshape(())).exp()
    if kind in (RBFKernel, MaternKernel, RQKernel) and is_plain:
        return _radial(kernel, pairs.squared(kernel) / kernel.lengthscale.reshape(()).square())
    return kernel(pairs.left, pairs.right).to_dense()


def _radial(kernel: Any, squared: Tensor) -> Tensor:
    if type(kernel) is RBFKernel:
        return (-0.5 * squared).exp()
    if type(kernel) is RQKernel:
        alpha = kernel.alpha.reshape(())
        return (-alpha * (squared / (2 * alpha)).log1p()).exp()
    distance = (squared * (2 * kernel.nu)).clamp_min(1e-30).sqrt()
    factor = {0.5: 1.0, 1.5: 1 + distance}.get(kernel.nu)
    return (1 + distance + distance.square() / 3 if factor is None else factor) * (-distance).exp()


def covariance(kernel: Kernel, atoms: Atoms, one_sided: bool = False) -> Tensor:
    """cov(L_i g, L_j g) = Σ_s Σ_t w_is w_jt k(p_is, p_jt), for rows of values alone.

    `one_sided` says that the atoms are the orbit of a group that the kernel is invariant to, the identity
    first, with weights that are a character of it: then Σ_s Σ_t becomes a sum over t alone.
    """
    count, points, weights = atoms.num_atoms, atoms.points, atoms.weights
    total: Tensor | float = 0.0
    for s in range(1 if one_sided else count):
        scaled = weights[:, s] * (count if one_sided else 1)
        for t in range(s, count):
            block = _weighted(kernel, points[:, s], points[:, t], scaled, weights[:, t])
            total = total + (block if one_sided or s == t else block + block.mT)
    assert isinstance(total, Tensor)
    return total


def _weighted(kernel: Kernel, left: Tensor, right: Tensor, before: Tensor, after: Tensor) -> Tensor:
    block = gram(kernel, Pairs(left, right))
    factor = before[:, None] * after
    return block if bool((factor == 1).all()) else block * factor
