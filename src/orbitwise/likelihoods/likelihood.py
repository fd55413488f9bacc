"""What every likelihood promises: E[log p(y | f)], or a bound of it, as a quadratic in f.

-½ λ f² + η f + constant needs the mean and the mean square of f alone, so unbiased estimates of those two
make the whole training bound unbiased (LIM 4.4), and (λ, η) are its natural-gradient step. A likelihood that
has no such bound is expanded about the moments of f instead, which must then be exact (`is_quadratic` is
False).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.process.moments import Moments

SMALLEST_VARIANCE = 1e-12


class Quadratic(NamedTuple):
    """-½ curvature·f² + slope·f + constant, for every row and output."""

    curvature: Float[Tensor, "n c"]
    slope: Float[Tensor, "n c"]
    constant: Float[Tensor, "n c"]

    def expectation(self, moments: Moments) -> Float[Tensor, "n c"]:
        """The expectation of the quadratic under moments of f."""
        return -0.5 * self.curvature * moments.mean_square + self.slope * moments.mean + self.constant

    def concave(self, mean: Float[Tensor, "n c"]) -> Quadratic:
        """The same slope at the mean of f, and no curvature below 0: q stays a Gaussian after a step."""
        curvature = self.curvature.clamp_min(0)
        return self._replace(curvature=curvature, slope=self.slope + (curvature - self.curvature) * mean)


class Likelihood(nn.Module, ABC):
    """p(y | f), seen through quadratics in f."""

    is_quadratic: bool = True
    """Whether the quadratic is below log p(y | f) whatever the moments of f, so that rows may be drawn."""

    shares_curvature: bool = False
    """Whether λ is the same for all outputs, so that one factorisation serves them all."""

    needs_tilt: bool = False
    """Whether the bound has a free parameter c ≥ 0 for every datum and output, best at √E[f²]."""

    is_separable: bool = True
    """Whether outputs of a row are independent given f, so that log p(y | f) is a sum over them."""

    @abstractmethod
    def log_density(
        self, f: Float[Tensor, "*batch n c"], targets: Float[Tensor, "n c"]
    ) -> Float[Tensor, "*batch n c"]:
        """log p(y | f) itself, whose sum over outputs is that of a row; f may be a batch of samples."""

    def predict(self, moments: Moments) -> Float[Tensor, "n c"]:
        """The mean of y for Gaussian f, which is that of f where noise has no mean; or probabilities."""
        return moments.mean

    @abstractmethod
    def expansion(
        self, moments: Moments | None, targets: Float[Tensor, "n c"], tilt: Float[Tensor, "n c"] | None = None
    ) -> Quadratic:
        """The quadratic whose expectation under `moments` is the (bound of the) expected log-likelihood.

        Its gradients by the moments and by the parameters of the likelihood are right as well. A quadratic
        likelihood does not look at the moments.
        """

    def quadratic(self, targets: Float[Tensor, "n c"], tilt: Float[Tensor, "n c"] | None = None) -> Quadratic:
        """The quadratic lower bound of log p(y | f) as a function of f."""
        if not self.is_quadratic:
            raise ValueError(
                f"{type(self).__name__} has no bound that is quadratic in f: use Gaussian, Bernoulli or "
                "Dirichlet here, or the variational engine on exact or frozen rows."
            )
        return self.expansion(None, targets, tilt)

    def expected_log_likelihood(
        self, moments: Moments, targets: Float[Tensor, "n c"], tilt: Float[Tensor, "n c"] | None = None
    ) -> Float[Tensor, " n"]:
        """E[log p(y_n | f_n)] for every row, or its bound."""
        return self.expansion(moments, targets, tilt).expectation(moments).sum(-1)


def expand(expected: Callable[[Tensor, Tensor], Float[Tensor, "n c"]], moments: Moments) -> Quadratic:
    """The quadratic that agrees at `moments` with expected(mean, variance), and so do both gradients.

    λ = -2 ∂E/∂σ² = -E[∂² log p], η = ∂E/∂μ + λμ = E[∂ log p] + λμ (Bonnet and Price).
    """
    variance = moments.variance if moments.variance.dim() == 2 else moments.variance[:, None]
    mean = moments.mean.detach().requires_grad_()
    variance = variance.detach().expand_as(mean).clamp_min(SMALLEST_VARIANCE).requires_grad_()
    with torch.enable_grad():
        value = expected(mean, variance)
        first, second = torch.autograd.grad(value.sum(), (mean, variance), retain_graph=True)
    curvature = -2 * second
    slope = first + curvature * mean.detach()
    # What remains is constant in the moments, but not in the parameters of the likelihood.
    rest = -0.5 * curvature * moments.mean_square.detach() + slope * moments.mean.detach()
    return Quadratic(curvature, slope, (value if torch.is_grad_enabled() else value.detach()) - rest)
