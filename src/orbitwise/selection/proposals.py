"""Distributions that samples are proposed from: multivariate Student-t, and normal in the limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.linear_algebra import cholesky, log_determinant, solve_lower
from orbitwise.inference.sampling.proposal import student_log_density


@final
@dataclass(frozen=True)
class Proposal:
    """t_ν(location, L Lᵀ): tails heavier than a posterior's keep weights bounded; ν = ∞ is normal."""

    location: Float[Tensor, " p"]
    lower: Float[Tensor, "p p"]
    freedom: float = 5.0

    @staticmethod
    def fitted(
        samples: Float[Tensor, "q p"], weights: Float[Tensor, " q"] | None = None, freedom: float = 5.0
    ) -> Proposal:
        """Location and scale from (weighted) samples of a posterior."""
        count = len(samples)
        weights = samples.new_full((count,), 1 / count) if weights is None else weights / weights.sum()
        location = weights @ samples
        centred = samples - location
        covariance = (weights[:, None] * centred).mT @ centred
        # A small share of the diagonal keeps few samples from spanning less than all directions.
        ridge = 1e-6 * covariance.diagonal().clamp_min(1e-12)
        return Proposal(location, cholesky(covariance + torch.diag(ridge)).lower, freedom)

    def sample(self, num_samples: int, generator: torch.Generator) -> Float[Tensor, "q p"]:
        """Independent draws."""
        kind, size = self.location.dtype, len(self.location)
        normal = torch.randn(num_samples, size, generator=generator, dtype=kind)
        if math.isfinite(self.freedom):
            # χ²_ν / ν, a sum of squares of normals where ν is a whole number
            squares = torch.randn(num_samples, round(self.freedom), generator=generator, dtype=kind).square()
            normal = normal * (squares.sum(-1, keepdim=True) / round(self.freedom)).rsqrt()
        return self.location + normal @ self.lower.mT

    def log_density(self, points: Float[Tensor, "q p"]) -> Float[Tensor, " q"]:
        """log q(z) of every point."""
        # |L⁻¹(z - m)|²
        squares = solve_lower(self.lower, (points - self.location).mT).square().sum(0)
        if math.isfinite(self.freedom):
            return student_log_density(squares, self.lower, self.freedom)
        size = len(self.location)
        return -0.5 * (squares + size * math.log(2 * math.pi) + log_determinant(self.lower))
