"""Student-t proposals: density, draws, and how they come near a skewed density."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_t
from torch import Tensor

from orbitwise.inference.sampling import StudentProposal, fit_proposal

MEAN = torch.tensor([0.5, -1.0], dtype=torch.float64)
LOWER = torch.tensor([[0.7, 0.0], [0.4, 0.3]], dtype=torch.float64)
LOGS = np.log([0.8, 0.2])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_density_is_that_of_scipy():
    theta = torch.tensor([1.3, 0.2], dtype=torch.float64)
    scale = (LOWER @ LOWER.T).numpy()
    single = [
        multivariate_t(MEAN.numpy(), factor * scale, df=5).logpdf(theta.numpy()) for factor in (1.0, 9.0)
    ]
    for share, known in ((0.0, single[0]), (1.0, single[1]), (0.2, np.logaddexp(*(single + LOGS)))):
        proposal = StudentProposal(MEAN, LOWER, 5, share, 3.0)
        assert proposal.log_density(theta) == pytest.approx(known, rel=1e-12)


def test_draws_have_the_moments_of_the_density():
    proposal, generator = StudentProposal(MEAN, LOWER, 5, share=0.5, widening=2.0), seeded()
    draws = torch.stack([proposal.draw(generator) for _ in range(3000)])
    covariance = 5 / 3 * LOWER @ LOWER.T * (0.5 + 0.5 * 4)
    z = (draws.mean(0) - MEAN) / (covariance.diagonal() / 3000).sqrt()
    assert z.abs().max() < 4
    torch.testing.assert_close(torch.cov(draws.T), covariance, rtol=0.3, atol=0.02)


def test_densities_of_several_points_are_those_of_each():
    points = torch.tensor([[0.0, 0.0], [2.0, -3.0], [0.5, -1.0]], dtype=torch.float64)
    proposal = StudentProposal(MEAN, LOWER)
    expected = [proposal.log_density(point) for point in points]
    assert proposal.log_densities(points).tolist() == pytest.approx(expected)
    assert proposal.sample(3, seeded()).shape == (3, 2)


def test_matched_moments_are_those_of_weighted_draws():
    draws = torch.tensor([[0.0, 1.0], [2.0, 0.0], [2.0, 3.0], [0.0, 0.0]], dtype=torch.float64).repeat(20, 1)
    weights = torch.tensor([1.0, 2.0, 1.0, 0.0], dtype=torch.float64).repeat(20)
    found = StudentProposal(MEAN, LOWER, share=0.0).matched(draws, weights.log())
    repeated = draws[:4][[0, 1, 1, 2]]
    torch.testing.assert_close(found.mean, repeated.mean(0))
    # the covariance of a Student-t is ν/(ν-2) times its scale matrix
    covariance = 5 / 3 * found.lower @ found.lower.T
    torch.testing.assert_close(covariance, repeated.T.cov(correction=0), rtol=1e-5, atol=1e-5)
    assert found.share == 0.0
    few = StudentProposal(MEAN, LOWER)
    assert few.matched(draws[:4], torch.tensor([0.0, -1e9, -1e9, -1e9]).double()) is few


def test_a_gaussian_density_is_found():
    precision = torch.tensor([[4.0, 1.0], [1.0, 2.0]], dtype=torch.float64)

    def log_density(theta: Tensor) -> float:
        return (-0.5 * (theta - MEAN) @ precision @ (theta - MEAN)).item()

    proposal, mode = fit_proposal(log_density, torch.zeros(2).double(), num_draws=0)
    torch.testing.assert_close(mode, MEAN, rtol=0, atol=0.02)
    torch.testing.assert_close(
        proposal.lower @ proposal.lower.T, torch.linalg.inv(precision), rtol=1e-3, atol=1e-3
    )


def skewed(theta: Tensor) -> float:
    value = theta.item()
    return 2 * value - math.exp(value) if value < 20 else math.nan


def test_weighted_draws_follow_a_skewed_density():
    curved, mode = fit_proposal(skewed, torch.tensor([3.0]).double(), num_draws=0)
    matched, _ = fit_proposal(skewed, torch.tensor([3.0]).double(), num_draws=100, generator=seeded())
    assert mode.item() == pytest.approx(math.log(2), abs=0.02)
    mean = 1 - 0.5772156649
    assert abs(matched.mean.item() - mean) < 0.5 * abs(curved.mean.item() - mean)
    draws = torch.linspace(-6, 4, 201, dtype=torch.float64)[:, None]
    target = torch.tensor([skewed(each) for each in draws])
    sizes = []
    for proposal in (curved, matched):
        weights = torch.softmax(target, 0) ** 2
        density = torch.tensor([math.exp(proposal.log_density(each)) for each in draws])
        sizes.append((weights / density).sum().item())
    assert sizes[1] < sizes[0], "importance weights vary less"


def test_a_flat_direction_is_not_taken_for_an_endless_one():
    proposal, _ = fit_proposal(lambda theta: -0.5 * theta[0].item() ** 2, torch.zeros(2).double(), 0)
    torch.testing.assert_close(
        proposal.lower.diagonal(), torch.tensor([1.0, 5.0]).double(), rtol=1e-3, atol=0
    )


def test_a_bad_start_of_the_fit_is_mended_by_flatter_weights():
    """Two hills: the mode sees one of them, weighted draws both."""

    def hills(theta: Tensor) -> float:
        value = theta.item()
        return float(np.logaddexp(-2 * value**2, -2 * (value - 4) ** 2 - 0.1))

    curved, _ = fit_proposal(hills, torch.zeros(1).double(), num_draws=0)
    matched, _ = fit_proposal(hills, torch.zeros(1).double(), num_draws=60, generator=seeded())
    assert curved.mean.item() == pytest.approx(0.0, abs=0.05)
    assert 1 < matched.mean.item() < 3
    assert matched.lower.item() > 1


def test_too_few_useful_draws_leave_the_first_fit():
    curved, _ = fit_proposal(skewed, torch.zeros(1).double(), num_draws=0)
    few, _ = fit_proposal(skewed, torch.zeros(1).double(), num_draws=2, generator=seeded())
    assert torch.equal(curved.mean, few.mean)
