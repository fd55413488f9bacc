"""Convex losses ℓ(f, y) of the regularised-risk engine: value, slope and curvature in f, per entry.

Losses of labels take y = ±1; losses of residuals take any y, and y = 0 penalises a functional of f. Kinks of
losses are rounded over a `width`, as Newton's method requires (Chapelle, "Training a support vector machine
in the primal", 2007). A rounded loss differs from the exact one by at most half the width.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from difflib import get_close_matches
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.declarations import Stored

Entries = Float[Tensor, "*#batch m"]


class Loss(ABC):
    """ℓ(f, y), convex in f and twice differentiable almost everywhere."""

    curvature_bound: float
    """The largest ∂²ℓ/∂f²."""
    takes_labels: bool = False
    """Whether y is a label, ±1."""

    stored = Stored()

    @abstractmethod
    def value(self, f: Entries, y: Entries) -> Entries:
        """ℓ(f, y)."""

    @abstractmethod
    def slope(self, f: Entries, y: Entries) -> Entries:
        """∂ℓ/∂f."""

    @abstractmethod
    def curvature(self, f: Entries, y: Entries) -> Entries:
        """∂²ℓ/∂f²; at a kink of the slope, the smaller one-sided value."""

    def curvature_product(self, f: Entries, y: Entries, direction: Entries) -> Entries:
        """The second derivative times a direction."""
        return self.curvature(f, y) * direction


@final
class Logistic(Loss):
    """log(1 + e^{-yf})."""

    curvature_bound = 0.25
    takes_labels = True

    def value(self, f: Entries, y: Entries) -> Entries:
        return torch.nn.functional.softplus(-y * f)

    def slope(self, f: Entries, y: Entries) -> Entries:
        return -y * torch.sigmoid(-y * f)

    def curvature(self, f: Entries, y: Entries) -> Entries:
        return torch.sigmoid(y * f) * torch.sigmoid(-y * f)


@final
class Hinge(Loss):
    """max(0, 1 - yf), rounded where |1 - yf| < width."""

    takes_labels = True

    def __init__(self, width: float = 0.1) -> None:
        self.width = _positive(width, "width")
        self.curvature_bound = 1 / (2 * self.width)

    def value(self, f: Entries, y: Entries) -> Entries:
        return _ramp(1 - y * f, self.width)

    def slope(self, f: Entries, y: Entries) -> Entries:
        return -y * _ramp_slope(1 - y * f, self.width)

    def curvature(self, f: Entries, y: Entries) -> Entries:
        return _ramp_curvature(1 - y * f, self.width)


@final
class SquaredHinge(Loss):
    """max(0, 1 - yf)²."""

    curvature_bound = 2.0
    takes_labels = True

    def value(self, f: Entries, y: Entries) -> Entries:
        return (1 - y * f).relu().square()

    def slope(self, f: Entries, y: Entries) -> Entries:
        return -2 * y * (1 - y * f).relu()

    def curvature(self, f: Entries, y: Entries) -> Entries:
        return 2 * (1 - y * f > 0).to(f)


@final
class Squared(Loss):
    """(f - y)²: with weight λ, a Gaussian observation of variance 1/(2λ)."""

    curvature_bound = 2.0

    def value(self, f: Entries, y: Entries) -> Entries:
        return (f - y).square()

    def slope(self, f: Entries, y: Entries) -> Entries:
        return 2 * (f - y)

    def curvature(self, f: Entries, y: Entries) -> Entries:
        return torch.full_like(f - y, 2.0)


@final
class EpsilonInsensitive(Loss):
    """max(0, |f - y| - ε), rounded where ||f - y| - ε| < width; ε = 0 is the absolute loss."""

    def __init__(self, epsilon: float = 0.1, width: float | None = None) -> None:
        if not (math.isfinite(epsilon) and epsilon >= 0):
            raise ValueError(f"epsilon must be finite and at least 0, not {epsilon!r}.")
        self.epsilon = float(epsilon)
        self.width = _positive(epsilon / 2 or 0.05 if width is None else width, "width")
        if 0 < self.epsilon < self.width:
            raise ValueError(
                f"width={width} must be at most epsilon={epsilon}, because the roundings at ±ε would overlap."
            )
        # the two corners of the absolute loss meet and share their rounding
        self.curvature_bound = (1 if self.epsilon else 2) / (2 * self.width)

    def value(self, f: Entries, y: Entries) -> Entries:
        residual = f - y
        over = _ramp(residual - self.epsilon, self.width) + _ramp(-residual - self.epsilon, self.width)
        return over if self.epsilon else over - self.width / 2

    def slope(self, f: Entries, y: Entries) -> Entries:
        residual = f - y
        right = _ramp_slope(residual - self.epsilon, self.width)
        return right - _ramp_slope(-residual - self.epsilon, self.width)

    def curvature(self, f: Entries, y: Entries) -> Entries:
        residual = f - y
        right = _ramp_curvature(residual - self.epsilon, self.width)
        return right + _ramp_curvature(-residual - self.epsilon, self.width)


@final
class Multinomial(Loss):
    """log Σ_k e^{f_k} - f_y over c adjacent entries for each observation; y is one-hot.

    The value is divided equally among the c entries; the second derivative couples them.
    """

    curvature_bound = 0.5

    def __init__(self, num_classes: int) -> None:
        if num_classes < 2:
            raise ValueError(f"Multinomial needs at least two classes, not {num_classes}.")
        self.num_classes = num_classes

    def value(self, f: Entries, y: Entries) -> Entries:
        scores, codes = self._split(f), self._split(y)
        total = torch.logsumexp(scores, -1, keepdim=True) - (scores * codes).sum(-1, keepdim=True)
        return (total / self.num_classes).expand_as(scores).flatten(-2)

    def slope(self, f: Entries, y: Entries) -> Entries:
        return torch.softmax(self._split(f), -1).flatten(-2) - y

    def curvature(self, f: Entries, y: Entries) -> Entries:
        raise ValueError("The multinomial loss couples its entries: use curvature_product.")

    def curvature_product(self, f: Entries, y: Entries, direction: Entries) -> Entries:
        chances = torch.softmax(self._split(f), -1)
        moved = chances * self._split(direction)
        return (moved - chances * moved.sum(-1, keepdim=True)).flatten(-2)

    def _split(self, entries: Tensor) -> Tensor:
        return entries.unflatten(-1, (-1, self.num_classes))


LOSSES = {
    "absolute": lambda: EpsilonInsensitive(0.0),
    "epsilon_insensitive": EpsilonInsensitive,
    "hinge": Hinge,
    "logistic": Logistic,
    "squared": Squared,
    "squared_hinge": SquaredHinge,
}


def loss_of(loss: str | Loss) -> Loss:
    """The loss itself, or the loss of this name with its default width."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str) and loss in LOSSES:
        return LOSSES[loss]()
    close = get_close_matches(str(loss), LOSSES, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"Unknown loss {loss!r}; known names are {', '.join(sorted(LOSSES))}.{hint}")


def _ramp(t: Tensor, width: float) -> Tensor:
    """max(0, t), with a parabola (t + width)²/(4 width) where |t| < width."""
    return torch.where(t.abs() < width, (t + width).square() / (4 * width), t.relu())


def _ramp_slope(t: Tensor, width: float) -> Tensor:
    return ((t + width) / (2 * width)).clamp(0, 1)


def _ramp_curvature(t: Tensor, width: float) -> Tensor:
    return (t.abs() < width).to(t) / (2 * width)


def _positive(value: float, name: str) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite, not {value!r}.")
    return float(value)
