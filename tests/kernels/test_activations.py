"""Moments of activations equal quadrature and their own formulas, with gradients that stay finite."""

import math

import numpy as np
import pytest
import torch
from scipy.special import erf

from orbitwise.kernels.activations import ACTIVATIONS, mean_square, second_moment

CORRELATIONS = torch.tensor([-1.0, -0.999, -0.6, 0.0, 0.3, 0.9, 0.999999, 1.0], dtype=torch.float64)


def moment_by_quadrature(activation: str, k: float, m: float, correlation: float) -> float:
    """E[φ(u)φ(v)] as a sum over a fine grid of v given u and of u."""
    grid = np.linspace(-9, 9, 4001)
    density = np.exp(-0.5 * grid**2)
    density /= density.sum()
    u = math.sqrt(k) * grid
    v = math.sqrt(m) * (correlation * grid[:, None] + math.sqrt(1 - correlation**2) * grid[None, :])
    function = (lambda t: np.maximum(t, 0)) if activation == "relu" else erf
    return float(density @ (function(u) * (function(v) @ density)))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.35, 0.99])
def test_moments_equal_quadrature(activation: str, correlation: float):
    k, m = 0.7, 2.3
    covariance = torch.tensor(correlation * math.sqrt(k * m), dtype=torch.float64)
    left, right = (torch.tensor(v, dtype=torch.float64) for v in (k, m))
    moment = second_moment(activation, covariance, left, right)
    assert abs(moment.item() - moment_by_quadrature(activation, k, m, correlation)) < 2e-6


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_moment_of_a_value_with_itself(activation: str):
    variance = torch.tensor([1e-12, 1e-3, 0.4, 7.0, 1e6, 1e12], dtype=torch.float64)
    both = second_moment(activation, variance, variance, variance)
    assert torch.allclose(both, mean_square(activation, variance), rtol=1e-12, atol=0)


def test_the_arc_cosine_formula_to_ten_digits():
    k, m = torch.tensor(0.7, dtype=torch.float64), torch.tensor(2.3, dtype=torch.float64)
    covariance = CORRELATIONS * (k * m).sqrt()
    theta = np.arccos(CORRELATIONS.numpy())
    formula = math.sqrt(0.7 * 2.3) / (2 * np.pi) * (np.sin(theta) + (np.pi - theta) * np.cos(theta))
    moment = second_moment("relu", covariance, k.expand(8), m.expand(8))
    assert np.abs(moment.numpy() - formula).max() < 1e-10


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_equal_differences(activation: str):
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.rand(3, 1, 1, generator=generator, dtype=torch.float64) + 0.5 for _ in range(2))
    right = right.reshape(1, 3, 1)
    correlation = 1.8 * torch.rand(3, 3, 2, generator=generator, dtype=torch.float64) - 0.9
    arguments = [t.clone().requires_grad_() for t in (correlation * (left * right).sqrt(), left, right)]
    assert torch.autograd.gradcheck(lambda *a: second_moment(activation, *a), arguments)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_where_values_coincide_or_vanish(activation: str, dtype: torch.dtype):
    variance = torch.tensor([0.0, 1e-20, 1.0, 1e20], dtype=dtype)
    arguments = [variance.clone().requires_grad_() for _ in range(3)]
    moment = second_moment(activation, *arguments)
    slopes = torch.autograd.grad(moment.sum(), arguments)
    assert all(bool(part.isfinite().all()) for part in (moment, *slopes))
    # along k = k′ = covariance the derivative is that of E φ(u)²
    again = variance[2:3].clone().requires_grad_()
    (expected,) = torch.autograd.grad(mean_square(activation, again).sum(), again)
    assert sum(part[2].item() for part in slopes) == pytest.approx(expected.item(), rel=1e-5)


def test_a_second_derivative_is_refused_rather_than_wrong():
    arguments = [torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    for activation in ACTIVATIONS:
        moment = second_moment(activation, *arguments).sum()
        with pytest.raises(RuntimeError, match="no second derivatives"):
            torch.autograd.grad(moment, arguments, create_graph=True)
