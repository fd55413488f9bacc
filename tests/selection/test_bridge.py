"""Bridge sampling: known integrals within honest errors, also from correlated samples."""

import math

import numpy as np
import pytest
import torch

from orbitwise.inference.sampling import standard_error
from orbitwise.selection.evidence import bridge
from tests.selection.evidence_problems import Linear, gaussian_sampler

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_the_evidence_of_a_linear_model():
    problem = Linear()
    hyperparameters = problem.hyperparameters()
    samples = gaussian_sampler(hyperparameters.log_density, torch.zeros(2).double(), 400, 0)
    found = bridge(hyperparameters.log_density, samples)
    assert found.converged
    assert found.standard_error < 0.05
    assert abs(found.log_evidence - problem.exact()) < 4 * found.standard_error


def skewed(z: torch.Tensor) -> torch.Tensor:
    """A gamma density of shape 3 in z = log of it, times e⁷."""
    return 3 * z[0] - z[0].exp() - math.lgamma(3) + 7.0


def test_errors_are_honest_for_a_skewed_density():
    scores = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        samples = torch.from_numpy(np.log(rng.gamma(3.0, size=(2, 200, 1))))
        found = bridge(skewed, samples, torch.Generator().manual_seed(seed))
        scores.append((found.log_evidence - 7.0) / found.standard_error)
    assert abs(np.mean(scores)) < 4 / math.sqrt(30)
    assert 0.6 < np.std(scores) < 1.5


def test_correlated_samples_have_larger_errors():
    rng = np.random.default_rng(0)
    free = rng.normal(size=(4, 1600))
    chain = np.zeros_like(free)
    for i in range(1, 1600):
        chain[:, i] = 0.8 * chain[:, i - 1] + math.sqrt(1 - 0.64) * free[:, i]
    # the variance of a mean is (1 + ρ)/(1 - ρ) = 9 times that of independent samples
    ratio = standard_error(torch.from_numpy(chain)) / standard_error(torch.from_numpy(free))
    assert 5 < ratio.square() < 12
    found = [
        bridge(lambda z: -0.5 * z.square().sum(), torch.from_numpy(each[..., None])) for each in (chain, free)
    ]
    for each in found:
        assert abs(each.log_evidence - 0.5 * math.log(2 * math.pi)) < 4 * each.standard_error
    # a normal is met exactly by its bridge but for the fit of the proposal
    assert found[0].standard_error > found[1].standard_error


def test_too_few_samples_and_too_few_steps_are_said():
    with pytest.raises(ValueError, match="at least 40 samples per chain, not 10"):
        bridge(skewed, torch.zeros(2, 10, 1))
    samples = torch.from_numpy(np.log(np.random.default_rng(0).gamma(3.0, size=(2, 200, 1))))
    with pytest.warns(UserWarning, match="still changes by .* after 1 iterations"):
        bridge(skewed, samples, max_iterations=1)
