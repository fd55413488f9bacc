"""Sampling: f under any likelihood, hyperparameters, both together, and whether the chains mixed."""

from orbitwise.inference.sampling.chains import Chains, effective_sample_size, split_r_hat, standard_error
from orbitwise.inference.sampling.elliptical import (
    EllipticalSamples,
    Source,
    alternate,
    elliptical_slice,
    slice_coordinates,
)
from orbitwise.inference.sampling.gibbs import gibbs
from orbitwise.inference.sampling.hamiltonian import nuts
from orbitwise.inference.sampling.independence import independence_sampler
from orbitwise.inference.sampling.latent import HierarchicalModel, LatentChains
from orbitwise.inference.sampling.posterior import MixturePosterior, SampledPosterior, sample_posterior
from orbitwise.inference.sampling.proposal import Approximation, StudentProposal, approximate, fit_proposal

LatentModel = HierarchicalModel
"""The name of `HierarchicalModel` in earlier versions."""

__all__ = [
    "Approximation",
    "Chains",
    "EllipticalSamples",
    "HierarchicalModel",
    "LatentChains",
    "LatentModel",
    "MixturePosterior",
    "SampledPosterior",
    "Source",
    "StudentProposal",
    "alternate",
    "approximate",
    "effective_sample_size",
    "elliptical_slice",
    "fit_proposal",
    "gibbs",
    "independence_sampler",
    "nuts",
    "sample_posterior",
    "slice_coordinates",
    "split_r_hat",
    "standard_error",
]
