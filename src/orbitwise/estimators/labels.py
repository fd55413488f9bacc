"""Class labels as targets, and posteriors as class probabilities, for each way of observing labels."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.likelihoods.bernoulli import (
    Bernoulli,
    logistic_mean,
    stick_breaking_probabilities,
    stick_breaking_targets,
)
from orbitwise.likelihoods.dirichlet import Dirichlet, one_hot, softmax_mean
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.likelihoods.likelihood import Likelihood

Coding = Literal["one_hot", "stick_breaking", "dirichlet"]
NOISE_START = 0.01


def encode(
    coding: str, codes: Int[Tensor, " n"], num_classes: int
) -> tuple[Float[Tensor, "n c"], Likelihood]:
    """Targets and likelihood; two classes take a single column, where the coding allows."""
    if coding == "one_hot":
        targets = one_hot(codes, num_classes) - 1 / num_classes
        return (targets[:, 1:] if num_classes == 2 else targets), Gaussian(NOISE_START)
    if coding == "stick_breaking":
        return stick_breaking_targets(codes, num_classes), Bernoulli()
    if coding == "dirichlet":
        return one_hot(codes, num_classes), Dirichlet()
    raise ValueError(f"likelihood must be 'one_hot', 'stick_breaking' or 'dirichlet', not {coding!r}.")


def probabilities(
    coding: str, mean: Float[Tensor, "n c"], variance: Float[Tensor, "n c"], scale: float, num_classes: int
) -> Float[Tensor, "n k"]:
    """Class probabilities from the posterior moments of f."""
    if coding == "one_hot":
        scores = torch.cat([-mean, mean], dim=1) if num_classes == 2 else mean
        return torch.softmax(scale * scores, dim=1)
    if coding == "stick_breaking":
        return stick_breaking_probabilities(logistic_mean(mean, variance))
    generator = torch.Generator(mean.device).manual_seed(0)
    return softmax_mean(mean, variance, generator)
