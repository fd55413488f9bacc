"""Samples of named quantities from several Markov chains, and diagnostics of how well they mixed.

Effective sample size, split R-hat, and Monte Carlo standard errors.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import scipy
import torch
from jaxtyping import Float
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor


def check_counts(burn_in: int = 0, **counts: int) -> None:
    """Raise a ValueError unless all counts are at least 1, and burn_in at least 0."""
    if min(counts.values()) < 1 or burn_in < 0:
        named = " and ".join(f"{name}={count}" for name, count in counts.items())
        raise ValueError(f"{named} must be at least 1, and burn_in={burn_in} at least 0.")


FEWEST = 4
"""The fewest samples per chain for which halves of chains can be compared."""


def effective_sample_size(
    samples: Float[Tensor, "k t *rest"], rank_normalise: bool = False
) -> Float[Tensor, "*rest"]:
    """The number of independent draws whose mean is as accurate as that of the t samples of k chains.

    It is k·t/τ with τ = 1 + 2 Σ ρ_lag, where ρ includes the disagreement between chains. It is NaN for a
    quantity that never moved. For antithetic chains it may exceed k·t, by a factor of at most log₁₀(k·t).
    """
    halves = _halves(_ranks(samples) if rank_normalise else samples.double())
    chains, count = halves.shape[:2]
    covariance = _autocovariance(halves)
    # W is the mean variance within chains, var⁺ adds the variance of their means
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

    It is 1 if chains agree. The larger of both is returned, because chains may agree in their mean and differ
    in their spread. It is NaN if no chain ever moved, and infinite if each chain stayed at a different point.
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
    """The first and the last half of every chain, without the middle sample if the number is odd."""
    half = samples.shape[1] // 2
    return torch.cat([samples[:, :half], samples[:, -half:]])


def _ranks(samples: Tensor) -> Tensor:
    """Φ⁻¹((rank - 3/8)/(count + 1/4)) of every value among all chains."""
    _check(samples)
    pooled = samples.detach().flatten(0, 1)
    ranks = torch.from_numpy(scipy.stats.rankdata(pooled.cpu().numpy(), axis=0)).to(samples.device)
    return torch.special.ndtri((ranks - 0.375) / (len(pooled) + 0.25)).reshape(samples.shape)


def _autocovariance(chains: Tensor) -> Tensor:
    """Covariances of every chain with itself at all lags, divided by its length, by Fourier transforms."""
    _check(chains)
    count = chains.shape[1]
    centred = chains - chains.mean(1, keepdim=True)
    # padding with zeros prevents wrapping around
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
            f"Diagnostics take samples [chains, samples, …], at least {FEWEST} per chain, not shape "
            f"{tuple(samples.shape)}: run the chains longer."
        )


MOST_R_HAT = 1.01
FEWEST_EFFECTIVE = 100
"""Effective samples per chain below which neither means nor R-hat can be trusted (Vehtari et al. 2021)."""
NAMES_SHOWN = 3


@final
@dataclass(frozen=True)
class Chains:
    """k chains of t samples of p quantities, their cost, and diagnostics.

    `num_evaluations` is the number of evaluations of the density, `num_factorisations` that of factorised
    covariance matrices, if known, and `num_divergent` that of divergent trajectories.
    """

    samples: Float[Tensor, "k t p"]
    names: tuple[str, ...] = ()
    num_evaluations: int = 0
    num_factorisations: int = 0
    num_divergent: int = 0

    def __post_init__(self) -> None:
        width = self.samples.shape[-1]
        if not self.names:
            object.__setattr__(self, "names", tuple(f"θ{i}" for i in range(width)))
        if len(self.names) != width:
            raise ValueError(f"{width} quantities need {width} names, not {len(self.names)}: {self.names}.")

    @property
    def pooled(self) -> Float[Tensor, "q p"]:
        """The samples of all chains, one after the other."""
        return self.samples.flatten(0, 1)

    @property
    def mean(self) -> Float[Tensor, " p"]:
        """The mean of every quantity."""
        return self.pooled.mean(0)

    @property
    def deviation(self) -> Float[Tensor, " p"]:
        """The standard deviation of every quantity."""
        return self.pooled.std(0)

    @property
    def effective_sample_size(self) -> Float[Tensor, " p"]:
        """The number of independent draws with the same accuracy, for the mean of every quantity."""
        return effective_sample_size(self.samples)

    @property
    def r_hat(self) -> Float[Tensor, " p"]:
        """Split R-hat: 1 where the chains agree."""
        return split_r_hat(self.samples)

    @property
    def standard_error(self) -> Float[Tensor, " p"]:
        """The Monte Carlo standard error of every mean."""
        return standard_error(self.samples)

    def map(self, function: Callable[[Tensor], Tensor], names: Sequence[str] = ()) -> Chains:
        """The chains of a function of the samples [k, t, p], such as torch.exp of logarithms."""
        samples = function(self.samples)
        kept = self.names if samples.shape == self.samples.shape else ()
        return replace(self, samples=samples, names=tuple(names) or kept)

    def summary(self, title: str = "") -> Table:
        """A table of means, deviations, quantiles, standard errors, effective sizes and R-hat."""
        chains, count = self.samples.shape[:2]
        table = Table(title=title or f"{chains} chains of {count} samples", title_justify="left")
        table.add_column("")
        for head in ("mean", "deviation", "5 %", "95 %", "error of mean", "effective", "R-hat"):
            table.add_column(head, justify="right")
        low, high = self.pooled.quantile(self.samples.new_tensor([0.05, 0.95]), dim=0)
        columns = (self.mean, self.deviation, low, high, self.standard_error)
        for i, name in enumerate(self.names):
            size, ratio = self.effective_sample_size[i].item(), self.r_hat[i].item()
            numbers = [f"{column[i].item():.4g}" for column in columns]
            table.add_row(name, *numbers, f"{size:.0f}", f"{ratio:.3f}")
        return table

    def problems(
        self, most_r_hat: float = MOST_R_HAT, fewest_effective: float = FEWEST_EFFECTIVE
    ) -> list[str]:
        """The problems of the chains, one sentence each; `fewest_effective` is per chain."""
        chains = len(self.samples)
        size, ratio, found = self.effective_sample_size, self.r_hat, []
        stuck = ratio.isnan()
        if bool(stuck.any()):
            found.append(f"{self._listed(stuck)} never changed.")
        apart = ~stuck & (ratio > most_r_hat)
        if bool(apart.any()):
            worst = ratio[apart].max().item()
            found.append(f"The chains disagree on {self._listed(apart)}: R-hat is {worst:.3g}, not 1.")
        few = ~stuck & (size < fewest_effective * chains)
        if bool(few.any()):
            found.append(
                f"{self._listed(few)} changes slowly: {len(self.pooled):,} samples are worth "
                f"{size[few].min().item():,.0f} independent ones, and {fewest_effective * chains:,.0f} are "
                "needed."
            )
        if self.num_divergent:
            found.append(
                f"{self.num_divergent:,} of {len(self.pooled):,} trajectories diverged: some region is too "
                "narrow for the step size, and its share is biased."
            )
        return found

    def warn_if_unmixed(
        self, most_r_hat: float = MOST_R_HAT, fewest_effective: float = FEWEST_EFFECTIVE
    ) -> Chains:
        """Give a ConvergenceWarning if the chains did not mix; returns the chains."""
        found = self.problems(most_r_hat, fewest_effective)
        if found:
            advice = (
                "Do not trust averages over these samples yet. Run longer (num_samples, and burn_in or "
                "num_warmup), start nearer to the posterior, or narrow the priors."
            )
            warnings.warn(" ".join([*found, advice]), ConvergenceWarning, stacklevel=2)
        return self

    def _listed(self, which: Tensor) -> str:
        names = [name for name, each in zip(self.names, which.tolist(), strict=True) if each]
        rest = len(names) - NAMES_SHOWN
        return ", ".join(names[:NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
