"""The posterior of every additive component of f, told by its spelling and in words (Lecture 2.8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import NDArray

from orbitwise.functionals.functional import Functional
from orbitwise.inference.components import components
from orbitwise.inference.exact import ExactPosterior
from orbitwise.kernels.spelling import Expression, build, expression_of, summands


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
    parts: Sequence[Expression], num_dims: int, posterior: Any, functional: Functional, x: torch.Tensor
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Posterior mean and deviation of L f_i at x for each of the parts of f, for standardised targets."""
    if not isinstance(posterior, ExactPosterior):
        raise ValueError(
            "Components need exact inference: fit to at most 1,500 rows, or look at `predict` alone."
        )
    kernels = [build(part, num_dims) for part in parts]
    found = components(posterior, functional.atoms(x), kernels)
    # without the constant that f lies around
    return [
        (each.mean[:, 0].numpy(), each.variance.sqrt().numpy()) for each in found if each.kernel is not None
    ]
