"""The posterior of every additive component of f: which part of what was seen does each explain?

f = Σ_i f_i with independent priors k_i, so the posterior of f_i has mean K_i*ᵀ(K + σ²I)⁻¹y and variance
k_i** - K_i*ᵀ(K + σ²I)⁻¹K_i*. The means add up to the posterior mean of f; the variances do not, for the data
tell the components apart only so far.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import NDArray

from orbitwise.functionals.functional import Functional
from orbitwise.inference.exact import ExactPosterior
from orbitwise.inference.linear_algebra import solve_lower
from orbitwise.kernels.building import build
from orbitwise.kernels.expressions import Expression, summands
from orbitwise.kernels.spelling import expression_of
from orbitwise.process.process import Process


class Component(NamedTuple):
    """One additive part of f, in units of the targets: its spelling, in words, its mean and its deviation."""

    spelling: str
    description: str
    mean: NDArray[np.float64]
    std: NDArray[np.float64]


def additive_parts(kernel: Kernel) -> list[Expression]:
    """The additive parts of a kernel with their values, products of sums multiplied out."""
    return summands(expression_of(kernel, values=True, digits=17))


@torch.no_grad()
def part_moments(
    part: Expression, num_dims: int, posterior: Any, functional: Functional, x: torch.Tensor
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Posterior mean and deviation of L f_i at x, for standardised targets."""
    if not isinstance(posterior, ExactPosterior):
        raise ValueError(
            "Components need exact inference: fit to at most 1,500 rows, or look at `predict` alone."
        )
    process = Process(None, build(part, num_dims))
    rows = functional.atoms(x)
    cross = process.covariance(posterior.rows, rows)
    mean = (cross.mT @ posterior.weights)[:, 0]
    variance = process.variance(rows) - solve_lower(posterior.lower, cross).square().sum(0)
    return mean.numpy(), variance.clamp_min(0).sqrt().numpy()
