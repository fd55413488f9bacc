"""A sum of kernels taken apart: the posterior of every summand of g = g₁ + g₂ + … (Lecture 2.8).

Independent summands have cov(g_i, y) = K_i, so g_i given y has the mean K_i*ᵀ(K+Σ)⁻¹(y-m) and the variance
k_i** - |L⁻¹K_i*|². The means add up to that of g. The variances do not: given y the summands are correlated.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from gpytorch.means import ZeroMean
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.exact import ExactPosterior
from orbitwise.inference.linear_algebra import remaining_variance, solve_lower
from orbitwise.process.process import Process, Rows

TOLERANCE = 1e-6
"""How far, relatively, the variances of given parts may add up beside that of the kernel."""


class Component(NamedTuple):
    """The posterior of one summand at some rows; `kernel` is None for the mean function."""

    kernel: Kernel | None
    mean: Float[Tensor, "n c"]
    variance: Float[Tensor, " n"]


def summands(kernel: Kernel) -> list[Kernel]:
    """The kernels that `kernel` is a sum of: scales and products are multiplied out, (a + b)·c = a·c + b·c.

    They share their hyperparameters with it.
    """
    if isinstance(kernel, AdditiveKernel):
        return [part for each in kernel.kernels for part in summands(_as_kernel(each))]
    if isinstance(kernel, ScaleKernel):
        parts = summands(kernel.base_kernel)
        return [kernel] if len(parts) == 1 else [_scaled(kernel, part) for part in parts]
    if isinstance(kernel, ProductKernel):
        factors = [summands(_as_kernel(each)) for each in kernel.kernels]
        if all(len(parts) == 1 for parts in factors):
            return [kernel]
        return [ProductKernel(*choice) for choice in product(*factors)]
    return [kernel]


def components(
    posterior: ExactPosterior, rows: Rows, parts: Sequence[Kernel] | None = None
) -> list[Component]:
    """The posterior of each summand of the process at `rows`; their means add up to the posterior mean.

    `parts` are kernels that sum to that of the process, say some of its summands put together; left out,
    they are `summands(kernel)`. A mean function other than zero comes first, with variance zero.
    """
    process = posterior.process
    parts = summands(process.kernel) if parts is None else list(parts)
    whole, found = process.variance(rows), []
    if not isinstance(process.mean_module, ZeroMean):
        mean = process.mean(rows)[:, None].expand(-1, posterior.targets.shape[1])
        found.append(Component(None, mean, torch.zeros_like(whole)))
    total = torch.zeros_like(whole)
    for part in parts:
        summand = Process(None, part, process.one_sided)
        # K_i*, the covariance of y with this summand alone
        cross, prior = summand.covariance(posterior.rows, rows), summand.variance(rows)
        # K_i*ᵀ(K+Σ)⁻¹(y-m),  k_i** - |L⁻¹K_i*|²
        explained = solve_lower(posterior.lower, cross).square().sum(0)
        variance = remaining_variance(prior, explained, len(posterior.lower))
        found.append(Component(part, cross.mT @ posterior.weights, variance))
        total = total + prior
    if not torch.allclose(total, whole, rtol=TOLERANCE, atol=TOLERANCE * float(whole.detach().abs().max())):
        raise ValueError(
            f"The {len(parts)} parts do not sum to the kernel of the process: their prior variances add up "
            f"to {float(total.detach().mean()):.4g} on average, not {float(whole.detach().mean()):.4g}. Give "
            "kernels that do, such as those of summands(kernel), alone or added."
        )
    return found


def _as_kernel(module: torch.nn.Module) -> Kernel:
    """An entry of a list of modules, which is known to hold kernels."""
    if not isinstance(module, Kernel):
        raise TypeError(f"A sum or product of kernels holds a {type(module).__name__}.")
    return module


def _scaled(scale: ScaleKernel, part: Kernel) -> ScaleKernel:
    """One summand under the scale of their sum."""
    constraint = scale.constraint_for_parameter_name("raw_outputscale")
    scaled = ScaleKernel(part, outputscale_constraint=constraint, batch_shape=scale.batch_shape)
    scaled.raw_outputscale = scale.raw_outputscale
    return scaled
