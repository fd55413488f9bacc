"""Predictions averaged over hyperparameters: against quadrature, by both samplers, and of fixed ones."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from gpytorch.priors import LogNormalPrior

from orbitwise import InvariantGPRegressor
from orbitwise.selection.evidence import integrate_evidence
from orbitwise.selection.fitted import fitted_hyperparameters
from orbitwise.selection.model_posterior import average_hyperparameters

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(1)
X = RNG.uniform(-2, 2, (9, 1))
Y = np.sin(2 * X[:, 0]) + 0.2 * RNG.normal(size=9)
PRIORS = {"lengthscale": LogNormalPrior(0.0, 0.5), "noise": LogNormalPrior(-3.0, 0.7)}
NEW = np.array([[-2.5], [0.1], [1.2], [3.0]])


@pytest.fixture(scope="module")
def estimator() -> InvariantGPRegressor:
    return InvariantGPRegressor(RBFKernel(), normalize_y=False, max_iterations=30).fit(X, Y)


def test_the_average_is_the_integral_over_hyperparameters(estimator):
    fitted = fitted_hyperparameters(estimator, PRIORS)
    fit = integrate_evidence(fitted.hyperparameters, "laplace").fit
    lower = torch.linalg.cholesky(fit.covariance)
    grid = torch.linspace(-6, 6, 13, dtype=torch.float64)
    points = [fit.mode + lower @ torch.stack([a, b]) for a in grid for b in grid]
    with torch.no_grad():
        densities = torch.stack([fitted.hyperparameters.log_density(point) for point in points])
    weights = torch.softmax(densities, 0).numpy()
    kept = [i for i in range(len(points)) if weights[i] > 1e-4]
    pairs = [fitted.regressor(points[i]).predict(NEW, return_std=True) for i in kept]
    means, deviations = (np.stack(each) for each in zip(*pairs, strict=True))
    share = weights[kept] / weights[kept].sum()
    mean = share @ means
    deviation = np.sqrt(share @ (deviations**2 + (means - mean) ** 2))
    mixture = average_hyperparameters(estimator, 60, priors=PRIORS, num_draws=300)
    found, spread = mixture.predict(NEW, return_std=True)
    # sixty systematic samples of the spread between members
    tolerance = 3 * np.sqrt(share @ (means - mean) ** 2) / np.sqrt(60) + 0.01
    assert (np.abs(found - mean) < tolerance).all()
    np.testing.assert_allclose(spread, deviation, rtol=0.1)
    # averaging tells of more doubt than the best values alone
    assert spread.sum() > estimator.predict(NEW, return_std=True)[1].sum()


def test_members_reuse_their_factorisations(estimator, monkeypatch):
    mixture = average_hyperparameters(estimator, 5, num_draws=60)
    monkeypatch.setattr(torch.linalg, "cholesky_ex", None)
    assert np.isfinite(mixture.predict(NEW)).all()
    assert np.isfinite(mixture.log_density(NEW, np.zeros(4))).all()
    assert mixture.weights.sum() == pytest.approx(1.0)


def test_samples_of_a_chain_serve_as_well(estimator):
    def sampler(log_density, start, num_samples: int, seed: int) -> torch.Tensor:
        fit = integrate_evidence(fitted_hyperparameters(estimator).hyperparameters, "laplace").fit
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(2, num_samples // 2, len(start), generator=generator, dtype=torch.float64)
        return fit.mode + noise @ torch.linalg.cholesky(fit.covariance).mT

    mixture = average_hyperparameters(estimator, 8, "nuts", num_draws=100, sampler=sampler)
    assert len(mixture.members) == 8
    assert len({member.noise_ for member in mixture.members}) == 8
    np.testing.assert_allclose(mixture.weights, 1 / 8)


def test_without_hyperparameters_there_is_one_member():
    kernel = RBFKernel().requires_grad_(False)
    estimator = InvariantGPRegressor(kernel, noise=0.04, normalize_y=False).fit(X, Y)
    mixture = average_hyperparameters(estimator, 4, num_draws=60)
    np.testing.assert_allclose(mixture.predict(NEW), estimator.predict(NEW))


def test_bad_settings_are_refused(estimator):
    with pytest.raises(ValueError, match="'importance' or 'nuts', not 'gibbs'"):
        average_hyperparameters(estimator, method="gibbs")
    with pytest.raises(ValueError, match="between 1 and num_draws=10"):
        average_hyperparameters(estimator, 20, num_draws=10)
