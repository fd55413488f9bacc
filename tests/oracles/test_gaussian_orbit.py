"""A Gaussian-noise orbit of an RBF is a wider RBF: variances add.

f(x) = ∫ g(x+θε) N(ε; 0, I) dε with k_g of lengthscale σ has, in n dimensions,
k_fu = (σ²/(σ²+θ²))^{n/2} κ_{√(σ²+θ²)} and k_f = (σ²/(σ²+2θ²))^{n/2} κ_{√(σ²+2θ²)} (METHOD 9, after RKHS 4.3).
"""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from orbitwise.functionals import Evaluation, OrbitAverage, average_minus_value
from orbitwise.orbits import FrozenOrbit, SampledOrbit
from orbitwise.process import Process, unbiased_variance
from orbitwise.transforms import Translation

SIGMA, THETA, DIMENSION = 1.25, 0.5, 2


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(4, DIMENSION, generator=generator, dtype=torch.float64) for _ in range(2))


def process(dtype: torch.dtype = torch.float64) -> Process:
    kernel = RBFKernel().to(dtype)
    kernel.lengthscale = SIGMA
    return Process(None, kernel)


def sampled(**options: int) -> SampledOrbit:
    """x + θε with ε standard normal."""
    return SampledOrbit(Translation(DIMENSION), -THETA, THETA, density="normal", **options)


def quadrature(num_nodes: int = 24) -> FrozenOrbit:
    """The same orbit at Gauss-Hermite nodes: ∫ h(ε) N(ε; 0, I) dε as a weighted sum."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    grid = np.stack([axis.ravel() for axis in np.meshgrid(nodes, nodes)], axis=-1)
    product = np.outer(weights, weights).ravel() / (2 * math.pi)
    return FrozenOrbit(sampled(), torch.tensor(grid), torch.tensor(product))


def wider(x: Tensor, y: Tensor, added: float) -> Tensor:
    """(σ²/s²)^{n/2} exp(-|x-y|²/2s²) with s² = σ² + added."""
    square = SIGMA**2 + added
    return (SIGMA**2 / square) ** (DIMENSION / 2) * torch.exp(-0.5 * torch.cdist(x, y).square() / square)


def printed(x: Tensor, y: Tensor, added: float) -> Tensor:
    """(1+added/σ)^{-n} κ_{σ+added}: what RKHS 4.3 prints."""
    wide = SIGMA + added
    return (1 + added / SIGMA) ** -DIMENSION * torch.exp(-0.5 * torch.cdist(x, y).square() / wide**2)


@torch.no_grad()
def test_one_sided_covariance_is_a_wider_kernel():
    x, z = inputs()
    rows = OrbitAverage(quadrature()).atoms(x)
    k_fu = process().covariance(rows, Evaluation().atoms(z))
    torch.testing.assert_close(k_fu, wider(x, z, THETA**2), rtol=1e-8, atol=1e-8)


@torch.no_grad()
def test_two_sided_covariance_is_a_still_wider_kernel():
    x, y = inputs()
    average = OrbitAverage(quadrature())
    k_f = process().covariance(average.atoms(x), average.atoms(y))
    torch.testing.assert_close(k_f, wider(x, y, 2 * THETA**2), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(
        process().variance(average.atoms(x)), wider(x, x, 2 * THETA**2).diagonal(), rtol=1e-8, atol=1e-8
    )


@torch.no_grad()
def test_single_precision_keeps_a_millionth():
    x, y = inputs()
    average = OrbitAverage(quadrature())
    k_f = process(torch.float32).covariance(average.atoms(x.float()), average.atoms(y.float()))
    assert (k_f - wider(x, y, 2 * THETA**2)).abs().max() < 1e-6


@torch.no_grad()
def test_local_average_minus_value_has_its_closed_form():
    """RKHS 4.3: ⟨z_i, z_j⟩ for the functional ∫ g(τ) p(x-τ) dτ - g(x)."""
    x, y = inputs()
    rows = [average_minus_value(quadrature()).atoms(points) for points in (x, y)]
    right = wider(x, y, 2 * THETA**2) - 2 * wider(x, y, THETA**2) + wider(x, y, 0.0)
    torch.testing.assert_close(process().covariance(*rows), right, rtol=1e-8, atol=1e-8)


@torch.no_grad()
def test_the_printed_formula_of_rkhs_4_3_is_wrong():
    x, y = inputs()
    average = OrbitAverage(quadrature())
    k_f = process().covariance(average.atoms(x), average.atoms(y))
    k_fu = process().covariance(average.atoms(x), Evaluation().atoms(y))
    assert (k_f - printed(x, y, 2 * THETA)).abs().max() > 0.05
    assert (k_fu - printed(x, y, THETA)).abs().max() > 0.05


@pytest.mark.parametrize("method", ["halves", "all_pairs"])
@torch.no_grad()
def test_many_draws_estimate_the_closed_form_without_bias(method: str):
    x = inputs()[0][:1].expand(4000, -1)
    rows = OrbitAverage(sampled(num_samples=4)).atoms(x, torch.Generator().manual_seed(1))
    estimates = unbiased_variance(process().kernel, rows, method)
    error = estimates.std() / math.sqrt(len(estimates))
    assert abs(estimates.mean() - wider(x[:1], x[:1], 2 * THETA**2).item()) < 4 * error
    # A draw that meets itself counts k(0) = 1 instead of 0.76.
    biased = process().variance(rows.frozen())
    assert abs(biased.mean() - wider(x[:1], x[:1], 2 * THETA**2).item()) > 10 * error


def test_the_width_of_the_orbit_has_the_gradient_of_the_closed_form():
    x, y = inputs()
    orbit = quadrature().double()
    k_f = process().covariance(OrbitAverage(orbit).atoms(x), OrbitAverage(orbit).atoms(y)).sum()
    # θ is the half-width of both coordinates, learned as its logarithm
    found = torch.autograd.grad(k_f, orbit.source.bounds.raw_half)[0].sum() / THETA
    theta = torch.tensor(THETA, dtype=torch.float64, requires_grad=True)
    square = SIGMA**2 + 2 * theta**2
    closed = (SIGMA**2 / square) ** (DIMENSION / 2) * torch.exp(-0.5 * torch.cdist(x, y).square() / square)
    torch.testing.assert_close(found, torch.autograd.grad(closed.sum(), theta)[0], rtol=1e-8, atol=1e-8)
