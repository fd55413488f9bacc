"""Integrated evidence by four methods: one answer, quadrature's; NUTS where it is asked for; bad input."""

import pytest
import torch
from gpytorch.kernels import RBFKernel

from orbitwise.inference.optimise.hyperparameters import Hyperparameters
from orbitwise.selection.evidence import integrate_evidence, laplace, thermodynamic, whitened_nuts
from tests.selection.evidence_problems import Linear, SmallProcess, gaussian_sampler, quadrature


@pytest.mark.parametrize("method", ["laplace", "importance", "bridge", "thermodynamic"])
def test_all_methods_find_the_evidence_of_a_linear_model(method: str):
    problem = Linear()
    hyperparameters = problem.hyperparameters()
    found = integrate_evidence(hyperparameters, method, 120, seed=1, sampler=gaussian_sampler)
    error = 1e-5 if found.standard_error is None else 4 * found.standard_error + 0.03
    assert abs(found.log_evidence - problem.exact()) < error
    assert found.method == method
    assert (found.standard_error is None) == (method == "laplace")
    assert problem.weight.tolist() == [0.0, 0.0]


def test_nuts_with_a_bridge_agrees_with_quadrature_in_two_dimensions():
    hyperparameters = SmallProcess(8).hyperparameters()
    sampler = whitened_nuts(laplace(hyperparameters), num_warmup=50)
    found = integrate_evidence(hyperparameters, "bridge", 120, seed=0, sampler=sampler)
    expected = quadrature(hyperparameters, found.fit.mode, found.fit.covariance)
    assert found.standard_error is not None
    assert abs(found.log_evidence - expected) < 4 * found.standard_error < 0.4
    assert found.samples is not None
    assert found.samples.shape == (2, 60, 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The chains disagree")  # 60 samples a power: the error bar knows
def test_nuts_at_all_powers_agrees_with_quadrature_in_two_dimensions():
    hyperparameters = SmallProcess(8).hyperparameters()
    fit = laplace(hyperparameters)
    sampler = whitened_nuts(fit, num_chains=1, num_warmup=40)
    found = thermodynamic(hyperparameters, sampler, fit.mode, num_powers=14, num_samples=60)
    expected = quadrature(hyperparameters, fit.mode, fit.covariance)
    assert abs(found.log_evidence - expected) < 4 * found.standard_error + 0.1


def test_the_same_seed_gives_the_same_number():
    hyperparameters = Linear().hyperparameters()
    one, two, other = (integrate_evidence(hyperparameters, "importance", 60, seed=seed) for seed in (3, 3, 4))
    assert one.log_evidence == two.log_evidence != other.log_evidence


def test_chains_in_white_coordinates_come_back_to_z():
    problem = Linear()
    hyperparameters = problem.hyperparameters()
    fit = laplace(hyperparameters)
    samples = whitened_nuts(fit, num_chains=2, num_warmup=40)(hyperparameters.log_density, fit.mode, 160, 0)
    flat = samples.flatten(0, 1)
    z = (flat.mean(0) - fit.mode) / (fit.covariance.diagonal() / 60).sqrt()
    assert z.abs().max() < 5
    torch.testing.assert_close(flat.T.cov(), fit.covariance, rtol=0.6, atol=0.003)


def test_chains_that_do_not_mix_are_warned_of():
    fit = laplace(Linear().hyperparameters())

    def two_hills(z: torch.Tensor) -> torch.Tensor:
        far = 40 * torch.linalg.cholesky(fit.covariance)[:, 0]
        hills = [-0.5 * ((z - fit.mode - sign * far) ** 2).sum() / fit.covariance[0, 0] for sign in (-1, 1)]
        return torch.logsumexp(torch.stack(hills), 0)

    with pytest.warns(UserWarning, match="Do not trust"):
        whitened_nuts(fit, num_chains=4, num_warmup=20)(two_hills, fit.mode, 80, 0)


def test_without_hyperparameters_every_method_returns_the_likelihood():
    fixed = RBFKernel().double().requires_grad_(False)
    hyperparameters = Hyperparameters(lambda: torch.tensor(-2.5, dtype=torch.float64), fixed)
    for method in ("laplace", "importance", "bridge"):
        found = integrate_evidence(hyperparameters, method)
        assert (found.log_evidence, found.standard_error) == (-2.5, 0.0)


def test_unknown_methods_are_refused():
    with pytest.raises(ValueError, match="laplace, importance, bridge, thermodynamic, not 'guess'"):
        integrate_evidence(Linear().hyperparameters(), "guess")
