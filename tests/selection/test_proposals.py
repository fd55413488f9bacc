"""Proposals: densities against scipy, moments of draws, and fits to weighted samples."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, multivariate_t

from orbitwise.selection.evidence import Proposal

LOCATION = torch.tensor([0.5, -1.0], dtype=torch.float64)
LOWER = torch.tensor([[0.8, 0.0], [0.3, 0.4]], dtype=torch.float64)


def test_densities_are_those_of_scipy():
    points = torch.tensor([[0.0, 0.0], [2.0, -3.0], [0.5, -1.0]], dtype=torch.float64)
    shape = (LOWER @ LOWER.T).numpy()
    expected = multivariate_t.logpdf(points.numpy(), LOCATION.numpy(), shape, df=5)
    np.testing.assert_allclose(Proposal(LOCATION, LOWER).log_density(points).numpy(), expected)
    expected = multivariate_normal.logpdf(points.numpy(), LOCATION.numpy(), shape)
    found = Proposal(LOCATION, LOWER, math.inf).log_density(points)
    np.testing.assert_allclose(found.numpy(), expected)


@pytest.mark.parametrize("freedom", [5.0, math.inf])
def test_draws_have_the_right_moments(freedom: float):
    draws = Proposal(LOCATION, LOWER, freedom).sample(40_000, torch.Generator().manual_seed(0))
    # the covariance of a Student-t is ν/(ν-2) times its scale matrix
    factor = 5 / 3 if math.isfinite(freedom) else 1.0
    z = (draws.mean(0) - LOCATION) / (draws.std(0) / 200)
    assert z.abs().max() < 4
    torch.testing.assert_close(draws.T.cov(), factor * LOWER @ LOWER.T, rtol=0.06, atol=0.01)


def test_a_fit_finds_weighted_moments():
    samples = torch.tensor([[0.0, 1.0], [2.0, 0.0], [2.0, 3.0], [0.0, 0.0]], dtype=torch.float64)
    weights = torch.tensor([1.0, 2.0, 1.0, 0.0], dtype=torch.float64)
    found = Proposal.fitted(samples, weights)
    repeated = samples[[0, 1, 1, 2]]
    torch.testing.assert_close(found.location, repeated.mean(0))
    expected = repeated.T.cov(correction=0)
    torch.testing.assert_close(found.lower @ found.lower.T, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(Proposal.fitted(repeated).lower, found.lower)
