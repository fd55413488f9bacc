"""Sampled posteriors: predictions of any functional against dense sums, invariance, and what is refused."""

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean

from orbitwise.functionals import DirectionalDerivative, Evaluation, OrbitAverage
from orbitwise.inference.exact import condition
from orbitwise.inference.sampling import MixturePosterior, SampledPosterior, sample_posterior
from orbitwise.likelihoods import Bernoulli, Gaussian, Poisson, Softmax
from orbitwise.orbits import FiniteOrbit, SampledOrbit
from orbitwise.process import Process
from orbitwise.transforms import Rotation, coordinate_permutations
from tests.inference.sampling.problems import POINTS, PROBLEMS, Bump, grid_posterior, targets_of, z_scores

PROCESS = Process(None, Bump(1.5, 0.8))
ROWS = Evaluation().atoms(POINTS)
NEW = torch.tensor([[0.3], [1.5]], dtype=torch.float64)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_dense_sum(name: str):
    """Means of new values given f on a grid, their variance, and the weights of the grid."""
    likelihood, targets, K = PROBLEMS[name][0], targets_of(name), PROCESS.covariance(ROWS)
    f, weights, _ = grid_posterior(K, likelihood, targets, count=121)
    new = Evaluation().atoms(NEW)
    gain = torch.linalg.solve(K, PROCESS.covariance(ROWS, new))
    variance = (PROCESS.covariance(new) - PROCESS.covariance(new, ROWS) @ gain).diagonal()
    return f @ gain, variance, weights


