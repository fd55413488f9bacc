"""Posteriors over models: Bayes' rule, priors, ties, averages, tables, and bad input."""

import math

import numpy as np
import pytest
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior
from sklearn.linear_model import LinearRegression

from orbitwise import InvariantGPRegressor
from orbitwise.kernels import BasisKernel, PolynomialBasis
from orbitwise.selection.evidence import laplace
from orbitwise.selection.fitted import hyperparameters_of
from orbitwise.selection.model_posterior import model_posterior

RNG = np.random.default_rng(2)
X = RNG.uniform(-2, 2, (16, 2))
Y = np.sin(X[:, 0] + X[:, 1]) + 0.1 * RNG.normal(size=16)
LINE = np.linspace(-1, 1, 12)[:, None]


def fixed(order: int, variance: float = 1.0) -> InvariantGPRegressor:
    """A polynomial without hyperparameters."""
    kernel = BasisKernel(PolynomialBasis(order)).requires_grad_(False)
    kernel.variance = variance
    return InvariantGPRegressor(kernel, noise=0.04, normalize_y=False)


def test_probabilities_follow_bayes_rule():
    y = 1 - LINE[:, 0] + 0.2 * RNG.normal(size=12)
    models = {str(order): fixed(order) for order in range(3)}
    prior = {"0": 1.0, "1": 1.0, "2": 2.0}
    found = model_posterior(models, LINE, y, prior)
    evidence = {name: model.fit(LINE, y).log_evidence_ for name, model in models.items()}
    joint = {name: prior[name] / 4 * math.exp(value - evidence["1"]) for name, value in evidence.items()}
    for name, value in joint.items():
        assert found.probabilities[name] == pytest.approx(value / sum(joint.values()), rel=1e-6)
    assert found.probabilities["0"] < 1e-6
    mean, deviation = found.predict(LINE, return_std=True)
    parts = {name: model.predict(LINE, return_std=True) for name, model in models.items()}
    expected = sum(found.probabilities[name] * part[0] for name, part in parts.items())
    np.testing.assert_allclose(mean, expected)
    square = sum(
        found.probabilities[name] * (part[1] ** 2 + (part[0] - mean) ** 2) for name, part in parts.items()
    )
    np.testing.assert_allclose(deviation, np.sqrt(square))
    assert found.log_density(LINE, y).shape == (12,)


def test_the_invariance_of_the_data_is_found_with_hyperparameters_integrated_out():
    models = {"none": InvariantGPRegressor(), "exchange": InvariantGPRegressor(invariance="permutation")}
    found = model_posterior(models, X, Y)
    assert found.best.name == "exchange"
    assert found.best.probability > 0.9
    assert found.tied == ()
    exact = InvariantGPRegressor(invariance="permutation").fit(X, Y)
    assert found.best.log_evidence == pytest.approx(laplace(hyperparameters_of(exact)).log_evidence, abs=1e-4)
    # an average over hyperparameters is below the maximum, by an Occam factor and not by rounding
    assert found.best.log_evidence < exact.log_evidence_ - 0.1
    # the estimators that were given are not fitted
    assert not hasattr(models["none"], "kernel_")
    text = str(found)
    assert "exchange" in text
    assert "tie" not in text


def test_importance_has_errors_and_averages_hyperparameters():
    kernels = [RBFKernel(), ScaleKernel(RBFKernel())]
    found = model_posterior(kernels, X, Y, method="importance", num_samples=60, num_members=4)
    assert set(found.probabilities) == {"RBFKernel", "ScaleKernel"}
    assert all(model.standard_error > 0 for model in found.models)
    assert found.models[0].probability_error == pytest.approx(found.models[1].probability_error)
    assert len(found.best.predictor.members) > 1
    assert "±" in str(found)


def test_models_alike_are_called_a_tie():
    y = 1 - LINE[:, 0] + 0.2 * RNG.normal(size=12)
    found = model_posterior([fixed(1), fixed(1, 1.1), fixed(0)], LINE, y, method="optimum")
    names = [model.name for model in found.models]
    assert names[0][-1] in "12"
    assert found.tied == (names[1],)
    assert str(found).count("(tie)") == 1
    assert names[2] == "InvariantGPRegressor 3"


def test_hyperpriors_are_given_to_models_by_name():
    wide = model_posterior({"a": RBFKernel()}, X, Y)
    prior = {"a": {"lengthscale": GammaPrior(400.0, 400.0)}}
    narrow = model_posterior({"a": RBFKernel()}, X, Y, hyperpriors=prior)
    assert narrow.best.log_evidence != pytest.approx(wide.best.log_evidence, abs=0.05)
    with pytest.raises(ValueError, match="hyperpriors names 'b', but the models are"):
        model_posterior({"a": RBFKernel()}, X, Y, hyperpriors={"b": {}})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prior": [1.0]}, "prior needs 2 finite numbers"),
        ({"prior": [1.0, -1.0]}, "none negative"),
        ({"prior": [0.0, 0.0]}, "not all zero"),
        ({"prior": {"x": 1.0, "y": 2.0}}, "but the models are"),
        ({"method": "guess"}, "one of optimum, laplace"),
    ],
)
def test_bad_settings_are_refused(arguments: dict, message: str):
    with pytest.raises(ValueError, match=message):
        model_posterior([fixed(0), fixed(1)], LINE, LINE[:, 0], **arguments)


def test_models_without_evidence_are_refused_and_a_prior_of_zero_excludes():
    with pytest.raises(ValueError, match="at least one model"):
        model_posterior([], LINE, LINE[:, 0])
    with pytest.raises(ValueError, match="LinearRegression has no log_evidence_"):
        model_posterior([LinearRegression()], LINE, LINE[:, 0], method="optimum")
    found = model_posterior([fixed(0), fixed(1)], LINE, LINE[:, 0], prior=[1.0, 0.0], method="optimum")
    assert found.best.probability == 1.0
    assert found.models[1].probability == 0.0
    assert "∞" in str(found)
