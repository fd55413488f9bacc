"""Importance sampling: known evidence within its errors, honest errors, and degenerate weights."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import genpareto

from orbitwise.selection.evidence import LaplaceFit, importance, laplace, pareto_shape, summarise
from tests.selection.evidence_problems import Linear, SmallProcess, quadrature


def test_the_evidence_of_a_linear_model_within_its_error():
    problem = Linear()
    hyperparameters = problem.hyperparameters()
    fit = laplace(hyperparameters)
    scores = []
    for seed in range(3):
        found = importance(hyperparameters, fit, 300, generator=torch.Generator().manual_seed(seed))
        scores.append((found.log_evidence - problem.exact()) / found.standard_error)
        assert found.standard_error < 0.05
        assert not found.is_degenerate
    assert np.abs(scores).max() < 4
    assert np.abs(scores).max() > 0.1


def test_two_hyperparameters_agree_with_quadrature_without_adaptation_and_with_it():
    hyperparameters = SmallProcess().hyperparameters()
    fit = laplace(hyperparameters)
    expected = quadrature(hyperparameters, fit.mode, fit.covariance)
    plain = importance(hyperparameters, fit, 400, num_adaptations=0)
    adapted = importance(hyperparameters, fit, 400)
    for found in (plain, adapted):
        assert abs(found.log_evidence - expected) < 4 * found.standard_error < 0.3
    posterior_mean = adapted.weights @ adapted.points
    torch.testing.assert_close(plain.weights @ plain.points, posterior_mean, atol=0.1, rtol=0)


def test_errors_and_sizes_are_those_of_the_weights():
    logarithms = torch.tensor([0.0, 1.0, -1.0, 0.5] * 20, dtype=torch.float64)
    found = summarise(torch.zeros(80, 1).double(), logarithms + 700)
    weights = np.exp(logarithms.numpy())
    assert found.log_evidence == pytest.approx(700 + math.log(weights.mean()))
    expected = weights.std(ddof=1) / weights.mean() / math.sqrt(80)
    assert found.standard_error == pytest.approx(expected)
    assert found.effective_size == pytest.approx(weights.sum() ** 2 / (weights**2).sum())


@pytest.mark.parametrize("shape", [-0.3, 0.2, 0.5, 0.9])
def test_the_shape_of_a_tail_is_found(shape: float):
    draws = genpareto.rvs(shape, size=60_000, random_state=1)
    assert pareto_shape(torch.from_numpy(np.log(draws))) == pytest.approx(shape, abs=0.12)


def test_equal_weights_have_no_tail_and_few_say_nothing():
    assert pareto_shape(torch.zeros(200, dtype=torch.float64)) == -math.inf
    assert pareto_shape(torch.zeros(20, dtype=torch.float64)) == math.inf


def test_degenerate_weights_are_warned_of():
    problem = Linear(width=6)
    hyperparameters = problem.hyperparameters()
    fit = laplace(hyperparameters)
    narrow = LaplaceFit(fit.log_evidence, fit.mode + 0.3, fit.covariance / 400, True, True)
    with pytest.warns(UserWarning, match="degenerate: .* Pareto shape"):
        found = importance(hyperparameters, narrow, 100, num_adaptations=0)
    assert found.is_degenerate


def test_bad_numbers_are_refused():
    hyperparameters = Linear().hyperparameters()
    with pytest.raises(ValueError, match="at least 50"):
        importance(hyperparameters, laplace(hyperparameters), 10)
    with pytest.raises(ValueError, match="No sample has a finite density"):
        summarise(torch.zeros(60, 1).double(), torch.full((60,), -math.inf).double())
