"""Sensible starts: kernels whose lengthscales fit the data, and a noise to begin with."""

from __future__ import annotations

import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from jaxtyping import Float
from torch import Tensor


def log_positive(initial_value: float | None = None) -> Positive:
    """A positivity constraint by exponentials, so that parameters of any scale are learned equally fast."""
    return Positive(transform=torch.exp, inv_transform=torch.log, initial_value=initial_value)


def default_kernel(points: Float[Tensor, "n d"], separate_lengthscales: bool) -> Kernel:
    """A scaled RBF kernel that starts at the data's own scale, with one lengthscale or one for each coordinate."""
    num_lengthscales = points.shape[-1] if separate_lengthscales else None
    base = RBFKernel(ard_num_dims=num_lengthscales, lengthscale_constraint=log_positive())
    kernel = ScaleKernel(base, outputscale_constraint=log_positive()).to(points)
    base.lengthscale = typical_distance(points, separate_lengthscales)
    kernel.outputscale = 1.0
    return kernel


def typical_distance(points: Float[Tensor, "n d"], separate: bool) -> Tensor:
    """A lengthscale to start from: √d times the spread of each coordinate, or of all together; 1 where nothing varies."""
    spread = points.std(0, correction=0)
    if not separate:
        spread = spread.square().mean().sqrt()[None]
    scale = spread * points.shape[-1] ** 0.5
    return torch.where(scale > 0, scale, torch.ones_like(scale))[None, :]
