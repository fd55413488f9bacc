"""Weak hyperpriors, all normal: on logarithms of what is positive, and on centres as they are.

    lengthscales            log N(log spread of the columns, 1.5²)     periodic's own: log N(0, 1.5²)
    periods                 log N(log(extent/5), 1.5²)                 alpha of rq: log N(0, 1.5²)
    amplitudes              log N(log ½, 2²) of the targets' variance  noise: log N(log 0.05, 2²)
    centres                 N(mean of the column, (1.5 spread)²)       constant of f: N(mean of y, var of y)

They make the Laplace evidence of a structure a number that can be compared, and keep hyperparameters that
the data say nothing about from running away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import CosineKernel, Kernel, PeriodicKernel
from numpy.typing import NDArray
from torch import Tensor, nn

from orbitwise.functionals.functional import Functional
from orbitwise.functionals.wraps import Wrap
from orbitwise.orbits.mirrors import MirrorOrbit

WIDTH = 1.5
AMPLITUDE_WIDTH = 2.0
NOISE_MEAN = math.log(0.05)


class Normal(NamedTuple):
    """A parameter with the mean and the deviation of its prior."""

    parameter: nn.Parameter
    mean: float
    deviation: float


def log_prior(priors: Sequence[Normal]) -> Tensor:
    """The log density of all parameters, in one operation, for it is evaluated at every step."""
    sizes = [each.parameter.numel() for each in priors]
    means, deviations = (
        torch.repeat_interleave(
            torch.tensor([each[place] for each in priors], dtype=torch.float64), torch.tensor(sizes)
        )
        for place in (1, 2)
    )
    white = (torch.cat([each.parameter.reshape(-1) for each in priors]) - means) / deviations
    return -0.5 * white.square().sum() - deviations.log().sum() - 0.5 * sum(sizes) * math.log(2 * math.pi)


def hyperpriors(
    kernel: Kernel,
    functional: Functional,
    raw_noise: nn.Parameter,
    constant: nn.Parameter,
    x: NDArray[np.float64],
) -> list[Normal]:
    """A prior for every learned parameter of a model; x are the points that the kernel sees."""
    found = [Normal(raw_noise, NOISE_MEAN, AMPLITUDE_WIDTH), Normal(constant, 0.0, 1.0)]
    for module in functional.modules():
        if isinstance(module, MirrorOrbit):
            columns = list(module.columns or range(x.shape[1]))
            spread = float(_spread(x[:, columns]).mean())
            found.append(Normal(module.centre, float(x[:, columns].mean()), WIDTH * spread))
        elif isinstance(module, Wrap):
            extent = float(np.ptp(x[:, module.column])) or 1.0
            found.append(Normal(module.log_period, math.log(extent / 5), WIDTH))
    for module in kernel.modules():
        seen = x if getattr(module, "active_dims", None) is None else x[:, module.active_dims.tolist()]  # pyright: ignore
        for name, parameter in module.named_parameters(recurse=False):
            found.append(Normal(parameter, *_law(module, name, seen)))
    return [each for each in found if each.parameter.requires_grad]


def _law(module: Any, name: str, x: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and deviation of the prior of one raw parameter of one kernel."""
    spread = float(np.exp(np.log(_spread(x)).mean()))
    extent = float(np.ptp(x, axis=0).max()) or 1.0
    if name == "centre":
        return float(x.mean()), WIDTH * spread
    if name == "raw_lengthscale":
        return (0.0 if isinstance(module, PeriodicKernel) else math.log(spread * x.shape[1] ** 0.5)), WIDTH
    if name == "raw_period_length":
        return math.log(extent / (10 if isinstance(module, CosineKernel) else 5)), WIDTH
    if name == "raw_variance":
        return math.log(0.5 / (spread**2 * x.shape[1])), AMPLITUDE_WIDTH
    if name in ("raw_mixture_means", "raw_mixture_scales"):
        return math.log((3.0 if name.endswith("means") else 0.3) / extent), AMPLITUDE_WIDTH
    if name in ("raw_outputscale", "raw_constant", "raw_mixture_weights"):
        return math.log(0.5), AMPLITUDE_WIDTH
    return 0.0, WIDTH


def _spread(x: NDArray[np.float64]) -> NDArray[np.float64]:
    spread = x.std(0)
    return np.where(spread > 0, spread, 1.0)
