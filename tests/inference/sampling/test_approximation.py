"""The Gaussian near p(f | y): its bound, its moments, and the exact ratio of prior to it."""

import pytest
import torch

from orbitwise.functionals import Evaluation
from orbitwise.inference.exact import condition, evidence
from orbitwise.inference.sampling import approximate
from orbitwise.likelihoods import Gaussian, Softmax
from orbitwise.process import Process
from tests.inference.sampling.problems import POINTS, PROBLEMS, Bump, grid_posterior, targets_of

PROCESS = Process(None, Bump(1.5, 0.8))
ROWS = Evaluation().atoms(POINTS)
OFFSET = torch.tensor([0.3, -0.2], dtype=torch.float64)


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_bound_is_below_the_evidence_and_near_it(name):
    likelihood, targets, K = PROBLEMS[name][0], targets_of(name), PROCESS.covariance(ROWS)
    f, weights, log_evidence = grid_posterior(K, likelihood, targets)
    q = approximate(K, torch.zeros(2).double(), targets, likelihood)
    assert q.converged
    assert log_evidence - 0.25 < q.bound.item() < log_evidence
    assert (q.moments.mean[:, 0] - weights @ f).abs().max() < 0.3
    # no direction of the sites raises the bound
    for part in (0, 1):
        for sign in (-1, 1):
            moved = list(q.sites)
            moved[part] = moved[part] + sign * 0.05
            other = approximate(
                K, torch.zeros(2).double(), targets, likelihood, q.sites.__class__(*moved), max_steps=0
            )
            assert other.bound < q.bound + 1e-5


def test_gaussian_noise_is_exact_with_an_offset_and_several_outputs():
    targets, noise = seeded(2, 3), torch.full((2,), 0.3, dtype=torch.float64)
    q = approximate(PROCESS.covariance(ROWS), torch.zeros(2).double(), targets, Gaussian(0.3 - 1e-8))
    assert q.bound.item() == pytest.approx(evidence(PROCESS, ROWS, targets, noise).value.item(), rel=1e-9)
    exact = condition(PROCESS, ROWS, targets, noise).row_moments(ROWS)
    torch.testing.assert_close(q.moments.mean, exact.mean)
    torch.testing.assert_close(q.moments.variance, exact.variance[:, None].expand(2, 3))
    shifted = approximate(PROCESS.covariance(ROWS), OFFSET, targets + OFFSET[:, None], Gaussian(0.3 - 1e-8))
    torch.testing.assert_close(shifted.moments.mean, q.moments.mean + OFFSET[:, None])
    torch.testing.assert_close(shifted.bound, q.bound)


@pytest.mark.parametrize("likelihood", [PROBLEMS["poisson"][0], Softmax(3)], ids=["poisson", "softmax"])
def test_noise_makes_draws_of_q_and_ratios_are_exact(likelihood):
    targets = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    K = PROCESS.covariance(ROWS)
    q = approximate(K, OFFSET, targets, likelihood)
    noise = seeded(5, 2, 3)
    f, white = q.values(noise)
    torch.testing.assert_close(q.noise(f), noise)
    factor = q.factor()
    covariance = factor @ factor.mT
    torch.testing.assert_close(covariance.diagonal(dim1=-1, dim2=-2).mT, q.moments.variance)
    normal = torch.distributions.MultivariateNormal
    source = normal(q.moments.mean.T, covariance).log_prob(f.mT)
    prior = normal(OFFSET, K).log_prob(f.mT)
    torch.testing.assert_close(q.log_ratio(noise, white), prior - source)
    # q ∝ prior · exp(sites): both corrections of the likelihood differ by a constant
    density = likelihood.log_density(f, targets).sum(-2)
    difference = density + prior - source - q.log_correction(likelihood, f, targets)
    torch.testing.assert_close(difference, difference[:1].expand_as(difference))


def test_the_result_depends_on_the_arguments_alone():
    likelihood, targets = PROBLEMS["bernoulli"][0], targets_of("bernoulli")
    K, nothing = PROCESS.covariance(ROWS), torch.zeros(2).double()
    first = approximate(K, nothing, targets, likelihood)
    again = approximate(K, nothing, targets, likelihood)
    assert torch.equal(first.white_mean, again.white_mean)
    warm = approximate(K, nothing, targets, likelihood, first.sites)
    assert warm.num_factorisations < first.num_factorisations
    torch.testing.assert_close(warm.bound, first.bound, rtol=0, atol=1e-3)
