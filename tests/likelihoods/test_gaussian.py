"""Gaussian noise: its expected log-density against quadrature, and the erratum of LIM eq. 15."""

import math

import pytest
import torch
from torch import Tensor

from orbitwise.likelihoods import Gaussian
from orbitwise.likelihoods.gaussian import gaussian_quadratic
from orbitwise.likelihoods.likelihood import hermite
from orbitwise.process.process import Moments

MEAN = torch.tensor([[0.3, -1.2], [2.0, 0.1]], dtype=torch.float64)
VARIANCE = torch.tensor([[0.5, 0.2], [0.01, 3.0]], dtype=torch.float64)
TARGETS = torch.tensor([[0.0, -1.0], [1.5, 4.0]], dtype=torch.float64)


def by_quadrature(noise: Tensor) -> Tensor:
    nodes, weights = hermite(40, MEAN)
    values = MEAN[..., None] + VARIANCE.sqrt()[..., None] * nodes
    density = torch.distributions.Normal(values, noise.sqrt()[..., None]).log_prob(TARGETS[..., None])
    return (density * weights).sum(-1).sum(-1)


def moments() -> Moments:
    return Moments(MEAN, VARIANCE, MEAN.square() + VARIANCE)


@pytest.mark.parametrize("num_outputs", [0, 2])
def test_the_expected_log_density_is_that_of_quadrature(num_outputs):
    likelihood = Gaussian(0.3, num_outputs)
    with torch.no_grad():
        likelihood.raw_noise += torch.arange(max(1, num_outputs))
    expected = by_quadrature(likelihood.noise.expand(2, 2))
    torch.testing.assert_close(likelihood.expected_log_likelihood(moments(), TARGETS), expected)


def test_lim_eq_15_has_half_the_logarithm_that_is_printed():
    """Printed: -log 2πσ² - (1/2σ²)(y² - 2yμ + μ² + σ_n²); the normal density has -½ log 2πσ²."""
    noise = torch.full((2, 2), 0.3, dtype=torch.float64)
    square = TARGETS.square() - 2 * TARGETS * MEAN + MEAN.square() + VARIANCE
    right = (-0.5 * torch.log(2 * math.pi * noise) - 0.5 * square / noise).sum(-1)
    printed = (-torch.log(2 * math.pi * noise) - 0.5 * square / noise).sum(-1)
    torch.testing.assert_close(Gaussian(0.3).expected_log_likelihood(moments(), TARGETS), right)
    torch.testing.assert_close(by_quadrature(noise), right)
    assert (by_quadrature(noise) - printed).abs().min() > 0.5


def test_every_row_and_output_may_have_its_own_noise():
    noise = torch.tensor([[0.1, 2.0], [0.7, 0.05]], dtype=torch.float64)
    mine = gaussian_quadratic(TARGETS, noise).expectation(moments()).sum(-1)
    torch.testing.assert_close(mine, by_quadrature(noise))


def test_outputs_share_their_curvature_only_with_one_noise():
    assert Gaussian().shares_curvature
    assert not Gaussian(num_outputs=2).shares_curvature
    assert not Gaussian(learnable=False).raw_noise.requires_grad


@pytest.mark.parametrize("noise", [0.0, -1.0, math.inf, math.nan])
def test_noise_is_a_positive_finite_variance(noise):
    with pytest.raises(ValueError, match="positive, finite variance"):
        Gaussian(noise)
