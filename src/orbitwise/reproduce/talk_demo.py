"""Data of one or two inputs and the sparse Gaussian processes of the talk's demonstrations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from jaxtyping import Float
from torch import Tensor

from orbitwise.functionals.functional import Evaluation
from orbitwise.inference.model import Observations
from orbitwise.inference.sparse.bounds import best_q, collapsed_bound, gather_totals
from orbitwise.inference.sparse.inducing import inducing_factor
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.process.process import Process

LOW, HIGH = 0.0, 6.0


def process_of(lengthscale: float) -> Process:
    """An RBF process of variance one, whose hyperparameters are fixed."""
    kernel = ScaleKernel(RBFKernel())
    kernel.outputscale, kernel.base_kernel.lengthscale = torch.tensor([1.0, lengthscale])
    return Process(None, kernel).double().requires_grad_(False)


def wave(x: Tensor) -> Tensor:
    """The function behind the data."""
    return torch.sin(2 * x) + 0.3 * torch.cos(5 * x)


def waves(count: int, noise: float, seed: int) -> Observations:
    """Noisy values of `wave` at places that are uniformly distributed."""
    generator = torch.Generator().manual_seed(seed)
    x = LOW + (HIGH - LOW) * torch.rand(count, 1, generator=generator, dtype=torch.float64)
    errors = torch.randn(count, 1, generator=generator, dtype=torch.float64)
    return Observations(Evaluation(), x, wave(x) + noise * errors)


def grid(count: int) -> Float[Tensor, "q 1"]:
    """Places for drawings, which reach a little beyond the data."""
    return torch.linspace(LOW - 0.5, HIGH + 0.5, count, dtype=torch.float64)[:, None]


class Sparse(NamedTuple):
    """A variational posterior with the best q, and its lower bound on the log evidence."""

    posterior: SparsePosterior
    bound: float


def variational(
    process: Process, rows: Observations, noise: float, points: Float[Tensor, "u d"], tight: bool = True
) -> Sparse:
    """The posterior of inducing values at these points, in closed form."""
    lower, variance = inducing_factor(process, points), torch.tensor(noise, dtype=torch.float64)
    totals = gather_totals(process, rows, points, lower, variance)
    posterior = SparsePosterior(process, points, best_q(totals, variance), lower)
    return Sparse(posterior, collapsed_bound(totals, variance, tight).item())


def rounded(values: Tensor, digits: int = 5) -> list[float]:
    """The numbers of a tensor for a record."""
    return [round(float(each), digits) for each in values.flatten()]
