"""Counts: the closed form against quadrature, and its derivatives."""

import pytest
import torch

from orbitwise.likelihoods import Poisson
from orbitwise.likelihoods.likelihood import hermite
from orbitwise.process.process import Moments

MEAN = torch.tensor([[0.3, -1.2], [2.0, 0.1]], dtype=torch.float64)
VARIANCE = torch.tensor([[0.5, 0.2], [0.01, 1.0]], dtype=torch.float64)
COUNTS = torch.tensor([[0.0, 1.0], [9.0, 3.0]], dtype=torch.float64)
AT = Moments(MEAN, VARIANCE, MEAN.square() + VARIANCE)


def test_the_expected_log_likelihood_is_that_of_quadrature():
    nodes, weights = hermite(60, MEAN)
    values = MEAN[..., None] + VARIANCE.sqrt()[..., None] * nodes
    density = torch.distributions.Poisson(values.exp()).log_prob(COUNTS[..., None])
    expected = (density * weights).sum(-1).sum(-1)
    torch.testing.assert_close(Poisson().expected_log_likelihood(AT, COUNTS), expected)


def test_curvature_and_slope_are_expected_derivatives():
    """-E[∂² log p] = E[exp f] and E[∂ log p] = y - E[exp f]."""
    quadratic = Poisson().expansion(AT, COUNTS)
    rate = Poisson().predict(AT)
    torch.testing.assert_close(rate, torch.exp(MEAN + VARIANCE / 2))
    torch.testing.assert_close(quadratic.curvature, rate)
    torch.testing.assert_close(quadratic.slope - quadratic.curvature * MEAN, COUNTS - rate)


def test_predictions_take_a_variance_that_outputs_share():
    shared = Moments(MEAN, VARIANCE[:, 0], AT.mean_square)
    torch.testing.assert_close(Poisson().predict(shared)[:, 0], Poisson().predict(AT)[:, 0])


def test_counts_are_not_negative():
    with pytest.raises(ValueError, match="targets of 0 or more"):
        Poisson().expansion(AT, -COUNTS)
