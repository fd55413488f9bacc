"""The interface of likelihoods: E[log p(y | f)], or a bound on it, as a quadratic in f.

The expectation of -½ λ f² + η f + constant needs only the mean and the mean square of f. So unbiased
estimates of these two make the training bound unbiased (LIM 4.4), and (λ, η) give the natural-gradient step.
A likelihood without such a bound is expanded about the moments of f, which must then be exact (`is_quadratic`
is False).

A new likelihood of numbers is one class with `log_density`, `conditional_mean` and `conditional_variance`:
expectations are then taken by quadrature. `cumulative` adds quantiles. Closed forms may replace each.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from orbitwise.declarations import OMITTED, Stored
from orbitwise.process.process import Moments

SMALLEST_VARIANCE = 1e-12
SMALLEST_PROBABILITY = 1e-300
NUM_NODES = 40
"""The default number of Gauss-Hermite nodes for expectations over f."""
BISECTIONS = 60

Values = Float[Tensor, "*batch n c"]
"""f, or a function of it, at n rows and c outputs; leading dimensions hold samples."""
Targets = Float[Tensor, "n c"]
"""Targets, or moments of f, of n rows and c outputs."""


class Quadratic(NamedTuple):
    """-½ curvature·f² + slope·f + constant, for every row and output."""

    curvature: Targets
    slope: Targets
    constant: Targets

    def expectation(self, moments: Moments) -> Targets:
        """The expectation of the quadratic under moments of f."""
        return -0.5 * self.curvature * moments.mean_square + self.slope * moments.mean + self.constant

    def weighted(self, weight: Float[Tensor, " n"] | None) -> Quadratic:
        """The terms multiplied by the weights of rows; None means weights of 1."""
        return self if weight is None else Quadratic(*(weight[:, None] * term for term in self))

    def concave(self, mean: Targets, least: float = 0.0) -> Quadratic:
        """The quadratic with the same slope at the mean of f, but with a curvature of at least `least`."""
        curvature = self.curvature.clamp_min(least)
        return self._replace(curvature=curvature, slope=self.slope + (curvature - self.curvature) * mean)


class Likelihood(nn.Module, ABC):
    """p(y | f), its quadratics in f, and predictions of new targets y."""

    is_quadratic: bool = True
    """Whether the quadratic is a bound for any moments of f, so that rows may be drawn."""

    shares_curvature: bool = False
    """Whether λ is the same for all outputs, which then share one factorisation."""

    needs_tilt: bool = False
    """Whether the bound has a free parameter c ≥ 0 for every datum and output, best at √E[f²]."""

    is_separable: bool = True
    """Whether outputs of a row are independent given f, so that log p(y | f) is a sum over them."""

    ignores_common_shift: bool = False
    """Whether p(y | f) stays the same when one number is added to all outputs of a row."""

    is_additive: bool = False
    """Whether y = f + noise, so that targets may be shifted and scaled before learning."""

    has_heavy_tails: bool = False
    """Whether targets are standardised by median and quartiles, which are robust to outliers."""

    num_nodes: int = NUM_NODES

    stored = Stored({"learnable": OMITTED})

    @abstractmethod
    def log_density(self, f: Values, targets: Targets) -> Values:
        """log p(y | f) per row and output, to be summed over outputs; f may be a batch of samples."""

    def expansion(self, moments: Moments | None, targets: Targets, tilt: Targets | None = None) -> Quadratic:
        """The quadratic whose expectation under `moments` is the expected log-likelihood, or a bound on it.

        Its gradients with respect to the moments and the parameters of the likelihood are right too. A
        quadratic likelihood does not depend on the moments; any other is expanded about them.
        """
        if moments is None:
            raise ValueError(f"{type(self).__name__} is expanded about moments of f: pass them.")
        self.check_targets(targets)
        return expand(lambda mean, variance: self.expected_log_density(mean, variance, targets), moments)

    def expected_log_density(self, mean: Targets, variance: Targets, targets: Targets) -> Targets:
        """E[log p(y | f)] for Gaussian f, per output, by quadrature unless there is a closed form."""
        return self._expected(lambda f: self.log_density(f, targets), mean, variance)

    def check_targets(self, targets: Targets) -> None:
        """Raise a ValueError if targets are impossible under this likelihood, such as negative counts."""

    def prior_mean(self, targets: Targets) -> float:
        """The initial mean of f: 0, because targets are centred."""
        return 0.0

    def conditional_mean(self, f: Values) -> Values:
        """E[y | f], which is f itself under additive noise."""
        if not self.is_additive:
            raise ValueError(f"{type(self).__name__} needs a method conditional_mean, E[y | f].")
        return f

    def conditional_variance(self, f: Values) -> Values:
        """var[y | f], the noise of a new target."""
        raise ValueError(f"{type(self).__name__} needs a method conditional_variance, var[y | f].")

    def cumulative(self, f: Values, targets: Targets) -> Values:
        """P(new target ≤ the given one | f)."""
        raise ValueError(
            f"{type(self).__name__} has no quantiles: they need a method cumulative, P(y ≤ target | f)."
        )

    def predict(self, moments: Moments) -> Targets:
        """The mean of y for Gaussian f, E[E[y | f]]; or probabilities."""
        at = moments.mean, column_variance(moments)
        return moments.mean if self.is_additive else self._expected(self.conditional_mean, *at)

    def predict_variance(self, moments: Moments, include_noise: bool = True) -> Targets:
        """The variance of a new target, E[var[y | f]] + var[E[y | f]], or that of E[y | f] alone."""
        at = moments.mean, column_variance(moments)
        if self.is_additive:
            spread = at[1]
        else:
            mean = self.predict(moments)
            spread = self._expected(lambda f: (self.conditional_mean(f) - mean).square(), *at)
        return spread + self._expected(self.conditional_variance, *at) if include_noise else spread

    def predict_quantile(self, moments: Moments, level: float) -> Targets:
        """The quantile t of a new target with P(y ≤ t) = `level`, by bisection of E[P(y ≤ t | f)]."""
        if not 0 < level < 1:
            raise ValueError(f"A quantile lies strictly between 0 and 1, not at {level!r}.")

        at = moments.mean, column_variance(moments)

        def below(targets: Targets) -> Targets:
            return self._expected(lambda f: self.cumulative(f, targets), *at)

        middle = self.predict(moments)
        width = 1 + column_variance(moments).sqrt() + middle.abs()
        low, high = middle - width, middle + width
        while bool((below(low) > level).any()):
            low = torch.where(below(low) > level, low - (high - low), low)
        while bool((below(high) < level).any()):
            high = torch.where(below(high) < level, high + (high - low), high)
        for _ in range(BISECTIONS):
            centre = 0.5 * (low + high)
            is_less = below(centre) < level
            low, high = torch.where(is_less, centre, low), torch.where(is_less, high, centre)
        return high

    def encode_labels(self, labels: Int[Tensor, " n"], num_classes: int) -> Targets:
        """Targets for the class labels 0, 1, …."""
        raise ValueError(
            f"{type(self).__name__} is not a likelihood of classes: use Gaussian, Bernoulli, Dirichlet or "
            "Softmax, or give it a method encode_labels."
        )

    def class_probabilities(self, moments: Moments) -> Float[Tensor, "n k"]:
        """The probability of every class, for targets that `encode_labels` made."""
        return self.predict(moments)

    def class_scores(self, moments: Moments) -> Float[Tensor, "n k"]:
        """Scores of the classes: a softmax of their multiple gives the calibrated class probabilities."""
        return self.class_probabilities(moments).clamp_min(SMALLEST_PROBABILITY).log()

    def response(self, moments: Moments, targets: Targets, tilt: Targets | None = None) -> Targets:
        """-∂²E/∂μ² of the expected log-likelihood E, or of its bound at the best tilt, by the mean μ of f.

        Leave-one-out needs it. Under a bound it is less than the curvature of the quadratic, because the best
        tilt changes with μ.
        """
        return self.expansion(moments, targets, tilt).curvature

    def _expected(self, values: Callable[[Values], Values], mean: Targets, variance: Targets) -> Targets:
        return gaussian_expectation(values, mean, variance, self.num_nodes)

    def quadratic(self, targets: Targets, tilt: Targets | None = None) -> Quadratic:
        """The quadratic lower bound of log p(y | f) as a function of f."""
        if not self.is_quadratic:
            raise ValueError(
                f"{type(self).__name__} has no bound that is quadratic in f: use Gaussian, Bernoulli or "
                "Dirichlet here, or the variational engine on exact or frozen rows."
            )
        return self.expansion(None, targets, tilt)

    def expected_log_likelihood(
        self, moments: Moments, targets: Targets, tilt: Targets | None = None
    ) -> Float[Tensor, " n"]:
        """E[log p(y_n | f_n)] for every row, or a bound on it."""
        return self.expansion(moments, targets, tilt).expectation(moments).sum(-1)


def column_variance(moments: Moments) -> Targets:
    """The variances of all outputs, also if they share one."""
    variance = moments.variance if moments.variance.dim() == 2 else moments.variance[:, None]
    return variance.expand_as(moments.mean)


def hermite(num_nodes: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the standard normal density."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    return like.new_tensor(nodes), like.new_tensor(weights / math.sqrt(2 * math.pi))


def gaussian_expectation(
    values: Callable[[Values], Values], mean: Targets, variance: Targets, num_nodes: int = NUM_NODES
) -> Targets:
    """E[values(f)] for f ~ N(mean, variance), output by output, by Gauss-Hermite quadrature."""
    nodes, weights = (each[:, None, None] for each in hermite(num_nodes, mean))
    return (values(mean + variance.sqrt() * nodes) * weights).sum(0)


def expand(expected: Callable[[Tensor, Tensor], Targets], moments: Moments) -> Quadratic:
    """The quadratic that agrees with expected(mean, variance) at `moments`, including both gradients.

    λ = -2 ∂E/∂σ² = -E[∂² log p], η = ∂E/∂μ + λμ = E[∂ log p] + λμ (Bonnet and Price).
    """
    mean = moments.mean.detach().requires_grad_()
    variance = column_variance(moments).detach().clamp_min(SMALLEST_VARIANCE).requires_grad_()
    with torch.enable_grad():
        value = expected(mean, variance)
        first, second = torch.autograd.grad(value.sum(), (mean, variance), retain_graph=True)
    curvature = -2 * second
    slope = first + curvature * mean.detach()
    # the remainder does not depend on the moments, but on the parameters of the likelihood
    rest = -0.5 * curvature * moments.mean_square.detach() + slope * moments.mean.detach()
    return Quadratic(curvature, slope, (value if torch.is_grad_enabled() else value.detach()) - rest)
