"""Hyperparameters of fitted regressors: their evidence, priors around the start, orbits, and copies."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior

from orbitwise import InvariantGPClassifier, InvariantGPRegressor
from orbitwise.functionals import Gradient
from orbitwise.orbits import ImageOrbit
from orbitwise.selection.fitted import fitted_hyperparameters, hyperparameters_of

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (14, 2))
Y = 3 * np.sin(X[:, 0] + X[:, 1]) + 5 + 0.1 * RNG.normal(size=14)


def test_the_likelihood_is_the_estimators_evidence_in_units_of_the_targets():
    x, y = np.concatenate([X, X[:4]]), np.concatenate([Y, Y[:4] + 0.2])
    estimator = InvariantGPRegressor(invariance="permutation", max_iterations=10).fit(x, y)
    found = hyperparameters_of(estimator)
    assert found.names == ["process.kernel.outputscale", "process.kernel.base_kernel.lengthscale", "noise"]
    assert found.log_likelihood(found.vector()).item() == pytest.approx(estimator.log_evidence_, abs=1e-8)
    assert found.constrained()["noise"].item() == pytest.approx(estimator.noise_)


def test_default_priors_are_centred_where_the_fit_began():
    kernel = ScaleKernel(RBFKernel())
    kernel.base_kernel.lengthscale = 0.7
    estimator = InvariantGPRegressor(kernel, max_iterations=20).fit(X, Y)
    found = hyperparameters_of(estimator)
    prior = found.priors["process.kernel.base_kernel.lengthscale"]
    assert prior.cdf(torch.tensor([[0.7]]).double()).item() == pytest.approx(0.5, abs=1e-6)
    assert abs(estimator.kernel_.base_kernel.lengthscale.item() - 0.7) > 0.05
    noise = found.priors["noise"].cdf(torch.tensor(0.05 * Y.std() ** 2).double())
    assert noise.item() == pytest.approx(0.5, abs=1e-3)


def test_priors_of_kernel_and_caller_are_used():
    kernel = ScaleKernel(RBFKernel(lengthscale_prior=GammaPrior(2.0, 1.0)))
    estimator = InvariantGPRegressor(kernel, max_iterations=5).fit(X, Y)
    found = hyperparameters_of(estimator, {"noise": GammaPrior(1.5, 2.0)})
    kinds = {name: type(prior).__name__ for name, prior in found.priors.items()}
    assert kinds["process.kernel.base_kernel.lengthscale"] == "GammaPrior"
    assert kinds["noise"] == "GammaPrior"
    with pytest.raises(ValueError, match=r"no hyperparameter 'noisy'.* Did you mean noise"):
        hyperparameters_of(estimator, {"noisy": GammaPrior(1.5, 2.0)})


def test_the_estimator_does_not_change_and_regressors_at_other_values_do():
    estimator = InvariantGPRegressor(max_iterations=5).fit(X, Y)
    before = estimator.predict(X)
    fitted = fitted_hyperparameters(estimator)
    z = fitted.hyperparameters.vector()
    same, other = fitted.regressor(z), fitted.regressor(z + 1.0)
    np.testing.assert_allclose(same.predict(X), before, rtol=1e-10)
    np.testing.assert_array_equal(estimator.predict(X), before)
    assert np.abs(other.predict(X) - before).max() > 1e-3
    assert other.noise_ == pytest.approx(estimator.noise_ * math.e, rel=1e-4)
    likelihood = fitted.hyperparameters.log_likelihood(z + 1.0).item()
    assert other.log_evidence_ == pytest.approx(likelihood, abs=1e-8)
    # a regressor keeps its values when another one is made
    np.testing.assert_allclose(same.predict(X), before, rtol=1e-10)


def test_bounds_of_a_learned_orbit_are_hyperparameters():
    images = RNG.uniform(size=(8, 16))
    labels = images[:, :8].sum(1)
    orbit = ImageOrbit((4, 4), affine={"angle": 0.3})
    estimator = InvariantGPRegressor(
        invariance=orbit, image_shape=(4, 4), num_nodes=4, max_iterations=3, random_state=0
    ).fit(images, labels)
    found = hyperparameters_of(estimator)
    (name,) = [name for name in found.names if "half_width" in name]
    assert name.endswith("[angle]")
    value = found.constrained()[name.partition("[")[0]].item()
    assert value == pytest.approx(estimator.orbit_.learned()["angle"][1])
    z = found.vector().requires_grad_()
    (gradient,) = torch.autograd.grad(found.log_likelihood(z), z)
    assert gradient[found.names.index(name)].abs() > 0


def test_noise_of_other_observations_counts():
    slopes = np.zeros((3, 2))
    estimator = InvariantGPRegressor(max_iterations=3)
    estimator.fit(X, Y, observations=[(Gradient(), X[:3], slopes + 0.5, None)])
    found = hyperparameters_of(estimator)
    assert "observation_noise.0" in found.names
    assert found.log_likelihood(found.vector()).item() == pytest.approx(estimator.log_evidence_, abs=1e-8)
    assert found.constrained()["observation_noise.0"].item() == pytest.approx(estimator.observation_noise_[0])


def test_other_engines_and_estimators_are_refused():
    sparse = InvariantGPRegressor(inference="collapsed", num_inducing=5, max_iterations=1).fit(X, Y)
    with pytest.raises(ValueError, match="exact regressors only, not of collapsed"):
        hyperparameters_of(sparse)
    classifier = InvariantGPClassifier(max_iterations=1, num_inducing=5).fit(X, Y > 5)
    with pytest.raises(Exception, match=r"exact regressors only|Type-check"):
        hyperparameters_of(classifier)  # type: ignore
