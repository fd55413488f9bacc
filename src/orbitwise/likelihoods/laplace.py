"""Noise with exponential tails: y = f + ε with ε Laplace, the absolute errors of Lecture 1.2."""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.declarations import OMITTED, SMALLEST, Stored, is_plain_numbers, require
from orbitwise.likelihoods.likelihood import Likelihood, Targets, Values


@final
class Laplace(Likelihood):
    """p(y | f) = exp(-|y - f|/b)/2b with a learned scale b. Not quadratic in f: exact and frozen rows only.

    With y - f ~ N(δ, s²), E|y - f| = s √(2/π) exp(-δ²/2s²) + δ erf(δ/(s√2)): no quadrature.
    """

    is_quadratic = False
    is_additive = True
    has_heavy_tails = True

    stored = Stored({"scale": OMITTED})

    def __init__(self, scale: float = 0.3) -> None:
        super().__init__()
        if not 0 < scale < math.inf:
            raise ValueError(f"scale must be positive and finite, not {scale!r}.")
        self.raw_scale = nn.Parameter(torch.tensor(math.log(scale), dtype=torch.float64))

    def check_parts(self) -> None:
        """Raise a ValueError if the scale is out of range."""
        numbers = [parameter.detach().exp() for parameter in self.parameters()]
        require(all(is_plain_numbers(each, SMALLEST) for each in numbers), "noise out of range")

    @property
    def scale(self) -> Float[Tensor, ""]:
        """b, the mean size of the noise; its variance is 2b²."""
        return self.raw_scale.exp()

    def log_density(self, f: Values, targets: Targets) -> Values:
        scale = self.scale.to(targets)
        return -(targets - f).abs() / scale - torch.log(2 * scale)

    def conditional_variance(self, f: Values) -> Values:
        return (2 * self.scale.square()).to(f).expand_as(f)

    def cumulative(self, f: Values, targets: Targets) -> Values:
        residual = (targets - f) / self.scale.to(f)
        # ½ e^{-|t|} below the centre, one less that above it
        tail = 0.5 * torch.exp(-residual.abs())
        return torch.where(residual < 0, tail, 1 - tail)

    def expected_log_density(self, mean: Targets, variance: Targets, targets: Targets) -> Targets:
        scale = self.scale.to(targets)
        # δ/(s√2)
        ratio = (targets - mean) / (2 * variance).sqrt()
        size = (2 * variance / math.pi).sqrt() * torch.exp(-ratio.square())
        size = size + (targets - mean) * torch.erf(ratio)
        return -size / scale - torch.log(2 * scale)
