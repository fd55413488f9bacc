"""Second moments E[φ(u)φ(v)] of activations of two Gaussian values: what a wide layer does to a kernel.

They are given by the arc-cosine formula for ReLU (Cho and Saul 2009), and by the arc-sine formula for erf
(Williams 1997). Gradients are closed forms too, because those of arccos and arcsin are infinite if inputs
coincide, while those of the moments are not. `left` and `right` are the variances of u and v; all three
arguments broadcast.
"""

from __future__ import annotations

import math
from typing import Literal, final

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

Activation = Literal["erf", "relu"]
ACTIVATIONS = ("erf", "relu")


def second_moment(activation: Activation, covariance: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """E[φ(u)φ(v)] for (u, v) with these variances and this covariance, in a new tensor.

    Parameters
    ----------
    activation : "relu" or "erf"
        φ.
    covariance : Tensor
        cov(u, v), any shape that broadcasts with the variances.
    left, right : Tensor
        The variances of u and v, not negative.
    """
    return (_Rectified if activation == "relu" else _Sigmoid).apply(covariance, left, right)


def mean_square(activation: Activation, variance: Tensor) -> Tensor:
    """E[φ(u)²], the second moment of a value with itself."""
    if activation == "relu":
        return variance / 2
    # arcsin(2k/(1+2k)) = arctan(2k/√(1+4k))
    return 2 / math.pi * torch.atan2(2 * variance, (1 + 4 * variance).sqrt())


@final
class _Rectified(torch.autograd.Function):
    """√(k k′)/2π · (sin θ + (π-θ) cos θ), cos θ = covariance/√(k k′); zero where a variance is zero."""

    @staticmethod
    def forward(ctx: BackwardCFunction, covariance: Tensor, left: Tensor, right: Tensor) -> Tensor:
        inverse_left, inverse_right = _inverse_root(left), _inverse_root(right)
        # -cos θ, because π-θ = arccos(-cos θ)
        opposite = (covariance * -inverse_left).mul_(inverse_right).clamp_(-1, 1)
        angle = opposite.acos()
        ctx.save_for_backward(opposite, angle, left, right)
        moment = _sine(opposite).addcmul_(angle, opposite, value=-1)
        return moment.mul_(left.sqrt() / (2 * math.pi)).mul_(right.sqrt())

    @staticmethod
    def backward(ctx: BackwardCFunction, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_graph()
        (gradient,) = grad_outputs
        opposite, angle, left, right = list(ctx.saved_tensors)
        # ∂/∂covariance = (π-θ)/2π,  ∂/∂k = sin θ/4π √(k′/k)
        by_covariance = (gradient * angle).mul_(1 / (2 * math.pi)) if ctx.needs_input_grad[0] else None
        by_left = by_right = None
        if any(ctx.needs_input_grad[1:]):
            common = _sine(opposite).mul_(gradient).mul_(1 / (4 * math.pi))
            by_left = (common * right.sqrt()).sum_to_size(left.shape) * _inverse_root(left)
            by_right = (common * left.sqrt()).sum_to_size(right.shape) * _inverse_root(right)
        return by_covariance, by_left, by_right


@final
class _Sigmoid(torch.autograd.Function):
    """2/π · arcsin r with r = 2·covariance/√((1+2k)(1+2k′))."""

    @staticmethod
    def forward(ctx: BackwardCFunction, covariance: Tensor, left: Tensor, right: Tensor) -> Tensor:
        ratio = (covariance * (2 * (1 + 2 * left).rsqrt())).mul_((1 + 2 * right).rsqrt())
        cosine = _sine(ratio.clamp_(-1, 1))
        # Cauchy-Schwarz: 1 - r² ≥ (1+2k+2k′)/((1+2k)(1+2k′)), which rounding at large variances would break.
        low_left, low_right = (1 + 2 * left).reciprocal(), (1 + 2 * right).reciprocal()
        cosine = torch.maximum(cosine, (low_left + low_right - low_left * low_right).sqrt(), out=cosine)
        ctx.save_for_backward(ratio, cosine, left, right)
        return torch.atan2(ratio, cosine).mul_(2 / math.pi)

    @staticmethod
    def backward(ctx: BackwardCFunction, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_graph()
        (gradient,) = grad_outputs
        ratio, cosine, left, right = list(ctx.saved_tensors)
        # ∂/∂r = 2/π / √(1-r²),  ∂r/∂covariance = 2/√((1+2k)(1+2k′)),  ∂r/∂k = -r/(1+2k)
        by_ratio = (gradient / cosine).mul_(2 / math.pi)
        by_covariance = by_ratio * (2 * (1 + 2 * left).rsqrt()) * (1 + 2 * right).rsqrt()
        by_left = by_right = None
        if any(ctx.needs_input_grad[1:]):
            common = by_ratio.mul_(ratio)
            by_left = -common.sum_to_size(left.shape) / (1 + 2 * left)
            by_right = -common.sum_to_size(right.shape) / (1 + 2 * right)
        return by_covariance, by_left, by_right


def _refuse_graph() -> None:
    """Refuse second derivatives, which would silently miss terms."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "Kernels of wide networks have no second derivatives (those of ReLU are infinite where inputs "
            "coincide): take differences of gradients, without create_graph=True."
        )


def _sine(cosine: Tensor) -> Tensor:
    """√((1-c)(1+c)); 1-c² would lose half the digits near ±1."""
    return (1 - cosine).mul_(1 + cosine).sqrt_()


def _inverse_root(variance: Tensor) -> Tensor:
    """1/√k, and 0 at k = 0, where a ReLU moment has a kink: its subgradient 0 is taken."""
    return torch.where(variance > 0, variance.rsqrt(), 0)
