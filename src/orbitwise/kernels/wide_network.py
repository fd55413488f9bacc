"""Infinitely wide fully connected networks (Neal 1996; Lee et al. 2018; Matthews et al. 2018; Talk, recap).

With d columns K₀ = σ_b² + σ_w² xᵀx′/d, then K_{l+1} = σ_b² + σ_w² E[φ(u)φ(v)] for (u, v) ~ N(0, K_l).
A residual block adds what it is given: K_{l+1} = K_l + σ_b² + σ_w² E[φ(u)φ(v)].
"""

from __future__ import annotations

from typing import Any, final

from torch import Tensor

from orbitwise.kernels.activations import mean_square, second_moment
from orbitwise.kernels.wide_kernel import WideKernel, affine


@final
class WideNetworkKernel(WideKernel):
    """The covariance of one output of a random fully connected network with infinitely wide hidden layers.

    `depth` counts the hidden layers: a first affine layer, after it depth - 1 more (or residual blocks), each
    of which sees activations of the one before, and an affine readout of the last activations. The first
    layer's weights have variance σ_w²/d, so inputs of unit spread in each column are of the right size. The
    default is the one that keeps the scale of ReLU layers. A kernel of erf units is bounded: wrap it in a
    `ScaleKernel` to learn its height.
    """

    def __init__(
        self,
        depth: int = 1,
        activation: str = "relu",
        weight_variance: float = 2.0,
        bias_variance: float = 0.1,
        residual: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(depth, activation, weight_variance, bias_variance, residual, **kwargs)

    def _covariance(self, x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        left, right = (affine(x.square().mean(-1, keepdim=True), weight, bias) for x in (x1, x2))
        product = (x1 / x1.shape[-1]) @ x2.mT
        return self._layers(affine(product, weight, bias), left, right.mT, weight, bias)

    def _paired(self, x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        weight, bias = weight[..., 0], bias[..., 0]
        left, right, product = (
            affine((a * b).mean(-1), weight, bias) for a, b in ((x1, x1), (x2, x2), (x1, x2))
        )
        return self._layers(product, left, right, weight, bias)

    def _layers(self, inner: Tensor, left: Tensor, right: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """From the covariance of the first layer to that of the output."""
        for layer in range(self.depth):
            is_block = self.residual and layer < self.depth - 1
            moment = affine(second_moment(self.activation, inner, left, right), weight, bias)
            inner = inner + moment if is_block else moment
            if layer < self.depth - 1:
                left, right = (
                    (variance if is_block else 0) + weight * mean_square(self.activation, variance) + bias
                    for variance in (left, right)
                )
        return inner
