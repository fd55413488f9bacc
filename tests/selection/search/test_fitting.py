"""Fits of one hypothesis, and the scores of its structure."""

import math

import numpy as np
import pytest
import torch

from orbitwise.estimators import InvariantGPRegressor
from orbitwise.kernels import parse
from orbitwise.kernels.spelling import parse_expression
from orbitwise.selection.search.claims import Claim
from orbitwise.selection.search.fitting import Model, Problem, fit, laplace
from orbitwise.selection.search.hypotheses import Hypothesis
from orbitwise.selection.search.starting import fresh

RANDOM = np.random.default_rng(3)
X = RANDOM.uniform(-2, 2, (30, 1))
Y = 5 + 2 * np.sin(2 * X[:, 0]) + 0.3 * RANDOM.standard_normal(30)
PROBLEM = Problem(X, Y)


def hypothesis(text: str, *claims: Claim) -> Hypothesis:
    return Hypothesis(parse_expression(text), claims)


def test_the_likelihood_is_the_regressors_evidence():
    start = Hypothesis(parse_expression("0.7*rbf(lengthscale=0.8)"), (), 0.04)
    model = Model(start, PROBLEM)
    kernel = parse("0.7*rbf(lengthscale=0.8)", 1)
    noise = 0.04 * Y.var() + 1e-8 * Y.var()
    regressor = InvariantGPRegressor(kernel, noise=noise, max_iterations=0).fit(X, Y)
    with torch.no_grad():
        value = model.log_likelihood().item() - len(Y) * math.log(model.scale)
    assert value == pytest.approx(regressor.log_evidence_, rel=1e-9)
    np.testing.assert_allclose(model.residuals() * model.scale, Y - regressor.predict(X), atol=1e-6)


def test_fits_find_a_mode_and_count_what_they_learn():
    start = fresh(hypothesis("rbf"), X, Y, None)
    found = fit([start], PROBLEM, 100)
    assert found is not None
    model = Model(found.hypothesis, PROBLEM)
    gradients = torch.autograd.grad(model.log_joint(), model.parameters)
    assert max(float(each.abs().max()) for each in gradients) < 0.2
    assert found.num_parameters == 3
    assert found.score == pytest.approx(found.log_likelihood - 1.5 * math.log(30))
    several = fit([fresh(hypothesis("rbf"), X, Y, seed) for seed in (None, 1, 2)], PROBLEM, 100)
    assert several is not None
    assert several.log_likelihood == pytest.approx(found.log_likelihood, abs=0.1)


def test_claims_and_noise_are_learned_too():
    start = fresh(hypothesis("rbf", Claim("odd", (0,))), X, Y - 5, None)
    found = fit([start], Problem(X, Y - 5), 100)
    assert found is not None
    assert found.num_parameters == 4
    assert found.hypothesis.claims[0].value == pytest.approx(0.0, abs=0.15)
    assert found.hypothesis.noise is not None
    assert math.sqrt(found.hypothesis.noise * np.square(Y - 5).mean()) == pytest.approx(0.3, rel=0.4)


def test_wrapped_hypotheses_come_back_in_their_own_columns():
    x = RANDOM.uniform(0, 3, (25, 2))
    y = np.sin(2 * np.pi * x[:, 0]) + x[:, 1]
    start = fresh(hypothesis("matern52[0] + rbf[1]", Claim("period", (0,))), x, y, None)
    found = fit([start], Problem(x, y), 40)
    assert found is not None
    assert str(found.hypothesis) == "matern52[0] + rbf[1] | period[0]"
    assert found.hypothesis.claims[0].value == pytest.approx(1.0, abs=0.1)


def test_laplace_equals_quadrature():
    """log ∫ p(y, θ) dθ of a line of three numbers, over a fine grid."""
    problem = Problem(X, 2 * X[:, 0] + 0.5 * RANDOM.standard_normal(30), "laplace")
    start = Hypothesis(parse_expression("dot"), (), 0.05)
    found = fit([start], problem, 100)
    assert found is not None
    model = Model(found.hypothesis, problem)
    assert len(model.parameters) == 2
    with torch.no_grad():
        noise, variance = (each.reshape(()) for each in model.parameters)
        centre = noise.item(), variance.item()
        first = torch.linspace(centre[0] - 2, centre[0] + 3, 30)
        second = torch.linspace(centre[1] - 5, centre[1] + 8, 50)
        values = torch.empty(30, 50, dtype=torch.float64)
        for i, one in enumerate(first):
            for j, two in enumerate(second):
                noise.fill_(one.item())
                variance.fill_(two.item())
                values[i, j] = model.log_joint()
        cell = (first[1] - first[0]).item() * (second[1] - second[0]).item()
        exact = torch.logsumexp(values.reshape(-1), 0).item() + math.log(cell)
        noise.fill_(centre[0])
        variance.fill_(centre[1])
        joint = model.log_joint().item()
    assert laplace(model, joint) == pytest.approx(exact, abs=0.2)
    assert found.score == pytest.approx(exact - 30 * math.log(model.scale), abs=0.2)


def test_no_time_is_no_fit():
    assert fit([hypothesis("rbf")], Problem(X, Y, deadline=0.0), 10) is None
