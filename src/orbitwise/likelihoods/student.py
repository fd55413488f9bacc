"""Noise with heavy tails: y = f + ε with ε Student-t, with expectations by quadrature."""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float
from scipy.special import stdtr
from torch import Tensor, nn

from orbitwise.declarations import OMITTED, SMALLEST, Field, Stored, is_plain_numbers, require
from orbitwise.likelihoods.likelihood import Likelihood, Targets, Values

MOST_DEGREES = 1e6
"""The most degrees of freedom; with more, the density is Gaussian up to rounding."""


@final
class StudentT(Likelihood):
    """ε = scale·t with `degrees` of freedom, both learned. Not quadratic in f: exact and frozen rows only.

    Far from the data -E[∂² log p] is negative; natural-gradient steps replace it by 0.

    Parameters
    ----------
    scale : float, default=0.3
        Where learning of the scale starts.
    degrees : float, default=4.0
        Where learning of the degrees of freedom starts; 1 is Cauchy noise, many are Gaussian.
    num_nodes : int, default=40
        Gauss-Hermite nodes of expectations.
    """

    is_quadratic = False
    is_additive = True
    has_heavy_tails = True

    stored = Stored({"scale": OMITTED, "degrees": OMITTED, "num_nodes": Field(least=1, most=1000)})

    def __init__(self, scale: float = 0.3, degrees: float = 4.0, num_nodes: int = 40) -> None:
        super().__init__()
        if not (0 < scale < math.inf and 0 < degrees < math.inf):
            raise ValueError(f"scale and degrees must be positive and finite, not {scale!r} and {degrees!r}.")
        self.raw_scale = nn.Parameter(torch.tensor(math.log(scale), dtype=torch.float64))
        self.raw_degrees = nn.Parameter(torch.tensor(math.log(degrees), dtype=torch.float64))
        self.num_nodes = num_nodes

    def check_parts(self) -> None:
        """Raise a ValueError where the noise is out of range."""
        numbers = [parameter.detach().exp() for parameter in self.parameters()]
        require(all(is_plain_numbers(each, SMALLEST) for each in numbers), "noise out of range")

    @property
    def scale(self) -> Float[Tensor, ""]:
        """The scale of the noise: about its standard deviation where there are many degrees of freedom."""
        return self.raw_scale.exp()

    @property
    def degrees(self) -> Float[Tensor, ""]:
        """ν, the degrees of freedom, at most `MOST_DEGREES`."""
        return self.raw_degrees.exp().clamp_max(MOST_DEGREES)

    def log_density(self, f: Values, targets: Targets) -> Values:
        degrees, scale = self.degrees.to(f), self.scale.to(f)
        constant = torch.lgamma(0.5 * (degrees + 1)) - torch.lgamma(0.5 * degrees)
        constant = constant - 0.5 * torch.log(math.pi * degrees) - scale.log()
        return constant - 0.5 * (degrees + 1) * torch.log1p(((targets - f) / scale).square() / degrees)

    def conditional_variance(self, f: Values) -> Values:
        """scale² ν/(ν - 2), which is finite for more than two degrees of freedom only."""
        degrees = self.degrees.item()
        if degrees <= 2:
            raise ValueError(
                f"Student-t noise of {degrees:.3g} degrees of freedom has no finite variance: ask "
                "for quantiles, or for the deviation of f alone (include_noise=False)."
            )
        return (self.scale.square() * self.degrees / (self.degrees - 2)).to(f).expand_as(f)

    def cumulative(self, f: Values, targets: Targets) -> Values:
        residual = ((targets - f) / self.scale).detach().cpu().numpy()
        return torch.from_numpy(stdtr(self.degrees.item(), residual)).to(f)
