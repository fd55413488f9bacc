"""The evidence by thermodynamic integration over powers of the likelihood (Lartillot and Philippe 2006).

log p(y) = ∫₀¹ E_β[log p(y | θ)] dβ, where E_β is over p(θ) p(y | θ)^β. The integrand falls steeply towards
the prior, so the powers are β_k = (k/K)⁵; the trapezium rule is corrected by the variances, which are the
slopes of the integrand (Friel, Hurn and Wyse 2014). Every power needs chains of its own: for small problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.hyperparameters import Hyperparameters
from orbitwise.selection.bridge import variance_of_mean

Sampler = Callable[[Callable[[Tensor], Tensor], Tensor, int, int], Tensor]
"""(log density, start, number of samples, seed) -> samples [chains, n, p]."""


@final
@dataclass(frozen=True)
class ThermodynamicEstimate:
    """log p(y), its standard error, and the curve E_β[log p(y | θ)] that was integrated."""

    log_evidence: float
    standard_error: float
    powers: Float[Tensor, " k"]
    means: Float[Tensor, " k"]


def thermodynamic(
    hyperparameters: Hyperparameters,
    sampler: Sampler,
    start: Float[Tensor, " p"],
    num_powers: int = 20,
    num_samples: int = 200,
    seed: int = 0,
) -> ThermodynamicEstimate:
    """Sample at every power, from the posterior down to the prior; each starts where the last one ended."""
    if num_powers < 3:
        raise ValueError(f"num_powers={num_powers} is too few for an integral; take at least 3.")
    powers = torch.linspace(0, 1, num_powers, dtype=torch.float64) ** 5
    means, variances, errors = [], [], []
    for step, power in enumerate(powers.flip(0).tolist()):

        def tempered(z: Tensor, power: float = power) -> Tensor:
            prior = hyperparameters.log_prior(z)
            return prior + power * hyperparameters.log_likelihood(z) if power else prior

        samples = sampler(tempered, start, num_samples, seed + step)
        start = samples[0, -1]
        with torch.no_grad():
            values = [hyperparameters.log_likelihood(z) for z in samples.flatten(0, 1)]
        chains = torch.stack(values).double().reshape(samples.shape[:2])
        if not bool(chains.isfinite().all()):
            raise ValueError(
                f"log p(y | θ) is not finite for samples at power {power:.2g}: the hyperpriors reach where "
                "it cannot be computed; narrow them, or use method='bridge'."
            )
        means.append(chains.mean().item())
        variances.append(chains.var().item())
        errors.append(math.sqrt(variance_of_mean(chains)))
    mean, variance, error = (
        torch.tensor(each, dtype=torch.float64).flip(0) for each in (means, variances, errors)
    )
    gap = powers.diff()
    # Σ Δβ (E_k + E_{k+1})/2 - Σ Δβ² (V_{k+1} - V_k)/12
    value = (gap * (mean[1:] + mean[:-1]) / 2).sum() - (gap.square() * variance.diff() / 12).sum()
    weight = torch.cat([gap[:1], gap[1:] + gap[:-1], gap[-1:]]) / 2
    return ThermodynamicEstimate(value.item(), (weight * error).square().sum().sqrt().item(), powers, mean)
