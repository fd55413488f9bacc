"""When is the base kernel itself invariant to an orbit's group, k_g(hx, hy) = k_g(x, y)?

Then averaging one side suffices: |G| kernel evaluations instead of |G|². It is proved for kernels of
distances and inner products with one lengthscale under maps that preserve both; anything else the user may
assert, and is checked once.
"""

from __future__ import annotations

from dataclasses import replace

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
from torch import Tensor

from orbitwise.functionals.functional import Block
from orbitwise.kernels.wide_network import WideNetworkKernel
from orbitwise.process.covariance import block_covariance


def is_rotation_invariant(kernel: Kernel) -> bool:
    """Whether the kernel is proved to depend on |x-y|², x·y, |x|² and |y|² alone."""
    if kernel.active_dims is not None:
        return False
    if type(kernel) is ScaleKernel:
        return is_rotation_invariant(kernel.base_kernel)
    if type(kernel) in (AdditiveKernel, ProductKernel):
        return all(is_rotation_invariant(part) for part in kernel.kernels)  # pyright: ignore
    # One lengthscale for each coordinate is never taken for invariant, even while they are equal:
    # values would agree, but gradients would not.
    if type(kernel) in (RBFKernel, MaternKernel, RQKernel, LinearKernel):
        return kernel.ard_num_dims in (None, 1)
    return type(kernel) in (PolynomialKernel, ConstantKernel, WideNetworkKernel)


def check_asserted(
    kernel: Kernel, block: Block, rows: int = 3, elements: int = 32, tolerance: float = 1e-4
) -> bool:
    """Raise a ValueError unless k_g(hx, hy) = k_g(x, y), and its gradient, on some rows of a symmetric block.

    Returns whether those rows could tell: one row, or copies of it, says little about a stationary kernel.
    """
    size, count = block.symmetry.size, block.points.shape[-3]  # pyright: ignore
    some = block.rows(slice(None, None, max(1, count // rows)))
    some = replace(some, points=some.points.detach(), weights=some.weights.detach())
    # The atoms h·x of the rows: their covariance must not depend on h.
    seen = [
        _signature(kernel, some.pick(slice(h, None, size))) for h in range(0, size, max(1, size // elements))
    ]
    gap = (torch.stack(seen) - seen[0]).abs().max() / seen[0].abs().max().clamp_min(1e-30)
    if not gap < tolerance:
        raise ValueError(
            "one_sided=True asserts that the kernel is invariant to the orbit's group, but on these inputs "
            "k(hx, hy), or its gradient by a hyperparameter, differs from k(x, y) by "
            f"{float(gap):.1e} of its size. Use one_sided='auto'."
        )
    return bool((some.points != some.points[..., :1, :, :]).any())


def _signature(kernel: Kernel, block: Block) -> Tensor:
    """The covariances of a block's rows, and their gradients by the hyperparameters."""
    with torch.enable_grad():
        gram = block_covariance(kernel, block)
        probe = torch.arange(gram.numel(), dtype=gram.dtype, device=gram.device).cos().reshape(gram.shape)
        free = [parameter for parameter in kernel.parameters() if parameter.requires_grad]
        slopes = torch.autograd.grad((gram * probe).sum(), free, allow_unused=True) if free else []
    return torch.cat([part.detach().flatten().to(gram) for part in (gram, *slopes) if part is not None])
