"""Noise with heavy tails: y = f + ε with ε Student-t, by Gauss-Hermite quadrature."""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.likelihoods.bernoulli import hermite
from orbitwise.likelihoods.likelihood import Likelihood, Quadratic, expand
from orbitwise.process.moments import Moments


@final
class StudentT(Likelihood):
    """ε = scale·t with `degrees` of freedom, both learned. Not quadratic in f: exact and frozen rows only.

    Far from the data -E[∂² log p] is negative; a natural-gradient step takes it for 0.
    """

    is_quadratic = False

    def __init__(self, scale: float = 0.3, degrees: float = 4.0, num_nodes: int = 40) -> None:
        super().__init__()
        if not (0 < scale < math.inf and 0 < degrees < math.inf):
            raise ValueError(f"scale and degrees must be positive and finite, not {scale!r} and {degrees!r}.")
        self.raw_scale = nn.Parameter(torch.tensor(math.log(scale), dtype=torch.float64))
        self.raw_degrees = nn.Parameter(torch.tensor(math.log(degrees), dtype=torch.float64))
        self.num_nodes = num_nodes

    def log_density(
        self, f: Float[Tensor, "*batch n c"], targets: Float[Tensor, "n c"]
    ) -> Float[Tensor, "*batch n c"]:
        return self._residual_density(targets - f)

    def _residual_density(self, residual: Tensor) -> Tensor:
        """log p(y | f) of y - f."""
        degrees, scale = self.raw_degrees.exp().to(residual), self.raw_scale.exp().to(residual)
        constant = torch.lgamma(0.5 * (degrees + 1)) - torch.lgamma(0.5 * degrees)
        constant = constant - 0.5 * torch.log(math.pi * degrees) - scale.log()
        return constant - 0.5 * (degrees + 1) * torch.log1p((residual / scale).square() / degrees)

    def expansion(
        self, moments: Moments | None, targets: Float[Tensor, "n c"], tilt: Float[Tensor, "n c"] | None = None
    ) -> Quadratic:
        if moments is None:
            raise ValueError("StudentT is expanded about moments of f; give them.")
        nodes, weights = hermite(self.num_nodes, targets)

        def expected(mean: Tensor, variance: Tensor) -> Tensor:
            values = mean[..., None] + variance.sqrt()[..., None] * nodes
            return (self._residual_density(targets[..., None] - values) * weights).sum(-1)

        return expand(expected, moments)
