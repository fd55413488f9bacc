"""When is the base kernel itself invariant to an orbit's group, k_g(hx, hy) = k_g(x, y)?

Then averaging one side suffices: |G| kernel evaluations instead of |G|². It is proved for kernels of distances and inner
products with one lengthscale under maps that preserve both; anything else the user may assert, and is checked once.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PolynomialKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)

from orbitwise.functionals.functional import Block
from orbitwise.functionals.gradients import Gradients


def is_rotation_invariant(kernel: Kernel) -> bool:
    """Whether the kernel is proved to depend on |x-y|², x·y, |x|² and |y|² alone."""
    if kernel.active_dims is not None:
        return False
    if type(kernel) is ScaleKernel:
        return is_rotation_invariant(kernel.base_kernel)
    if type(kernel) in (AdditiveKernel, ProductKernel):
        return all(is_rotation_invariant(part) for part in kernel.kernels)
    # One lengthscale for each coordinate is never taken for invariant, even while they are equal:
    # values would agree, but gradients would not.
    if type(kernel) in (RBFKernel, MaternKernel, RQKernel, LinearKernel):
        return kernel.ard_num_dims in (None, 1)
    return type(kernel) in (PolynomialKernel, ConstantKernel)


def check_asserted(kernel: Kernel, block: Block, rows: int = 3, tolerance: float = 1e-4) -> None:
    """Raise a ValueError unless k_g(hx, hy) = k_g(x, y) holds on the first rows of a block with a symmetry."""
    size = block.symmetry.size
    points = block.points.reshape(-1, *block.points.shape[-2:])[:rows]
    with torch.no_grad():
        runs = points.unflatten(-2, (-1, size))[:, 0].transpose(0, 1)
        # runs[h] holds h·x for the first rows x: its Gram matrix must not depend on h
        grams = torch.stack([_gram(kernel, moved) for moved in runs[: min(size, 32)]])
        gap = (grams - grams[0]).abs().max() / grams[0].abs().max().clamp_min(1e-30)
    if not gap < tolerance:
        what = "derivative rows of a" if isinstance(block, Gradients) else "a"
        raise ValueError(
            f"one_sided=True asserts that the kernel is invariant to the group, but for {what} symmetric functional "
            f"k(hx, hy) differs from k(x, y) by {float(gap):.1e} of its size. Use one_sided='auto'."
        )


def _gram(kernel: Kernel, points: torch.Tensor) -> torch.Tensor:
    gram = kernel(points.contiguous()).to_dense()
    return gram.reshape(-1, *gram.shape[-2:])[0]
