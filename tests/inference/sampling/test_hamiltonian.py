"""NUTS: known posteriors, seeds, failing densities, and a world left as it was."""

import importlib

import numpy as np
import pytest
import torch
from torch import Tensor

from orbitwise.inference.sampling import nuts
from tests.inference.sampling.problems import z_scores

X = torch.linspace(-1, 1, 8, dtype=torch.float64)
Y = torch.sin(3 * X) + 0.1 * torch.tensor([1.0, -1, 0.5, 0, -0.5, 1, -1, 0.3], dtype=torch.float64)


def conjugate(theta: Tensor) -> Tensor:
    """Weights of two features with unit priors, observed with noise of variance 0.25."""
    features = torch.stack([torch.ones_like(X), X], dim=-1)
    return -0.5 * theta.square().sum() - 2 * (Y - features @ theta).square().sum()


def evidence(theta: Tensor) -> Tensor:
    """log p(y | lengthscale, amplitude) of a Gaussian process, with normal priors of their logarithms."""
    length, amplitude = theta.exp()
    K = amplitude**2 * torch.exp(-0.5 * (X[:, None] - X).square() / length**2) + 0.04 * torch.eye(8).double()
    lower = torch.linalg.cholesky(K)
    white = torch.linalg.solve_triangular(lower, Y[:, None], upper=False)
    return -0.5 * white.square().sum() - lower.diagonal().log().sum() - 0.5 * theta.square().sum()


def test_a_conjugate_posterior_is_recovered():
    chains = nuts(conjugate, torch.zeros(2).double(), 150, num_warmup=80, num_chains=2)
    features = torch.stack([torch.ones_like(X), X], dim=-1)
    covariance = torch.linalg.inv(torch.eye(2).double() + 4 * features.mT @ features)
    mean = covariance @ (4 * features.mT @ Y)
    assert z_scores(chains.samples, mean).abs().max() < 4
    assert z_scores((chains.samples - mean).square(), covariance.diagonal()).abs().max() < 4
    assert chains.samples.shape == (2, 150, 2)
    assert chains.num_evaluations > 2 * 230
    assert chains.num_divergent == 0


def test_hyperparameters_of_a_process_are_those_of_a_grid():
    axis = torch.linspace(-4, 4, 33, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    weights = torch.softmax(torch.stack([evidence(theta) for theta in grid]), 0)
    mean = weights @ grid
    chains = nuts(
        evidence, torch.zeros(2).double(), 150, num_warmup=80, num_chains=2, names=("length", "amplitude")
    )
    assert z_scores(chains.samples, mean).abs().max() < 4
    assert z_scores((chains.samples - mean).square(), weights @ (grid - mean).square()).abs().max() < 4
    product = (grid - mean).prod(-1)
    assert z_scores((chains.samples - mean).prod(-1), weights @ product).abs() < 4
    assert chains.names == ("length", "amplitude")
    assert chains.problems(most_r_hat=1.1, fewest_effective=20) == []


def test_a_seed_says_it_all_and_nothing_else_is_touched():
    import pyro

    states = (torch.get_rng_state(), np.random.get_state()[1].copy())  # noqa: NPY002
    parameters, validation = len(pyro.get_param_store()), pyro.settings.get("validate_distributions_pyro")
    options = {"num_samples": 5, "num_warmup": 5, "num_chains": 2}
    first = nuts(conjugate, torch.zeros(2).double(), seed=3, **options)
    assert torch.equal(states[0], torch.get_rng_state())
    assert (states[1] == np.random.get_state()[1]).all()  # noqa: NPY002
    assert len(pyro.get_param_store()) == parameters
    assert pyro.settings.get("validate_distributions_pyro") == validation
    torch.rand(3)
    again = nuts(conjugate, torch.zeros(2).double(), seed=3, **options)
    other = nuts(conjugate, torch.zeros(2).double(), seed=4, **options)
    assert torch.equal(first.samples, again.samples)
    assert not torch.equal(first.samples, other.samples)
    assert not torch.equal(first.samples[0], first.samples[1])


def test_it_is_silent_unless_asked(capfd):
    nuts(conjugate, torch.zeros(2).double(), 3, num_warmup=3, num_chains=1)
    assert capfd.readouterr() == ("", "")
    nuts(conjugate, torch.zeros(2).double(), 3, num_warmup=3, num_chains=1, progress=True)
    assert "sampling" in capfd.readouterr().out


def test_a_density_that_fails_counts_as_zero():
    def half(theta: Tensor) -> Tensor:
        if theta[0] < 0:
            raise torch.linalg.LinAlgError("not positive definite")
        if theta[0] > 3:
            return theta.sum() * torch.nan
        return -0.5 * theta.square().sum()

    with torch.no_grad():
        chains = nuts(half, torch.ones(1).double(), 100, num_warmup=40, num_chains=2)
    assert bool(((chains.samples > 0) & (chains.samples < 3)).all())
    assert z_scores(chains.samples, torch.tensor([0.7925]).double()).abs() < 4


def test_starts_must_have_a_density():
    with pytest.raises(ValueError, match="not finite at the start"):
        nuts(lambda theta: theta.sum().log(), -torch.ones(1).double(), 3)
    with pytest.raises(ValueError, match="4 chains need one start each, not 3"):
        nuts(conjugate, torch.zeros(3, 2).double(), 3)
    with pytest.raises(ValueError, match="at least 1"):
        nuts(conjugate, torch.zeros(2).double(), 0)


def test_without_pyro_the_remedy_is_named(monkeypatch):
    genuine = importlib.import_module

    def absent(name: str, *rest: object) -> object:
        if name.startswith("pyro"):
            raise ImportError(name)
        return genuine(name, *rest)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ImportError, match=r'pip install "orbitwise\[bayes\]"'):
        nuts(conjugate, torch.zeros(2).double(), 3)
