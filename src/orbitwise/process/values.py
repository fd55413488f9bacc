"""Covariances of rows of values, fast: for the thousands of small Gram matrices of a kernel search.

The general path, `Process.covariance`, serves derivatives, blurs, batches and tiles. For a matrix of a few
hundred rows it spends most of its time between operations. Here distances are computed once for all kernels
of the same columns. Formulas of distances are those of `orbitwise.process.profiles`; the tests compare values
and gradients with those of the general path.
"""

from __future__ import annotations

import math
from typing import final

import torch
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    Kernel,
    PeriodicKernel,
    ProductKernel,
    ScaleKernel,
)
from jaxtyping import Float
from torch import Tensor

from orbitwise.functionals.atoms import Atoms
from orbitwise.kernels.linear import CentredLinearKernel
from orbitwise.process.jets import select
from orbitwise.process.profiles import radial_profile


def value_covariance(kernel: Kernel, atoms: Atoms, one_sided: bool = False) -> Float[Tensor, "n n"]:
    """cov(L_i g, L_j g) = Σ_s Σ_t w_is w_jt k(p_is, p_jt), for rows of values without batches.

    `one_sided` says that the atoms are the orbit of a group that the kernel is invariant to, the identity
    first, with weights that are a character of the group. One side of the double sum is then enough:
    |G| Σ_t w_i1 w_jt k(p_i1, p_jt).
    """
    if atoms.tangents is not None or atoms.blur is not None or atoms.points.dim() != 3:
        raise ValueError("value_covariance takes rows of values only; use Process.covariance.")
    count, points, weights = atoms.num_atoms, atoms.points, atoms.weights
    total: Tensor | None = None
    for s in range(1 if one_sided else count):
        left = weights[:, s] * (count if one_sided else 1)
        for t in range(s, count):
            block = gram(kernel, PointPairs(points[:, s], points[:, t]))
            factor = left[:, None] * weights[:, t]
            if not bool((factor == 1).all()):
                block = block * factor
            if not one_sided and s != t:
                block = block + block.mT
            total = block if total is None else total + block
    assert total is not None, "rows have at least one atom"
    return total


@final
class PointPairs:
    """All pairs (p, q) of two lists of points, with the squared distances that were asked for so far."""

    def __init__(self, left: Float[Tensor, "n d"], right: Float[Tensor, "m d"]) -> None:
        self.left, self.right = left, right
        self._squares: dict[tuple[int, ...] | None, Tensor] = {}

    def selected(self, kernel: Kernel) -> tuple[Tensor, Tensor]:
        """The columns that a kernel sees, of both lists."""
        return select(kernel, self.left), select(kernel, self.right)

    def squared_distance(self, kernel: Kernel) -> Float[Tensor, "n m"]:
        """|p - q|² in the columns that a kernel sees."""
        active = kernel.active_dims
        key = tuple(active.tolist()) if isinstance(active, Tensor) else None
        if key not in self._squares:
            left, right = self.selected(kernel)
            self._squares[key] = (left[:, None, :] - right[None, :, :]).square().sum(-1)
        return self._squares[key]


def gram(kernel: Kernel, pairs: PointPairs) -> Float[Tensor, "n m"]:
    """k(p, q) of all pairs: by a closed form where the kernel has one lengthscale, otherwise by GPyTorch."""
    # Exact types: a subclass may compute something else.
    if type(kernel) is ScaleKernel:
        return kernel.outputscale * gram(kernel.base_kernel, pairs)
    if type(kernel) is AdditiveKernel or type(kernel) is ProductKernel:
        total: Tensor | None = None
        for part in kernel.kernels:
            assert isinstance(part, Kernel)
            block = gram(part, pairs)
            if total is not None:
                block = total + block if type(kernel) is AdditiveKernel else total * block
            total = block
        assert total is not None, "a sum or product has at least one part"
        return total
    if type(kernel) is ConstantKernel or type(kernel) is CentredLinearKernel:
        return kernel.forward(*pairs.selected(kernel))
    if (kernel.ard_num_dims or 1) == 1:
        if (profile := radial_profile(kernel)) is not None:
            # κ(|p - q|²/λ²)
            return profile(pairs.squared_distance(kernel) / kernel.lengthscale.square(), 0)
        left, right = pairs.selected(kernel)
        if type(kernel) is PeriodicKernel and left.shape[1] == 1:
            # exp(-2 sin²(πτ/p)/λ) = exp((cos(2πτ/p) - 1)/λ), which has no kink at τ = 0
            angle = (left - right.mT) * (2 * math.pi / kernel.period_length)
            return (angle.cos() - 1).div(kernel.lengthscale).exp()
    values = kernel(pairs.left, pairs.right).to_dense()
    assert isinstance(values, torch.Tensor)
    return values
