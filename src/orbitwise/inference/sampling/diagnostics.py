"""How much a set of Markov chains is worth: effective sample size, split R-hat, Monte Carlo standard error.

After Vehtari, Gelman, Simpson, Carpenter and Bürkner 2021: chains are cut into halves, so that a drift within
a chain shows, and ranks replace values where tails are heavy. Autocorrelations are summed by Geyer's initial
monotone sequence: pairs of lags are positive and falling for every reversible chain, noise is not.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from scipy.stats import rankdata
from torch import Tensor

FEWEST = 4
"""Samples a chain without which its halves say nothing."""


def effective_sample_size(
    samples: Float[Tensor, "k t *rest"], rank_normalise: bool = False
) -> Float[Tensor, "*rest"]:
    """How many independent draws would know the mean as well as t samples of k chains do.

    k·t/τ with τ = 1 + 2 Σ ρ_lag, where ρ also counts what the chains disagree on. A quantity that never moved
    has none: NaN. Antithetic chains may exceed k·t, at most by the logarithm to base 10 of it.
    """
    halves = _halves(_ranks(samples) if rank_normalise else samples.double())
    chains, count = halves.shape[:2]
    covariance = _autocovariance(halves)
    # W is the mean variance within chains, var⁺ adds what their means differ
    within = covariance[:, 0].mean(0) * count / (count - 1)
    total = _total_variance(halves, within)
    correlation = 1 - (within - covariance.mean(0)) / total
    correlation[0] = 1.0
    # Γ_j = ρ_2j + ρ_2j+1, up to the first that is not positive, none above the one before
    even = count - count % 2
    pairs = correlation[:even:2] + correlation[1:even:2]
    positive = (pairs > 0).cumprod(0)
    falling = pairs.cummin(0).values
    length = -1 + 2 * (falling * positive).sum(0)
    total_count = chains * count
    size = total_count / length.clamp_min(1 / math.log10(total_count))
    return torch.where(_moved(total, halves), size, torch.nan)


def split_r_hat(samples: Float[Tensor, "k t *rest"]) -> Float[Tensor, "*rest"]:
    """√(var⁺/W) of half chains, rank-normalised, of the values or of their distances from the median.

    1 where chains agree; the larger of both, since chains may agree on a mean and differ in their spread. NaN
    for what never moved at all, infinite where each chain stayed at a point of its own.
    """
    centre = samples.flatten(0, 1).quantile(0.5, dim=0)
    found = []
    for values in (samples, (samples - centre).abs()):
        halves = _halves(_ranks(values))
        within = halves.var(1).mean(0)
        total = _total_variance(halves, within)
        ratio = torch.where(within > 0, (total / within).sqrt(), torch.inf)
        found.append(torch.where(_moved(total, halves), ratio, torch.nan))
    return torch.fmax(*found)


def standard_error(samples: Float[Tensor, "k t *rest"]) -> Float[Tensor, "*rest"]:
    """The Monte Carlo standard error of the mean over all chains, deviation/√(effective sample size)."""
    return samples.double().flatten(0, 1).std(0) / effective_sample_size(samples).sqrt()


def _halves(samples: Tensor) -> Tensor:
    """The first and the last half of every chain; of an odd number the middle sample is left out."""
    half = samples.shape[1] // 2
    return torch.cat([samples[:, :half], samples[:, -half:]])


def _ranks(samples: Tensor) -> Tensor:
    """Φ⁻¹((rank - 3/8)/(count + 1/4)) of every value among all chains."""
    _check(samples)
    pooled = samples.detach().flatten(0, 1)
    ranks = torch.from_numpy(rankdata(pooled.cpu().numpy(), axis=0)).to(samples.device)
    return torch.special.ndtri((ranks - 0.375) / (len(pooled) + 0.25)).reshape(samples.shape)


def _autocovariance(chains: Tensor) -> Tensor:
    """Covariances of every chain with itself at all lags, divided by its length, by Fourier transforms."""
    _check(chains)
    count = chains.shape[1]
    centred = chains - chains.mean(1, keepdim=True)
    # zeros behind the chain keep its end from meeting its beginning
    spectrum = torch.fft.rfft(centred, n=2 * count, dim=1)
    return torch.fft.irfft(spectrum.abs().square(), n=2 * count, dim=1)[:, :count] / count


def _total_variance(chains: Tensor, within: Tensor) -> Tensor:
    """var⁺ = W(t-1)/t + variance of the means of the chains."""
    count = chains.shape[1]
    return within * (count - 1) / count + chains.mean(1).var(0)


def _moved(total: Tensor, chains: Tensor) -> Tensor:
    """Whether there is a variance above rounding, and all values are finite."""
    size = chains.abs().amax((0, 1))
    return (total > (64 * torch.finfo(total.dtype).eps * size).square()) & size.isfinite()


def _check(samples: Tensor) -> None:
    if samples.dim() < 2 or samples.shape[1] < FEWEST // 2:
        raise ValueError(
            f"Diagnostics take samples [chains, samples, …], at least {FEWEST} a chain, not shape "
            f"{tuple(samples.shape)}: run the chains longer."
        )
