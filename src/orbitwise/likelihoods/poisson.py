"""Counts: p(y | f) = Poisson(exp f), whose expected log-likelihood has a closed form."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.likelihoods.likelihood import Likelihood, Quadratic, expand
from orbitwise.process.moments import Moments


@final
class Poisson(Likelihood):
    """E log p = yμ - exp(μ + σ²/2) - log y!. Not quadratic in f: exact and frozen rows only."""

    is_quadratic = False

    def log_density(
        self, f: Float[Tensor, "*batch n c"], targets: Float[Tensor, "n c"]
    ) -> Float[Tensor, "*batch n c"]:
        _check_counts(targets)
        return targets * f - f.exp() - torch.lgamma(targets + 1)

    def expansion(
        self, moments: Moments | None, targets: Float[Tensor, "n c"], tilt: Float[Tensor, "n c"] | None = None
    ) -> Quadratic:
        if moments is None:
            raise ValueError("Poisson is expanded about moments of f; give them.")
        _check_counts(targets)

        def expected(mean: Tensor, variance: Tensor) -> Tensor:
            return targets * mean - torch.exp(mean + 0.5 * variance) - torch.lgamma(targets + 1)

        return expand(expected, moments)

    def predict(self, moments: Moments) -> Float[Tensor, "n c"]:
        """The mean of y: E[exp f] = exp(μ + σ²/2)."""
        variance = moments.variance if moments.variance.dim() == 2 else moments.variance[:, None]
        return torch.exp(moments.mean + 0.5 * variance)


def _check_counts(targets: Tensor) -> None:
    if bool((targets < 0).any()):
        raise ValueError("Poisson takes counts: targets of 0 or more.")
