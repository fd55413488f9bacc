"""Counts: p(y | f) = Poisson(exp f), whose expected log-likelihood has a closed form."""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.likelihoods.likelihood import Likelihood, Quadratic, column_variance, expand
from orbitwise.process.process import Moments


@final
class Poisson(Likelihood):
    """E log p = yμ - exp(μ + σ²/2) - log y!. Not quadratic in f: exact and frozen rows only."""

    is_quadratic = False

    def log_density(
        self, f: Float[Tensor, "*batch n c"], targets: Float[Tensor, "n c"]
    ) -> Float[Tensor, "*batch n c"]:
        self.check_targets(targets)
        return targets * f - f.exp() - torch.lgamma(targets + 1)

    def expansion(
        self, moments: Moments | None, targets: Float[Tensor, "n c"], tilt: Float[Tensor, "n c"] | None = None
    ) -> Quadratic:
        if moments is None:
            raise ValueError("Poisson is expanded about moments of f; give them.")
        self.check_targets(targets)

        def expected(mean: Tensor, variance: Tensor) -> Tensor:
            return targets * mean - torch.exp(mean + 0.5 * variance) - torch.lgamma(targets + 1)

        return expand(expected, moments)

    def check_targets(self, targets: Float[Tensor, "n c"]) -> None:
        wrong = targets[(targets < 0) | (targets != targets.round())]
        if len(wrong):
            raise ValueError(
                f"Poisson takes counts: whole targets of 0 or more, but there is one of {float(wrong[0]):g}."
            )

    def prior_mean(self, targets: Float[Tensor, "n c"]) -> float:
        """The logarithm of the mean count, or of half a count in all where there is none."""
        return math.log(max(float(targets.mean()), 0.5 / max(1, targets.numel())))

    def conditional_mean(self, f: Float[Tensor, "*batch n c"]) -> Float[Tensor, "*batch n c"]:
        """The rate exp f."""
        return f.exp()

    def conditional_variance(self, f: Float[Tensor, "*batch n c"]) -> Float[Tensor, "*batch n c"]:
        return f.exp()

    def cumulative(
        self, f: Float[Tensor, "*batch n c"], targets: Float[Tensor, "n c"]
    ) -> Float[Tensor, "*batch n c"]:
        """P(count ≤ t | f) = Γ(⌊t⌋ + 1, exp f)/Γ(⌊t⌋ + 1)."""
        whole = targets.floor().expand_as(f)
        below = torch.special.gammaincc(whole.clamp_min(0) + 1, f.exp())
        return torch.where(whole < 0, torch.zeros_like(below), below)

    def predict(self, moments: Moments) -> Float[Tensor, "n c"]:
        """The mean of y: E[exp f] = exp(μ + σ²/2)."""
        return torch.exp(moments.mean + 0.5 * column_variance(moments))

    def predict_variance(self, moments: Moments, include_noise: bool = True) -> Float[Tensor, "n c"]:
        """var[exp f] = (exp σ² - 1) E[exp f]², and the mean rate on top for a new count."""
        rate = self.predict(moments)
        spread = torch.expm1(column_variance(moments)) * rate.square()
        return spread + rate if include_noise else spread

    def predict_quantile(self, moments: Moments, level: float) -> Float[Tensor, "n c"]:
        """The least count that a new one does not exceed with probability `level`."""
        return super().predict_quantile(moments, level).floor()
