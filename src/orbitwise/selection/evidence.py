"""The evidence of a model with its hyperparameters integrated out: log ∫ p(y | θ, H) p(θ | H) dθ.

The third level of inference (Lecture 2.7, eq. 1) weighs models H by it. From cheap to sure: Laplace's method
at the mode, importance sampling around it, samples of the posterior with a bridge, and thermodynamic
integration.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from orbitwise.inference.hyperparameters import Hyperparameters
from orbitwise.inference.sampling import nuts
from orbitwise.selection.bridge import bridge
from orbitwise.selection.importance import importance
from orbitwise.selection.laplace import LaplaceFit, laplace
from orbitwise.selection.thermodynamic import Sampler, thermodynamic

METHODS = ("laplace", "importance", "bridge", "thermodynamic")


@final
@dataclass(frozen=True)
class EvidenceEstimate:
    """log p(y | H), its standard error (None where the method has none), and what the method returned."""

    log_evidence: float
    standard_error: float | None
    method: str
    fit: LaplaceFit
    details: Any
    samples: Tensor | None = None


def integrate_evidence(
    hyperparameters: Hyperparameters,
    method: str = "importance",
    num_samples: int = 1000,
    seed: int = 0,
    sampler: Sampler | None = None,
    start: Tensor | None = None,
) -> EvidenceEstimate:
    """log p(y | H) by one of four methods; every one begins at the mode that Laplace's method finds.

    `num_samples` counts draws of the proposal, samples of all chains, or samples at each power. `sampler`
    draws from a log density, (log density, start, number, seed) -> [chains, n, p]; by default it is NUTS, in
    coordinates in which the Laplace fit is a standard normal (it needs the extra `bayes`). The modules'
    parameters are left as they were.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}.")
    with warnings.catch_warnings():
        if method != "laplace":
            warnings.simplefilter(
                "ignore", category=UserWarning
            )  # the other methods do without the curvature
        fit = laplace(hyperparameters, start=start)
    if method == "laplace" or not len(fit.mode):
        exact = not len(fit.mode)
        return EvidenceEstimate(fit.log_evidence, 0.0 if exact else None, method, fit, fit)
    generator = torch.Generator().manual_seed(seed)
    if method == "importance":
        found = importance(hyperparameters, fit, num_samples, generator=generator)
        return EvidenceEstimate(found.log_evidence, found.standard_error, method, fit, found)
    if sampler is None:
        sampler = whitened_nuts(fit, num_chains=2 if method == "bridge" else 1)
    if method == "bridge":
        samples = sampler(hyperparameters.log_density, fit.mode, num_samples, seed)
        joined = bridge(hyperparameters.log_density, samples, generator)
        return EvidenceEstimate(joined.log_evidence, joined.standard_error, method, fit, joined, samples)
    tempered = thermodynamic(hyperparameters, sampler, fit.mode, num_samples=num_samples, seed=seed)
    return EvidenceEstimate(tempered.log_evidence, tempered.standard_error, method, fit, tempered)


def whitened_nuts(fit: LaplaceFit, num_chains: int = 2, num_warmup: int = 150) -> Sampler:
    """NUTS in coordinates u with z = z* + L u, L Lᵀ the covariance of a Laplace fit.

    Chains that did not mix are warned of; R-hat of few samples is not quite 1 even where they did.
    """
    lower = torch.linalg.cholesky(fit.covariance)

    def sample(log_density: Callable[[Tensor], Tensor], start: Tensor, num_samples: int, seed: int) -> Tensor:
        def whitened(u: Tensor) -> Tensor:
            return log_density(fit.mode + lower @ u)

        first = torch.linalg.solve_triangular(lower, (start - fit.mode)[:, None], upper=False)[:, 0]
        count = -(-num_samples // num_chains)
        chains = nuts(whitened, first, count, num_warmup=num_warmup, num_chains=num_chains, seed=seed)
        chains.warn_if_unmixed(1.01 + 10 / count, min(50.0, count / 5))
        return fit.mode + chains.samples @ lower.mT

    return sample
