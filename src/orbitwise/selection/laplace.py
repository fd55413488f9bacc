"""The evidence by Laplace's method: a normal approximation of the posterior of z at its mode.

log p(y) ≈ log p(y, z*) + (p/2) log 2π - ½ log|-H|, H the Hessian of log p(y, z) at z*. H comes from automatic
differentiation, with GPyTorch's hand-written backward passes switched off: those of RBF and Matérn kernels
forget how the first derivative depends on the lengthscale. A difference of gradients along one direction
checks the outcome, and the full differences stand in where the check fails.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import final

import gpytorch
import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.inference.curvature import Vector, finite_difference_hessian
from orbitwise.inference.hyperparameters import Hyperparameters
from orbitwise.inference.training import maximize
from orbitwise.selection.proposals import Proposal

STEP = 1e-4
FLATTEST = 1e-3
"""A curvature below this says that the density is not log-concave at its mode: cut off here."""


@final
@dataclass(frozen=True)
class LaplaceFit:
    """The mode of z's posterior, the covariance (-H)⁻¹ there, and the log evidence that follows."""

    log_evidence: float
    mode: Float[Tensor, " p"]
    covariance: Float[Tensor, "p p"]
    converged: bool
    is_peak: bool

    def proposal(self, freedom: float = 5.0) -> Proposal:
        """A Student-t of this location and scale."""
        return Proposal(self.mode, torch.linalg.cholesky(self.covariance), freedom)


def laplace(
    hyperparameters: Hyperparameters, max_iterations: int = 200, start: Float[Tensor, " p"] | None = None
) -> LaplaceFit:
    """Find the mode from `start` (the present parameters by default), and the curvature there.

    The modules' parameters are left as they were.
    """
    z = nn.Parameter((hyperparameters.vector() if start is None else start).double().clone())
    if not len(z):
        value = hyperparameters.log_density(z).item()
        return LaplaceFit(value, z.detach(), z.new_zeros(0, 0).detach(), True, True)
    training = maximize(lambda: hyperparameters.log_density(z), [z], max_iterations)
    mode = z.detach().clone()
    values, vectors = torch.linalg.eigh(-hessian(hyperparameters, mode))
    is_peak = bool(values[0] > FLATTEST)
    if not is_peak:
        warnings.warn(
            f"At the mode the curvature is {values[0].item():.3g} in one direction (converged: "
            f"{training.converged}), so the posterior of the hyperparameters has no peak there and "
            "Laplace's method cannot be trusted: use 'bridge' or 'importance', or stronger hyperpriors.",
            stacklevel=2,
        )
    values = values.clamp_min(FLATTEST)
    value = laplace_log_evidence(training.value, values)
    covariance = (vectors / values) @ vectors.mT
    return LaplaceFit(value, mode, (covariance + covariance.mT) / 2, training.converged, is_peak)


def laplace_log_evidence(log_joint: float, curvatures: Float[Tensor, " p"]) -> float:
    """log p(y, z*) + (p/2) log 2π - ½ Σ log λ, λ the eigenvalues of -∂² log p(y, z)/∂z² at the mode z*."""
    return log_joint + 0.5 * len(curvatures) * math.log(2 * math.pi) - 0.5 * curvatures.log().sum().item()


def hessian(hyperparameters: Hyperparameters, z: Float[Tensor, " p"]) -> Float[Tensor, "p p"]:
    """The second derivatives of the log density, by automatic differentiation, checked by differences."""

    def gradient(point: Vector) -> Vector:
        free = torch.from_numpy(point).to(z).requires_grad_()
        return torch.autograd.grad(hyperparameters.log_density(free), free)[0].double().numpy()

    with gpytorch.settings.trace_mode(True), warnings.catch_warnings():
        # Branches on values are noted by a tracer that is not at work here.
        warnings.simplefilter("ignore", category=UserWarning)
        try:
            exact = torch.autograd.functional.hessian(hyperparameters.log_density, z)
        except RuntimeError:
            exact = None
    point = z.detach().double().numpy()
    if isinstance(exact, Tensor):
        # H·(1, …, 1) by a central difference of gradients
        along = torch.from_numpy(gradient(point + STEP) - gradient(point - STEP)).to(z) / (2 * STEP)
        size = along.abs().max().clamp_min(exact.abs().max())
        if bool(exact.isfinite().all()) and bool(((exact.sum(1) - along).abs() < 1e-3 * size).all()):
            return (exact + exact.mT) / 2
    return torch.from_numpy(finite_difference_hessian(gradient, point, STEP, central=True)).to(z)
