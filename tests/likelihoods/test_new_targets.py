"""What likelihoods say of new targets: mean, variance and quantiles are those of samples."""

from typing import final

import numpy as np
import pytest
import torch
from torch import Tensor

from orbitwise.likelihoods import (
    Bernoulli,
    Dirichlet,
    Gaussian,
    Laplace,
    Likelihood,
    Poisson,
    Softmax,
    StudentT,
)
from orbitwise.process.process import Moments

MEAN = torch.tensor([[0.4, -0.3], [1.5, 0.2]], dtype=torch.float64)
VARIANCE = torch.tensor([[0.3, 0.1], [0.05, 0.6]], dtype=torch.float64)
AT = Moments(MEAN, VARIANCE, MEAN.square() + VARIANCE)
DRAWS = 400_000
LEVELS = (0.025, 0.5, 0.9)


@final
class Exponential(Likelihood):
    """Waiting times of mean exp f: all that a likelihood of one's own needs."""

    is_quadratic = False

    def log_density(self, f: Tensor, targets: Tensor) -> Tensor:
        return -f - targets * torch.exp(-f)

    def conditional_mean(self, f: Tensor) -> Tensor:
        return f.exp()

    def conditional_variance(self, f: Tensor) -> Tensor:
        return (2 * f).exp()

    def cumulative(self, f: Tensor, targets: Tensor) -> Tensor:
        return 1 - torch.exp(-targets.clamp_min(0) * torch.exp(-f))


def drawn(likelihood: Likelihood) -> np.ndarray:
    """Targets drawn by NumPy's own generators, [draws, n, c]."""
    generator = np.random.default_rng(0)
    f = MEAN.numpy() + np.sqrt(VARIANCE.numpy()) * generator.standard_normal((DRAWS, *MEAN.shape))
    if isinstance(likelihood, Poisson):
        return generator.poisson(np.exp(f)).astype(float)
    if isinstance(likelihood, Exponential):
        return generator.exponential(np.exp(f))
    if isinstance(likelihood, Gaussian):
        return generator.normal(f, np.sqrt(likelihood.noise.item()))
    if isinstance(likelihood, Laplace):
        return generator.laplace(f, likelihood.scale.item())
    assert isinstance(likelihood, StudentT)
    return f + likelihood.scale.item() * generator.standard_t(likelihood.degrees.item(), f.shape)


LIKELIHOODS = [Poisson(), Exponential(), Gaussian(0.2), Laplace(0.4), StudentT(0.3, 7.0)]


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda each: type(each).__name__)
def test_mean_and_variance_of_a_new_target_are_those_of_samples(likelihood):
    targets = drawn(likelihood)
    mean, variance = (
        each.detach().numpy() for each in (likelihood.predict(AT), likelihood.predict_variance(AT))
    )
    z = (targets.mean(0) - mean) / (targets.std(0) / DRAWS**0.5)
    assert np.abs(z).max() < 4
    squares = (targets - mean) ** 2
    assert np.abs((squares.mean(0) - variance) / (squares.std(0) / DRAWS**0.5)).max() < 4


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda each: type(each).__name__)
def test_quantiles_leave_that_share_of_samples_below(likelihood):
    targets = drawn(likelihood)
    for level in LEVELS:
        quantile = likelihood.predict_quantile(AT, level).detach().numpy()
        error = 5 * (level * (1 - level) / DRAWS) ** 0.5
        if isinstance(likelihood, Poisson):
            assert ((targets <= quantile).mean(0) > level - error).all()
            assert ((targets <= quantile - 1).mean(0) < level + error).all(), "no smaller count will do"
            assert (quantile == np.floor(quantile)).all()
        else:
            assert np.abs((targets <= quantile).mean(0) - level).max() < error


def test_the_variance_without_noise_is_that_of_the_mean_given_f():
    f = MEAN + VARIANCE.sqrt() * torch.randn(DRAWS, 2, 2, generator=torch.Generator().manual_seed(0)).double()
    rates = f.exp().var(0)
    for likelihood in (Poisson(), Exponential()):
        torch.testing.assert_close(likelihood.predict_variance(AT, False), rates, rtol=0.03, atol=0)
    assert torch.equal(StudentT().predict_variance(AT, False), VARIANCE)


def test_an_expected_log_likelihood_needs_the_density_alone():
    targets = torch.tensor([[0.5, 2.0], [3.0, 0.1]], dtype=torch.float64)
    # E[-f - y exp(-f)] = -μ - y exp(-μ + σ²/2)
    right = -MEAN - targets * torch.exp(-MEAN + 0.5 * VARIANCE)
    mine = Exponential().expected_log_likelihood(AT, targets)
    torch.testing.assert_close(mine, right.sum(-1), rtol=1e-10, atol=0)


def test_tails_without_a_variance_say_what_to_ask_for():
    heavy = StudentT(0.3, 1.5)
    with pytest.raises(ValueError, match="no finite variance: ask for quantiles"):
        heavy.predict_variance(AT)
    assert heavy.predict_quantile(AT, 0.9).isfinite().all()


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, float("nan")])
def test_a_level_lies_between_0_and_1(level):
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        Poisson().predict_quantile(AT, level)


def test_what_a_likelihood_lacks_is_named():
    with pytest.raises(ValueError, match="Bernoulli has no quantiles"):
        Bernoulli().predict_quantile(AT, 0.5)
    with pytest.raises(ValueError, match="Dirichlet needs a method conditional_variance"):
        Dirichlet().conditional_variance(MEAN)
    with pytest.raises(ValueError, match="Softmax needs a method conditional_mean"):
        Softmax(2).conditional_mean(MEAN)
    with pytest.raises(ValueError, match="Poisson is not a likelihood of classes"):
        Poisson().encode_labels(torch.tensor([0, 1]), 2)
    with pytest.raises(ValueError, match="made for 3 classes, not 2"):
        Softmax(3).encode_labels(torch.tensor([0, 1]), 2)


def test_counts_are_not_negative_and_f_lies_around_their_logarithm():
    with pytest.raises(ValueError, match="targets of 0 or more, but there is one of -2"):
        Poisson().check_targets(torch.tensor([[1.0], [-2.0]]))
    assert Poisson().prior_mean(torch.tensor([[1.0], [7.0]])) == pytest.approx(np.log(4))
    assert Poisson().prior_mean(torch.zeros(10, 1)) == pytest.approx(np.log(0.05)), "no count at all"
