"""The variational Gaussian q(v) over whitened inducing variables u = L v, in two forms.

Natural: precision P = S⁻¹ and shift h = S⁻¹m, for natural-gradient steps. Factor: mean m and S = C Cᵀ, for
Adam, as in LIM. One covariance serves all outputs where the likelihood allows, else there is one each.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.declarations import SMALLEST, Field, Stored, is_plain_numbers, require
from orbitwise.inference.linear_algebra import (
    check_factor,
    check_solution,
    cholesky,
    log_determinant,
    solve_factored,
)

DOUBLES = Field((Tensor,), dtypes=("float64",))


@final
class Whitened:
    """q(v) = N(m, S) with precision [u, u] or [c, u, u] and shift [u, c]."""

    stored = Stored(attributes={"lower": DOUBLES, "mean": DOUBLES})

    def __init__(self, precision: Float[Tensor, "*c u u"], shift: Float[Tensor, "u c"]) -> None:
        self.precision = precision
        self.shift = shift
        self.lower = cholesky(precision).lower
        # m = P⁻¹h
        if self.is_shared:
            self.mean = solve_factored(self.lower, shift)
        else:
            self.mean = solve_factored(self.lower, shift.T[..., None])[..., 0].T

    def check_parts(self) -> None:
        """Raise a ValueError unless mean and factor are those of precision and shift: S⁻¹m = h."""
        size, outputs = self.shift.shape
        require(min(self.shift.shape) > 0, "a shift of another shape")
        shapes = ((size, size), (outputs, size, size))
        require(self.precision.shape in shapes, "a precision of another shape")
        is_like = self.lower.shape == self.precision.shape and self.mean.shape == self.shift.shape
        require(is_like, "a mean of another shape")
        check_factor(self.lower)
        mean, shift = self.mean, self.shift
        if not self.is_shared:
            mean, shift = mean.T[..., None], shift.T[..., None]
        check_solution(self.lower, mean, shift)

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

    def without_common_mean(self) -> Whitened:
        """q with the mean over outputs taken off each mean, which brings it nearer to the prior."""
        mean = self.mean - self.mean.mean(1, keepdim=True)
        # h = P m
        shift = self.precision @ (mean if self.is_shared else mean.T[..., None])
        return Whitened(self.precision, shift if self.is_shared else shift[..., 0].T)

    def divergence(self) -> Float[Tensor, ""]:
        """KL[q(v) ‖ N(0, I)] = ½(tr S + mᵀm - M + log|P|), summed over outputs."""
        size, outputs = self.shift.shape
        trace = torch.cholesky_inverse(self.lower).diagonal(dim1=-1, dim2=-2).sum(-1)
        each = trace - size + log_determinant(self.lower)
        return 0.5 * (each.sum() * (outputs if self.is_shared else 1) + self.mean.square().sum())

    def spread(self, columns: Float[Tensor, "*batch u"]) -> Float[Tensor, "*c k u"]:
        """R⁻¹a of every column a, with R Rᵀ = P: inner products are aᵀS a′. Batches are flattened."""
        flat = columns.flatten(0, -2)
        return torch.linalg.solve_triangular(self.lower, flat.T, upper=False).mT

    def step(
        self,
        columns: Float[Tensor, "n u"],
        curvature: Float[Tensor, "n c"],
        slope: Float[Tensor, "n c"],
        rate: float,
    ) -> Whitened:
        """Natural-gradient step: P ← (1-ρ)P + ρ(I + Σ λ a aᵀ), h ← (1-ρ)h + ρ Σ η a."""
        identity = torch.eye(columns.shape[-1], dtype=columns.dtype, device=columns.device)
        if self.is_shared:
            target = identity + (columns * curvature[:, :1]).T @ columns
        else:
            # One output at a time: λ a for all of them would hold n·u·c numbers.
            target = torch.stack([identity + (columns * each[:, None]).T @ columns for each in curvature.T])
        shift = columns.T @ slope
        return Whitened((1 - rate) * self.precision + rate * target, (1 - rate) * self.shift + rate * shift)


@final
class WhitenedFactor(nn.Module):
    """q(v) = N(m, C Cᵀ) with mean [u, c] and lower factor [u, u] or [c, u, u] as parameters."""

    stored = Stored(build="of")

    def __init__(self, size: int, outputs: int, shared: bool, device: torch.device | None = None) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(size, outputs, dtype=torch.float64, device=device))
        # below the diagonal C itself, on it log C: zeros are the prior
        raw = torch.zeros(size, size, dtype=torch.float64, device=device)
        self.raw = nn.Parameter(raw if shared else raw.repeat(outputs, 1, 1))

    @classmethod
    def of(cls, mean: Float[Tensor, "u c"], raw: Float[Tensor, "*c u u"]) -> WhitenedFactor:
        """One of the shapes of these parameters, whose values it is given later."""
        return cls(*mean.shape, shared=raw.dim() == 2)

    def check_parts(self) -> None:
        """Raise a ValueError where the diagonal of C is too small or too large to compute with."""
        with torch.no_grad():
            diagonal = self.factor.diagonal(dim1=-1, dim2=-2)
        require(is_plain_numbers(diagonal, SMALLEST), "a factor whose diagonal is out of range")

    @property
    def is_shared(self) -> bool:
        """Whether one factor serves all outputs."""
        return self.raw.dim() == 2

    @property
    def factor(self) -> Float[Tensor, "*c u u"]:
        """C."""
        return self.raw.tril(-1) + torch.diag_embed(self.raw.diagonal(dim1=-1, dim2=-2).exp())

    def divergence(self) -> Float[Tensor, ""]:
        """KL[q(v) ‖ N(0, I)] = ½(|C|² + mᵀm - M) - log|C|, summed over outputs."""
        size, outputs = self.mean.shape
        logs = self.raw.diagonal(dim1=-1, dim2=-2)
        each = self.factor.square().sum((-1, -2)) - size - 2 * logs.sum(-1)
        return 0.5 * (each.sum() * (outputs if self.is_shared else 1) + self.mean.square().sum())

    def spread(self, columns: Float[Tensor, "*batch u"]) -> Float[Tensor, "*c k u"]:
        """Cᵀa of every column a: inner products are aᵀS a′. Batches are flattened."""
        return columns.flatten(0, -2) @ self.factor

    def natural(self) -> Whitened:
        """The same Gaussian by its natural parameters."""
        with torch.no_grad():
            precision = torch.cholesky_inverse(self.factor)
            shift = torch.einsum("...uw,wc->...uc", precision, self.mean)
            if not self.is_shared:
                shift = shift.diagonal(dim1=0, dim2=2)
            return Whitened(precision, shift.contiguous())
