"""Predictions of one regressor averaged over the posterior of its hyperparameters, not taken at one value."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.selection.evidence import EvidenceEstimate, integrate_evidence
from orbitwise.selection.fitted import FittedHyperparameters, fitted_hyperparameters
from orbitwise.selection.importance import ImportanceSample
from orbitwise.selection.mixtures import PredictiveMixture
from orbitwise.selection.thermodynamic import Sampler


def average_hyperparameters(
    estimator: InvariantGPRegressor,
    num_samples: int = 32,
    method: str = "importance",
    priors: Mapping[str, Distribution] | None = None,
    num_draws: int = 1000,
    seed: int = 0,
    sampler: Sampler | None = None,
) -> PredictiveMixture:
    """A mixture of the fitted regressor at `num_samples` values of its hyperparameters from their posterior.

    "importance" draws `num_draws` values around the mode and resamples them by their weights; "nuts" takes
    every so many of as many samples of a chain. Each distinct value costs one factorisation, now, and none
    when predicting. Hyperpriors are as in `hyperparameters_of`.
    """
    if method not in ("importance", "nuts"):
        raise ValueError(f"method must be 'importance' or 'nuts', not {method!r}.")
    if not 1 <= num_samples <= num_draws:
        raise ValueError(f"num_samples={num_samples} must lie between 1 and num_draws={num_draws}.")
    fitted = fitted_hyperparameters(estimator, priors)
    found = integrate_evidence(
        fitted.hyperparameters, "importance" if method == "importance" else "bridge", num_draws, seed, sampler
    )
    return mixture_of(fitted, found, num_samples, seed)


def mixture_of(
    fitted: FittedHyperparameters, found: EvidenceEstimate, num_samples: int, seed: int = 0
) -> PredictiveMixture:
    """The mixture over hyperparameters that an estimate of the evidence has seen."""
    points, counts = _resampled(found, num_samples, seed)
    return PredictiveMixture([fitted.regressor(point) for point in points], counts / counts.sum())


def _resampled(found: EvidenceEstimate, num_samples: int, seed: int) -> tuple[Tensor, np.ndarray]:
    """Distinct values of z and how often each was picked."""
    if isinstance(found.details, ImportanceSample):
        # Systematic resampling: value i is picked ⌊S w_i⌋ or ⌈S w_i⌉ times.
        offset = torch.rand((), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        places = (torch.arange(num_samples, dtype=torch.float64) + offset) / num_samples
        picked = torch.searchsorted(found.details.weights.cumsum(0), places)
        picked = picked.clamp_max(len(found.details.weights) - 1)
        index, counts = picked.unique(return_counts=True)
        return found.details.points[index], counts.numpy().astype(float)
    if found.samples is not None:
        samples = found.samples.flatten(0, 1)
        index = torch.linspace(0, len(samples) - 1, num_samples).round().long()
        return samples[index], np.ones(num_samples)
    return found.fit.mode[None], np.ones(1)
