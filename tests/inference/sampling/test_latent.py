"""Models of f and θ: what they compute, and predictions averaged over their samples."""

import pytest
import torch
from torch import Tensor

from orbitwise.functionals import Evaluation
from orbitwise.inference.sampling import Chains, HierarchicalModel, LatentChains
from orbitwise.inference.sampling.chains import check_counts
from orbitwise.inference.sampling.latent import start_approximation, starts
from orbitwise.likelihoods import Gaussian, Poisson, Softmax
from orbitwise.process import Process
from tests.inference.sampling.problems import POINTS, Bump, amplitude_model

TARGETS = torch.tensor([[3.0], [0.0]], dtype=torch.float64)
ZERO = torch.zeros(1, dtype=torch.float64)


def test_a_model_is_asked_at_hyperparameters():
    model = amplitude_model("poisson")
    theta = torch.tensor([0.4], dtype=torch.float64)
    prior = model.prior(theta)
    expected = Process(None, Bump(theta.exp().item(), 1.0)).covariance(Evaluation().atoms(POINTS))
    torch.testing.assert_close(prior.lower @ prior.lower.mT, expected)
    assert torch.equal(prior.offset, torch.zeros(2).double())
    assert model.log_hyperprior(theta) == pytest.approx(-0.08)
    f = torch.randn(5, 2, 1, dtype=torch.float64)
    value = model.log_likelihood(f, prior.likelihood)
    torch.testing.assert_close(value, Poisson().log_density(f, TARGETS).sum(-2))
    shared = HierarchicalModel(model.build, torch.ones(2, 3).double(), model.log_prior)
    assert shared.log_likelihood(torch.zeros(5, 2, 3).double(), Softmax(3)).shape == (5,)


def test_what_cannot_be_computed_has_no_prior():
    class Broken(Bump):
        def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object) -> Tensor:
            return -super().forward(x1, x2, diag)

    rows = Evaluation().atoms(POINTS)
    broken = Process(None, Broken())
    model = HierarchicalModel(
        lambda theta: (broken, rows, Poisson()), TARGETS, lambda theta: theta.sum() * torch.nan
    )
    assert model.prior(ZERO) is None
    assert model.log_hyperprior(ZERO) == -torch.inf
    with pytest.raises(ValueError, match="zero density at the start"):
        start_approximation(model, ZERO)
    with pytest.raises(ValueError, match="2 rows need targets"):
        HierarchicalModel(model.build, torch.ones(3, 1).double(), model.log_prior).covariance(ZERO)


def test_predictions_average_over_hyperparameters_and_values():
    rows = Evaluation().atoms(POINTS)

    kernel = Bump()
    shared = Process(None, kernel)

    def build(theta: Tensor):
        kernel.amplitude = theta[0].exp().item()
        return shared, rows, Gaussian(0.1)

    model = HierarchicalModel(build, TARGETS, lambda theta: theta.sum())
    thetas = torch.tensor([[[0.0], [1.0]], [[0.5], [-1.0]]], dtype=torch.float64)
    latent = torch.randn(2, 2, 2, 1, dtype=torch.float64)
    found = LatentChains(Chains(thetas), latent)
    new = torch.tensor([[0.3], [2.0]], dtype=torch.float64)
    moments = found.posterior(model, 4).moments(Evaluation(), new)
    means, squares = [], []
    for theta, f in zip(thetas.reshape(4, 1), latent.reshape(4, 2), strict=True):
        process, atoms = build(theta)[0], Evaluation().atoms(new)
        gain = torch.linalg.solve(process.covariance(rows), process.covariance(rows, atoms))
        mean = gain.mT @ f
        variance = (process.covariance(atoms) - process.covariance(atoms, rows) @ gain).diagonal()
        means.append(mean)
        squares.append(mean.square() + variance)
    mean, square = torch.stack(means).mean(0), torch.stack(squares).mean(0)
    torch.testing.assert_close(moments.mean[:, 0], mean)
    torch.testing.assert_close(moments.mean_square[:, 0], square)
    torch.testing.assert_close(moments.variance[:, 0], square - mean.square())
    with pytest.raises(ValueError, match="between 1 and the 4 samples, not 5"):
        found.posterior(model, 5)


def test_starts_are_parted_and_counts_are_checked():
    generator = torch.Generator().manual_seed(0)
    places = starts(ZERO, 500, 0.5, generator)
    assert places.std().item() == pytest.approx(0.5, rel=0.1)
    given = torch.arange(3.0)[:, None]
    assert torch.equal(starts(given, 3, 0.5, generator), given.double())
    with pytest.raises(ValueError, match=r"one for each chain \[4, p\]"):
        starts(given, 4, 0.5, generator)
    with pytest.raises(ValueError, match="thin=0 must be at least 1"):
        check_counts(num_samples=1, num_chains=1, thin=0)
