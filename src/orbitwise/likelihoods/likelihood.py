"""What every likelihood promises: a lower bound of E[log p(y | f)] that is quadratic in f.

A bound -½ λ f² + η f + constant needs the mean and the mean square of f alone, so unbiased estimates of those two make the
whole training bound unbiased (LIM 4.4), and (λ, η) are its natural-gradient step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.process.moments import Moments


class Quadratic(NamedTuple):
    """-½ curvature·f² + slope·f + constant, for every row and output."""

    curvature: Float[Tensor, "n c"]
    slope: Float[Tensor, "n c"]
    constant: Float[Tensor, "n c"]

    def expectation(self, moments: Moments) -> Float[Tensor, "n c"]:
        """The expectation of the quadratic under moments of f."""
        return -0.5 * self.curvature * moments.mean_square + self.slope * moments.mean + self.constant


class Likelihood(nn.Module, ABC):
    """p(y | f) through a bound of its logarithm that is quadratic in f."""

    shares_curvature: bool = False
    """Whether λ is the same for all outputs, so that one factorisation serves them all."""

    needs_tilt: bool = False
    """Whether the bound has a free parameter c ≥ 0 for every datum and output, best at √E[f²]."""

    @abstractmethod
    def quadratic(self, targets: Float[Tensor, "n c"], tilt: Float[Tensor, "n c"] | None = None) -> Quadratic:
        """The quadratic lower bound of log p(y | f) as a function of f."""

    def expected_log_likelihood(
        self, moments: Moments, targets: Float[Tensor, "n c"], tilt: Float[Tensor, "n c"] | None = None
    ) -> Float[Tensor, " n"]:
        """The bound of E[log p(y_n | f_n)] for every row."""
        return self.quadratic(targets, tilt).expectation(moments).sum(-1)
