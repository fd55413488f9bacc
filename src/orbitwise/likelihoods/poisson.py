"""Counts: p(y | f) = Poisson(exp f), whose expected log-likelihood has a closed form."""

from __future__ import annotations

import math
from typing import final

import torch

from orbitwise.likelihoods.likelihood import Likelihood, Targets, Values, column_variance
from orbitwise.process.process import Moments


@final
class Poisson(Likelihood):
    """E log p = yμ - exp(μ + σ²/2) - log y!. Not quadratic in f: exact and frozen rows only."""

    is_quadratic = False

    def log_density(self, f: Values, targets: Targets) -> Values:
        self.check_targets(targets)
        return targets * f - f.exp() - torch.lgamma(targets + 1)

    def expected_log_density(self, mean: Targets, variance: Targets, targets: Targets) -> Targets:
        return targets * mean - torch.exp(mean + 0.5 * variance) - torch.lgamma(targets + 1)

    def check_targets(self, targets: Targets) -> None:
        wrong = targets[(targets < 0) | (targets != targets.round())]
        if len(wrong):
            raise ValueError(
                f"Poisson takes counts: whole targets of 0 or more, but there is one of {float(wrong[0]):g}."
            )

    def prior_mean(self, targets: Targets) -> float:
        """The logarithm of the mean count, or of half a count in total if there are none."""
        return math.log(max(float(targets.mean()), 0.5 / max(1, targets.numel())))

    def conditional_mean(self, f: Values) -> Values:
        """The rate exp f."""
        return f.exp()

    def conditional_variance(self, f: Values) -> Values:
        return f.exp()

    def cumulative(self, f: Values, targets: Targets) -> Values:
        """P(count ≤ t | f) = Γ(⌊t⌋ + 1, exp f)/Γ(⌊t⌋ + 1)."""
        whole = targets.floor().expand_as(f)
        below = torch.special.gammaincc(whole.clamp_min(0) + 1, f.exp())
        return torch.where(whole < 0, torch.zeros_like(below), below)

    def predict(self, moments: Moments) -> Targets:
        """The mean of y: E[exp f] = exp(μ + σ²/2)."""
        return torch.exp(moments.mean + 0.5 * column_variance(moments))

    def predict_variance(self, moments: Moments, include_noise: bool = True) -> Targets:
        """var[exp f] = (exp σ² - 1) E[exp f]², plus the mean rate for a new count."""
        rate = self.predict(moments)
        spread = torch.expm1(column_variance(moments)) * rate.square()
        return spread + rate if include_noise else spread

    def predict_quantile(self, moments: Moments, level: float) -> Targets:
        """The smallest t with P(count ≤ t) of at least `level`."""
        return super().predict_quantile(moments, level).floor()
