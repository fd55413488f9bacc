"""The approximation as the source: exact against dense sums, and worth many times what Gibbs is."""

import math

import pytest
import torch
from torch import Tensor

from orbitwise.functionals import OrbitAverage
from orbitwise.inference.sampling import HierarchicalModel, StudentProposal, gibbs, independence_sampler
from orbitwise.inference.sampling.independence import _Chain, _Source
from orbitwise.likelihoods import Gaussian, Poisson, StudentT
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import Process
from orbitwise.transforms import coordinate_permutations
from tests.inference.sampling.problems import (
    Bump,
    amplitude_model,
    amplitude_posterior,
    grid_posterior,
    z_scores,
)

ZERO = torch.zeros(1, dtype=torch.float64)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", ["bernoulli", "student"])
def test_hyperparameters_and_values_are_those_of_dense_sums(name):
    mean, deviation, values = amplitude_posterior(name)
    found = independence_sampler(
        amplitude_model(name), ZERO, 60, num_chains=2, burn_in=10, num_draws=10, generator=seeded()
    )
    samples = found.parameters.samples[..., 0]
    assert z_scores(samples, mean).abs() < 4
    assert z_scores((samples - mean).square(), deviation.square()).abs() < 4
    assert z_scores(found.latent[..., 0], values).abs().max() < 4
    assert found.acceptance > 0.5
    assert found.parameters.effective_sample_size.item() > 30


@pytest.mark.parametrize("name", ["bernoulli", "student"])
def test_the_weight_is_the_ratio_of_densities(name):
    """p(y | f) p(f | θ) p(θ) / (q(f | θ) r(θ)), by torch's own normal densities."""
    model, proposal = amplitude_model(name), StudentProposal(ZERO, torch.eye(1).double())
    source = _Source(model, ZERO)
    chain = _Chain(source, proposal, seeded())
    for theta in (torch.tensor([0.4]).double(), torch.tensor([-1.0]).double()):
        q, likelihood = source.at(theta)
        f = q.values(chain.noise)[0][0]
        normal, factor = torch.distributions.MultivariateNormal, q.factor()[0]
        known = likelihood.log_density(f, model.targets).sum() + model.log_hyperprior(theta)
        known += normal(torch.zeros(2).double(), model.covariance(theta)[0]).log_prob(f[:, 0])
        known -= normal(q.moments.mean[:, 0], factor @ factor.mT).log_prob(f[:, 0])
        found = chain._log_weight(theta, q, likelihood)
        assert found == pytest.approx(known.item() - proposal.log_density(theta), rel=1e-8)


def test_with_gaussian_noise_the_weight_is_the_evidence():
    """q is exact then: whatever the noise, the weight is p(y | θ) p(θ)/r(θ)."""
    model, proposal = amplitude_model("laplace"), StudentProposal(ZERO, torch.eye(1).double())
    covariance, likelihood = model.covariance, Gaussian(0.3)
    model.covariance = lambda theta: (*covariance(theta)[:2], likelihood)
    source = _Source(model, ZERO)
    chain = _Chain(source, proposal, seeded())
    theta = torch.tensor([0.4], dtype=torch.float64)
    noisy = covariance(theta)[0] + (0.3 + 1e-8) * torch.eye(2).double()
    known = torch.distributions.MultivariateNormal(torch.zeros(2).double(), noisy).log_prob(
        model.targets[:, 0]
    )
    known = known.item() + model.log_hyperprior(theta) - proposal.log_density(theta)
    for _ in range(2):
        assert chain._log_weight(theta, *source.at(theta)) == pytest.approx(known, abs=1e-6)
        chain.move_latent()


def test_a_bad_proposal_costs_samples_but_no_truth():
    mean, _, values = amplitude_posterior("poisson")
    proposal = StudentProposal(torch.tensor([1.0]).double(), torch.tensor([[1.0]]).double())
    found = independence_sampler(
        amplitude_model("poisson"), ZERO, 60, num_chains=2, burn_in=10, proposal=proposal, generator=seeded()
    )
    assert found.acceptance < 0.6
    assert z_scores(found.parameters.samples[..., 0], mean).abs() < 4
    assert z_scores(found.latent[..., 0], values).abs().max() < 4


def test_parameters_of_the_likelihood_are_sampled_too():
    model = amplitude_model("student")
    covariance, targets = model.covariance(ZERO)[0], model.targets
    model.covariance = lambda theta: (covariance, ZERO.expand(2), StudentT(theta[0].exp().item(), 4.0))
    thetas, logs = torch.linspace(-4, 4, 31, dtype=torch.float64), []
    for theta in thetas:
        likelihood = StudentT(theta.exp().item(), 4.0)
        log_evidence = grid_posterior(covariance, likelihood, targets, count=161)[2]
        logs.append(log_evidence - 0.5 * theta.item() ** 2)
    weights = torch.softmax(torch.tensor(logs, dtype=torch.float64), 0)
    found = independence_sampler(model, ZERO, 60, num_chains=2, burn_in=10, num_draws=10, generator=seeded())
    assert z_scores(found.parameters.samples[..., 0], weights @ thetas).abs() < 4


def counts_model() -> HierarchicalModel:
    """Counts on a line of points, symmetric in both coordinates; amplitude and lengthscale unknown."""
    x = torch.randn(12, 2, generator=seeded(1), dtype=torch.float64)
    rows = OrbitAverage(FiniteOrbit(coordinate_permutations(2))).atoms(x)
    targets = torch.poisson(torch.exp(1.5 + x.sum(-1, keepdim=True).sin()), generator=seeded(2))
    kernel = Bump()
    process = Process(None, kernel)

    def build(theta: Tensor):
        kernel.amplitude, kernel.length = theta.exp().tolist()
        return process, rows, Poisson()

    return HierarchicalModel(
        build, targets, lambda theta: -0.5 * theta.square().sum(), ("log amplitude", "log lengthscale")
    )


def test_it_is_worth_many_times_what_gibbs_is():
    model, start = counts_model(), torch.zeros(2).double()
    better = independence_sampler(model, start, 40, num_chains=2, burn_in=5, num_draws=10, generator=seeded())
    worse = gibbs(model, start, 40, num_chains=2, burn_in=5, generator=seeded())
    sizes = [each.parameters.effective_sample_size.min().item() for each in (better, worse)]
    assert sizes[0] > 5 * sizes[1]
    each = [
        size / run.parameters.num_factorisations for size, run in zip(sizes, (better, worse), strict=True)
    ]
    assert each[0] > 5 * each[1]
    assert better.parameters.problems(most_r_hat=1.2, fewest_effective=10) == []
    assert worse.parameters.problems(), "what does not mix is said"


def test_the_same_generator_gives_the_same_chains():
    model = amplitude_model("poisson")
    runs = [
        independence_sampler(model, ZERO, 4, num_chains=1, num_draws=5, generator=seeded(3)) for _ in range(2)
    ]
    assert torch.equal(runs[0].parameters.samples, runs[1].parameters.samples)
    assert torch.equal(runs[0].latent, runs[1].latent)


def test_proposals_without_a_density_are_refused():
    model = amplitude_model("poisson")
    model.log_prior = lambda theta: torch.where(theta.sum() > 5, -torch.inf, 0.0)
    far = StudentProposal(torch.tensor([50.0]).double(), torch.tensor([[0.1]]).double())
    with pytest.raises(ValueError, match="None of 100 draws of the proposal has a density"):
        independence_sampler(model, ZERO, 5, proposal=far, generator=seeded())
    assert math.isfinite(model.log_hyperprior(ZERO))
