"""The logistic likelihood through its Pólya-Gamma bound, for one output or for the sticks of several classes.

log σ(yf) ≥ yf/2 - θ(c)f²/2 + θ(c)c²/2 - log 2cosh(c/2) with θ(c) = tanh(c/2)/(2c), for any c ≥ 0 (METHOD 6;
corrects LIM eq. 22 and 23). It touches at f = ±c, so the best c is √E[f²].

A label may count as w labels, a part ε of which is wrong. The likelihood is then the density of that share,
w C(w, wε) σ(yf)^{w(1-ε)} σ(-yf)^{wε}, so that the evidence can learn w, like the variance of noise.
"""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.declarations import POSITIVE, Field, Stored
from orbitwise.likelihoods.label_count import LabelCount
from orbitwise.likelihoods.likelihood import (
    Likelihood,
    Quadratic,
    Targets,
    Values,
    column_variance,
    gaussian_expectation,
)
from orbitwise.process.process import Moments

SURE = 0.99


@final
class Bernoulli(Likelihood):
    """p(y | f) = σ(yf) for targets y of -1 or 1; a target of 0 is missing.

    Parameters
    ----------
    count : float, default=1.0
        How many labels one label counts as. If it is `learnable`, learning starts there.
    doubt : float, default=0.0
        The part of these labels that is wrong.
    learnable : bool, default=False
        Whether `count` is learned by the evidence. This needs a positive `doubt`, which keeps f finite.
    """

    needs_tilt = True

    stored = Stored(
        {
            "count": Field(least=POSITIVE.least, read="label_count.start"),
            "doubt": Field(least=0, most=0.5),
            "learnable": Field(read="label_count.is_learned", is_omitted=False),
        }
    )

    def __init__(self, count: float = 1.0, doubt: float = 0.0, learnable: bool = False) -> None:
        super().__init__()
        if not 0 <= doubt < 0.5:
            raise ValueError(f"doubt must be at least 0 and below 0.5, not {doubt!r}.")
        if learnable and doubt == 0:
            raise ValueError("A learnable count needs a positive doubt, such as 0.1.")
        self.label_count, self.doubt = LabelCount(count, learnable), doubt

    def check_parts(self) -> None:
        """Raise a ValueError where the count is out of range."""
        self.label_count.check_parts()

    def log_density(self, f: Values, targets: Targets) -> Values:
        count = self.label_count.value(f)
        # log σ(yf) = -log(1 + e^{-yf})
        right, wrong = (torch.nn.functional.softplus(sign * targets * f) for sign in (-1, 1))
        each = count * ((1 - self.doubt) * right + self.doubt * wrong)
        return targets.abs() * (self._share_density(count) - each)

    def predict(self, moments: Moments) -> Targets:
        """The probability of y = 1, E[σ(f)]."""
        return logistic_mean(moments.mean, column_variance(moments))

    def encode_labels(self, labels: Int[Tensor, " n"], num_classes: int) -> Targets:
        """Stick-breaking targets: one logit for two classes, K-1 for K."""
        return stick_breaking_targets(labels, num_classes)

    def class_probabilities(self, moments: Moments) -> Float[Tensor, "n k"]:
        """Class probabilities, with f stretched so that a share of 1 - ε has probability 99 %."""
        mean, variance = moments.mean, column_variance(moments)
        if self.doubt > 0:
            stretch = math.log(SURE / (1 - SURE)) / math.log((1 - self.doubt) / self.doubt)
            mean, variance = stretch * mean, stretch**2 * variance
        return stick_breaking_probabilities(logistic_mean(mean, variance))

    def expansion(self, moments: Moments | None, targets: Targets, tilt: Targets | None = None) -> Quadratic:
        if tilt is None:
            raise ValueError("The Pólya-Gamma bound needs a tilt c for every target.")
        count = self.label_count.value(targets)
        seen = count * targets.abs()
        curvature = seen * polya_gamma_mean(tilt)
        # log 2cosh(c/2) = c/2 + log(1 + e^{-c})
        constant = 0.5 * curvature * tilt.square() - seen * (0.5 * tilt + torch.nn.functional.softplus(-tilt))
        constant = constant + targets.abs() * self._share_density(count)
        return Quadratic(curvature, 0.5 * count * (1 - 2 * self.doubt) * targets, constant)

    def response(self, moments: Moments, targets: Targets, tilt: Targets | None = None) -> Targets:
        """w(θ(c) + θ′(c) μ²/c), since c² = μ² + σ² moves with μ."""
        if tilt is None:
            raise ValueError("The Pólya-Gamma bound needs a tilt c for every target.")
        seen = self.label_count.value(targets) * targets.abs()
        return seen * (polya_gamma_mean(tilt) + polya_gamma_slope(tilt) * moments.mean.square())

    def _share_density(self, count: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """log w C(w, wε), the normalisation of the density of a share; 0 if no label is wrong."""
        if self.doubt == 0:
            return torch.zeros_like(count)
        right, wrong = count * (1 - self.doubt), count * self.doubt
        return count.log() + torch.lgamma(count + 1) - torch.lgamma(right + 1) - torch.lgamma(wrong + 1)


def polya_gamma_mean(tilt: Tensor) -> Tensor:
    """θ(c) = tanh(c/2)/(2c), which is 1/4 - c²/48 near zero."""
    small = tilt.abs() < 1e-3
    safe = torch.where(small, torch.ones_like(tilt), tilt)
    return torch.where(small, 0.25 - tilt.square() / 48, torch.tanh(0.5 * safe) / (2 * safe))


def polya_gamma_slope(tilt: Tensor) -> Tensor:
    """θ′(c)/c = sech²(c/2)/(4c²) - tanh(c/2)/(2c³), which is -1/24 + c²/120 near zero."""
    small = tilt.abs() < 1e-2
    safe = torch.where(small, torch.ones_like(tilt), tilt)
    half = torch.tanh(0.5 * safe)
    return torch.where(
        small, -1 / 24 + tilt.square() / 120, (1 - half.square()) / (4 * safe.square()) - half / (2 * safe**3)
    )


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
