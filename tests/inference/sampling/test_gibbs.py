"""Alternating Gibbs sampling: right on problems known by dense sums, held values or held noise."""

import pytest
import torch

from orbitwise.inference.sampling import gibbs
from tests.inference.sampling.problems import amplitude_model, amplitude_posterior, z_scores


@pytest.mark.parametrize(
    ("name", "whiten", "count"),
    [pytest.param("poisson", False, 250, marks=pytest.mark.slow), ("bernoulli", True, 60)],
)
def test_hyperparameters_and_values_are_those_of_dense_sums(name, whiten, count):
    model = amplitude_model(name)
    mean, deviation, values = amplitude_posterior(name)
    generator = torch.Generator().manual_seed(1)
    found = gibbs(
        model,
        torch.zeros(1).double(),
        count,
        num_chains=4,
        burn_in=20,
        num_latent=2,
        whiten=whiten,
        generator=generator,
    )
    samples = found.parameters.samples
    assert samples.shape == (4, count, 1)
    assert found.latent.shape == (4, count, 2, 1)
    assert z_scores(samples[..., 0], mean).abs() < 4
    assert z_scores((samples[..., 0] - mean).square(), deviation.square()).abs() < 4
    assert z_scores(found.latent[..., 0], values).abs().max() < 4
    assert found.parameters.names == ("log amplitude",)
    assert found.parameters.num_factorisations > 4 * (20 + count)
    assert found.parameters.num_evaluations > found.parameters.num_factorisations


def test_starts_without_a_density_and_empty_runs_are_refused():
    model = amplitude_model("poisson")
    with pytest.raises(ValueError, match="at least 1"):
        gibbs(model, torch.zeros(1).double(), 0)
    model.log_prior = lambda theta: theta.sum() - torch.inf
    with pytest.raises(ValueError, match="zero density at the start"):
        gibbs(model, torch.zeros(1).double(), 1)
