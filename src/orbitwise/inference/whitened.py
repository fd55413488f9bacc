"""The variational Gaussian q(v) over whitened inducing variables u = L v, held by its natural parameters.

Precision P = S⁻¹ and shift h = S⁻¹m. One precision serves all outputs where the likelihood allows, else there is one each.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.linear_algebra import cholesky, log_determinant, solve_factored


@final
class Whitened:
    """q(v) = N(m, S) with precision [u, u] or [c, u, u] and shift [u, c]."""

    def __init__(self, precision: Float[Tensor, "*c u u"], shift: Float[Tensor, "u c"]) -> None:
        self.precision = precision
        self.shift = shift
        self.lower = cholesky(precision).lower
        # m = P⁻¹h
        if self.is_shared:
            self.mean = solve_factored(self.lower, shift)
        else:
            self.mean = solve_factored(self.lower, shift.T[..., None])[..., 0].T

    @classmethod
    def prior(cls, size: int, outputs: int, shared: bool, device: torch.device | None = None) -> Whitened:
        """q equal to the prior N(0, I)."""
        identity = torch.eye(size, dtype=torch.float64, device=device)
        precision = identity if shared else identity.expand(outputs, -1, -1).clone()
        return cls(precision, identity.new_zeros(size, outputs))

    @property
    def is_shared(self) -> bool:
        """Whether one precision serves all outputs."""
        return self.precision.dim() == 2

    def divergence(self) -> Float[Tensor, ""]:
        """KL[q(v) ‖ N(0, I)] = ½(tr S + mᵀm - M + log|P|), summed over outputs."""
        size, outputs = self.shift.shape
        trace = torch.cholesky_inverse(self.lower).diagonal(dim1=-1, dim2=-2).sum(-1)
        each = trace - size + log_determinant(self.lower)
        return 0.5 * (each.sum() * (outputs if self.is_shared else 1) + self.mean.square().sum())

    def spread(self, columns: Float[Tensor, "*batch u"]) -> Float[Tensor, "*c k u"]:
        """R⁻¹a for every column a, with R Rᵀ = P: inner products of them are aᵀS a′. Batch dimensions are flattened."""
        flat = columns.flatten(0, -2)
        return torch.linalg.solve_triangular(self.lower, flat.T, upper=False).mT

    def step(
        self, columns: Float[Tensor, "n u"], curvature: Float[Tensor, "n c"], slope: Float[Tensor, "n c"], rate: float
    ) -> Whitened:
        """Natural-gradient step: P ← (1-ρ)P + ρ(I + Σ λ a aᵀ), h ← (1-ρ)h + ρ Σ η a."""
        identity = torch.eye(columns.shape[-1], dtype=columns.dtype, device=columns.device)
        if self.is_shared:
            target = identity + (columns * curvature[:, :1]).T @ columns
        else:
            target = identity + torch.einsum("nu,nc,nw->cuw", columns, curvature, columns)
        shift = columns.T @ slope
        return Whitened((1 - rate) * self.precision + rate * target, (1 - rate) * self.shift + rate * shift)
