"""Gaussian noise: exact, with one variance for all outputs, one for each, or one for each row and output.

E log p = -½ log 2πσ² - (1/2σ²)(y² - 2yμ + μ² + σ_n²): LIM eq. 15 with its missing ½.
"""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from orbitwise.declarations import SMALLEST, Field, Stored, is_plain_numbers, require
from orbitwise.likelihoods.likelihood import Likelihood, Quadratic, Targets, Values
from orbitwise.process.process import Moments

NOISE_FLOOR = 1e-8
"""The least variance of learned noise, for targets of about unit size."""


@final
class Gaussian(Likelihood):
    """y = f + ε with ε ~ N(0, σ²). With `num_outputs` above 0, each output has its own variance.

    A learned variance stays above `floor`, which should be small compared with the square of the targets.
    With `learnable=False` the variance is fixed and may be 0.

    Parameters
    ----------
    noise : float, default=0.1
        σ², where learning starts.
    num_outputs : int, default=0
        The number of variances; 0 is one for all outputs.
    learnable : bool, default=True
        Whether the variance is learned.
    floor : float, default=1e-8
        The least variance that is learned.
    """

    is_additive = True

    stored = Stored(
        {"num_outputs": Field(read="num_variances"), "floor": Field(least=0)},
        build="given_or_learned",
        infinite=("raw_noise",),
    )

    def __init__(
        self,
        noise: float = 0.1,
        num_outputs: int = 0,
        learnable: bool = True,
        floor: float = NOISE_FLOOR,
    ) -> None:
        super().__init__()
        if not (math.isfinite(noise) and (noise > 0 or (noise == 0 and not learnable))):
            raise ValueError(f"noise must be a positive, finite variance, not {noise!r}.")
        start = torch.full(
            (max(1, num_outputs),), math.log(noise) if noise else -math.inf, dtype=torch.float64
        )
        self.given = None if learnable else float(noise)
        self.raw_noise = nn.Parameter(start, requires_grad=learnable)
        self.shares_curvature = num_outputs == 0
        self.num_variances = num_outputs
        self.floor = floor

    @classmethod
    def given_or_learned(
        cls, num_outputs: int, given: float | None = None, floor: float = NOISE_FLOOR
    ) -> Gaussian:
        """Noise with the given variance, or with a learned one if it is None."""
        if given is None:
            return cls(num_outputs=num_outputs, floor=floor)
        return cls(given, num_outputs, learnable=False, floor=floor)

    def check_parts(self) -> None:
        """Raise a ValueError where the noise is out of range."""
        least = 0.0 if self.is_fixed else SMALLEST
        require(is_plain_numbers(self.noise.detach(), least), "noise out of range")

    @property
    def noise(self) -> Float[Tensor, " c"]:
        """σ²: one entry, or one for each output."""
        if self.given is not None:
            return torch.full_like(self.raw_noise, self.given)
        return self.raw_noise.exp() + self.floor

    @property
    def is_fixed(self) -> bool:
        """Whether the variance is fixed."""
        return self.given is not None

    def log_density(self, f: Values, targets: Targets) -> Values:
        return gaussian_log_density(targets - f, self.noise.to(targets).expand_as(targets))

    def conditional_variance(self, f: Values) -> Values:
        return self.noise.to(f).expand_as(f)

    def cumulative(self, f: Values, targets: Targets) -> Values:
        return torch.special.ndtr((targets - f) / self.noise.to(f).sqrt())

    def encode_labels(self, labels: Int[Tensor, " n"], num_classes: int) -> Targets:
        """Centred one-hot codes; two classes take a single column."""
        codes = torch.nn.functional.one_hot(labels, num_classes).double() - 1 / num_classes
        return codes[:, 1:] if num_classes == 2 else codes

    def class_scores(self, moments: Moments) -> Float[Tensor, "n k"]:
        """The means of the codes: Gaussian noise on codes is no model of labels."""
        return two_columns(moments.mean)

    def expansion(self, moments: Moments | None, targets: Targets, tilt: Targets | None = None) -> Quadratic:
        return gaussian_quadratic(targets, self.noise.to(targets).expand_as(targets))


def two_columns(scores: Float[Tensor, "n c"]) -> Float[Tensor, "n k"]:
    """Two columns of scores instead of a single one; other scores are unchanged."""
    return torch.cat([-scores, scores], dim=1) if scores.shape[1] == 1 else scores


def gaussian_log_density(residual: Values, noise: Targets) -> Values:
    """log N(residual | 0, σ²)."""
    return -0.5 * torch.log(2 * math.pi * noise) - 0.5 * residual.square() / noise


def gaussian_quadratic(targets: Targets, noise: Targets) -> Quadratic:
    """log N(y | f, σ²) as a quadratic in f."""
    constant = -0.5 * torch.log(2 * math.pi * noise) - 0.5 * targets.square() / noise
    return Quadratic(noise.reciprocal(), targets / noise, constant)
