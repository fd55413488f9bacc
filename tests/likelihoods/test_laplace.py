"""Absolute errors: the density, the closed form of its expectation, its derivatives, and outliers."""

import pytest
import torch

from orbitwise.likelihoods import Laplace
from orbitwise.process.process import Moments

MEAN = torch.tensor([[0.3], [0.0], [1.0]], dtype=torch.float64)
VARIANCE = torch.tensor([[0.2], [0.05], [0.5]], dtype=torch.float64)
TARGETS = torch.tensor([[0.1], [4.0], [0.5]], dtype=torch.float64)
AT = Moments(MEAN, VARIANCE, MEAN.square() + VARIANCE)


def by_a_fine_sum(likelihood: Laplace) -> torch.Tensor:
    nodes = torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    weights = torch.softmax(-0.5 * nodes.square(), 0)
    values = (MEAN + VARIANCE.sqrt() * nodes).T[..., None]
    return (likelihood.log_density(values, TARGETS) * weights[:, None, None]).sum(0).squeeze(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_density_is_that_of_torch(dtype):
    likelihood = Laplace(0.4)
    mean, targets = MEAN.to(dtype), TARGETS.to(dtype)
    theirs = torch.distributions.Laplace(mean, torch.tensor(0.4, dtype=dtype)).log_prob(targets)
    mine = likelihood.log_density(mean, targets)
    assert mine.dtype == dtype
    torch.testing.assert_close(mine, theirs)
    assert likelihood.scale.item() == pytest.approx(0.4)


def test_the_expected_log_likelihood_and_its_gradients_are_those_of_a_fine_sum():
    likelihood = Laplace(0.5)
    mine, right = likelihood.expected_log_likelihood(AT, TARGETS), by_a_fine_sum(likelihood)
    torch.testing.assert_close(mine, right, atol=1e-8, rtol=0)
    parameters = list(likelihood.parameters())
    given = torch.autograd.grad(mine.sum(), parameters)
    for value, truth in zip(given, torch.autograd.grad(right.sum(), parameters), strict=True):
        torch.testing.assert_close(value, truth, atol=1e-7, rtol=0)


def test_curvature_is_the_density_of_the_kink():
    """-E[∂² log p] = (2/b) N(y; μ, σ²): the slope of |y - f| jumps by 2 where f meets y."""
    likelihood = Laplace(0.5)
    quadratic = likelihood.expansion(AT, TARGETS)
    kink = torch.distributions.Normal(MEAN, VARIANCE.sqrt()).log_prob(TARGETS).exp()
    torch.testing.assert_close(quadratic.curvature, 2 / 0.5 * kink)
    # E[∂ log p] = (1 - 2 P(f > y))/b, which an outlier never exceeds
    below = torch.distributions.Normal(MEAN, VARIANCE.sqrt()).cdf(TARGETS)
    slope = quadratic.slope - quadratic.curvature * MEAN
    torch.testing.assert_close(slope, (2 * below - 1) / 0.5)
    assert slope[1, 0] == pytest.approx(2.0)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_the_scale_is_positive(scale):
    with pytest.raises(ValueError, match="positive and finite"):
        Laplace(scale)


def test_it_is_expanded_about_moments():
    with pytest.raises(ValueError, match="expanded about moments"):
        Laplace().expansion(None, TARGETS)
