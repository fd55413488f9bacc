"""The logistic likelihood through its Pólya-Gamma bound, for one output or for the sticks of several classes.

log σ(yf) ≥ yf/2 - θ(c)f²/2 + θ(c)c²/2 - log 2cosh(c/2) with θ(c) = tanh(c/2)/(2c), for any c ≥ 0 (METHOD 6;
corrects LIM eq. 22 and 23). It touches at f = ±c, so the best c is √E[f²].
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.likelihoods.likelihood import (
    Likelihood,
    Quadratic,
    Targets,
    Values,
    column_variance,
    gaussian_expectation,
)
from orbitwise.process.process import Moments


@final
class Bernoulli(Likelihood):
    """p(y | f) = σ(yf) for targets y of -1 or 1; a target of 0 is missing."""

    needs_tilt = True

    def log_density(self, f: Values, targets: Targets) -> Values:
        # log σ(yf) = -log(1 + e^{-yf})
        return -targets.abs() * torch.nn.functional.softplus(-targets * f)

    def predict(self, moments: Moments) -> Targets:
        """The probability of y = 1, E[σ(f)]."""
        return logistic_mean(moments.mean, column_variance(moments))

    def encode_labels(self, labels: Int[Tensor, " n"], num_classes: int) -> Targets:
        """Stick-breaking targets: one logit for two classes, K-1 for K."""
        return stick_breaking_targets(labels, num_classes)

    def class_probabilities(self, moments: Moments) -> Float[Tensor, "n k"]:
        """Where each stick breaks."""
        return stick_breaking_probabilities(self.predict(moments))

    def expansion(self, moments: Moments | None, targets: Targets, tilt: Targets | None = None) -> Quadratic:
        if tilt is None:
            raise ValueError("The Pólya-Gamma bound needs a tilt c for every target.")
        seen = targets.abs()
        curvature = seen * polya_gamma_mean(tilt)
        # log 2cosh(c/2) = c/2 + log(1 + e^{-c})
        constant = 0.5 * curvature * tilt.square() - seen * (0.5 * tilt + torch.nn.functional.softplus(-tilt))
        return Quadratic(curvature, 0.5 * targets, constant)


def polya_gamma_mean(tilt: Tensor) -> Tensor:
    """θ(c) = tanh(c/2)/(2c), which is 1/4 - c²/48 near zero."""
    small = tilt.abs() < 1e-3
    safe = torch.where(small, torch.ones_like(tilt), tilt)
    return torch.where(small, 0.25 - tilt.square() / 48, torch.tanh(0.5 * safe) / (2 * safe))


def stick_breaking_targets(labels: Int[Tensor, " n"], num_classes: int) -> Targets:
    """Class k of K as K-1 binary observations: -1 for sticks before k, 1 for stick k, 0 (missing) after."""
    stick = torch.arange(num_classes - 1, device=labels.device)
    return (stick == labels[:, None]).double() - (stick < labels[:, None]).double()


def stick_breaking_probabilities(sticks: Values) -> Float[Tensor, "*batch n k"]:
    """Class probabilities from the probabilities of breaking at each stick."""
    left = torch.cumprod(1 - sticks, dim=-1)
    before = torch.cat([torch.ones_like(sticks[..., :1]), left[..., :-1]], dim=-1)
    return torch.cat([before * sticks, left[..., -1:]], dim=-1)


def logistic_mean(mean: Targets, variance: Targets, num_nodes: int = 32) -> Targets:
    """E[σ(f)] for Gaussian f, by Gauss-Hermite quadrature."""
    return gaussian_expectation(torch.sigmoid, mean, variance, num_nodes)