@pytest.mark.parametrize("source", ["both", "approximation", "prior"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_predictions_are_those_of_a_dense_sum(name, source):
    likelihood = PROBLEMS[name][0]
    means, variance, weights = by_dense_sum(name)
    posterior = sample_posterior(
        PROCESS,
        ROWS,
        targets_of(name),
        likelihood,
        40,
        num_chains=256,
        burn_in=40,
        source=source,
        generator=seeded(),
    )
    given, spread = posterior.conditional(Evaluation().atoms(NEW))
    torch.testing.assert_close(spread, variance)
    chains = given[..., 0].unflatten(0, (256, 40))
    mean = weights @ means
    assert z_scores(chains, mean).abs().max() < 4
    assert z_scores((chains - mean).square(), weights @ (means - mean).square()).abs().max() < 4
    moments = posterior.moments(Evaluation(), NEW)
    torch.testing.assert_close(moments.mean[:, 0], chains.flatten(0, 1).mean(0))
    total = variance + (chains.flatten(0, 1) - moments.mean[:, 0]).square().mean(0)
    torch.testing.assert_close(moments.variance[:, 0], total)
    torch.testing.assert_close(moments.mean_square, moments.mean.square() + moments.variance)


def test_responses_and_densities_are_averaged_over_samples():
    for name, response in (("bernoulli", torch.sigmoid), ("poisson", torch.exp)):
        likelihood = PROBLEMS[name][0]
        means, variance, weights = by_dense_sum(name)
        posterior = sample_posterior(
            PROCESS, ROWS, targets_of(name), likelihood, 50, num_chains=256, generator=seeded()
        )
        nodes = torch.linspace(-8, 8, 101, dtype=torch.float64)
        normal = torch.softmax(-0.5 * nodes.square(), 0)
        values = means[..., None] + variance.sqrt()[:, None] * nodes
        expected = weights @ (response(values) @ normal)
        found = posterior.predict(Evaluation(), NEW)[:, 0]
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.01)
        targets = torch.ones(2, 1, dtype=torch.float64)
        # [grid, nodes, rows, 1]
        density = likelihood.log_density(values.mT[..., None], targets).exp().squeeze(-1)
        known = (weights @ (density.mT @ normal)).log()
        given = posterior.log_predictive_density(Evaluation(), NEW, targets)
        torch.testing.assert_close(given, known, rtol=0, atol=0.05)


def test_gaussian_noise_gives_what_the_exact_engine_gives():
    x = torch.randn(12, 1, generator=seeded(1), dtype=torch.float64)
    targets = torch.cat([x.sin(), x.cos()], dim=-1)
    process = Process(ConstantMean(), ScaleKernel(RBFKernel())).double()
    process.mean_module.constant.data.fill_(0.4)
    rows = Evaluation().atoms(x)
    posterior = sample_posterior(
        process, rows, targets, Gaussian(0.1), 50, num_chains=128, generator=seeded()
    )
    exact = condition(process, rows, targets, torch.full((12,), 0.1 + 1e-8).double())
    for functional in (Evaluation(), DirectionalDerivative(torch.ones(1).double())):
        mine, theirs = posterior.moments(functional, NEW), exact.moments(functional, NEW)
        z = (mine.mean - theirs.mean) / (theirs.variance[:, None] / 6400).sqrt()
        assert z.abs().max() < 5
        torch.testing.assert_close(mine.variance, theirs.variance[:, None].expand(2, 2), rtol=0.1, atol=1e-4)
    draws = posterior.sample(Evaluation().atoms(NEW), 4000, seeded(2))
    assert draws.shape == (2, 2, 4000)
    torch.testing.assert_close(draws.mean(-1), exact.moments(Evaluation(), NEW).mean, rtol=0, atol=0.05)
    covariance = torch.cov(draws[:, 0])
    torch.testing.assert_close(covariance, exact.covariance(Evaluation().atoms(NEW)), rtol=0.2, atol=0.02)
    assert posterior.chains.names[:3] == ("f[0, 0]", "f[0, 1]", "f[1, 0]")
    assert posterior.chains.problems(most_r_hat=1.1, fewest_effective=20) == []


def orbits():
    turned = SampledOrbit(Rotation(2), -0.5, 0.5, num_samples=4)
    return {
        "finite": FiniteOrbit(coordinate_permutations(2)),
        "frozen": turned.freeze(8, generator=seeded()),
    }


@pytest.mark.parametrize("kind", ["finite", "frozen"])
def test_invariant_kernels_are_sampled_on_finite_and_frozen_orbits(kind):
    functional = OrbitAverage(orbits()[kind]).double()
    x = torch.randn(10, 2, generator=seeded(3), dtype=torch.float64)
    x = torch.cat([x, x.flip(-1)[:2]])  # rows that permutations make equal: a singular covariance
    targets = torch.poisson(x.sum(-1, keepdim=True).exp(), generator=seeded(4))
    process = Process(None, ScaleKernel(RBFKernel())).double()
    posterior = sample_posterior(
        process, functional.atoms(x), targets, Poisson(), 30, num_chains=16, generator=seeded()
    )
    rate = posterior.predict(functional, x)
    assert bool(rate.isfinite().all())
    assert (rate.log() - x.sum(-1, keepdim=True)).abs().mean() < 1.0
    if kind == "finite":
        mirrored = posterior.predict(functional, x.flip(-1))
        torch.testing.assert_close(mirrored, rate, rtol=1e-4, atol=1e-4)


def test_drawn_rows_are_refused_with_the_remedy():
    functional = OrbitAverage(SampledOrbit(Rotation(2), -0.5, 0.5, num_samples=4))
    x = torch.randn(3, 2)
    with pytest.raises(ValueError, match="Freeze the orbit first"):
        sample_posterior(PROCESS, functional.atoms(x, seeded()), torch.ones(3, 1), Poisson())


def test_classes_that_share_a_density_are_sampled_together():
    targets = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    posterior = sample_posterior(PROCESS, ROWS, targets, Softmax(3), 30, num_chains=64, generator=seeded())
    probability = posterior.predict(Evaluation(), POINTS)
    torch.testing.assert_close(probability.sum(-1), torch.ones(2).double())
    assert probability[0].argmax() == 0
    assert probability[1].argmax() == 1
    # the third class was never seen, and both points are mirror images of each other
    assert abs(probability[0, 0] - probability[1, 1]) < 0.03
    assert probability[0, 2] < probability[0, 0]


def test_single_precision_is_kept():
    process = Process(None, ScaleKernel(RBFKernel()))
    x = POINTS.float()
    posterior = sample_posterior(
        process, Evaluation().atoms(x), targets_of("bernoulli", torch.float32), Bernoulli(), 10
    )
    moments = posterior.moments(Evaluation(), NEW.float())
    assert moments.mean.dtype == torch.float32
    assert posterior.predict(Evaluation(), NEW.float()).dtype == torch.float32


def test_mixtures_add_what_their_parts_disagree_on():
    samples = torch.tensor([[[[0.5], [0.2]]], [[[-1.0], [0.4]]]], dtype=torch.float64)
    whole = SampledPosterior(PROCESS, ROWS, samples, Bernoulli())
    parts = [SampledPosterior(PROCESS, ROWS, each[None], Bernoulli()) for each in samples]
    mixture = MixturePosterior(parts)
    for mine, theirs in zip(
        mixture.moments(Evaluation(), NEW), whole.moments(Evaluation(), NEW), strict=True
    ):
        torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(mixture.predict(Evaluation(), NEW), whole.predict(Evaluation(), NEW))
    targets = torch.ones(2, 1, dtype=torch.float64)
    torch.testing.assert_close(
        mixture.log_predictive_density(Evaluation(), NEW, targets),
        whole.log_predictive_density(Evaluation(), NEW, targets),
    )
    exact = condition(PROCESS, ROWS, targets, torch.full((2,), 0.1).double())
    both = MixturePosterior([exact, parts[0]])
    assert both.moments(Evaluation(), NEW).variance.shape == (2, 1)
    with pytest.raises(ValueError, match="Only sampled posteriors have a likelihood"):
        both.predict(Evaluation(), NEW)
    with pytest.raises(ValueError, match="at least one"):
        MixturePosterior([])


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.ones(3, 1), r"2 rows need targets \[2, outputs\]"),
        (torch.full((2, 1), float("nan")), "NaN or infinite"),
        (-torch.ones(2, 1), "targets of 0 or more"),
    ],
)
def test_bad_targets_are_refused(targets, message):
    with pytest.raises(ValueError, match=message):
        sample_posterior(PROCESS, ROWS, targets.double(), Poisson(), 2)
