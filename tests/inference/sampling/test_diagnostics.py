"""Effective sample sizes of chains whose autocorrelation is known, and chains that do not agree."""

import pytest
import torch
from torch import Tensor

from orbitwise.inference.sampling import effective_sample_size, split_r_hat, standard_error


def autoregressive(correlation: float, chains: int, count: int, *rest: int, seed: int = 0) -> Tensor:
    """x_t = ρ x_{t-1} + √(1-ρ²) ε: unit variance, and an effective size of count·(1-ρ)/(1+ρ)."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, chains, *rest, generator=generator, dtype=torch.float64)
    state, kept = noise[0], []
    for each in noise:
        state = correlation * state + (1 - correlation**2) ** 0.5 * each
        kept.append(state)
    return torch.stack(kept, dim=1)


@pytest.mark.parametrize("correlation", [-0.4, 0.0, 0.5, 0.9])
@pytest.mark.parametrize("rank_normalise", [False, True])
def test_the_size_of_autoregressive_chains_is_known(correlation, rank_normalise):
    samples = autoregressive(correlation, 4, 4000, 6)
    size = effective_sample_size(samples, rank_normalise)
    assert size.shape == (6,)
    known = 16_000 * (1 - correlation) / (1 + correlation)
    assert size.mean().item() == pytest.approx(known, rel=0.1)


def test_the_error_of_the_mean_is_that_of_repeated_runs():
    samples = autoregressive(0.8, 4, 500, 400)
    means = samples.flatten(0, 1).mean(0)
    assert standard_error(samples).mean().item() == pytest.approx(means.std().item(), rel=0.1)


def test_sizes_are_those_of_a_slow_loop():
    """Geyer's sum for one chain, lag by lag."""
    samples = autoregressive(0.6, 1, 101, seed=3)[..., None]
    halves = torch.stack([samples[0, :50, 0], samples[0, -50:, 0]])
    centred = halves - halves.mean(1, keepdim=True)
    lags = [(centred[:, : 50 - lag] * centred[:, lag:]).sum(1).mean() / 50 for lag in range(50)]
    within = lags[0] * 50 / 49
    total = lags[0] + halves.mean(1).var()
    correlation = [1.0] + [(1 - (within - lag) / total).item() for lag in lags[1:]]
    length, before = -1.0, float("inf")
    for lag in range(0, 50, 2):
        pair = correlation[lag] + correlation[lag + 1]
        if pair <= 0:
            break
        before = min(before, pair)
        length += 2 * before
    assert effective_sample_size(samples).item() == pytest.approx(100 / length, rel=1e-10)


def test_r_hat_is_one_for_chains_that_agree_and_more_for_others():
    good = autoregressive(0.3, 4, 1000, 3)
    assert bool((split_r_hat(good) < 1.01).all())
    moved = good.clone()
    moved[0, :, 0] += 1.0  # another mean
    moved[0, :, 1] *= 4.0  # another spread
    ratio = split_r_hat(moved)
    assert ratio[0] > 1.05
    assert ratio[1] > 1.05
    assert ratio[2] == split_r_hat(good)[2]
    drift = good + torch.linspace(0, 2, 1000).double()[:, None]
    assert bool((split_r_hat(drift) > 1.1).all()), "halves see a drift that all chains share"


def test_heavy_tails_do_not_upset_ranks():
    samples = autoregressive(0.0, 4, 1000, seed=5)
    cauchy = torch.tan(torch.pi * (torch.special.ndtr(samples) - 0.5))
    # the median between two samples is not that of their images
    assert split_r_hat(cauchy).item() == pytest.approx(split_r_hat(samples).item(), abs=1e-5)
    known = effective_sample_size(samples, rank_normalise=True)
    torch.testing.assert_close(effective_sample_size(cauchy, rank_normalise=True), known)


def test_what_never_moved_has_no_size_and_stuck_chains_do_not_agree():
    samples = autoregressive(0.0, 3, 100, 3)
    samples[..., 0] = 0.1
    samples[..., 1] = torch.arange(3.0)[:, None]
    size, ratio = effective_sample_size(samples), split_r_hat(samples)
    assert size.isnan().tolist() == [True, False, False]
    assert ratio.isnan().tolist() == [True, False, False]
    assert ratio[1] == torch.inf
    assert size[1] < 10
    samples[0, 5, 2] = torch.inf
    assert effective_sample_size(samples)[2].isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_does_not_matter(dtype):
    samples = autoregressive(0.5, 2, 500)
    size = effective_sample_size(samples.to(dtype))
    assert size.item() == pytest.approx(effective_sample_size(samples).item(), rel=1e-3)


def test_chains_may_be_too_short():
    with pytest.raises(ValueError, match="at least 4 per chain"):
        effective_sample_size(torch.zeros(3, 3))
    with pytest.raises(ValueError, match="run the chains longer"):
        split_r_hat(torch.zeros(3, 1))
