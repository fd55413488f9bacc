"""Elliptical slice sampling: moments against dense sums, independent outputs, and what it refuses."""

import pytest
import torch
from torch import Tensor

from orbitwise.functionals import Evaluation
from orbitwise.inference.sampling import effective_sample_size, elliptical_slice
from orbitwise.inference.sampling.elliptical import elliptical_step
from orbitwise.likelihoods import Gaussian
from orbitwise.process import Process
from tests.inference.sampling.problems import POINTS, PROBLEMS, Bump, grid_posterior, targets_of, z_scores


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def covariance() -> Tensor:
    return Process(None, Bump(1.5, 0.8)).covariance(Evaluation().atoms(POINTS))


@pytest.mark.parametrize("name", PROBLEMS)
def test_moments_are_those_of_a_dense_sum(name):
    likelihood, targets, K = PROBLEMS[name][0], targets_of(name), covariance()
    f, weights, _ = grid_posterior(K, likelihood, targets)

    def log_likelihood(f: Tensor) -> Tensor:
        return likelihood.log_density(f, targets).sum((-1, -2)).detach()

    found = elliptical_slice(
        log_likelihood, torch.linalg.cholesky(K), 40, num_chains=512, burn_in=50, generator=seeded()
    )
    samples = found.samples[..., 0]
    assert samples.shape == (512, 40, 2)
    assert found.num_evaluations > 512 * 90, "at least one evaluation an update"
    assert z_scores(samples, weights @ f).abs().max() < 4
    assert z_scores(samples.square(), weights @ f.square()).abs().max() < 4
    assert z_scores(samples.prod(-1), weights @ f.prod(-1)).abs() < 4
    # tails, where a sampler that shrinks wrongly goes astray
    tail = torch.sigmoid(4 * (f[:, 0] - 2))
    assert z_scores(torch.sigmoid(4 * (samples[..., 0] - 2)), weights @ tail).abs() < 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gaussian_noise_has_a_closed_form_with_a_mean_and_several_outputs(dtype):
    K, likelihood = covariance().to(dtype), Gaussian(0.3)
    targets = torch.tensor([[1.0, -2.0, 0.3], [0.5, 1.0, 0.0]], dtype=dtype)
    mean = torch.tensor([[0.5, 0.0, -1.0], [0.5, 0.2, -1.0]], dtype=dtype)
    noisy = K + 0.3 * torch.eye(2, dtype=dtype)
    expected = mean + K @ torch.linalg.solve(noisy, targets - mean)
    variance = (K - K @ torch.linalg.solve(noisy, K)).diagonal()

    def each(f: Tensor) -> Tensor:
        return likelihood.log_density(f, targets).sum(-2).detach()

    for log_likelihood in (each, lambda f: each(f).sum(-1)):
        found = elliptical_slice(
            log_likelihood,
            torch.linalg.cholesky(K),
            30,
            mean=mean,
            num_chains=256,
            burn_in=30,
            generator=seeded(),
        )
        assert found.samples.dtype == dtype
        assert z_scores(found.samples, expected.double()).abs().max() < 4
        squares = (found.samples - expected).square()
        assert z_scores(squares, variance.double()[:, None].expand(2, 3)).abs().max() < 4


def test_outputs_on_ellipses_of_their_own_mix_faster():
    K = covariance()
    targets = torch.randn(2, 8, generator=seeded(), dtype=torch.float64)

    def each(f: Tensor) -> Tensor:
        return -2 * (f - targets).square().sum(-2)

    sizes = []
    for log_likelihood in (each, lambda f: each(f).sum(-1)):
        found = elliptical_slice(
            log_likelihood,
            torch.linalg.cholesky(K),
            60,
            num_outputs=8,
            num_chains=32,
            burn_in=40,
            generator=seeded(),
        )
        sizes.append(effective_sample_size(found.samples).min().item())
    assert sizes[0] > 2 * sizes[1]


def test_a_factor_for_every_output_and_thinning():
    factors = torch.stack([torch.eye(2), 3 * torch.eye(2)]).double()
    found = elliptical_slice(
        lambda f: torch.zeros(f.shape[0], 2, dtype=f.dtype),
        factors,
        40,
        num_chains=160,
        thin=2,
        burn_in=0,
        generator=seeded(),
    )
    assert found.samples.shape == (160, 40, 2, 2)
    assert found.num_evaluations == 160 * (1 + 80), "the first angle is taken where the likelihood is flat"
    deviation = found.samples.flatten(0, 1).std(0)
    torch.testing.assert_close(deviation[0], torch.tensor([1.0, 3.0]).double(), rtol=0.05, atol=0)


def test_the_same_generator_gives_the_same_samples_and_no_global_state_is_used():
    likelihood, targets = PROBLEMS["poisson"][0], targets_of("poisson")
    runs = []
    for _ in range(2):
        before = torch.get_rng_state()
        found = elliptical_slice(
            lambda f: likelihood.log_density(f, targets).sum((-1, -2)),
            torch.eye(2, dtype=torch.float64),
            3,
            burn_in=0,
            generator=seeded(3),
        )
        assert torch.equal(before, torch.get_rng_state())
        runs.append(found.samples)
    assert torch.equal(*runs)


def test_a_state_stays_where_no_angle_will_do():
    f = torch.ones(1, 1, 1, dtype=torch.float64)

    def nowhere(f: Tensor) -> Tensor:
        return torch.where(f[:, 0, 0] == 1.0, 0.0, torch.nan)

    state, value, count = elliptical_step(
        f, torch.zeros(1, 1, dtype=torch.float64), torch.ones_like(f), torch.zeros(1, 1).double(), nowhere
    )
    assert torch.equal(state, f)
    assert value.item() == 0.0
    assert count > 10


def test_what_is_refused():
    factor = torch.eye(2, dtype=torch.float64)
    with pytest.raises(ValueError, match="num_samples=0 and thin=1 must be at least 1"):
        elliptical_slice(lambda f: f.sum((-1, -2)), factor, 0)
    with pytest.raises(ValueError, match="num_chains=0 must be at least 1"):
        elliptical_slice(lambda f: f.sum((-1, -2)), factor, 1, num_chains=0)
    with pytest.raises(ValueError, match="not finite where a chain starts"):
        elliptical_slice(lambda f: f.sum((-1, -2)) - torch.inf, factor, 1)
    with pytest.raises(ValueError, match=r"one number per chain \[4\]"):
        elliptical_slice(lambda f: f, factor, 1)
