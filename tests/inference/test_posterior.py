"""What every posterior promises: moments of any functional, and nothing without them."""

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from orbitwise.functionals import DirectionalDerivative, Evaluation, FeatureMap, OrbitAverage
from orbitwise.inference import Moments, Posterior
from orbitwise.inference.exact import ExactPosterior, condition
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.sampling import MixturePosterior, sample_posterior
from orbitwise.inference.sparse import held_rows, iterative, nystrom
from orbitwise.likelihoods import Gaussian
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import Process
from orbitwise.transforms import coordinate_permutations

FUNCTIONALS = [
    Evaluation(),
    OrbitAverage(FiniteOrbit(coordinate_permutations(2))),
    DirectionalDerivative(torch.tensor([1.0, -0.5])),
    FeatureMap(lambda x: x.square()),
    2.0 * Evaluation() - OrbitAverage(FiniteOrbit(coordinate_permutations(2))),
]


def test_a_posterior_without_moments_or_covariance_cannot_be_made():
    class Nothing(Posterior):
        pass

    with pytest.raises(TypeError, match=r"covariance.*row_moments"):
        Nothing()


def posteriors() -> dict[str, Posterior]:
    """One posterior of every kind, of the same data; all rows are inducing points where there are any."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 2, generator=generator, dtype=torch.float64)
    targets = torch.stack([x.sum(-1).sin(), x.prod(-1)], dim=-1)
    process = Process(None, ScaleKernel(RBFKernel())).double()
    noise = torch.tensor(0.1, dtype=torch.float64)
    rows, observed = Evaluation().atoms(x), Observations(Evaluation(), x, targets)
    likelihood = Gaussian(0.1)
    exact = condition(process, rows, targets, noise.expand(12))
    sampled = sample_posterior(process, rows, targets, likelihood, 40, generator=generator)
    return {
        "exact": exact,
        "sparse": held_rows.condition(LatentModel(process, Evaluation(), likelihood), observed, x).posterior,
        "iterative": iterative.condition(process, observed, noise, x),
        "iterative, sparse variance": iterative.condition(process, observed, noise, x, "sparse"),
        **{
            kind: nystrom.condition(process, observed, noise, x[:8], kind)
            for kind in ("sor", "dtc", "nystrom")
        },
        "sampled": sampled,
        "mixture": MixturePosterior([exact, sampled]),
    }


KINDS = (
    *("exact", "sparse", "iterative", "iterative, sparse variance"),
    *("sor", "dtc", "nystrom", "sampled", "mixture"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_engine_keeps_the_whole_contract(kind):
    """The mean alone, the diagonal of the covariance and the draws agree with the moments of the rows."""
    posterior, new = posteriors()[kind], torch.tensor([[0.3, -0.2], [1.0, 0.5], [0.4, -0.1]]).double()
    for functional in (Evaluation(), DirectionalDerivative(torch.tensor([1.0, -0.5]))):
        rows = functional.atoms(new)
        moments, covariance = posterior.row_moments(rows), posterior.covariance(rows)
        torch.testing.assert_close(posterior.moments(functional, new).mean, moments.mean)
        torch.testing.assert_close(posterior.row_mean(rows), moments.mean)
        variance = moments.variance if moments.variance.dim() == 2 else moments.variance[:, None]
        each = covariance.expand(2, -1, -1)
        diagonal = each.diagonal(dim1=-2, dim2=-1).T
        torch.testing.assert_close(diagonal, variance.expand_as(moments.mean), rtol=1e-5, atol=1e-8)
        if kind == "nystrom":
            continue  # whose covariance need not be one
        draws = posterior.sample(rows, 4000, torch.Generator().manual_seed(1))
        assert draws.shape == (3, 2, 4000)
        error = 5 * (diagonal / 4000).sqrt()
        assert bool(((draws.mean(-1) - moments.mean).abs() <= error + 1e-6).all())
        seen = torch.stack([torch.cov(draws[:, output]) for output in range(2)])
        scale = (diagonal.T[:, :, None] * diagonal.T[:, None, :]).sqrt()
        assert bool(((seen - each).abs() <= 0.15 * scale + 1e-6).all())


@pytest.mark.parametrize("functional", FUNCTIONALS, ids=lambda each: type(each).__name__)
def test_moments_of_any_functional_belong_together(functional):
    x = torch.randn(8, 2, dtype=torch.float64)
    targets = torch.stack([x.sum(-1).sin(), x.prod(-1)], dim=-1)
    process = Process(None, ScaleKernel(RBFKernel())).double()
    rows = Evaluation().atoms(x)
    posterior = condition(process, rows, targets, torch.full((8,), 0.1, dtype=torch.float64))
    assert isinstance(posterior, ExactPosterior)
    new = torch.randn(5, 2, dtype=torch.float64)
    moments = posterior.moments(functional, new)
    assert isinstance(moments, Moments)
    assert (moments.mean.shape, moments.variance.shape) == ((5, 2), (5,))
    torch.testing.assert_close(moments.mean_square, moments.mean**2 + moments.variance[:, None])
    # Data only ever take variance away.
    prior = process.variance(functional.atoms(new))
    assert bool((moments.variance > 0).all())
    assert bool((moments.variance < prior).all())
